"""Which failures Dagster tries again: those of the machine. A failure of the data is final."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from rollout_assets.errors import RolloutAssetsError, ShardBusy, ShardFailed

RETRIES = dg.RetryPolicy(max_retries=2, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""Two more attempts after about 2 s and 6 s, for failures that may pass by themselves."""


def is_transient(error: BaseException) -> bool:
    """Whether the same step may succeed in a moment: the machine or another process was the cause, not the data."""
    return isinstance(error, OSError | ShardBusy | ShardFailed)


@contextmanager
def failures_for_dagster() -> Iterator[None]:
    """Show our errors as one message, and let Dagster retry only the transient ones."""
    try:
        yield
    except RolloutAssetsError as error:
        if is_transient(error):
            raise
        description = f"{type(error).__name__}: {error}"
        raise dg.Failure(description=description, allow_retries=False) from error
