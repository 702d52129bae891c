"""A whole campaign through Dagster without a daemon or a browser: plan, every shard with its checks, promotion.

Runs are recorded in the same instance that the UI shows. Each shard is one run, executed in this process or in one of a
few worker processes; a shard that fails stops no other shard, but it stops promotion.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter

import dagster as dg

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import owner_if_finished, skipped_rows
from rollout_assets.campaigns.plan import refuse_unplanned
from rollout_assets.config import CampaignConfig, data_home
from rollout_assets.defs.code_location import build_definitions
from rollout_assets.defs.failures import BEFORE_ITS_FIRST_STEP, first_failure
from rollout_assets.defs.home import databases_kept_open, open_instance
from rollout_assets.defs.keys import GPU_POOL, OBSERVE, PARTITION_TAG, PLAN, PROMOTE, SHARD, SHARD_CHECKS, CampaignKeys
from rollout_assets.defs.records import unfinished_runs
from rollout_assets.defs.run_origin import LOCATION_TAGS, assign_to_location
from rollout_assets.errors import CampaignError, ConfigError
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.workers import run_tasks

PROCESS_TAG = "rollout_assets/process"
"""Run tag with host and process id, by which a run whose process died is recognised."""

FINISHED_PER_WORKER = 8
"""Finished shards that are read again in the time that a worker process takes to start."""

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""Run config that keeps a run's log out of the terminal; the instance records all of it."""


@dataclass(frozen=True)
class CheckOutcome:
    """One evaluated check. ``level`` is ``ERROR`` or ``WARN``; ``evidence`` is its first finding.

    ``kept`` says that the result is that of an earlier examination of the very same content.
    """

    asset: str
    check: str
    passed: bool
    level: str
    evidence: str
    kept: bool = False


@dataclass(frozen=True)
class RunOutcome:
    """One run: its job and shard, whether it succeeded, why it failed, and its checks."""

    job: str
    partition: str | None
    run_id: str
    ok: bool
    error: str
    checks: tuple[CheckOutcome, ...]
    seconds: float

    @property
    def name(self) -> str:
        """The shard, or the job if the run is not about one shard."""
        return self.partition or self.job

    def failed_checks(self, level: str) -> tuple[CheckOutcome, ...]:
        """Checks of one level that did not pass."""
        return tuple(check for check in self.checks if not check.passed and check.level == level)


