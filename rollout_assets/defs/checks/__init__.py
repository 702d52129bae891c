"""The checks of a campaign: of every shard, and of the promoted store. What each group finds lies in modules beside.

Checks that read the same data share one step, so that the data is read once.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg

from rollout_assets.campaigns import check_names
from rollout_assets.defs.assets import defined_assets
from rollout_assets.defs.keys import (
    POLICY_EVALUATION,
    ROLLOUT_REPORT,
    ROLLOUT_SHARDS,
    ROLLOUTS_ZARR,
    VALIDATED_SHARDS,
    CampaignKeys,
)
from rollout_assets.defs.lazy import load
from rollout_assets.defs.resources import CampaignFiles
from rollout_assets.defs.retries import RETRIES, failures_for_dagster


@dataclass(frozen=True)
class CheckGroup:
    """Checks of one asset that share one step. ``evaluate`` is the path of the function that yields their verdicts.

    ``needs`` is what must be there before they can look at anything; ``missing.py`` says what is missing.
    """

    name: str
    asset: str
    promises: dict[str, str]
    evaluate: str
    needs: str
    partitioned: bool = False
    blocking: bool = False


CHECK_GROUPS = (
    CheckGroup(
        "integrity",
        ROLLOUT_SHARDS,
        check_names.INTEGRITY_CHECKS,
        "checks.shards.integrity",
        "plan",
        partitioned=True,
        blocking=True,
    ),
    CheckGroup(
        "quality", VALIDATED_SHARDS, check_names.QUALITY_CHECKS, "checks.shards.quality", "plan", partitioned=True
    ),
    CheckGroup("checks", ROLLOUTS_ZARR, check_names.STORE_CHECKS, "checks.store.promoted_store", "promoted store"),
    CheckGroup(
        check_names.UP_TO_DATE, ROLLOUTS_ZARR, check_names.UP_TO_DATE_CHECK, "checks.current.up_to_date", "plan"
    ),
    CheckGroup(
        check_names.SECOND_OPINION,
        ROLLOUTS_ZARR,
        check_names.SECOND_OPINION_CHECK,
        "checks.store.measured_again",
        "promoted store",
    ),
    CheckGroup(
        check_names.READINESS,
        ROLLOUT_REPORT,
        check_names.READINESS_CHECK,
        "checks.readiness.ready_for_training",
        "promoted store",
    ),
    CheckGroup("checks", POLICY_EVALUATION, check_names.POLICY_CHECKS, "checks.policy.evaluated_policy", "evaluation"),
)
"""Every check that a campaign can have."""


def campaign_checks(keys: CampaignKeys) -> list[dg.AssetChecksDefinition]:
    """The checks of a campaign that have no partitions; those of its shards are part of their step."""
    defined = {asset.name for asset in defined_assets(keys) if not asset.partitioned}
    return [_checks(keys, group) for group in CHECK_GROUPS if group.asset in defined]


def shard_check_keys(keys: CampaignKeys) -> list[dg.AssetCheckKey]:
    """The checks of one shard."""
    return _check_keys(keys, ROLLOUT_SHARDS, VALIDATED_SHARDS)


def store_check_keys(keys: CampaignKeys) -> list[dg.AssetCheckKey]:
    """The checks of the promoted store, and of the report on it."""
    return _check_keys(keys, ROLLOUTS_ZARR, ROLLOUT_REPORT)


def up_to_date_key(keys: CampaignKeys) -> dg.AssetCheckKey:
    """The check that also runs by the clock."""
    return dg.AssetCheckKey(keys.key(ROLLOUTS_ZARR), check_names.UP_TO_DATE)


def _check_keys(keys: CampaignKeys, *assets: str) -> list[dg.AssetCheckKey]:
    groups = [group for group in CHECK_GROUPS if group.asset in assets]
    return [dg.AssetCheckKey(keys.key(group.asset), name) for group in groups for name in group.promises]


def check_specs(keys: CampaignKeys, group: CheckGroup) -> list[dg.AssetCheckSpec]:
    """What Dagster knows of the checks of a group."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks; our tests hold what we need of them
        return [
            dg.AssetCheckSpec(
                check,
                asset=keys.key(group.asset),
                description=promise,
                blocking=group.blocking,
                partitions_def=keys.partitions if group.partitioned else None,
            )
            for check, promise in group.promises.items()
        ]


def _checks(keys: CampaignKeys, group: CheckGroup) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"{keys.name}__{group.asset}_{group.name}",
        specs=check_specs(keys, group),
        retry_policy=RETRIES,
        can_subset=True,  # without it the UI lets nobody execute one check by itself
    )
    def checks(context: dg.AssetCheckExecutionContext, campaigns: CampaignFiles) -> Iterator[dg.AssetCheckResult]:
        asked_for = {key.name for key in context.op_execution_context.selected_asset_check_keys}
        with failures_for_dagster():
            step = load("step.CampaignStep").of_run(keys, context, campaigns)
            reason = load("checks.missing.not_yet")(step, group.needs)
            if reason is not None:
                yield from load("checks.missing.unchecked")(asked_for, reason)
                return
            yield from (result for result in load(group.evaluate)(step) if result.check_name in asked_for)

    return checks
