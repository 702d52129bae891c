"""What of a campaign is stale, and why: where Dagster's own staleness ends, this looks at the files.

Dagster compares recorded versions one edge at a time, does not show partitioned nodes, and gives up at 100 partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.status import promoted_behind, unplanned_rows
from rollout_assets.defs.campaign import CampaignStep


@dataclass(frozen=True)
class StalePart:
    """Something that is not what the campaign and its source ask for now."""

    what: str
    why: str
    remedy: str


def stale_parts(step: CampaignStep) -> list[StalePart]:
    """Everything stale, from the source down to the promoted store; empty when all is current."""
    return list(_stale(step))


def _stale(step: CampaignStep) -> Iterator[StalePart]:
    config = step.config
    layout = CampaignLayout(config.shards.output_dir)
    entries = read_rollout_shard_manifest(config)
    new = unplanned_rows(config, entries, step.source)
    if new:
        yield StalePart("rollout_shard_plan", f"{len(new)} new source row(s), from {new[0]} on", _PLAN)
    edited = next(filter(None, (entry.config_change(config) for entry in entries)), None)
    if edited is not None:
        yield StalePart("rollout_shard_plan", edited, _PLAN)
    for entry in entries:
        problems = list(shard_problems(layout.shard(entry.shard_id), entry, step.source, deep=False))
        if entry.config_change(config) is not None:
            problems.append("the campaign's config has changed since it was planned")
        if problems:
            yield StalePart(entry.shard_id, "; ".join(problems), _SHARD)
    behind = promoted_behind(config, entries)
    if behind:
        yield StalePart("rollouts_zarr", behind, _PROMOTE)


_PLAN = "materialize rollout_shard_plan"
_SHARD = "materialize this partition"
_PROMOTE = "materialize rollouts_zarr when all shards are validated"
