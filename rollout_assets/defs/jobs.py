"""Named pieces of a campaign's graph, which sensors, schedules and the headless command launch."""

from __future__ import annotations

from typing import Any

import dagster as dg

from rollout_assets.defs.checks import shard_check_keys
from rollout_assets.defs.keys import (
    CAMPAIGN_TAG,
    OBSERVE,
    PLAN,
    PROMOTE,
    READINGS,
    ROLLOUT_SHARD_PLAN,
    ROLLOUT_SHARDS,
    ROLLOUTS_ZARR,
    SHARD,
    SHARD_CHECKS,
    VALIDATED_SHARDS,
    VIN_OFFLINE_STORE,
    VIN_SOURCE_ROWS,
    CampaignKeys,
)


def campaign_jobs(keys: CampaignKeys) -> dict[str, Any]:
    """The jobs of a campaign: observe, plan, one shard with its checks, its checks alone, and promotion."""

    def job(name: str, selection: dg.AssetSelection, description: str) -> Any:
        tags = {CAMPAIGN_TAG: keys.config.name}
        return dg.define_asset_job(keys.job(name), selection, description=description, tags=tags)

    def assets(*names: str) -> dg.AssetSelection:
        return dg.AssetSelection.assets(*(keys.key(name) for name in names))

    shard = assets(VIN_SOURCE_ROWS, ROLLOUT_SHARDS, VALIDATED_SHARDS)
    checks = dg.AssetSelection.checks(*shard_check_keys(keys))
    promoted = assets(ROLLOUTS_ZARR, *READINGS)
    return {
        OBSERVE: job(OBSERVE, assets(VIN_OFFLINE_STORE), "See whether the source has changed."),
        PLAN: job(PLAN, assets(ROLLOUT_SHARD_PLAN), "Plan shards for rows that have none."),
        SHARD: job(SHARD, shard, "Build, check and validate one shard."),
        SHARD_CHECKS: job(
            SHARD_CHECKS,
            checks,
            "Check one shard again without building it: give the shard as the tag dagster/partition.",
        ),
        PROMOTE: job(
            PROMOTE, promoted, "Promote all validated shards, check the result, and make its report and metrics."
        ),
    }