@dataclass(frozen=True)
class HeadlessResult:
    """All runs of a campaign, in order; promotion is missing when a shard failed.

    ``skipped`` are the source rows of its shards that gave no record, each with its reason.
    """

    campaign: str
    runs: tuple[RunOutcome, ...]
    seconds: float
    skipped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every run succeeded and no error-level check failed."""
        return all(run.ok and not run.failed_checks("ERROR") for run in self.runs)

    @property
    def promoted(self) -> bool:
        """Whether promotion ran and succeeded."""
        return any(run.job == PROMOTE and run.ok for run in self.runs)


def materialize_campaign(
    campaign: str | Path,
    *,
    home: Path | None = None,
    shard_ids: Sequence[str] = (),
    workers: int = 1,
    progress: ProgressSink = SILENT,
) -> HeadlessResult:
    """Materialize a campaign in the instance at ``home``: all shards, or only those given, then promotion.

    Finished shards are read, checked and kept. More than one worker starts worker processes, at most as many as the
    pool ``gpu`` has free slots; a pool without a free slot is a ``CampaignError``, because a run in this process cannot
    wait for one.
    """
    if workers < 1:
        raise ConfigError(f"workers must be >= 1, got {workers}")
    began = perf_counter()
    runner = HeadlessRunner(str(campaign), str(home or data_home()))
    with runner.session():
        sweep_dead_runs(runner.instance)
        workers = min(workers, _free_slots(runner.instance))
        runs = [runner.run(OBSERVE), runner.run(PLAN)]
        if all(run.ok for run in runs):
            refuse_unplanned(shard_ids, planned := runner.planned())
            chosen = shard_ids or planned
            runs += _run_shards(runner, chosen, _useful_workers(runner, chosen, workers), progress)
        if all(run.ok for run in runs):
            progress(ProgressEvent("promotion", 0, note="merge, checks, second opinion and pages", unit="versions"))
            runs.append(runner.run(PROMOTE))
    config = runner.keys.config
    return HeadlessResult(config.name, tuple(runs), perf_counter() - began, _skipped(config, runs))


def _skipped(config: CampaignConfig, runs: Sequence[RunOutcome]) -> tuple[str, ...]:
    """Rows without a record in the shards that were run and are finished."""
    layout = CampaignLayout.of(config)
    owners = (owner_if_finished(layout.shard(run.partition)) for run in runs if run.partition is not None)
    return tuple(line for owner in owners if owner is not None for line in skipped_rows(owner))


def _useful_workers(runner: HeadlessRunner, shard_ids: Sequence[str], workers: int) -> int:
    """Return one worker per few finished shards: reading one takes less time than starting a process."""
    layout = CampaignLayout.of(runner.keys.config)
    finished = sum(owner_if_finished(layout.shard(shard_id)) is not None for shard_id in shard_ids)
    return min(workers, max(1, len(shard_ids) - finished + finished // FINISHED_PER_WORKER))


def _run_shards(
    runner: HeadlessRunner, shard_ids: Sequence[str], workers: int, progress: ProgressSink
) -> list[RunOutcome]:
    """Run some shards; their outcomes come in the order of the shards."""
    progress(ProgressEvent("shards", 0, len(shard_ids), unit="shards"))

    def report(shard_id: str, outcome: RunOutcome, finished: int) -> None:
        note = f"{shard_id} {'done' if outcome.ok else 'failed'}"
        progress(ProgressEvent("shards", finished, len(shard_ids), note, "shards"))

    outcomes = run_tasks(
        runner.shard_runner,
        {shard_id: shard_id for shard_id in shard_ids},
        workers,
        on_result=report,
        on_death=lambda death: RunOutcome(SHARD, death.task, "", False, str(death), (), 0.0),
    )
    return list(outcomes.values())


@dataclass(frozen=True)
class HeadlessRunner:
    """Runs the jobs of one campaign in this process, against the instance of one home."""

    campaign: str
    home: str

    def __reduce__(self) -> tuple[type[HeadlessRunner], tuple[str, str]]:
        """A worker process gets a runner of its own, which opens the instance anew."""
        return HeadlessRunner, (self.campaign, self.home)

    @cached_property
    def keys(self) -> CampaignKeys:
        """The campaign's names in Dagster."""
        return CampaignKeys.of(self.campaign)

    @cached_property
    def instance(self) -> dg.DagsterInstance:
        """The instance of the home, which is made if there is none yet."""
        return open_instance(Path(self.home))

    @cached_property
    def definitions(self) -> dg.Definitions:
        """Definitions of this campaign alone."""
        return build_definitions([self.campaign])

    @contextmanager
    def session(self) -> Iterator[None]:
        """Many runs in a row, faster than one by one, also for worker processes; closes the instance at the end."""
        with self.instance, databases_kept_open(Path(self.home)):
            yield

    def planned(self) -> list[str]:
        """All planned shards, in order."""
        return sorted(self.instance.get_dynamic_partitions(self.keys.partitions_name))

    def run(self, job: str, partition: str | None = None) -> RunOutcome:
        """Run one job, for one shard if the job is about one; a failure inside the run is an outcome, never raised."""
        began = perf_counter()
        tags = {PROCESS_TAG: f"{socket.gethostname()}:{os.getpid()}", **LOCATION_TAGS}
        alone = job == SHARD_CHECKS  # checks without their asset take the partition as a tag only
        if alone and partition is not None:
            tags[PARTITION_TAG] = partition
        result = self.definitions.resolve_job_def(self.keys.job(job)).execute_in_process(
            instance=self.instance,
            partition_key=None if alone else partition,
            raise_on_error=False,
            tags=tags,
            run_config=QUIET,
        )
        assign_to_location(self.instance, result.run_id)
        checks = tuple(_check_outcome(evaluation) for evaluation in result.get_asset_check_evaluations())
        return RunOutcome(job, partition, result.run_id, result.success, _error(result), checks, perf_counter() - began)

    def shard_runner(self) -> Callable[[str, ProgressSink], RunOutcome]:
        """The function that runs one shard; Dagster's log has its progress."""
        return lambda shard_id, _progress: self.run(SHARD, shard_id)


def sweep_dead_runs(instance: dg.DagsterInstance) -> tuple[str, ...]:
    """Mark runs as failed whose headless process died on this machine, and free their pool slots; returns their ids."""
    host = socket.gethostname()
    swept = []
    for run in unfinished_runs(instance):
        name, _, process = run.tags.get(PROCESS_TAG, "").partition(":")
        if name == host and not _alive(int(process)):
            instance.report_run_failed(run, f"process {process} of this headless run has died")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
            swept.append(run.run_id)
    return tuple(swept)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # another user's process may not be signalled, but lives
    return True


def _free_slots(instance: dg.DagsterInstance) -> int:
    info = instance.event_log_storage.get_concurrency_info(GPU_POOL)
    limit = info.slot_count or instance.global_op_concurrency_default_limit or (os.cpu_count() or 1)
    free = limit - info.active_slot_count
    if free < 1:
        holders = ", ".join(sorted(info.active_run_ids)) or "another process"
        raise CampaignError(
            f"pool {GPU_POOL}: all {limit} slots are used by {holders}; wait until a run ends, or raise the limit with "
            f"'dagster instance concurrency set {GPU_POOL} N'"
        )
    return free


def _check_outcome(evaluation: dg.AssetCheckEvaluation) -> CheckOutcome:
    evidence = evaluation.description or ""
    if not evaluation.passed and not evidence:
        table = evaluation.metadata.get("evidence")
        if isinstance(table, dg.TableMetadataValue) and table.records:
            evidence = ", ".join(f"{name} {value}" for name, value in table.records[0].data.items() if value != "")
    asset, kept = evaluation.asset_key.path[-1], "kept" in evaluation.metadata
    return CheckOutcome(asset, evaluation.check_name, evaluation.passed, evaluation.severity.value, evidence, kept)


def _error(result: dg.ExecuteInProcessResult) -> str:
    """Why a run failed: the message of its first failed step."""
    failure = first_failure(result.all_events)
    return failure if failure is not None else "" if result.success else BEFORE_ITS_FIRST_STEP
