"""Batching: states that concurrent rollouts ask for at about the same time are evaluated in one device launch.

So are the questions to policies that recipes bring: a policy is shown all of its states of a batch at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rollout_assets.errors import ConfigError
from rollout_assets.rollouts.engine import EvaluatedState
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.proposing import Asked, StateProposer, asked


@dataclass(frozen=True)
class BatchLimits:
    """When a batch is started: at ``max_views`` candidate views, or ``max_wait_s`` after its first request.

    While every worker is busy it waits for one and grows meanwhile, so that a device that is behind gets larger
    launches, not a longer queue of small ones.
    """

    max_views: int = 4_096
    max_wait_s: float = 0.002
    workers: int = 1

    def __post_init__(self) -> None:
        for name, least in (("max_views", 1), ("max_wait_s", 0), ("workers", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be >= {least}, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class BatchedState:
    """An evaluated state, and the scoring thread that evaluated it."""

    state: EvaluatedState
    worker: str


class EvaluationBatcher:
    """Evaluates states for the tasks of one event loop, in a thread pool of its own.

    A state that is already on its way is not asked for again. A request that fails fails alone: its batch is taken
    apart and the others are evaluated without it.
    """

    def __init__(self, evaluator: StateEvaluator, limits: BatchLimits) -> None:
        self._evaluator, self._limits = evaluator, limits
        self._proposer = StateProposer(evaluator)
        self._largest_batch = max(1, limits.max_views // evaluator.config.candidates.num_candidates)
        self._pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="scoring")
        self._waiting: list[StateRequest] = []
        self._under_way: dict[Asked, asyncio.Future[BatchedState]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._batches: set[asyncio.Task[None]] = set()

    async def evaluate(self, requests: Sequence[StateRequest]) -> list[BatchedState]:
        """The states of all requests, in order."""
        futures = [self._enqueue(request) for request in requests]
        return list(await asyncio.gather(*(asyncio.shield(future) for future in futures)))

    async def views_to_score(self, requests: Sequence[StateRequest]) -> int:
        """How many views evaluating these states scores, before any of them is scored."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._evaluator.views_to_score, requests)

    async def aclose(self) -> None:
        """Wait for what is under way and stop the threads."""
        self._start_batches()
        while self._batches:
            await asyncio.gather(*self._batches, return_exceptions=True)
        self._pool.shutdown(wait=True)

    def _enqueue(self, request: StateRequest) -> asyncio.Future[BatchedState]:
        name = asked(request)
        if name not in self._under_way:
            loop = asyncio.get_running_loop()
            self._under_way[name] = loop.create_future()
            self._waiting.append(request)
            if len(self._waiting) >= self._largest_batch:
                self._start_batches()
            elif self._timer is None:
                self._timer = loop.call_later(self._limits.max_wait_s, self._start_batches)
        return self._under_way[name]

    def _start_batches(self) -> None:
        """Hand what waits to idle workers; the rest is started when a worker is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and len(self._batches) < self._limits.workers:
            batch, self._waiting = self._waiting[: self._largest_batch], self._waiting[self._largest_batch :]
            task = asyncio.ensure_future(self._run(batch))
            self._batches.add(task)
            task.add_done_callback(self._worker_is_idle)

    def _worker_is_idle(self, batch: asyncio.Task[None]) -> None:
        self._batches.discard(batch)
        if self._timer is None:
            self._start_batches()

    async def _run(self, batch: Sequence[StateRequest]) -> None:
        loop = asyncio.get_running_loop()
        try:
            states = await loop.run_in_executor(self._pool, self._score, batch)
        except Exception as error:
            if len(batch) > 1:
                await asyncio.gather(*(self._run([request]) for request in batch))
            else:
                self._settle(batch[0]).set_exception(error)
            return
        for request, state in zip(batch, states, strict=True):
            self._settle(request).set_result(state)

    def _settle(self, request: StateRequest) -> asyncio.Future[BatchedState]:
        """The future of a request, removed from the list; a failure that nobody waits for gives no warning."""
        future = self._under_way.pop(asked(request))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    def _score(self, batch: Sequence[StateRequest]) -> list[BatchedState]:
        worker = threading.current_thread().name.rpartition("_")[2]
        return [BatchedState(state, worker) for state in self._proposer.evaluate(batch)]
