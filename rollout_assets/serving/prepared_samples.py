"""Source rows that are ready to be rolled out, the most recently used ones kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from cachetools import LRUCache

from rollout_assets.errors import RolloutAssetsError, RolloutFailed
from rollout_assets.rollouts.roots import PreparedSample
from rollout_assets.sources.layout import IndexRow


class PreparedSamples:
    """Prepares source rows in a thread of its own; callers that ask for the same row share one preparation.

    A caller that stops waiting does not stop it for the others. A preparation that failed can be tried again.
    """

    def __init__(self, prepare: Callable[[IndexRow], PreparedSample], kept: int) -> None:
        self._prepare = prepare
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="preparing")
        self._samples: LRUCache[int, Future[PreparedSample]] = LRUCache(kept)

    async def get(self, row: IndexRow) -> PreparedSample:
        """The prepared row."""
        name = row.sample_index
        future = self._samples.get(name)
        if future is None or (future.done() and future.exception() is not None):
            future = self._samples[name] = self._pool.submit(self._prepared, row)
        return await asyncio.shield(asyncio.wrap_future(future))

    def close(self) -> None:
        """Prepare nothing more; what is under way in the thread ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _prepared(self, row: IndexRow) -> PreparedSample:
        try:
            return self._prepare(row)
        except RolloutAssetsError:
            raise
        except Exception as error:
            raise RolloutFailed(f"{row.sample_key}: could not be prepared: {error}") from error
