"""Answers kept by idempotency key, so that a request that comes again is answered and not run again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from cachetools import LRUCache

Name = tuple[str, str]
"""The client's key, and the digest of the request it came with."""


@dataclass(eq=False)
class _UnderWay:
    task: asyncio.Future[bytes]
    waiters: int = 0


class IdempotencyCache:
    """Runs work once per name while its answer is remembered; the oldest answers are dropped at ``max_bytes``.

    Callers with the same name wait for the same work. When the last of them goes away, the work is cancelled. A failure
    is raised for all who wait and is not remembered, so it can be tried again.
    """

    def __init__(self, max_bytes: int) -> None:
        self._answers: LRUCache[Name, bytes] = LRUCache(max_bytes, getsizeof=len)
        self._under_way: dict[Name, _UnderWay] = {}

    async def answer(self, name: Name, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """The remembered answer, or the one that ``work`` gives."""
        if name in self._answers:
            return self._answers[name]
        shared = self._under_way.get(name)
        if shared is None:
            shared = self._under_way[name] = _UnderWay(asyncio.ensure_future(work()))
            shared.task.add_done_callback(lambda task: self._settle(name, task))
        shared.waiters += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiters -= 1
            if not shared.waiters and not shared.task.done():
                self._under_way.pop(name, None)
                shared.task.cancel()

    def _settle(self, name: Name, task: asyncio.Future[bytes]) -> None:
        if task.cancelled():
            return
        self._under_way.pop(name, None)
        if task.exception() is not None:
            return
        with suppress(ValueError):  # an answer larger than all that may be kept
            self._answers[name] = task.result()
