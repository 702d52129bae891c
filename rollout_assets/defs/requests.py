"""Which runs sensors and schedules ask for: new shards, and promotion when every planned shard is validated."""

from __future__ import annotations

from itertools import islice

import dagster as dg

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.working_copy import refresh_plan, refresh_versions
from rollout_assets.campaigns.pin import Pin, read_pin
from rollout_assets.campaigns.plan import read_rollout_shard_manifest
from rollout_assets.campaigns.plan_entry import PlannedShards, shard_id_of
from rollout_assets.campaigns.promotion_gate import unvalidated_numbers, versions_on_disk
from rollout_assets.campaigns.status import promoted_behind, unplanned_rows
from rollout_assets.campaigns.versions import current_name, current_version
from rollout_assets.config import canonical_hash
from rollout_assets.defs import records
from rollout_assets.defs.assets.plan import plan_data_version, write_plan
from rollout_assets.defs.assets.source import source_data_version, source_metadata
from rollout_assets.defs.assets.store import store_data_version
from rollout_assets.defs.keys import DATA_VERSION_TAG, ROLLOUT_SHARD_PLAN, ROLLOUTS_ZARR, VIN_OFFLINE_STORE
from rollout_assets.defs.step import CampaignStep


def request_new_shards(step: CampaignStep) -> dg.SensorResult:
    """Ask for new shards, as many as one evaluation may start; a sensor soon evaluates again and asks for the rest."""
    return _request_shards(step, step.config.automation.shards_per_tick)


def request_all_shards(step: CampaignStep) -> dg.SensorResult:
    """Ask for all new shards, because a schedule evaluates once a night and nobody asks for the rest before."""
    return _request_shards(step, None)


def _request_shards(step: CampaignStep, at_most: int | None) -> dg.SensorResult:
    """Extend the plan by new rows, and ask for every planned shard that is neither validated nor in progress."""
    if (edited := _edited(step)) is not None:
        return dg.SensorResult(skip_reason=edited)
    planned = _extend_plan(step)
    survey = CampaignSurvey.of(step.config, planned)
    busy = records.shards_in_progress(step.instance, step.keys)
    waiting = (number for number in _unvalidated(step, survey) if shard_id_of(number) not in busy)
    requests = [_shard_request(step, planned, number) for number in islice(waiting, at_most)]
    if not requests:
        return dg.SensorResult(skip_reason=f"all {len(planned)} shards are validated or in progress")
    return dg.SensorResult(run_requests=requests)


def _shard_request(step: CampaignStep, planned: PlannedShards, number: int) -> dg.RunRequest:
    shard_id, sha256 = shard_id_of(number), planned.columns.sha256[number]
    return dg.RunRequest(f"shard:{step.keys.name}:{shard_id}:{sha256[:16]}", partition_key=shard_id)


def request_promotion(step: CampaignStep) -> dg.SensorResult:
    """Ask for promotion when every planned shard is validated and the promoted store is another one."""
    layout = CampaignLayout.of(step.config)
    refresh_versions(layout)
    pin = read_pin(layout)
    if pin is not None:
        _record_rollback(step, pin)
        return dg.SensorResult(skip_reason=str(pin))
    planned = _planned(step)
    if planned is None:
        return dg.SensorResult(skip_reason="nothing is planned yet")
    if (edited := _edited(step)) is not None:
        return dg.SensorResult(skip_reason=edited)
    survey = CampaignSurvey.of(step.config, planned)
    reason = _why_not_promote(step, survey)
    if reason is not None:
        return dg.SensorResult(skip_reason=reason)
    return dg.SensorResult(run_requests=[dg.RunRequest(run_key=_promotion_key(step, survey))])


def _promotion_key(step: CampaignStep, survey: CampaignSurvey) -> str:
    """One attempt per content and per switch of the link: after a rollback the same content is promoted once more."""
    layout = CampaignLayout.of(step.config)
    switched_ns = layout.promoted.lstat().st_mtime_ns if layout.promoted.is_symlink() else 0
    content = canonical_hash([switched_ns, *versions_on_disk(layout, survey)])
    return f"promote:{step.keys.name}:{content[:16]}"


def _record_rollback(step: CampaignStep, pin: Pin) -> None:
    """Let the catalog know which version readers get, once per rollback; a rollback itself happens outside of it."""
    key = step.keys.key(ROLLOUTS_ZARR)
    layout = CampaignLayout.of(step.config)
    facts = {"version": current_name(layout) or "", "pin": pin.holds}
    if records.observed_metadata(step.instance, key, "pin") != pin.holds:
        description = "The version that readers get since a rollback."
        step.instance.report_runless_asset_event(dg.AssetObservation(key, description=description, metadata=facts))


def _why_not_promote(step: CampaignStep, survey: CampaignSurvey) -> str | None:
    waiting = _unvalidated(step, survey)
    if waiting:
        listed = ", ".join(map(shard_id_of, waiting[:3]))
        return f"{len(waiting)} of {len(survey.planned)} shards are not validated: {listed}"
    if _is_promoted(step, survey):
        return f"all {len(survey.planned)} shards are promoted"
    if records.promotion_in_progress(step.instance, step.keys):
        return "a promotion is in progress"
    return None


def _unvalidated(step: CampaignStep, survey: CampaignSurvey) -> list[int]:
    return unvalidated_numbers(step.config, survey, records.validated_versions(step.instance, step.keys))


def _planned(step: CampaignStep) -> PlannedShards | None:
    layout = CampaignLayout.of(step.config)
    refresh_plan(layout)
    return read_rollout_shard_manifest(step.config) if layout.plan.exists() else None


def _edited(step: CampaignStep) -> str | None:
    """Why an edited campaign is not run automatically; None if the campaign is as it was planned."""
    planned = _planned(step)
    outdated = {} if planned is None else planned.config_changes(step.config)
    if not outdated:
        return None
    return (
        f"the campaign was edited: {len(outdated)} shards are planned for another config; "
        "materialize rollout_shard_plan, then the shards"
    )


def _extend_plan(step: CampaignStep) -> PlannedShards:
    """The plan with all rows of the source in it; new rows are planned here, and recorded as a run would record it."""
    source_key, plan_key = step.keys.key(VIN_OFFLINE_STORE), step.keys.key(ROLLOUT_SHARD_PLAN)
    version = source_data_version(step)
    if version != records.observed_version(step.instance, source_key):
        observation = dg.AssetObservation(source_key, metadata=source_metadata(step), tags={DATA_VERSION_TAG: version})
        step.instance.report_runless_asset_event(observation)
    planned = _planned(step)
    recorded = step.instance.get_latest_materialization_event(plan_key) is not None
    if recorded and planned is not None and not unplanned_rows(step.config, planned, step.source):
        return planned
    metadata = write_plan(step)
    tags = {
        DATA_VERSION_TAG: plan_data_version(step.config),
        "dagster/code_version": step.config.writer_config_hash,
        f"dagster/input_data_version/{source_key.to_user_string()}": version,
    }
    step.instance.report_runless_asset_event(dg.AssetMaterialization(plan_key, metadata=metadata, tags=tags))
    return read_rollout_shard_manifest(step.config)


def _is_promoted(step: CampaignStep, survey: CampaignSurvey) -> bool:
    """Whether the current version holds exactly the planned shards, and the instance has recorded it."""
    if promoted_behind(step.config, survey.planned, survey):
        return False
    version = current_version(step.config)
    if len(version.shard_ids) != len(survey.planned):
        return False
    recorded = records.materialized_version(step.instance, step.keys.key(ROLLOUTS_ZARR))
    return recorded == store_data_version(version.record)
