"""The chain of a shard as one step: its source rows, its rollouts, their checks, and the validated shard.

One step takes one shard or a range of them, each through the whole chain before the next, so that a backfill starts one
process for many shards and loads kernels and meshes once. What happens to each is in ``running``.
"""

from collections.abc import Iterator

import dagster as dg

from rollout_assets.defs.asset_pages import asset_page
from rollout_assets.defs.assets import ALLOW_FEWER_CONFIG, ASSETS, OWNERS, CampaignAsset, code_version
from rollout_assets.defs.checks import CHECK_GROUPS, check_specs
from rollout_assets.defs.keys import GPU_POOL, CampaignKeys
from rollout_assets.defs.lazy import load
from rollout_assets.defs.resources import CampaignFiles
from rollout_assets.defs.retries import RETRIES, failures_for_dagster


def shard_step(keys: CampaignKeys) -> dg.AssetsDefinition:
    """The assets with one partition per shard, and their checks; each can be run without the others."""

    @dg.multi_asset(
        name=f"{keys.name}__shards",
        specs=[_spec(keys, asset) for asset in ASSETS if asset.partitioned],
        check_specs=[spec for group in CHECK_GROUPS if group.partitioned for spec in check_specs(keys, group)],
        partitions_def=keys.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(keys.config.automation.shards_per_run),
        can_subset=True,
        pool=GPU_POOL,
        retry_policy=RETRIES,
        config_schema=ALLOW_FEWER_CONFIG,
    )
    def shards(context: dg.AssetExecutionContext, campaigns: CampaignFiles) -> Iterator[object]:
        with failures_for_dagster():
            step = load("step.CampaignStep").of_run(keys, context, campaigns)
            yield from load("shards.running.run_shards")(step, context)

    return shards


def _spec(keys: CampaignKeys, about: CampaignAsset) -> dg.AssetSpec:
    return dg.AssetSpec(
        keys.key(about.name),
        deps=[keys.key(about.upstream)],
        description=about.description,
        group_name=keys.name,
        kinds=set(about.kinds),
        owners=OWNERS,
        metadata=asset_page(keys, about.name, about.compute),
        code_version=code_version(keys, about),
    )
