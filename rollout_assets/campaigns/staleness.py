"""What of a campaign is stale, and why, by looking at the files.

Dagster's own staleness compares recorded versions one edge at a time, does not show partitioned nodes, and gives up at
100 partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.plan import RolloutShardEntry, read_rollout_shard_manifest
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.status import promoted_behind, unplanned_rows
from rollout_assets.config import CampaignConfig
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
    entries = read_rollout_shard_manifest(config)
    stale = [*_stale_plan(config, entries, source), *_stale_shards(config, entries, source)]
    return [*stale, *_stale_promotion(config, entries)]


def _stale_promotion(config: CampaignConfig, entries: Sequence[RolloutShardEntry]) -> Iterator[StalePart]:
    behind = promoted_behind(config, entries)
    pin = read_pin(CampaignLayout(config.shards.output_dir))
    if behind and pin is not None:
        yield StalePart("rollouts_zarr", f"{behind}; {pin.holds}", _UNPIN)
    elif behind:
        yield StalePart("rollouts_zarr", behind, _PROMOTE)


def outdated_entries(config: CampaignConfig, entries: Sequence[RolloutShardEntry]) -> list[RolloutShardEntry]:
    """Entries that were planned before the campaign was edited."""
    return [entry for entry in entries if entry.config_change(config) is not None]


def _stale_plan(
    config: CampaignConfig, entries: Sequence[RolloutShardEntry], source: VinOfflineStore
) -> Iterator[StalePart]:
    new = unplanned_rows(config, entries, source)
    if new:
        yield StalePart("rollout_shard_plan", f"{len(new)} new source row(s), from {new[0]} on", _PLAN)
    outdated = outdated_entries(config, entries)
    if outdated:
        yield StalePart("rollout_shard_plan", outdated[0].config_change(config) or "", _PLAN)


def _stale_shards(
    config: CampaignConfig, entries: Sequence[RolloutShardEntry], source: VinOfflineStore
) -> Iterator[StalePart]:
    layout = CampaignLayout(config.shards.output_dir)
    for entry in entries:
        problems = list(shard_problems(layout.shard(entry.shard_id), entry, source, deep=False))
        if entry.config_change(config) is not None:
            problems.append("the campaign's config has changed since it was planned")
        if problems:
            yield StalePart(entry.shard_id, "; ".join(problems), _SHARD)
