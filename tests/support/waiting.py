"""Waiting for other processes and threads: one deadline for the whole suite, which only guards against hanging."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 600.0
"""Longest wait for anything. A busy machine takes its time, so nothing may expect less."""

POLL_S = 0.01


def wait_until(condition: Callable[[], T], what: str, every_s: float = POLL_S) -> T:
    """Return the first true answer of a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:.0f} s"
        time.sleep(every_s)
    return answer
