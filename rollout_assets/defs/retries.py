"""Which failures Dagster tries again: those of the machine. A failure of the data is final."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from rollout_assets.errors import RolloutAssetsError, may_pass

RETRIES = dg.RetryPolicy(max_retries=2, delay=2, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""Two more attempts after about 2 s and 6 s, for failures that may pass by themselves."""


@contextmanager
def failures_for_dagster() -> Iterator[None]:
    """Show our errors as one message, and let Dagster retry only what the machine or another process caused."""
    try:
        yield
    except RolloutAssetsError as error:
        if may_pass(error):
            raise
        description = f"{type(error).__name__}: {error}"
        raise dg.Failure(description=description, allow_retries=False) from error
