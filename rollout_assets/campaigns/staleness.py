"""What of a campaign is stale, and why, by looking at the files.

Dagster's own staleness compares recorded versions one edge at a time, does not show partitioned nodes, and gives up at
100 partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.plan_entry import PlannedShards, shard_id_of
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.status import promoted_behind, unplanned_rows
from rollout_assets.config import CampaignConfig
from rollout_assets.config.differences import changed_fields
from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store.manifest import read_rollout_store_manifest
from rollout_assets.sources.vin_store import VinOfflineStore

_PLAN = "materialize rollout_shard_plan"
_SHARD = "materialize this partition"
_PROMOTE = "materialize rollouts_zarr when all shards are validated"
_UNPIN = "rollout-assets campaign unpin, when the rollback is no longer needed"


@dataclass(frozen=True)
class StalePart:
    """Something that is not what the campaign and its source ask for now."""

    what: str
    why: str
    remedy: str


def stale_parts(config: CampaignConfig, source: VinOfflineStore) -> list[StalePart]:
    """Everything stale, from the source down to the promoted store; empty when all is current."""
    survey = CampaignSurvey.of(config)
    stale = [*_stale_plan(config, survey.planned, source), *_stale_shards(config, survey, source)]
    return [*stale, *_stale_promotion(config, survey)]


def _stale_promotion(config: CampaignConfig, survey: CampaignSurvey) -> Iterator[StalePart]:
    behind = promoted_behind(config, survey.planned, survey)
    pin = read_pin(CampaignLayout.of(config))
    if behind and pin is not None:
        yield StalePart("rollouts_zarr", f"{behind}; {pin.holds}", _UNPIN)
    elif behind:
        yield StalePart("rollouts_zarr", behind, _PROMOTE)


def _stale_plan(config: CampaignConfig, entries: PlannedShards, source: VinOfflineStore) -> Iterator[StalePart]:
    new = unplanned_rows(config, entries, source)
    if new:
        yield StalePart("rollout_shard_plan", f"{len(new)} new source row(s), from {new[0]} on", _PLAN)
    for change in islice(entries.config_changes(config).values(), 1):
        yield StalePart("rollout_shard_plan", change, _PLAN)


def _stale_shards(config: CampaignConfig, survey: CampaignSurvey, source: VinOfflineStore) -> Iterator[StalePart]:
    layout = CampaignLayout.of(config)
    changes = survey.planned.config_changes(config)
    edits: dict[str, str] = {}
    for number, current in enumerate(survey.current(source).tolist()):
        shard_id, problems = shard_id_of(number), list[str]()
        if not current:
            problems += shard_problems(layout.shard(shard_id), survey.planned[number], source, deep=False)
        if number in changes:
            planned_for = survey.planned.columns.names["configs"][survey.planned.columns.config[number]]
            if planned_for not in edits:
                edits[planned_for] = _edits(config, layout.shard(shard_id) / STORE_NAME)
            problems.append(f"the campaign's config has changed since it was planned{edits[planned_for]}")
        if problems:
            yield StalePart(shard_id, "; ".join(problems), _SHARD)


def _edits(config: CampaignConfig, store: Path) -> str:
    """The fields that were edited since a store was made, in words; empty if the store does not say what made it."""
    try:
        recorded = CampaignConfig.recorded(read_rollout_store_manifest(store)["generation"]["writer_config"])
    except (StoreDamaged, KeyError, TypeError, ValidationError):
        return ""
    fields = "; ".join(changed_fields(recorded, config))
    return f": {fields}" if fields else ""
