"""Named pieces of a campaign's graph that automation and the headless command launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dagster as dg

from rollout_assets.campaigns.check_names import INTEGRITY_CHECKS, QUALITY_CHECKS
from rollout_assets.defs.campaign import (
    READINGS,
    ROLLOUT_SHARD_PLAN,
    ROLLOUT_SHARDS,
    ROLLOUTS_ZARR,
    VALIDATED_SHARDS,
    VIN_OFFLINE_STORE,
    VIN_SOURCE_ROWS,
    CampaignKeys,
)

CAMPAIGN_TAG = "rollout_assets/campaign"
"""Run tag with the campaign's name."""


@dataclass(frozen=True)
class CampaignJobs:
    """The jobs of one campaign."""

    observe: Any
    plan: Any
    shard: Any
    shard_checks: Any
    promote: Any

    def all(self) -> tuple[Any, ...]:
        """Every job, in the order of the graph."""
        return (self.observe, self.plan, self.shard, self.shard_checks, self.promote)


def campaign_jobs(place: CampaignKeys) -> CampaignJobs:
    """Observe, plan, one shard with its checks, its checks alone, and promotion with its checks."""

    def job(name: str, selection: dg.AssetSelection, description: str) -> Any:
        tags = {CAMPAIGN_TAG: place.config.name}
        return dg.define_asset_job(f"{place.name}_{name}", selection, description=description, tags=tags)

    def assets(*names: str) -> dg.AssetSelection:
        return dg.AssetSelection.assets(*(place.key(name) for name in names))

    shards = {ROLLOUT_SHARDS: INTEGRITY_CHECKS, VALIDATED_SHARDS: QUALITY_CHECKS}
    checks = [dg.AssetCheckKey(place.key(asset), name) for asset, names in shards.items() for name in names]
    return CampaignJobs(
        observe=job("observe", assets(VIN_OFFLINE_STORE), "Look whether the source has changed."),
        plan=job("plan", assets(ROLLOUT_SHARD_PLAN), "Plan shards for rows that have none."),
        shard=job(
            "shard",
            assets(VIN_SOURCE_ROWS, ROLLOUT_SHARDS, VALIDATED_SHARDS),
            "Build, check and validate one shard.",
        ),
        shard_checks=job(
            "shard_checks",
            dg.AssetSelection.checks(*checks),
            "Check one shard again without building it: give the shard as the tag dagster/partition.",
        ),
        promote=job(
            "promote",
            assets(ROLLOUTS_ZARR, *READINGS),
            "Promote all validated shards, check the result, and make its report and metrics.",
        ),
    )
