"""The nightly schedule of a campaign, for machines on which no sensor runs."""

from typing import Any

import dagster as dg

from rollout_assets.defs.keys import SHARD, CampaignKeys
from rollout_assets.defs.sensors import evaluate


def campaign_schedules(keys: CampaignKeys, jobs: dict[str, Any]) -> list[dg.ScheduleDefinition]:
    """The schedules of a campaign."""

    @dg.schedule(
        name=f"{keys.name}_nightly",
        job=jobs[SHARD],
        cron_schedule=keys.config.automation.nightly,
        description="Plans and runs all new shards once a night, as the sensor for new snippets does, and retries "
        "failed ones.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> Any:
        result = evaluate("requests.request_all_shards", keys, context)
        return result.run_requests or result.skip_reason

    return [nightly]
