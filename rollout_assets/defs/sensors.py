"""Sensors of a campaign: one for new snippets, switched on by whoever wants it, and one for promotion.

Every evaluation compares source, plan, files and instance as they are, so a missed one costs nothing. An edited
campaign is never rebuilt automatically: that is a decision, and it starts by materializing the plan.
"""

from typing import Any

import dagster as dg

from rollout_assets.defs.keys import PROMOTE, SHARD, CampaignKeys
from rollout_assets.defs.lazy import load
from rollout_assets.errors import RolloutAssetsError

EVALUATE_EVERY_S = 30
"""Seconds between two evaluations of a sensor."""


def campaign_sensors(keys: CampaignKeys, jobs: dict[str, Any]) -> list[dg.SensorDefinition]:
    """The sensors of a campaign."""

    @dg.sensor(
        name=f"{keys.name}_new_snippets",
        job=jobs[SHARD],
        minimum_interval_seconds=EVALUATE_EVERY_S,
        description="Plans source rows that no shard owns yet and runs the new shards, once each.",
    )
    def new_snippets(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return evaluate("requests.request_new_shards", keys, context)

    @dg.sensor(
        name=f"{keys.name}_promotion",
        job=jobs[PROMOTE],
        minimum_interval_seconds=EVALUATE_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Promotes the campaign when every planned shard is validated.",
    )
    def promotion(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return evaluate("requests.request_promotion", keys, context)

    return [new_snippets, promotion]


def evaluate(
    request: str,
    keys: CampaignKeys,
    context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext,
) -> dg.SensorResult:
    """The runs that a function of ``requests`` asks for; an error in the data is the reason why it asks for none.

    A sensor looks at nothing while nothing has changed since a look that asked for nothing; a schedule always looks.
    """
    try:
        step, look = load("step.CampaignStep").of_tick(keys, context), load(request)
        if isinstance(context, dg.ScheduleEvaluationContext):
            result: dg.SensorResult = look(step)
        else:
            result = load("quiet.unless_quiet")(step, context.cursor, look)
    except RolloutAssetsError as error:
        return dg.SensorResult(skip_reason=f"{type(error).__name__}: {error}")
    return result
