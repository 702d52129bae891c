"""The clock of the check ``up_to_date``: a campaign that nobody touches becomes stale all the same, by its source."""

import dagster as dg

from rollout_assets.defs.keys import UP_TO_DATE, CampaignKeys
from rollout_assets.defs.lazy import load


def campaign_clocks(keys: CampaignKeys) -> list[dg.ScheduleDefinition]:
    """The schedule that runs the check; it is on unless ``[automation] check_up_to_date`` is false."""
    automation = keys.config.automation
    on = automation.check_up_to_date

    @dg.schedule(
        name=f"{keys.name}_up_to_date",
        job_name=keys.job(UP_TO_DATE),
        cron_schedule=automation.up_to_date,
        default_status=dg.DefaultScheduleStatus.RUNNING if on else dg.DefaultScheduleStatus.STOPPED,
        description="Checks whether anything on the way from the source to the promoted store is stale.",
    )
    def up_to_date(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        step = load("step.CampaignStep").of_tick(keys, context)
        reason = load("checks.missing.not_yet")(step, "plan")
        return dg.RunRequest() if reason is None else dg.SkipReason(reason)

    return [up_to_date]
