"""The nightly schedule of a campaign, for machines on which no sensor runs."""

from typing import Any

import dagster as dg

from rollout_assets.defs.keys import SHARD, CampaignKeys
from rollout_assets.defs.sensors import evaluate

NIGHTLY = "0 3 * * *"
"""When the schedule looks for new snippets."""


def campaign_schedules(keys: CampaignKeys, jobs: dict[str, Any]) -> list[dg.ScheduleDefinition]:
    """The schedules of a campaign."""

    @dg.schedule(
        name=f"{keys.name}_nightly",
        job=jobs[SHARD],
        cron_schedule=NIGHTLY,
        description="Plans and runs new shards once a night, as the sensor for new snippets does, and retries failed "
        "ones.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> Any:
        result = evaluate("requests.request_new_shards", keys, context)
        return result.run_requests or result.skip_reason

    return [nightly]
