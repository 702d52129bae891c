"""Errors as plain values, for a client, a file or a log: what, where, and whether asking again may help."""

from __future__ import annotations

from typing import Any

from rollout_assets import errors

UNPROCESSABLE, INTERNAL, UNAVAILABLE = 422, 500, 503


def error_entry(error: BaseException) -> dict[str, Any]:
    """``class``, ``message`` and ``transient`` of a failure, and the ``field`` of a request at fault.

    What a user can only change by asking differently is not transient; what the machine did may be.
    """
    own = isinstance(error, errors.RolloutAssetsError)
    entry: dict[str, Any] = {
        "class": error.error_class if isinstance(error, errors.ServerError) else type(error).__name__,
        "message": str(error) if own else f"internal error, {type(error).__name__}: {error}",
        "transient": errors.may_pass(error),
    }
    if isinstance(error, errors.RowRefused):
        entry["field"] = error.field
    return entry


def error_status(error: BaseException) -> int:
    """422 when what was sent is at fault, 503 when the server is busy or going down, else 500."""
    if isinstance(error, errors.RowRefused | errors.ResultsRefused | errors.ConfigError):
        return UNPROCESSABLE
    return UNAVAILABLE if isinstance(error, errors.ServerUnavailable) else INTERNAL
