"""One row, tried until it has a result or is given up: finitely often, each time under a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any, Protocol

from rollout_assets.collection.configs import SharedRolloutCollectionConfig
from rollout_assets.collection.failures import RequestFailed, RolloutFailure
from rollout_assets.randomness import rng_for
from rollout_assets.rollouts.remote.messages import RolloutRequest

LONGEST_BACKOFF_S = 30.0


class RolloutAgent(Protocol):
    """Whoever answers rows."""

    async def identity(self) -> dict[str, Any]:
        """What its results depend on: campaign, config hashes, source manifest hash."""

    async def run(self, row: RolloutRequest) -> dict[str, Any]:
        """The result of one row as JSON values; anything else is ``RequestFailed``."""

    async def aclose(self) -> None:
        """Let go of connections and threads."""


@dataclass(frozen=True)
class Outcome:
    """What became of one row: a result or a failure, one of the two, and the attempts it took."""

    row: RolloutRequest
    attempts: int
    result: Mapping[str, Any] | None = None
    failure: RolloutFailure | None = None


async def attempt(agent: RolloutAgent, row: RolloutRequest, config: SharedRolloutCollectionConfig) -> Outcome:
    """Try a row until it is answered, refused for good, or ``max_attempts`` attempts have failed in passing.

    A server that is busy has not tried: asking it again does not count, but ends after ``busy_patience_s``.
    """
    attempts, busy_until = 0, monotonic() + config.busy_patience_s
    for asked in count():
        attempts += 1
        try:
            async with asyncio.timeout(config.request_timeout_s):
                return Outcome(row, attempts, result=await agent.run(row))
        except TimeoutError:
            late = f"no answer within {config.request_timeout_s:g} s"
            failed = RequestFailed("RequestTimeout", late, transient=True)
        except RequestFailed as error:
            failed = error
        busy = failed.retry_after_s is not None
        given_up = monotonic() >= busy_until if busy else attempts >= config.max_attempts
        if given_up or not failed.transient:
            return Outcome(row, attempts, failure=RolloutFailure.of(failed, attempts))
        pause = failed.retry_after_s if failed.retry_after_s is not None else _backoff(config, attempts)
        await asyncio.sleep(pause * _jitter(row, asked))
        attempts -= busy
    raise AssertionError("unreachable")


def _backoff(config: SharedRolloutCollectionConfig, attempts: int) -> float:
    return min(config.backoff_s * 2 ** min(attempts - 1, 16), LONGEST_BACKOFF_S)


def _jitter(row: RolloutRequest, asked: int) -> float:
    """Between 1 and 1.5, of the row's own, so that rows which failed together do not return together."""
    rng = rng_for(row.agent_name, row.task_index, row.rollout_index, asked, "backoff")
    return 1.0 + float(rng.random()) / 2
