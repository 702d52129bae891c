"""Evaluations of sensors and the schedule, what they could have written, and what the catalog says about readers."""

from datetime import UTC, datetime

import dagster as dg

from rollout_assets.defs.headless import QUIET
from tests.defs.conftest import Desk


class Ticker:
    """Evaluates the sensors and the schedule of a desk, and executes what they ask for, once per run key."""

    def __init__(self, desk, instance):
        self.definitions = desk.runner().definitions
        self.repository = self.definitions.get_repository_def()
        self.instance = instance
        self.keys: set[str] = set()

    def sensor(self, name: str, cursor: str | None = None):
        """One evaluation as the daemon makes it: the instance is opened anew."""
        context = dg.SensorEvaluationContext(
            instance_ref=self.instance.get_ref(),
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=cursor,
            log_key=None,
            repository_name=None,
            repository_def=self.repository,
        )
        with context:
            return self.repository.get_sensor_def(name).evaluate_tick(context)

    def schedule(self, name: str):
        context = dg.ScheduleEvaluationContext(
            self.instance.get_ref(), datetime(2026, 1, 2, 3, tzinfo=UTC), None, None, repository_def=self.repository
        )
        with context:
            return self.repository.get_schedule_def(name).evaluate_tick(context)

    def accept(self, result) -> list[str]:
        """What the daemon does with an evaluation; returns job and partition of its runs, which must all succeed."""
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        for request in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        return [self.execute(request) for request in result.run_requests if request.run_key not in self.keys]

    def execute(self, request, *, fails: bool = False) -> str:
        self.keys.add(request.run_key)
        job = request.job_name or ("tiny_shard" if request.partition_key else "tiny_plan")
        result = self.definitions.resolve_job_def(job).execute_in_process(
            instance=self.instance,
            partition_key=request.partition_key,
            run_config=QUIET,
            tags={**request.tags, "dagster/run_key": request.run_key or ""},
            raise_on_error=not fails,
        )
        assert result.success is not fails
        return request.partition_key or request.job_name


def asked_for(result) -> list[str]:
    """Partitions, or else jobs, that an evaluation asks for."""
    return [request.partition_key or request.job_name for request in result.run_requests]


def written(desk: Desk, instance: dg.DagsterInstance) -> dict[str, object]:
    """All that a look might write: files of the campaign, partitions, events and runs."""
    root, caches = desk.layout.root, {"columns", "mesh_digests"}
    files = (path for path in root.rglob("*") if path.is_file() and not caches & set(path.relative_to(root).parts))
    return {
        "files": {str(path): path.stat().st_mtime_ns for path in files},
        "partitions": instance.get_dynamic_partitions("tiny_shards"),
        "events": instance.event_log_storage.get_maximum_record_id(),
        "runs": instance.get_runs_count(),
    }


def told(instance: dg.DagsterInstance) -> tuple[str, str]:
    """Version and pin by the latest event of the promoted store in the catalog."""
    key = dg.AssetKey(["tiny", "rollouts_zarr"])
    records = instance.fetch_observations(key, limit=1).records
    records = [*records, *instance.fetch_materializations(key, limit=1).records]
    last = max(records, key=lambda record: record.storage_id)
    metadata = (last.asset_observation or last.asset_materialization).metadata
    return metadata["version"].value, metadata["pin"].value if "pin" in metadata else ""
