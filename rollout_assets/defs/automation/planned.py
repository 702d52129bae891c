"""The plan and its shards as every look sees them, so that two sensors say the same of the same state."""

from __future__ import annotations

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.working_copy import refresh_plan
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.plan_entry import PlannedShards
from rollout_assets.campaigns.promotion_gate import unvalidated_numbers
from rollout_assets.defs.records import validated_versions
from rollout_assets.defs.step import CampaignStep


def planned_shards(step: CampaignStep) -> PlannedShards | None:
    """The planned shards; None if nothing is planned yet."""
    layout = CampaignLayout.of(step.config)
    refresh_plan(layout)
    return read_rollout_shard_manifest(step.config) if layout.plan.exists() else None


def edited_since_planned(step: CampaignStep, planned: PlannedShards | None) -> str | None:
    """Why an edited campaign is not run automatically; None if the campaign is as it was planned."""
    outdated = {} if planned is None else planned.config_changes(step.config)
    if not outdated:
        return None
    return (
        f"the campaign was edited: {len(outdated)} shards are planned for another config; "
        "materialize rollout_shard_plan, then the shards"
    )


def unvalidated(step: CampaignStep, survey: CampaignSurvey) -> list[int]:
    """Numbers of the planned shards that are not validated as they are planned now."""
    return unvalidated_numbers(survey, validated_versions(step.instance, step.keys))
