"""Running all shards of a campaign, here or in several fresh processes, and carrying on whatever happens to one.

Each worker process talks through a pipe of its own, so one that is killed takes nothing with it but its shard, which is
reported and can be run again. Interrupting the run interrupts the workers; each removes its unfinished attempt.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from time import perf_counter
from typing import TYPE_CHECKING, Literal

from rollout_assets.campaigns.layout import SetAside
from rollout_assets.campaigns.plan import (
    RolloutShardEntry,
    open_source,
    write_rollout_shard_manifest_from_config,
)
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, RolloutAssetsError, ShardBusy
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation

if TYPE_CHECKING:
    from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

Outcome = Literal["built", "already_finished", "busy", "failed"]

_FAREWELL_S = 20.0
"""How long an interrupted worker may take to clean up before it is killed."""


@dataclass(frozen=True, eq=False)
class ShardOutcome:
    """What became of one shard in a run."""

    shard_id: str
    outcome: Outcome
    reason: str
    set_aside: tuple[SetAside, ...]
    records: int
    seconds: float


@dataclass(frozen=True, eq=False)
class CampaignRunResult:
    """What became of every shard that a run was asked for, in order."""

    shards: tuple[ShardOutcome, ...]
    planned: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every shard is finished now."""
        return all(shard.outcome in ("built", "already_finished") for shard in self.shards)

    def of(self, outcome: Outcome) -> tuple[ShardOutcome, ...]:
        """The shards with one outcome."""
        return tuple(shard for shard in self.shards if shard.outcome == outcome)


def run_campaign(
    config: CampaignConfig,
    *,
    shard_ids: Sequence[str] = (),
    workers: int = 1,
    invocation: RolloutStoreInvocation | None = None,
    progress: ProgressSink = SILENT,
) -> CampaignRunResult:
    """Plan what is new, then build every shard that is not finished and current; a failing shard stops no other.

    The result does not depend on ``workers``. More than one start fresh processes: a script that calls this needs the
    usual ``__main__`` guard.
    """
    if workers < 1:
        raise ConfigError(f"workers must be >= 1, got {workers}")
    began = perf_counter()
    plan = write_rollout_shard_manifest_from_config(config)
    known = {entry.shard_id: entry for entry in plan.entries}
    unknown = [name for name in shard_ids if name not in known]
    if unknown:
        last = plan.entries[-1].shard_id
        raise ConfigError(f"no {', '.join(unknown)} in the plan; it has shard-000000 to {last}")
    entries = [known[name] for name in shard_ids] if shard_ids else list(plan.entries)
    outcomes: dict[str, ShardOutcome] = {}
    progress(ProgressEvent("shards", 0, len(entries), unit="shards"))
    for outcome in _outcomes(config, entries, min(workers, len(entries)), invocation, progress):
        outcomes[outcome.shard_id] = outcome
        progress(
            ProgressEvent("shards", len(outcomes), len(entries), f"{outcome.shard_id} {outcome.outcome}", "shards")
        )
    ordered = tuple(outcomes[entry.shard_id] for entry in entries)
    return CampaignRunResult(ordered, len(plan.entries), perf_counter() - began)


def _outcomes(
    config: CampaignConfig,
    entries: Sequence[RolloutShardEntry],
    workers: int,
    invocation: RolloutStoreInvocation | None,
    progress: ProgressSink,
) -> Iterator[ShardOutcome]:
    if workers > 1:
        yield from _Workers(config, workers, invocation, progress).run(entries)
        return
    runner = _ShardRunner(config, invocation)
    for entry in entries:
        yield runner.run(entry, progress)


