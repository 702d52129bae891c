"""The nightly schedule of a campaign, for those who do not want new snippets to be built during the day."""

from typing import Any

import dagster as dg

from rollout_assets.defs.keys import PLAN, CampaignKeys
from rollout_assets.defs.lazy import load
from rollout_assets.errors import RolloutAssetsError


def campaign_schedules(keys: CampaignKeys, jobs: dict[str, Any]) -> list[dg.ScheduleDefinition]:
    """The schedules of a campaign."""

    @dg.schedule(
        name=f"{keys.name}_nightly",
        job=jobs[PLAN],
        cron_schedule=keys.config.automation.nightly,
        description=f"Plans new snippets once a night; the sensor {keys.name}_nightly_shards then runs all shards "
        "that are not validated, also those that failed before.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        try:
            answer = load("automation.shards.request_night")(load("step.CampaignStep").of_tick(keys, context))
        except RolloutAssetsError as error:
            return dg.SkipReason(f"{type(error).__name__}: {error}")
        return answer.requests[0] if answer.requests else dg.SkipReason(answer.reason)

    return [nightly]
