"""Requests under way: a bounded number at a time, each tried until it has a result or is given up."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from rollout_assets.collection.configs import SharedRolloutCollectionConfig
from rollout_assets.collection.failures import failure_line
from rollout_assets.collection.inputs import request_key
from rollout_assets.errors import ServerUnavailable
from rollout_assets.metrics.columns import RolloutId
from rollout_assets.rollouts.remote.messages import RolloutRequest
from rollout_assets.rollouts.remote.retries import Retries
from rollout_assets.serving.error_entries import error_entry

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 30.0


class RolloutAgent(Protocol):
    """Runs requests: servers over HTTP, or a service in this process."""

    async def identity(self) -> dict[str, Any]:
        """What its results depend on: campaign, config hashes, source manifest hash."""

    async def run(self, request: RolloutRequest) -> dict[str, Any]:
        """The result of one request as JSON values, or an error that ``error_entry`` can describe."""

    async def aclose(self) -> None:
        """Let go of connections and threads."""


@dataclass(frozen=True)
class Outcome:
    """What became of one request: the line of its result or of its failure, and the attempts it took."""

    request: RolloutRequest
    attempts: int
    result: Mapping[str, Any] | None = None
    failure: Mapping[str, Any] | None = None


async def attempt(
    agent: RolloutAgent, request: RolloutRequest, config: SharedRolloutCollectionConfig, tried: int = 0
) -> Outcome:
    """Try a request until it has a result, is refused for good, or the retry limits are reached.

    ``tried`` attempts were made before; they count towards ``max_attempts``.
    """
    key = (request.agent_name, request.task_index, request.rollout_index)
    retries = Retries(key, config.max_attempts - tried, config.backoff_s, LONGEST_PAUSE_S, config.busy_patience_s)
    while True:
        after_s, busy = 0.0, False
        try:
            async with asyncio.timeout(config.request_timeout_s):
                return Outcome(request, retries.attempts, result=await agent.run(request))
        except TimeoutError:
            late = f"no answer within {config.request_timeout_s:g} s"
            error = error_entry(ServerUnavailable(late, error_class="RequestTimeout"))
        except Exception as problem:
            error = error_entry(problem)
            if isinstance(problem, ServerUnavailable):
                after_s, busy = problem.retry_after_s, problem.busy
        if not error["transient"] or not await retries.pause(error["message"], after_s, busy=busy):
            failure = failure_line(request, error, retries.attempts)
            logger.warning("given up after %d attempt(s): %s", retries.attempts, failure)
            return Outcome(request, retries.attempts, failure=failure)


class InFlight:
    """Requests under way, started in input order. Finished ones wait in ``_finished`` until somebody takes them."""

    def __init__(
        self,
        requests: Iterable[RolloutRequest],
        agent: RolloutAgent,
        config: SharedRolloutCollectionConfig,
        semaphore: asyncio.Semaphore | None,
        tried: Mapping[RolloutId, int],
    ) -> None:
        self._requests, self._agent, self._config, self._semaphore = iter(requests), agent, config, semaphore
        self._tried = tried
        self._read: deque[RolloutRequest] = deque()
        self._running: set[asyncio.Task[Outcome]] = set()
        self._finished: deque[asyncio.Task[Outcome]] = deque()
        self._promised = 0

    def outcomes(self) -> Iterator[Awaitable[Outcome]]:
        """One awaitable for every request there is. A caller that stops taking them cancels what is under way."""
        try:
            while len(self._read) + len(self._running) + len(self._finished) > self._promised or self._read_one():
                self._promised += 1
                yield self._next()
        except GeneratorExit:
            for task in self._running:
                task.cancel()
            raise

    async def _next(self) -> Outcome:
        try:
            self._admit()
            while not self._finished:
                ended, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                self._finished.extend(task for task in ended if task in self._running)
                self._running -= ended
            self._promised -= 1
            task = self._finished.popleft()
            self._admit()
            return task.result()
        except BaseException:
            await self._cancel()
            raise

    def _admit(self) -> None:
        while len(self._running) < self._config.num_samples_in_parallel and (self._read or self._read_one()):
            self._running.add(asyncio.create_task(self._run(self._read.popleft())))

    async def _run(self, request: RolloutRequest) -> Outcome:
        async with self._semaphore or nullcontext():
            tried = self._tried.get(request_key(request), 0) if self._tried else 0
            return await attempt(self._agent, request, self._config, tried)

    def _read_one(self) -> bool:
        request = next(self._requests, None)
        if request is not None:
            self._read.append(request)
        return request is not None

    async def _cancel(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
