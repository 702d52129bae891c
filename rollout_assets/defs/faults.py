"""What a failure means to Dagster: a fault of the data is final, one of the machine is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from rollout_assets.errors import RolloutAssetsError, ShardBusy, ShardFailed

RETRIES = dg.RetryPolicy(max_retries=2, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""Two more attempts after about 2 s and 6 s, for what may pass by itself."""


def is_transient(error: BaseException) -> bool:
    """Whether the same step may well succeed in a moment: the machine or a neighbour was in the way, not the data."""
    return isinstance(error, OSError | ShardBusy | ShardFailed)


@contextmanager
def failures_for_dagster() -> Iterator[None]:
    """Show our errors as one message, and let only transient ones be retried."""
    try:
        yield
    except RolloutAssetsError as error:
        if is_transient(error):
            raise
        description = f"{type(error).__name__}: {error}"
        raise dg.Failure(description=description, allow_retries=False) from error
