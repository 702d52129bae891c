"""When promotion is requested: every planned shard is validated as planned, and the promoted store is another one.

After a rollback, or a promotion outside of Dagster, checks, report and metrics of the version that readers have are
requested instead.
"""

from __future__ import annotations

from dataclasses import replace

from rollout_assets.campaigns.columns.kept import file_stamp
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.working_copy import refresh_versions
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.promotion_gate import versions_on_disk
from rollout_assets.campaigns.status import promoted_behind
from rollout_assets.campaigns.versions import current_name, current_version
from rollout_assets.config import canonical_hash
from rollout_assets.defs import records
from rollout_assets.defs.assets.store import store_data_version
from rollout_assets.defs.automation.answer import Answer
from rollout_assets.defs.automation.attempts import ask_for
from rollout_assets.defs.automation.planned import edited_since_planned, planned_shards, unvalidated
from rollout_assets.defs.catalog import readers_event
from rollout_assets.defs.keys import DESCRIBE, PROMOTE, READINGS, ROLLOUTS_ZARR, VALIDATED_SHARDS
from rollout_assets.defs.step import CampaignStep

_REMEDY = "to try at once, re-execute that run or materialize rollouts_zarr"


def request_promotion(step: CampaignStep) -> Answer:
    """Ask for promotion if it is due, and let the catalog know which version readers get, if it says otherwise."""
    refresh_versions(CampaignLayout.of(step.config))
    event = readers_event(step.keys, step.instance)
    answer = _promotion(step)
    if event is not None:
        return replace(answer, events=(event,))
    return answer if answer.requests else answer.and_also(_description(step))


def _description(step: CampaignStep) -> Answer:
    """Ask for checks, report and metrics of the version that readers have, if those recorded last are of another."""
    version = current_name(CampaignLayout.of(step.config))
    described = {records.described_version(step.instance, step.keys.key(name)) for name in READINGS}
    if version is None or described <= {None, version} or _busy(step):
        return Answer()
    content = canonical_hash([version, records.last_storage_id(step.instance, step.keys.key(ROLLOUTS_ZARR))])[:16]
    return ask_for(step, DESCRIBE, content, "to try at once, re-execute that run")


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
    """What would be promoted, when readers were last moved, and when a shard was last built or validated.

    So the same content is requested again after a rollback, and after a repair that builds a shard as it was.
    """
    layout = CampaignLayout.of(step.config)
    switched_ns = layout.promoted.lstat().st_mtime_ns if layout.promoted.is_symlink() else 0
    repaired = (file_stamp(layout.shards), records.last_storage_id(step.instance, step.keys.key(VALIDATED_SHARDS)))
    return canonical_hash([switched_ns, *repaired, *versions_on_disk(survey)])[:16]


def _why_not(step: CampaignStep, survey: CampaignSurvey) -> str:
    """Why promotion is not due; empty if it is."""
    count = len(survey.planned)
    if waiting := unvalidated(step, survey):
        listed = ", ".join(map(shard_id_of, waiting[:3]))
        return f"{len(waiting)} of {count} shards are not validated as planned: {listed}"
    if _is_promoted(step, survey):
        return f"all {count} shards are promoted"
    if in_progress := _busy(step):
        return in_progress
    if busy := sorted(records.shards_in_progress(step.instance, step.keys)):
        return f"{len(busy)} of {count} shards are being built again: {', '.join(busy[:3])}"
    return ""


def _busy(step: CampaignStep) -> str:
    """What promotes the campaign, or will; empty if nothing does."""
    if records.promotion_in_progress(step.instance, step.keys):
        return "a promotion is in progress"
    backfill = records.promoting_backfill(step.instance, step.keys)
    return "" if backfill is None else f"backfill {backfill} is in progress and promotes at its end"


def _is_promoted(step: CampaignStep, survey: CampaignSurvey) -> bool:
    """Whether the current version holds exactly the planned shards, and the instance has recorded it."""
    if promoted_behind(step.config, survey.planned, survey):
        return False
    version = current_version(step.config)
    if len(version.shard_ids) != len(survey.planned):
        return False
    recorded = records.materialized_version(step.instance, step.keys.key(ROLLOUTS_ZARR))
    return recorded == store_data_version(version.record)
