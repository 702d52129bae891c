"""Rows under way: started in input order, a bounded number at a time, handed over as they finish."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator

from rollout_assets.collection.attempts import Outcome, RolloutAgent, attempt
from rollout_assets.collection.configs import SharedRolloutCollectionConfig
from rollout_assets.rollouts.remote.messages import RolloutRequest


class InFlight:
    """Rows under way. Finished ones wait in ``_finished`` until somebody takes them."""

    def __init__(
        self,
        rows: Iterable[RolloutRequest],
        agent: RolloutAgent,
        config: SharedRolloutCollectionConfig,
        semaphore: asyncio.Semaphore | None,
    ) -> None:
        self._rows, self._agent, self._config, self._semaphore = iter(rows), agent, config, semaphore
        self._read: deque[RolloutRequest] = deque()
        self._running: set[asyncio.Task[Outcome]] = set()
        self._finished: deque[asyncio.Task[Outcome]] = deque()
        self._promised = 0

    def outcomes(self) -> Iterator[Awaitable[Outcome]]:
        """One awaitable for every row there is. Who stops taking them cancels what is under way."""
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

    async def _run(self, row: RolloutRequest) -> Outcome:
        if self._semaphore is None:
            return await attempt(self._agent, row, self._config)
        async with self._semaphore:
            return await attempt(self._agent, row, self._config)

    def _read_one(self) -> bool:
        row = next(self._rows, None)
        if row is not None:
            self._read.append(row)
        return row is not None

    async def _cancel(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
