"""Batching: states that concurrent rollouts ask for at about the same time are evaluated in one device launch.

So are the questions to policies that recipes bring: a policy is shown all of its states of a batch at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from rollout_assets.errors import ConfigError
from rollout_assets.rollouts.engine import EvaluatedState
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.proposing import Asked, StateProposer, asked

_TURNS_TO_CANCEL = 10
"""Turns of the event loop in which a failure reaches its rollout, and the group cancels the others."""


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


@dataclass(eq=False)
class _Pending:
    """A requested state: its result to come, and how many calls wait for it."""

    request: StateRequest
    result: asyncio.Future[BatchedState]
    waiters: int = 0


class EvaluationBatcher:
    """Evaluates states for the tasks of one event loop, in a thread pool of its own.

    A state that is already on its way is not evaluated twice, and a state for which no call waits any more is not
    started. A request that fails fails alone: its batch is taken apart and the others are evaluated without it.
    """

    def __init__(self, evaluator: StateEvaluator, limits: BatchLimits) -> None:
        self._evaluator, self._limits = evaluator, limits
        self._proposer = StateProposer(evaluator)
        self._largest_batch = max(1, limits.max_views // evaluator.config.candidates.num_candidates)
        self._pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="scoring")
        self._pending: dict[Asked, _Pending] = {}
        self._waiting: dict[Asked, _Pending] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._batches: set[asyncio.Task[None]] = set()

    async def evaluate(self, requests: Sequence[StateRequest]) -> list[BatchedState]:
        """The states of all requests, in order."""
        states = [self._enqueue(request) for request in requests]
        try:
            return list(await asyncio.gather(*(asyncio.shield(state.result) for state in states)))
        finally:
            for state in states:
                self._release(state)

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

    def _enqueue(self, request: StateRequest) -> _Pending:
        name = asked(request)
        state = self._pending.get(name)
        if state is None:
            loop = asyncio.get_running_loop()
            state = self._pending[name] = self._waiting[name] = _Pending(request, loop.create_future())
            if len(self._waiting) >= self._largest_batch:
                self._start_batches()
            elif self._timer is None:
                self._timer = loop.call_later(self._limits.max_wait_s, self._start_batches)
        state.waiters += 1
        return state

    def _release(self, state: _Pending) -> None:
        """One call less waits for a state. One that is not started yet and that no call waits for is dropped."""
        state.waiters -= 1
        name = asked(state.request)
        if not state.waiters and self._waiting.get(name) is state:
            del self._waiting[name], self._pending[name]

    def _start_batches(self) -> None:
        """Hand what waits to idle workers; the rest is started when a worker is done."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and len(self._batches) < self._limits.workers:
            batch = [self._waiting.pop(name) for name in tuple(islice(self._waiting, self._largest_batch))]
            task = asyncio.ensure_future(self._run(batch))
            self._batches.add(task)
            task.add_done_callback(self._worker_is_idle)

    def _worker_is_idle(self, batch: asyncio.Task[None]) -> None:
        self._batches.discard(batch)
        if self._timer is None:
            self._start_batches()

    async def _run(self, batch: Sequence[_Pending]) -> None:
        """Evaluate the states of a batch for which a call still waits; if that fails, one by one."""
        for state in batch:
            if not state.waiters:
                self._settle(state).cancel()
        batch = [state for state in batch if state.waiters]
        if not batch:
            return
        loop = asyncio.get_running_loop()
        try:
            states = await loop.run_in_executor(self._pool, self._score, [state.request for state in batch])
        except Exception as error:
            if len(batch) == 1:
                self._settle(batch[0]).set_exception(error)
                for _ in range(_TURNS_TO_CANCEL):
                    await asyncio.sleep(0)
                return
            for state in batch:
                await self._run([state])
            return
        for state, evaluated in zip(batch, states, strict=True):
            self._settle(state).set_result(evaluated)

    def _settle(self, state: _Pending) -> asyncio.Future[BatchedState]:
        """The result of a request, removed from the list; a failure that no call waits for gives no warning."""
        del self._pending[asked(state.request)]
        state.result.add_done_callback(lambda done: done.cancelled() or done.exception())
        return state.result

    def _score(self, batch: Sequence[StateRequest]) -> list[BatchedState]:
        worker = threading.current_thread().name.rpartition("_")[2]
        return [BatchedState(state, worker) for state in self._proposer.evaluate(batch)]
