"""Rollouts that could not be run: why, after how many attempts, and whether asking again may help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollout_assets.collection.result_files import read_lines
from rollout_assets.config import canonical_json
from rollout_assets.errors import ResultsRefused
from rollout_assets.files import publish_bytes
from rollout_assets.metrics.columns import RolloutId, rollout_id
from rollout_assets.rollouts.remote.messages import RolloutRequest

_MESSAGE_CHARACTERS = 2_000


def failure_line(request: RolloutRequest, error: Mapping[str, Any], attempts: int) -> dict[str, Any]:
    """A line of ``<stem>_failures.jsonl``: the ``error_entry`` of the last attempt, and the number of attempts."""
    return {
        "_task_index": request.task_index,
        "_rollout_index": request.rollout_index,
        "agent_ref": {"name": request.agent_name},
        "error": {
            "class": error["class"],
            "message": error["message"][:_MESSAGE_CHARACTERS],
            "transient": error["transient"],
        },
        "attempts": attempts,
        "row": _rollout_request_debug_summary(request),
    }


def _rollout_request_debug_summary(request: RolloutRequest) -> dict[str, Any]:
    """What was asked, short enough for a log: no recipe in full, no payloads."""
    return {
        "agent": request.agent_name,
        "sample": request.sample_key if request.sample_key is not None else request.source_row,
        "target": request.target,
        "seed": request.seed,
        "params": request.params.model_dump(mode="json", exclude_none=True),
        "include": list(request.include),
        "task_index": request.task_index,
        "rollout_index": request.rollout_index,
    }


def read_failures(path: Path) -> dict[RolloutId, dict[str, Any]]:
    """The last failure of every request; a last line that a kill tore does not count."""
    if not path.exists():
        return {}
    failures = {}
    for number, _, line in read_lines(path, torn_end=True):
        error, attempts = line.get("error"), line.get("attempts")
        whole = isinstance(error, dict) and type(error.get("transient")) is bool and type(attempts) is int
        if not whole:
            raise ResultsRefused(f"{path}:{number}: is not a failure as a collection writes it; remove the line")
        failures[rollout_id(line)] = line
    return failures


def keep_failures(path: Path, failures: Iterable[Mapping[str, Any]]) -> None:
    """Replace a failures file by these lines; without any there is no file."""
    data = b"".join(canonical_json(line) + b"\n" for line in failures)
    if data:
        publish_bytes(path, data)
    else:
        path.unlink(missing_ok=True)
