"""Checks that a promotion did not reach, because it failed: their last results stay as they are.

Dagster records every check of a run as planned when the run is made, and shows a planned check of a failed run as a
failed one. A promotion that fails has examined nothing of the store that readers have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable

from rollout_assets.defs.step import CampaignStep


@contextmanager
def checks_withdrawn_on_failure(step: CampaignStep) -> Iterator[None]:
    """Withdraw the planned checks of a run whose promotion fails; a step that is retried records them again."""
    try:
        yield
    except BaseException:
        _withdraw_planned_checks(step)
        raise


def _withdraw_planned_checks(step: CampaignStep) -> None:
    """Dagster has no public way to say that a planned check is not executed."""
    storage, executions = step.instance.event_log_storage, AssetCheckExecutionsTable
    assert isinstance(storage, SqlEventLogStorage)  # every storage of Dagster is one
    planned = executions.c.execution_status == AssetCheckExecutionRecordStatus.PLANNED.value
    with storage.index_connection() as connection:
        connection.execute(executions.delete().where((executions.c.run_id == step.run_id) & planned))
