"""The checks of the promoted store after a refused promotion: the store is what it was, and so is what is known of it.

Dagster shows every check that a failed run planned and did not reach as failed. After a refused promotion nothing was
published, so that each check gets its last result again, with a word on why.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from rollout_assets.defs.checks import store_check_keys
from rollout_assets.defs.step import CampaignStep
from rollout_assets.errors import RolloutAssetsError, may_pass

LOOKED_AT = 100
"""Executions of a check that are looked through for its last result."""

NOTHING_TO_KEEP = "Not checked: promotion was refused, and nothing was promoted before."


@contextmanager
def last_results_kept(step: CampaignStep) -> Iterator[None]:
    """Record the last results of the store's checks again if what happens inside is refused for good."""
    try:
        yield
    except RolloutAssetsError as error:
        if not may_pass(error):  # Dagster tries again what may pass, and then the checks run
            for key in store_check_keys(step.keys):
                step.instance.report_runless_asset_event(_last_result(step.instance, key))
        raise


def _last_result(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation:
    history = instance.event_log_storage.get_asset_check_execution_history(key, limit=LOOKED_AT)
    for record in history:
        if isinstance(record.evaluation, dg.AssetCheckEvaluation):  # otherwise it was planned, and never reached
            return _again(record.evaluation, record.create_timestamp)
    severity = dg.AssetCheckSeverity.WARN
    return dg.AssetCheckEvaluation(key.asset_key, key.name, False, severity=severity, description=NOTHING_TO_KEEP)


def _again(evaluation: dg.AssetCheckEvaluation, checked_at: float) -> dg.AssetCheckEvaluation:
    checked = evaluation.metadata.get("checked_at") or dg.MetadataValue.timestamp(checked_at)
    note = dg.MetadataValue.text("promotion was refused; the store is as it was, and this is its last result")
    return evaluation.with_metadata({**evaluation.metadata, "kept": note, "checked_at": checked})
