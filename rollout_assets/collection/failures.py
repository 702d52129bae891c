"""Rollouts that could not be had: why, after how many attempts, and whether asking again may help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_assets.collection.result_log import read_lines
from rollout_assets.config import canonical_json
from rollout_assets.files import publish_bytes
from rollout_assets.metrics.columns import RolloutId, rollout_id
from rollout_assets.rollouts.remote.messages import RolloutRequest

_MESSAGE_CHARACTERS = 2_000


class RequestFailed(Exception):
    """One attempt that gave no result. ``retry_after_s`` is set when the server is busy and says for how long."""

    def __init__(self, kind: str, message: str, *, transient: bool, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.transient = transient
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class RolloutFailure:
    """Why a row has no result: class and message of the last attempt, and how many attempts there were."""

    kind: str
    message: str
    transient: bool
    attempts: int

    @classmethod
    def of(cls, error: RequestFailed, attempts: int) -> RolloutFailure:
        """The failure that ended a row."""
        return cls(error.kind, error.message[:_MESSAGE_CHARACTERS], error.transient, attempts)

    def line(self, row: RolloutRequest) -> dict[str, Any]:
        """The failure as a line of ``<stem>_failures.jsonl``."""
        return {
            "_task_index": row.task_index,
            "_rollout_index": row.rollout_index,
            "agent_ref": {"name": row.agent_name},
            "error": {"class": self.kind, "message": self.message, "transient": self.transient},
            "attempts": self.attempts,
            "row": _rollout_request_debug_summary(row),
        }


def _rollout_request_debug_summary(row: RolloutRequest) -> dict[str, Any]:
    """What was asked, short enough for a log: no recipe in full, no payloads."""
    return {
        "agent": row.agent_name,
        "sample": row.sample_key if row.sample_key is not None else row.source_row,
        "target": row.target,
        "seed": row.seed,
        "params": row.params.model_dump(mode="json", exclude_none=True),
        "include": list(row.include),
        "task_index": row.task_index,
        "rollout_index": row.rollout_index,
    }


def read_failures(path: Path) -> dict[RolloutId, dict[str, Any]]:
    """The last failure of every row; a last line that a kill tore does not count."""
    if not path.exists():
        return {}
    return {rollout_id(line): line for _, _, line in read_lines(path, torn_end=True)}


def keep_failures(path: Path, failures: Iterable[Mapping[str, Any]]) -> None:
    """Replace a failures file by these lines; without any there is no file."""
    data = b"".join(canonical_json(line) + b"\n" for line in failures)
    if data:
        publish_bytes(path, data)
    else:
        path.unlink(missing_ok=True)
