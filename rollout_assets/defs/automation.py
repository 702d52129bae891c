"""What runs by itself: new snippets become shards, by sensor or by the clock, and validated shards become the store.

Every evaluation compares source, plan, files and instance as they are, so one that was missed costs nothing. An edited
campaign is never rebuilt by itself: that is a decision, and it starts by materializing the plan.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from rollout_assets.config import canonical_hash
from rollout_assets.defs.campaign import (
    ROLLOUT_SHARD_PLAN,
    ROLLOUT_SHARDS,
    ROLLOUTS_ZARR,
    VIN_OFFLINE_STORE,
    CampaignKeys,
    CampaignStep,
)
from rollout_assets.defs.jobs import CampaignJobs
from rollout_assets.errors import CampaignError, RolloutAssetsError

if TYPE_CHECKING:
    from rollout_assets.campaigns.plan import RolloutShardEntry

SHARDS_PER_TICK = 200
"""Runs that one evaluation asks for at most; the next one goes on."""

LOOK_EVERY_S = 30
"""Seconds between two looks of a sensor."""

NIGHTLY = "0 3 * * *"
"""When the schedule looks for new snippets."""

UNFINISHED = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


@dataclass(frozen=True)
class CampaignAutomation:
    """The sensors and the schedule of one campaign."""

    sensors: tuple[dg.SensorDefinition, ...]
    schedule: dg.ScheduleDefinition


def campaign_automation(place: CampaignKeys, jobs: CampaignJobs) -> CampaignAutomation:
    """Promotion follows by itself; looking for new snippets is switched on by who wants it."""

    @dg.sensor(
        name=f"{place.name}_new_snippets",
        job=jobs.shard,
        minimum_interval_seconds=LOOK_EVERY_S,
        description="Plans source rows that no shard owns yet and runs the new shards, once each.",
    )
    def new_snippets(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _asked(request_new_shards, _step(place, context.instance, context.log))

    @dg.sensor(
        name=f"{place.name}_promotion",
        job=jobs.promote,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Promotes the campaign when every planned shard is validated.",
    )
    def promotion(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return _asked(request_promotion, _step(place, context.instance, context.log))

    @dg.schedule(
        name=f"{place.name}_nightly",
        job=jobs.shard,
        cron_schedule=NIGHTLY,
        description="The same as the sensor for new snippets, once a night; tries failed shards again.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> Any:
        result = _asked(request_new_shards, _step(place, context.instance, context.log))
        return result.run_requests or result.skip_reason

    return CampaignAutomation((new_snippets, promotion), nightly)


def request_new_shards(step: CampaignStep) -> dg.SensorResult:
    """Extend the plan by new rows, and ask for every planned shard that is neither validated nor under way."""
    from rollout_assets.campaigns.layout import CampaignLayout
    from rollout_assets.defs.promotion_gate import unvalidated

    if (edited := _edited(step)) is not None:
        return dg.SensorResult(skip_reason=edited)
    entries = _extend_plan(step)
    layout = CampaignLayout(step.config.shards.output_dir)
    busy = _partitions_under_way(step)
    waiting = [entry for entry in unvalidated(step.instance, step.place, layout, entries) if entry.shard_id not in busy]
    if not waiting:
        return dg.SensorResult(skip_reason=f"all {len(entries)} shards are validated or under way")
    return dg.SensorResult(
        run_requests=[
            dg.RunRequest(
                run_key=f"shard:{step.place.name}:{entry.shard_id}:{entry.sha256[:16]}", partition_key=entry.shard_id
            )
            for entry in waiting[:SHARDS_PER_TICK]
        ]
    )


def request_promotion(step: CampaignStep) -> dg.SensorResult:
    """Ask for promotion when every planned shard is validated and the promoted store is another one."""
    from rollout_assets.campaigns.layout import CampaignLayout
    from rollout_assets.defs.promotion_gate import present_version, unvalidated

    layout = CampaignLayout(step.config.shards.output_dir)
    entries = _planned(step)
    if not entries:
        return dg.SensorResult(skip_reason="nothing is planned yet")
    if (edited := _edited(step)) is not None:
        return dg.SensorResult(skip_reason=edited)
    waiting = unvalidated(step.instance, step.place, layout, entries)
    if waiting:
        listed = ", ".join(entry.shard_id for entry in waiting[:3])
        return dg.SensorResult(skip_reason=f"{len(waiting)} of {len(entries)} shards are not validated: {listed}")
    if _is_promoted(step, entries):
        return dg.SensorResult(skip_reason=f"all {len(entries)} shards are promoted")
    if _runs_under_way(step, ROLLOUTS_ZARR):
        return dg.SensorResult(skip_reason="a promotion is under way")
    content = canonical_hash([present_version(layout, entry) for entry in entries])
    return dg.SensorResult(run_requests=[dg.RunRequest(run_key=f"promote:{step.place.name}:{content[:16]}")])


def _step(place: CampaignKeys, instance: dg.DagsterInstance, log: Any) -> CampaignStep:
    return CampaignStep(place, place.resource.load(), place.resource, instance, log, None)


def _asked(request: Any, step: CampaignStep) -> dg.SensorResult:
    """A request's answer; what is wrong with the data is said as the reason why nothing is asked for."""
    try:
        result: dg.SensorResult = request(step)
    except RolloutAssetsError as error:
        return dg.SensorResult(skip_reason=f"{type(error).__name__}: {error}")
    return result


