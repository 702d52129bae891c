"""The assets of a campaign: their keys, order and descriptions. What each one computes lies in the modules beside.

Assets hand each other nothing but files: a result is metadata and a data version, never a pickled value.
"""

import warnings
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from rollout_assets.defs import keys as names
from rollout_assets.defs.asset_pages import asset_page
from rollout_assets.defs.keys import CampaignKeys
from rollout_assets.defs.lazy import load
from rollout_assets.defs.resources import CampaignFiles
from rollout_assets.defs.retries import RETRIES, failures_for_dagster

OWNERS = ["team:rollout-data"]
PRIORITY_TAG = "dagster/priority"

SOURCE_DESCRIPTION = (
    "Recorded indoor snippets, one row each: trajectory, camera, points, detected boxes, and the true mesh. "
    "The recording team writes them; we only read. Observe it to see whether snippets were added."
)


ALLOW_FEWER_CONFIG = {
    names.ALLOW_FEWER: dg.Field(
        bool,
        default_value=False,
        description="Accept missing inputs, and fewer records or rows than there are; otherwise they are refused.",
    )
}
"""Run config of the steps that could make something smaller."""


@dataclass(frozen=True)
class CampaignAsset:
    """One computed asset. ``compute`` is the path of the function; ``by_config``: an edited campaign makes it stale.

    ``section`` is the part of a campaign that asks for the asset, and that makes it stale when edited; a campaign
    without it does not have the asset.
    Of steps that could run next, those with a lower ``priority`` wait for the others.

    ``follows``: whoever switches on Dagster's sensor for automation conditions gets the asset anew after whatever it is
    made from. Promotion is no such condition but a sensor of ours, because it depends on plan, files and pins, of which
    Dagster's conditions see nothing.
    """

    name: str
    upstream: str
    compute: str
    kinds: AbstractSet[str]
    description: str
    partitioned: bool = False
    by_config: bool = False
    section: str | None = None
    pool: str | None = None
    priority: int = 0
    follows: bool = False
    ages: bool = False
    """Whether it is overdue when it has not been made for the campaign's ``[automation] overdue_days``."""
    shrinks: bool = False
    """Whether its run config may accept fewer rows than there are."""


ASSETS = (
    CampaignAsset(
        names.ROLLOUT_SHARD_PLAN,
        names.VIN_OFFLINE_STORE,
        "assets.plan.rollout_shard_plan",
        {"json"},
        "Which source rows each rollout shard owns: one line per shard, and one partition per line. Shards of the "
        "source, in which the recording team keeps its rows, are something else.\n\n"
        "Planning again after new snippets only appends; existing shards stay as they are. After an edited campaign "
        "the same rows are planned under the new hashes: materialize this first, then the shards.",
        by_config=True,
    ),
    CampaignAsset(
        names.VIN_SOURCE_ROWS,
        names.ROLLOUT_SHARD_PLAN,
        "assets.shards.vin_source_rows",
        {"zarr"},
        "The source rows of one rollout shard, compared with the plan: the same samples, still readable, with their "
        "meshes.\n\nA row that is gone or was replaced is refused here, before any view is scored, and so is a mesh "
        "that is missing although it was there when the shard was planned or built, unless the run config says "
        "``allow_fewer: true``.",
        partitioned=True,
    ),
    CampaignAsset(
        names.ROLLOUT_SHARDS,
        names.VIN_SOURCE_ROWS,
        "assets.shards.rollout_shards",
        {"zarr", "warp"},
        "Rollouts of one rollout shard's source rows: targets, candidate views, oracle scores and chosen "
        "paths, as one Zarr store.\n\nEverything is generated and scored here, on the GPU if there is one. A shard "
        "that is finished and current is only read and checked; anything else in its place is set aside, and the "
        "shard is built again. A finished shard is not replaced by one with fewer records, unless the run config says "
        "``allow_fewer: true``.",
        partitioned=True,
        by_config=True,
    ),
    CampaignAsset(
        names.VALIDATED_SHARDS,
        names.ROLLOUT_SHARDS,
        "assets.shards.validated_shards",
        {"zarr"},
        "A rollout shard that may be promoted: every byte read, the validator run, hashes and rows compared with "
        "the plan.\n\nThe shard is examined here too, and not only by the checks before it, so that a damaged shard "
        "cannot pass in a later run either. What was found of the very same bytes before counts, with its time.",
        partitioned=True,
    ),
    CampaignAsset(
        names.ROLLOUTS_ZARR,
        names.VALIDATED_SHARDS,
        "assets.store.rollouts_zarr",
        {"zarr"},
        "The promoted store that training reads: all validated shards, one child store per split, behind one link.\n\n"
        "Refused while a planned shard is not validated, or is not what was validated; readers keep the version they "
        "have. A split with fewer rows than readers have is refused too, with what went and why, unless the run config "
        "says ``allow_fewer: true``.",
        ages=True,
        shrinks=True,
    ),
    CampaignAsset(
        names.ROLLOUT_REPORT,
        names.ROLLOUTS_ZARR,
        "assets.readings.rollout_report",
        {"html"},
        "One HTML page per split of the promoted store: funnel, refusals, gains, depth, suspicious rows, and lineage."
        "\n\nThe pages need no network and no server: open them in a browser, or send them to somebody. They are "
        "written after the check ``second_opinion`` of the same run, whose result they show.",
        priority=-1,
        follows=True,
    ),
    CampaignAsset(
        names.ROLLOUT_METRICS,
        names.ROLLOUTS_ZARR,
        "assets.readings.rollout_metrics",
        {"table"},
        "How well each recipe does: rewards of the promoted store's rollouts, and of every result file collected for "
        "it.\n\nCollected files lie in the campaign's folder ``collected``; missing and refused results are counted "
        "as such, never as zero.",
        follows=True,
    ),
    CampaignAsset(
        names.TRAINED_POLICY,
        names.ROLLOUTS_ZARR,
        "assets.policy.trained_policy",
        {"torch"},
        "A policy trained on the promoted split ``train``, and on the stores of earlier rounds that the campaign's "
        "section ``[training]`` names.\n\nA training that was stopped goes on to the same weights, a finished one is "
        "found again, and an edited one gets a folder of its own; ``policy/policy.safetensors`` is the latest.",
        section="training",
        pool=names.GPU_POOL,
    ),
    CampaignAsset(
        names.POLICY_EVALUATION,
        names.TRAINED_POLICY,
        "assets.policy.policy_evaluation",
        {"table", "html"},
        "The trained policy on held-out scenes, beside chance, the oracle and the policies of the section "
        "``[evaluation]``, all from the same roots with the same views on offer.\n\nIts checks decide whether the "
        "policy is accepted; accepted ones are kept below ``accepted/``.",
        section="evaluation",
        pool=names.GPU_POOL,
    ),
)
"""Every computed asset that a campaign can have, in the order of the graph."""


