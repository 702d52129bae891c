"""What a campaign will take, said before any work: shards, rows and targets; from finished shards, hours and bytes."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import ShardOwner, owner_if_finished
from rollout_assets.campaigns.plan import RolloutShardEntry, ShardPlan
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import SourceError
from rollout_assets.randomness import rng_for
from rollout_assets.rollouts.target_sources import target_source_of
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.targets.selection import describe_sample

PROBED_ROWS = 32
"""Rows whose targets are selected for a forecast, spread evenly over the plan."""


@dataclass(frozen=True)
class CampaignForecast:
    """What is planned, and what is left of it. Times are of one process; None without a finished shard to go by."""

    shards: int
    rows: int
    rows_per_split: dict[str, int]
    finished_shards: int
    rows_left: int
    targets_expected: int
    views_per_step: int
    hours_left: float | None
    gigabytes_left: float | None
    gigabytes_total: float | None


def forecast_campaign(config: CampaignConfig, plan: ShardPlan, source: VinOfflineStore) -> CampaignForecast:
    """Targets by looking at some rows; hours and gigabytes from the shards that are finished."""
    owners = _finished(config, plan.entries)
    done = sum(len(owner.rows) for owner in owners)
    left = plan.num_rows - done
    seconds = sum(owner.seconds for owner in owners)
    stored = sum(owner.store.bytes for owner in owners if owner.store is not None)
    return CampaignForecast(
        shards=len(plan.entries),
        rows=plan.num_rows,
        rows_per_split=Counter(row.split for entry in plan.entries for row in entry.rows),
        finished_shards=len(owners),
        rows_left=left,
        targets_expected=round(_targets_per_row(config, plan.entries, source) * plan.num_rows),
        views_per_step=config.candidates.num_candidates,
        hours_left=seconds / done * left / 3600 if done else None,
        gigabytes_left=stored / done * left / 1e9 if done else None,
        gigabytes_total=stored / done * plan.num_rows / 1e9 if done else None,
    )


def _finished(config: CampaignConfig, entries: Sequence[RolloutShardEntry]) -> list[ShardOwner]:
    layout = CampaignLayout(config.shards.output_dir)
    owners = ((entry, owner_if_finished(layout.shard(entry.shard_id))) for entry in entries)
    return [owner for entry, owner in owners if owner is not None and owner.entry_sha256 == entry.sha256]


def _targets_per_row(config: CampaignConfig, entries: Sequence[RolloutShardEntry], source: VinOfflineStore) -> float:
    rows = [row for entry in entries for row in entry.rows]
    probed = rows[:: max(len(rows) // PROBED_ROWS, 1)]
    targets = 0
    for row in probed:
        try:
            sample = source.sample(source.row(row.sample_index))
        except SourceError:
            continue  # a row that cannot be read will have no target
        rng = rng_for(config.seed, row.sample_key, "targets")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run itself warns
            table = describe_sample(sample, config.targets)
        targets += len(target_source_of(config.targets).choose(table, config, rng))
    return targets / len(probed)