def _planned(step: CampaignStep) -> tuple["RolloutShardEntry", ...]:
    from rollout_assets.campaigns.layout import CampaignLayout
    from rollout_assets.campaigns.plan import read_rollout_shard_manifest

    if not CampaignLayout(step.config.shards.output_dir).plan.exists():
        return ()
    return read_rollout_shard_manifest(step.config)


def _edited(step: CampaignStep) -> str | None:
    """Why an edited campaign is left alone; None for one that is as it was planned."""
    stale = [entry for entry in _planned(step) if entry.config_change(step.config)]
    if not stale:
        return None
    return (
        f"the campaign was edited: {len(stale)} shards are planned for another config; "
        "materialize rollout_shard_plan, then the shards"
    )


def _extend_plan(step: CampaignStep) -> tuple["RolloutShardEntry", ...]:
    """The plan with all rows of the source in it; new rows are planned here, and shown as if a run had done it."""
    from rollout_assets.campaigns.status import unplanned_rows
    from rollout_assets.defs.assets import plan_data_version, source_data_version, source_metadata, write_plan

    source_key, plan_key = step.place.key(VIN_OFFLINE_STORE), step.place.key(ROLLOUT_SHARD_PLAN)
    version = source_data_version(step)
    tags = {"dagster/data_version": version}
    if version != _last_version(step, source_key, observed=True):
        step.instance.report_runless_asset_event(
            dg.AssetObservation(source_key, metadata=source_metadata(step), tags=tags)
        )
    entries = _planned(step)
    seen = step.instance.get_latest_materialization_event(plan_key) is not None
    if seen and not unplanned_rows(step.config, entries, step.source):
        return entries
    metadata = write_plan(step)
    plan_tags = {
        "dagster/data_version": plan_data_version(step.config),
        "dagster/code_version": step.config.writer_config_hash,
        f"dagster/input_data_version/{source_key.to_user_string()}": version,
    }
    step.instance.report_runless_asset_event(dg.AssetMaterialization(plan_key, metadata=metadata, tags=plan_tags))
    return _planned(step)


def _last_version(step: CampaignStep, key: dg.AssetKey, *, observed: bool = False) -> str | None:
    """The data version that the instance last recorded for an asset."""
    if observed:
        records = step.instance.fetch_observations(key, limit=1).records
        event = records[0].asset_observation if records else None
        return None if event is None else event.tags.get("dagster/data_version")
    entry = step.instance.get_latest_materialization_event(key)
    made = None if entry is None else entry.asset_materialization
    return None if made is None or made.tags is None else made.tags.get("dagster/data_version")


def _is_promoted(step: CampaignStep, entries: tuple["RolloutShardEntry", ...]) -> bool:
    from rollout_assets.campaigns.versions import current_version

    try:
        record = current_version(step.config).record
    except CampaignError:
        return False
    promoted = {shard.shard_id: shard.entry_sha256 for shards in record.splits.values() for shard in shards}
    if promoted != {entry.shard_id: entry.sha256 for entry in entries}:
        return False
    return _last_version(step, step.place.key(ROLLOUTS_ZARR)) == canonical_hash(record.model_dump(mode="json"))[:16]


def _runs_under_way(step: CampaignStep, asset: str) -> list[dg.DagsterRun]:
    key = step.place.key(asset)
    runs = step.instance.get_runs(filters=dg.RunsFilter(statuses=list(UNFINISHED)))
    return [run for run in runs if key in (run.asset_selection or ()) or run.job_name in _jobs_of(step.place, asset)]


def _jobs_of(place: CampaignKeys, asset: str) -> tuple[str, ...]:
    return (f"{place.name}_promote",) if asset == ROLLOUTS_ZARR else (f"{place.name}_shard",)


def _partitions_under_way(step: CampaignStep) -> set[str]:
    runs = _runs_under_way(step, ROLLOUT_SHARDS)
    return {run.tags["dagster/partition"] for run in runs if "dagster/partition" in run.tags}