class _ShardRunner:
    """Runs shards one after another in this process; source, meshes and kernels stay between them."""

    def __init__(self, config: CampaignConfig, invocation: RolloutStoreInvocation | None) -> None:
        self._config = config
        self._invocation = invocation
        self._source = open_source(config)
        self._writer: RolloutDatasetWriter | None = None

    def run(self, entry: RolloutShardEntry, progress: ProgressSink) -> ShardOutcome:
        """One shard; whatever goes wrong with it is its outcome, not an exception."""
        began = perf_counter()

        def named(event: ProgressEvent, /) -> None:
            progress(replace(event, task=entry.shard_id))

        def ended(outcome: Outcome, reason: str = "") -> ShardOutcome:
            return ShardOutcome(entry.shard_id, outcome, reason, (), 0, perf_counter() - began)

        try:
            done = run_rollout_shard(
                self._config,
                entry,
                source=self._source,
                writer=self._shared_writer,
                invocation=self._invocation,
                progress=named,
            )
        except ShardBusy as error:
            return ended("busy", str(error))
        except Exception as error:  # one shard's trouble is not the others'
            known = isinstance(error, RolloutAssetsError)
            return ended("failed", str(error) if known else f"{type(error).__name__}: {error}")
        return replace(ended(done.outcome), set_aside=done.set_aside, records=done.owner.records)

    def _shared_writer(self) -> RolloutDatasetWriter:
        from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

        self._writer = self._writer or RolloutDatasetWriter(self._config, self._source)
        return self._writer


def _serve(pipe: Connection, config: CampaignConfig, invocation: RolloutStoreInvocation | None) -> None:
    """A worker process: shards in, events and outcomes out, until the pipe closes or the run is interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        runner = _ShardRunner(config, invocation)
        while True:
            pipe.send(runner.run(pipe.recv(), pipe.send))


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Let a process start without a handler of its own: interrupted that early, it would end in a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    shard_id: str | None = None


@dataclass(eq=False)
class _Workers:
    """A few worker processes, each with at most one shard at a time."""

    config: CampaignConfig
    count: int
    invocation: RolloutStoreInvocation | None
    progress: ProgressSink
    _alive: list[_Worker] = field(default_factory=list)

    def run(self, entries: Sequence[RolloutShardEntry]) -> Iterator[ShardOutcome]:
        """Outcomes as they come; a worker that dies is replaced while there is work left."""
        waiting = list(entries)
        try:
            while waiting or any(worker.shard_id for worker in self._alive):
                while waiting and len(self._alive) < self.count:
                    self._alive.append(self._start())
                for worker in self._alive:
                    if worker.shard_id is None and waiting:
                        self._assign(worker, waiting.pop(0))
                for pipe in wait([worker.pipe for worker in self._alive]):
                    outcome = self._receive(next(worker for worker in self._alive if worker.pipe is pipe))
                    if outcome is not None:
                        yield outcome
        finally:
            self._stop()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, self.config, self.invocation), daemon=True)
        with _deaf_to_interrupts():
            process.start()
        there.close()
        return _Worker(process, here)

    def _assign(self, worker: _Worker, entry: RolloutShardEntry) -> None:
        worker.shard_id = entry.shard_id
        with suppress(BrokenPipeError):  # a worker that died is heard of in the next round
            worker.pipe.send(entry)

    def _receive(self, worker: _Worker) -> ShardOutcome | None:
        """The next outcome of a worker, if it has one; a dead one leaves and its shard counts as failed."""
        try:
            message = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            self._alive.remove(worker)
            reason = f"its process ended with exit code {worker.process.exitcode}; run it again"
            return None if worker.shard_id is None else ShardOutcome(worker.shard_id, "failed", reason, (), 0, 0.0)
        if isinstance(message, ProgressEvent):
            self.progress(message)
            return None
        worker.shard_id = None
        assert isinstance(message, ShardOutcome)
        return message

    def _stop(self) -> None:
        """End all workers; one that is at work is interrupted, cleans up and goes."""
        for worker in self._alive:
            if worker.shard_id is not None and worker.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signal.SIGINT)
            worker.pipe.close()
        for worker in self._alive:
            worker.process.join(_FAREWELL_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._alive.clear()
