"""The collector: requests in, result lines out, as fast as agents answer and never twice.

Work is admitted in input order, at most ``num_samples_in_parallel`` requests at a time; a result is written when it is
there and then forgotten. What a kill leaves can be resumed; see ``resume``.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from rollout_assets.collection.agents import LocalAgent, RemoteAgent
from rollout_assets.collection.aggregation import aggregate_file
from rollout_assets.collection.collected_store import CollectedStore
from rollout_assets.collection.configs import RolloutCollectionConfig, SharedRolloutCollectionConfig
from rollout_assets.collection.coverage import CollectionReport, Coverage
from rollout_assets.collection.failures import keep_failures, read_failures
from rollout_assets.collection.in_flight import InFlight, Outcome, RolloutAgent
from rollout_assets.collection.inputs import read_requests, request_key
from rollout_assets.collection.result_files import AppendLine, line_log
from rollout_assets.collection.resume import RunFacts, finished_keys, materialize, refuse_changes
from rollout_assets.collection.wandb_upload import upload_rollouts
from rollout_assets.config import load_campaign
from rollout_assets.files import file_lock
from rollout_assets.metrics.columns import RolloutId
from rollout_assets.metrics.results import publish_metrics
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.remote.messages import RolloutRequest


@contextmanager
def sole_writer(config: SharedRolloutCollectionConfig) -> Iterator[None]:
    """Hold a collection's output and store; another process that wants one of them is told who holds it.

    Everything that a collection writes, prepared requests included, is written while this is held.
    """
    with ExitStack() as locks:
        for path, lock in config.locks.items():
            locks.enter_context(file_lock(lock, str(path)))
        yield


@contextmanager
def draining(stop: asyncio.Event) -> Iterator[None]:
    """While held, the first SIGINT or SIGTERM sets ``stop``, and the second cancels the running task."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        task.cancel() if stop.is_set() else stop.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def collect_rollouts(config: RolloutCollectionConfig, progress: ProgressSink = SILENT) -> CollectionReport:
    """Collect to the end, or until Ctrl-C or SIGTERM: then what is under way is finished and kept.

    A second signal cancels it.
    """
    return run_draining(lambda helper: helper.run_from_config(config), progress)


def run_draining(
    collect: Callable[[RolloutCollectionHelper], Awaitable[CollectionReport]], progress: ProgressSink
) -> CollectionReport:
    """Run a collection in an event loop of its own, with a helper that signals stop."""

    async def collected() -> CollectionReport:
        helper = RolloutCollectionHelper(progress)
        with draining(helper.stop):
            return await collect(helper)

    try:
        return asyncio.run(collected())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@dataclass
class _Run:
    """One run's bookkeeping: what there was, what is expected, and what has come since.

    ``left_alone`` failed for good in an earlier run and is not run again.
    """

    config: RolloutCollectionConfig
    facts: RunFacts
    cached: Mapping[RolloutId, int]
    failures: dict[RolloutId, dict[str, Any]]
    store: CollectedStore | None
    left_alone: frozenset[RolloutId] = frozenset()
    new: int = 0
    failed_now: int = 0
    failed_in_a_row: int = 0
    began: float = field(default_factory=perf_counter)

    @property
    def tried(self) -> dict[RolloutId, int]:
        """Attempts of earlier runs that count towards the limit."""
        if self.config.retry_failed:
            return {}
        return {key: line["attempts"] for key, line in self.failures.items()}

    @property
    def coverage(self) -> Coverage:
        return Coverage(self.facts.rows, len(self.cached) + self.new, len(self.failures))

    @property
    def hopeless(self) -> bool:
        return self.failed_in_a_row >= self.config.give_up_after

    def event(self) -> ProgressEvent:
        note = f"{self.failed_now} failed" if self.failed_now else ""
        done = len(self.cached) + len(self.left_alone) + self.new + self.failed_now
        return ProgressEvent("collecting", done, self.facts.rows, note=note, unit="rollouts")


