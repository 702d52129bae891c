"""When something that failed in passing is tried again, and when it is given up."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from time import monotonic

from rollout_assets.randomness import KeyPart, rng_for

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryLimits:
    """At most ``attempts`` attempts, with a pause that doubles from ``first_pause_s`` up to ``longest_pause_s``.

    A server that is busy has not tried: asking it again does not count as an attempt for ``busy_patience_s``.
    """

    attempts: int
    first_pause_s: float
    longest_pause_s: float
    busy_patience_s: float = 0.0


class Retries:
    """The attempts of one piece of work. ``attempts`` counts them, the one under way included.

    ``key`` names the work. It decides the random part of each pause, so that what failed together does not return
    together.
    """

    def __init__(self, limits: RetryLimits, *key: KeyPart) -> None:
        self.attempts = 1
        self._limits, self._key = limits, key
        self._busy_until = monotonic() + limits.busy_patience_s
        self._pauses = 0

    async def pause(self, why: str, retry_after_s: float = 0.0, *, busy: bool = False) -> bool:
        """Wait before the next attempt, at least as long as the server asks; False when there is to be none."""
        free = busy and self._limits.busy_patience_s > 0
        if monotonic() >= self._busy_until if free else self.attempts >= self._limits.attempts:
            return False
        seconds = max(retry_after_s, self._backoff_s()) * self._jitter()
        logger.info("attempt %d failed, the next follows in %.2f s: %s", self.attempts, seconds, why)
        await asyncio.sleep(seconds)
        self._pauses += 1
        self.attempts += not free
        return True

    def _backoff_s(self) -> float:
        return min(self._limits.first_pause_s * 2 ** min(self.attempts - 1, 16), self._limits.longest_pause_s)

    def _jitter(self) -> float:
        """Between 1 and 1.5."""
        return 1.0 + float(rng_for(*self._key, self._pauses, "backoff").random()) / 2
