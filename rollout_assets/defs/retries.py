"""Which failures Dagster tries again: those of the machine. A failure of the data is final."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep
from typing import Any, TypeVar

import dagster as dg

from rollout_assets.errors import RolloutAssetsError, may_pass, passes_soon

RETRIES = dg.RetryPolicy(max_retries=2, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""Two more attempts after about 2 s and 6 s, for failures that may pass by themselves."""


RETRY_AFTER_S = (2.0, 6.0)
"""How long a step waits before each further attempt at one of its shards."""

Result = TypeVar("Result")


def tried_again(work: Callable[[], Result], log: Any, what: str) -> Result:
    """What ``work`` returns, tried again after a fault that may pass; of other shards nothing is repeated."""
    for delay in RETRY_AFTER_S:
        try:
            return work()
        except Exception as error:
            if not passes_soon(error):
                raise
            log.warning(f"{what}: {failure_text(error)}; it is tried again in {delay:.0f} s")
            sleep(delay)
    return work()


def failure_text(error: Exception) -> str:
    """An error as it is shown: its kind and its message."""
    return f"{type(error).__name__}: {error}"


@contextmanager
def failures_for_dagster() -> Iterator[None]:
    """Show our errors as one message, and let Dagster retry only what the machine or another process caused."""
    try:
        yield
    except RolloutAssetsError as error:
        if may_pass(error):
            raise
        raise dg.Failure(description=failure_text(error), allow_retries=False) from error
