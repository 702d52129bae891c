"""Named pieces of a campaign's graph, which sensors, schedules and the headless command launch."""

from __future__ import annotations

from typing import Any

import dagster as dg

from rollout_assets.defs import keys as names
from rollout_assets.defs.assets import defined_assets
from rollout_assets.defs.checks import shard_check_keys, store_check_keys, up_to_date_key
from rollout_assets.defs.keys import CampaignKeys


def campaign_jobs(keys: CampaignKeys) -> dict[str, Any]:
    """The jobs of a campaign: observe, plan, one shard, its checks alone, promotion, the store's checks alone.

    Promotion may also begin from all shards, the version that readers have can be described without a promotion, and
    the check ``up_to_date`` has a job for its clock.
    A campaign that asks for a training has one more, and no other job of it trains.
    """

    def assets(*chosen: str) -> dg.AssetSelection:
        return dg.AssetSelection.assets(*(keys.key(name) for name in chosen))

    pieces = {
        names.OBSERVE: (assets(names.VIN_OFFLINE_STORE), "See whether the source has changed."),
        names.PLAN: (
            assets(names.VIN_OFFLINE_STORE, names.ROLLOUT_SHARD_PLAN),
            "See whether the source has changed, and plan shards for rows that have none.",
        ),
        names.SHARD: (
            assets(names.VIN_SOURCE_ROWS, names.ROLLOUT_SHARDS, names.VALIDATED_SHARDS),
            "Build, check and validate one shard.",
        ),
        names.SHARD_CHECKS: (
            dg.AssetSelection.checks(*shard_check_keys(keys)),
            "Check one shard again without building it: give the shard as the tag dagster/partition, or none for all.",
        ),
        names.PROMOTE: (
            assets(names.ROLLOUTS_ZARR, *names.READINGS),
            "Promote all validated shards, check the result, and make its report and metrics.",
        ),
        names.STORE_CHECKS: (
            dg.AssetSelection.checks(*store_check_keys(keys)),
            "Check the promoted store again as it lies there, without promoting.",
        ),
    }
    promotion = pieces[names.PROMOTE][0]
    pieces[names.PROMOTE_ANEW] = (promotion, "Promote from all shards, and not from the last version; then check it.")
    pieces[names.DESCRIBE] = (
        assets(*names.READINGS) | dg.AssetSelection.checks(*store_check_keys(keys)),
        "Check the version that readers have, and make its report and metrics, without promoting.",
    )
    pieces[names.UP_TO_DATE] = (
        dg.AssetSelection.checks(up_to_date_key(keys)),
        "Check whether anything on the way from the source to the promoted store is stale.",
    )
    policy_assets = [asset.name for asset in defined_assets(keys) if asset.name in names.POLICY_CHAIN]
    if policy_assets:
        description = "Train a policy on the promoted store, evaluate it, and check whether it is accepted."
        pieces[names.TRAIN_AND_EVALUATE] = (assets(*policy_assets), description)
    tags = {names.CAMPAIGN_TAG: keys.config.name}
    further = {names.PROMOTE_ANEW: {names.ANEW_TAG: "true"}}
    return {
        name: dg.define_asset_job(keys.job(name), selection, description=description, tags=tags | further.get(name, {}))
        for name, (selection, description) in pieces.items()
    }