class RolloutCollectionHelper:
    """Runs collections. Setting ``stop`` ends admission; what is under way is finished and written."""

    def __init__(self, progress: ProgressSink = SILENT) -> None:
        self.stop = asyncio.Event()
        self._progress = progress

    async def run_from_config(self, config: RolloutCollectionConfig) -> CollectionReport:
        """Collect every request that has no result yet, aggregate, and write the store if one is asked for.

        An existing output is refused unless ``resume_from_cache``, and so is a second collector on the same output.
        """
        with sole_writer(config):
            return await self.run_as_sole_writer(config)

    async def run_as_sole_writer(self, config: RolloutCollectionConfig) -> CollectionReport:
        """``run_from_config`` for a caller that holds ``sole_writer`` already."""
        config.refuse_before_any_work()
        agent = self.setup_server_client(config)
        try:
            run = self._load_from_cache(config, await agent.identity())
            await self._collect(run, agent)
        finally:
            await agent.aclose()
        return await self._finish(run)

    def setup_server_client(self, config: RolloutCollectionConfig) -> RolloutAgent:
        """Who runs requests: the servers of the configuration, or the campaign in this process."""
        if config.server_urls:
            return RemoteAgent(config.server_urls, config.token_env)
        assert config.campaign is not None
        return LocalAgent(load_campaign(config.campaign))

    def run_examples(
        self,
        examples: Iterable[RolloutRequest],
        agent: RolloutAgent,
        config: SharedRolloutCollectionConfig,
        semaphore: asyncio.Semaphore | None = None,
        tried: Mapping[RolloutId, int] = MappingProxyType({}),
    ) -> Iterator[Awaitable[Outcome]]:
        """The lower-level way: one awaitable per request, the n-th giving what became of the n-th request to finish.

        Requests are started in their order, as many at a time as the configuration says; ``semaphore`` may bound
        several collections together. Requests are read as awaitables are taken, so their number does not matter.
        ``tried`` holds attempts made before, by key; they count towards ``max_attempts``.
        """
        return InFlight(examples, agent, config, semaphore, tried).outcomes()

    def _preprocess_rows_from_config(self, config: RolloutCollectionConfig, identity: Mapping[str, Any]) -> RunFacts:
        """Write all requests of a new collection, repeats and seeds included; all bad lines are reported together."""
        return materialize(config, identity)

    def _load_from_cache(self, config: RolloutCollectionConfig, identity: Mapping[str, Any]) -> _Run:
        """What an earlier run left, if it can be continued; otherwise a new run."""
        store = None
        if config.store_dir is not None and config.campaign is not None:
            store = CollectedStore(config, load_campaign(config.campaign))
            store.refuse_other_campaign(identity)
        if config.output_jsonl_fpath.exists() or config.failures_jsonl_fpath.exists():
            facts = refuse_changes(config, identity)
            if store is not None:
                store.is_published()
            done = finished_keys(config)
            failures = {
                key: line for key, line in read_failures(config.failures_jsonl_fpath).items() if key not in done
            }
        else:
            if store is not None:
                store.refuse_existing()
            facts, done, failures = self._preprocess_rows_from_config(config, identity), {}, {}
        return _Run(config, facts, done, failures, store, _left_alone(config, failures))

    async def _collect(self, run: _Run, agent: RolloutAgent) -> None:
        config = run.config
        self._progress(run.event())
        with ExitStack() as files:
            results = files.enter_context(line_log(config.output_jsonl_fpath))
            failures: AppendLine | None = None
            for coming in self.run_examples(self._pending(run), agent, config, tried=run.tried):
                outcome = await coming
                if outcome.result is not None:
                    await self._keep(run, outcome, results)
                else:
                    failures = failures or files.enter_context(line_log(config.failures_jsonl_fpath))
                    _keep_failure(run, outcome, failures)
                self._progress(run.event())

    def _pending(self, run: _Run) -> Iterator[RolloutRequest]:
        """Requests to be run, in input order, until asked to stop or too many failed in a row."""
        for request in read_requests(run.config.materialized_jsonl_fpath):
            if self.stop.is_set() or run.hopeless:
                return
            key = request_key(request)
            if key not in run.cached and key not in run.left_alone:
                yield request

    async def _keep(self, run: _Run, outcome: Outcome, append: AppendLine) -> None:
        """Write a result; its record, if a store is asked for, is on disk first."""
        key = request_key(outcome.request)
        line = dict(outcome.result or {})
        if run.store is not None:
            await asyncio.to_thread(run.store.keep, key, line.pop("record"))
        line |= {"agent_ref": {"name": key[0]}, "_task_index": key[1], "_rollout_index": key[2]}
        earlier = run.failures.pop(key, {}).get("attempts", 0)
        append(line | {"_attempt": outcome.attempts + earlier})
        run.new += 1
        run.failed_in_a_row = 0

    async def _finish(self, run: _Run) -> CollectionReport:
        config, coverage = run.config, run.coverage
        seconds = perf_counter() - run.began
        keep_failures(config.failures_jsonl_fpath, (run.failures[key] for key in sorted(run.failures)))
        metrics = None if config.disable_aggregation else await self._call_aggregate_metrics(run)
        published = None
        if run.store is not None and coverage.complete:
            if not run.store.is_published():
                run.store.publish(run.facts, self._progress)
            published = run.store.path
        if config.upload_rollouts_to_wandb:
            upload_rollouts(config.output_jsonl_fpath, metrics)
        return CollectionReport(
            output=config.output_jsonl_fpath,
            coverage=coverage,
            cached=len(run.cached),
            interrupted=self.stop.is_set() and not coverage.complete,
            gave_up=run.hopeless,
            seconds=seconds,
            failures=config.failures_jsonl_fpath if run.failures else None,
            metrics=metrics,
            store=published,
        )

    async def _call_aggregate_metrics(self, run: _Run) -> Path:
        """Aggregate the lines as they are on disk, with expected and failed counts; needs no server."""
        path = run.config.aggregate_metrics_fpath
        publish_metrics(path, aggregate_file(run.config.output_jsonl_fpath, run.config.metrics))
        return path


def _left_alone(
    config: RolloutCollectionConfig, failures: Mapping[RolloutId, Mapping[str, Any]]
) -> frozenset[RolloutId]:
    """Requests that failed for good: asking again would not help, or was done as often as it may be."""
    if config.retry_failed:
        return frozenset()
    return frozenset(
        key
        for key, line in failures.items()
        if not line["error"]["transient"] or line["attempts"] >= config.max_attempts
    )


def _keep_failure(run: _Run, outcome: Outcome, append: AppendLine) -> None:
    """Write a failure; attempts of earlier runs are counted in."""
    assert outcome.failure is not None
    key = request_key(outcome.request)
    earlier = run.failures.get(key, {}).get("attempts", 0)
    line = run.failures[key] = {**outcome.failure, "attempts": outcome.attempts + earlier}
    append(line)
    run.failed_now += 1
    run.failed_in_a_row += line["error"]["transient"]