def campaign_assets(keys: CampaignKeys) -> list[dg.AssetsDefinition]:
    """The assets of a campaign that have no partitions; those of its shards are one step, in ``shards.chain``."""
    whole = [asset for asset in defined_assets(keys) if not asset.partitioned]
    return [_observed_source(keys), *(_computed(keys, asset) for asset in whole)]


def defined_assets(keys: CampaignKeys) -> list[CampaignAsset]:
    """The computed assets that a campaign has: those that need no section, and those whose section it gives."""
    return [about for about in ASSETS if about.section is None or getattr(keys.config, about.section) is not None]


def _computed(keys: CampaignKeys, about: CampaignAsset) -> dg.AssetsDefinition:
    @dg.asset(
        key=keys.key(about.name),
        deps=[keys.key(about.upstream)],
        description=about.description,
        group_name=keys.name,
        kinds=set(about.kinds),
        owners=OWNERS,
        retry_policy=RETRIES,
        config_schema=ALLOW_FEWER_CONFIG if about.shrinks else None,
        metadata=asset_page(keys, about.name, about.compute),
        code_version=code_version(keys, about),
        pool=about.pool,
        op_tags={PRIORITY_TAG: str(about.priority)} if about.priority else None,
        automation_condition=dg.AutomationCondition.eager() if about.follows else None,
        freshness_policy=_freshness(keys) if about.ages else None,
    )
    def asset(context: dg.AssetExecutionContext, campaigns: CampaignFiles) -> dg.MaterializeResult[None]:
        with failures_for_dagster():
            return load(about.compute)(load("step.CampaignStep").of_run(keys, context, campaigns))

    return asset


def _freshness(keys: CampaignKeys) -> dg.FreshnessPolicy:
    return dg.FreshnessPolicy.time_window(fail_window=timedelta(days=keys.config.automation.overdue_days))


def code_version(keys: CampaignKeys, about: CampaignAsset) -> str:
    """What an asset is stale by, when it changes."""
    if about.section is not None:
        return str(getattr(keys.config, about.section).config_hash)
    return keys.config.writer_config_hash if about.by_config else "1"


def _observed_source(keys: CampaignKeys) -> dg.AssetsDefinition:
    spec = dg.AssetSpec(
        keys.key(names.VIN_OFFLINE_STORE),
        description=SOURCE_DESCRIPTION,
        group_name=keys.name,
        kinds={"zarr"},
        owners=OWNERS,
        metadata=asset_page(keys, names.VIN_OFFLINE_STORE, "assets.source.vin_offline_store"),
    )

    def observe(context: dg.AssetExecutionContext, campaigns: CampaignFiles) -> dg.ObserveResult:
        with failures_for_dagster():
            return load("assets.source.vin_offline_store")(load("step.CampaignStep").of_run(keys, context, campaigns))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # the one way to observe a source that has an AssetSpec
        name = f"{keys.name}__{names.VIN_OFFLINE_STORE}"
        return dg.multi_observable_source_asset(specs=[spec], name=name)(observe)
