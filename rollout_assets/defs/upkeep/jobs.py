"""Jobs that look after a promoted store: rollback, unpin and clean. Each does what the command of its name does.

What they did is in the run's events, and as an observation on the page of ``rollouts_zarr``. Run config is given in the
launchpad, for example ``ops: {demo__rollback: {config: {version: v000003, apply: true}}}``.
"""

import dagster as dg
from pydantic import Field

from rollout_assets.defs import keys as names
from rollout_assets.defs.keys import CampaignKeys
from rollout_assets.defs.lazy import load
from rollout_assets.defs.retries import failures_for_dagster

DESCRIPTIONS = {
    names.ROLLBACK: "Let readers have an earlier promoted version again, until it is unpinned. Nothing is removed. "
    "Without 'apply: true' in the run config the run only says which version that would be.",
    names.UNPIN: "Lift the pin of a rollback: the next promotion lets readers have the newest version again. "
    "Without 'apply: true' in the run config the run only says what is pinned.",
    names.CLEAN: "List what nobody needs any more, by the campaign's section [retention]: old versions, replaced "
    "plans, reports, runs and their logs. Without 'apply: true' in the run config nothing is removed.",
}
"""Job -> what it does."""


class RollbackConfig(dg.Config):
    """Which version readers get again."""

    version: str = Field(
        "", description="The version, for example v000003; if it is left empty, the last sound one before the current."
    )
    apply: bool = Field(False, description="Do it; otherwise the run only says what it would do.")


class UnpinConfig(dg.Config):
    """Whether an unpinning lifts the pin."""

    apply: bool = Field(False, description="Lift the pin; otherwise the run only says what is pinned.")


class CleanConfig(dg.Config):
    """Whether a cleaning removes anything."""

    apply: bool = Field(False, description="Remove what is listed; otherwise the run only lists it.")


def upkeep_jobs(keys: CampaignKeys) -> list[dg.JobDefinition]:
    """The three jobs of a campaign."""

    @dg.op(name=_op_name(keys, names.ROLLBACK), out=dg.Out(dg.Nothing))
    def rollback(context: dg.OpExecutionContext, config: RollbackConfig) -> None:
        with failures_for_dagster():
            load("upkeep.steps.roll_back")(keys, context, config.version, apply=config.apply)

    @dg.op(name=_op_name(keys, names.UNPIN), out=dg.Out(dg.Nothing))
    def unpin(context: dg.OpExecutionContext, config: UnpinConfig) -> None:
        with failures_for_dagster():
            load("upkeep.steps.unpin")(keys, context, apply=config.apply)

    @dg.op(name=_op_name(keys, names.CLEAN), out=dg.Out(dg.Nothing))
    def clean(context: dg.OpExecutionContext, config: CleanConfig) -> None:
        with failures_for_dagster():
            load("upkeep.steps.clean")(keys, context, apply=config.apply)

    ops = {names.ROLLBACK: rollback, names.UNPIN: unpin, names.CLEAN: clean}
    return [_job(keys, name, op) for name, op in ops.items()]


def _op_name(keys: CampaignKeys, job: str) -> str:
    """Not the job's name, because both are nodes of one repository."""
    return f"{keys.name}__{job}"


def _job(keys: CampaignKeys, name: str, op: dg.OpDefinition) -> dg.JobDefinition:
    @dg.job(name=keys.job(name), description=DESCRIPTIONS[name], tags={names.CAMPAIGN_TAG: keys.config.name})
    def job() -> None:
        op()

    return job
