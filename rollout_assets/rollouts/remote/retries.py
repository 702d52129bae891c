"""When something that failed in passing is tried again, and when it is given up."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from time import monotonic

from rollout_assets.randomness import KeyPart, rng_for

logger = logging.getLogger(__name__)


@dataclass
class Retries:
    """At most ``most`` attempts, with a pause that doubles from ``first_pause_s`` up to ``longest_pause_s``.

    ``attempts`` counts them, the one under way included. A server that is busy has not tried: asking it again does not
    count as an attempt for ``busy_patience_s``. ``key`` names the work. It decides the random part of each pause, so
    that what failed together does not return together.
    """

    key: tuple[KeyPart, ...]
    most: int
    first_pause_s: float
    longest_pause_s: float
    busy_patience_s: float = 0.0
    attempts: int = field(default=1, init=False)
    _pauses: int = field(default=0, init=False)
    _began: float = field(default_factory=monotonic, init=False)

    async def pause(self, why: str, retry_after_s: float = 0.0, *, busy: bool = False) -> bool:
        """Wait before the next attempt, at least as long as the server asks; False when there is to be none."""
        free = busy and self.busy_patience_s > 0
        if monotonic() >= self._began + self.busy_patience_s if free else self.attempts >= self.most:
            return False
        backoff_s = min(self.first_pause_s * 2 ** min(self.attempts - 1, 16), self.longest_pause_s)
        jitter = float(rng_for(*self.key, self._pauses, "backoff").random()) / 2
        seconds = max(retry_after_s, backoff_s) * (1.0 + jitter)
        logger.info("attempt %d failed, the next follows in %.2f s: %s", self.attempts, seconds, why)
        await asyncio.sleep(seconds)
        self._pauses += 1
        self.attempts += not free
        return True
