"""Sensors of a campaign: new snippets, switched on by whoever wants it, the shards of a night, and promotion.

Every evaluation compares source, plan, files and instance as they are, so a missed one costs nothing. It writes
nothing: Dagster, or a run, does that once a tick is accepted. An edited campaign is never rebuilt automatically: that
is a decision, and it starts by materializing the plan.
"""

from typing import Any

import dagster as dg

from rollout_assets.defs.keys import DESCRIBE, PLAN, PROMOTE, SHARD, CampaignKeys
from rollout_assets.defs.lazy import load
from rollout_assets.errors import RolloutAssetsError


def campaign_sensors(keys: CampaignKeys, jobs: dict[str, Any]) -> list[dg.SensorDefinition]:
    """The sensors of a campaign."""

    @dg.sensor(
        name=f"{keys.name}_new_snippets",
        jobs=[jobs[PLAN], jobs[SHARD]],
        minimum_interval_seconds=keys.config.automation.look_every_s,
        description="Plans source rows that no shard owns yet and runs the new shards, once each.",
    )
    def new_snippets(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return evaluate("automation.shards.request_new_shards", keys, context)

    @dg.sensor(
        name=f"{keys.name}_nightly_shards",
        job=jobs[SHARD],
        minimum_interval_seconds=keys.config.automation.look_every_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Runs the shards after each planning of the schedule {keys.name}_nightly, once each.",
    )
    def nightly_shards(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return evaluate("automation.shards.request_nights_shards", keys, context)

    @dg.sensor(
        name=f"{keys.name}_promotion",
        jobs=[jobs[PROMOTE], jobs[DESCRIBE]],
        minimum_interval_seconds=keys.config.automation.look_every_s,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Promotes the campaign when every planned shard is validated, unless a rollback pins readers. "
        "A promotion that failed is tried again some time later, or when something has changed. After a rollback, "
        "checks, report and metrics follow the version that readers have.",
    )
    def promotion(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return evaluate("automation.promotion.request_promotion", keys, context)

    return [new_snippets, nightly_shards, promotion]


def evaluate(request: str, keys: CampaignKeys, context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """The runs that a function of ``automation`` asks for; an error in the data is the reason why it asks for none.

    A sensor looks at nothing while nothing has changed since a look that asked for nothing.
    """
    try:
        step = load("step.CampaignStep").of_tick(keys, context)
        result: dg.SensorResult = load("automation.quiet.unless_quiet")(step, context.cursor, load(request))
    except RolloutAssetsError as error:
        return dg.SensorResult(skip_reason=f"{type(error).__name__}: {error}")
    return result
