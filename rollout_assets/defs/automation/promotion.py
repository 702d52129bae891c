"""When promotion is asked for: every planned shard is validated as planned, and the promoted store is another one."""

from __future__ import annotations

from dataclasses import replace

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.working_copy import refresh_versions
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.promotion_gate import versions_on_disk
from rollout_assets.campaigns.status import promoted_behind
from rollout_assets.campaigns.versions import current_version
from rollout_assets.config import canonical_hash
from rollout_assets.defs import records
from rollout_assets.defs.assets.store import store_data_version
from rollout_assets.defs.automation.answer import Answer
from rollout_assets.defs.automation.attempts import ask_for
from rollout_assets.defs.automation.planned import edited_since_planned, planned_shards, unvalidated
from rollout_assets.defs.catalog import readers_event
from rollout_assets.defs.keys import PROMOTE, ROLLOUTS_ZARR
from rollout_assets.defs.step import CampaignStep

_REMEDY = "to try at once, re-execute that run or materialize rollouts_zarr"


def request_promotion(step: CampaignStep) -> Answer:
    """Ask for promotion if it is due, and let the catalog know which version readers get, if it says otherwise."""
    refresh_versions(CampaignLayout.of(step.config))
    event = readers_event(step.keys, step.instance)
    answer = _promotion(step)
    return answer if event is None else replace(answer, events=(event,))


def _promotion(step: CampaignStep) -> Answer:
    pin = read_pin(CampaignLayout.of(step.config))
    if pin is not None:
        return Answer(reason=str(pin))
    planned = planned_shards(step)
    if planned is None:
        return Answer(reason="nothing is planned yet")
    if (edited := edited_since_planned(step, planned)) is not None:
        return Answer(reason=edited)
    survey = CampaignSurvey.of(step.config, planned)
    reason = _why_not(step, survey)
    return Answer(reason=reason) if reason else ask_for(step, PROMOTE, _content(step, survey), _REMEDY)


def _content(step: CampaignStep, survey: CampaignSurvey) -> str:
    """What would be promoted, and when readers were last moved: after a rollback the same is asked for again."""
    link = CampaignLayout.of(step.config).promoted
    switched_ns = link.lstat().st_mtime_ns if link.is_symlink() else 0
    return canonical_hash([switched_ns, *versions_on_disk(survey)])[:16]


def _why_not(step: CampaignStep, survey: CampaignSurvey) -> str:
    """Why promotion is not due; empty if it is."""
    count = len(survey.planned)
    if waiting := unvalidated(step, survey):
        listed = ", ".join(map(shard_id_of, waiting[:3]))
        return f"{len(waiting)} of {count} shards are not validated as planned: {listed}"
    if _is_promoted(step, survey):
        return f"all {count} shards are promoted"
    if records.promotion_in_progress(step.instance, step.keys):
        return "a promotion is in progress"
    if busy := sorted(records.shards_in_progress(step.instance, step.keys)):
        return f"{len(busy)} of {count} shards are being built again: {', '.join(busy[:3])}"
    return ""


def _is_promoted(step: CampaignStep, survey: CampaignSurvey) -> bool:
    """Whether the current version holds exactly the planned shards, and the instance has recorded it."""
    if promoted_behind(step.config, survey.planned, survey):
        return False
    version = current_version(step.config)
    if len(version.shard_ids) != len(survey.planned):
        return False
    recorded = records.materialized_version(step.instance, step.keys.key(ROLLOUTS_ZARR))
    return recorded == store_data_version(version.record)
