"""Results and metrics at Weights & Biases, for those who ask for it and have the package."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
"""Characters that the name of an artifact may not have."""


def upload_rollouts(output: Path, metrics: Path | None) -> None:
    """Log the key metrics of every agent, and the result file as an artifact, in one run named after the file."""
    wandb: Any = import_module("wandb")
    run = wandb.init(project="rollout-assets", name=output.stem, job_type="rollout-collection")
    try:
        if metrics is not None:
            run.log(logged_metrics(json.loads(metrics.read_bytes())))
        artifact = wandb.Artifact(_NOT_IN_NAMES.sub("-", output.stem), type="rollouts")
        artifact.add_file(str(output))
        run.log_artifact(artifact)
    finally:
        run.finish()


def logged_metrics(entries: list[dict[str, Any]]) -> dict[str, float | int]:
    """``agent/level/metric`` -> value, without those that do not exist.

    ``rollouts`` is the level of all rollouts of an agent and ``tasks`` that of its tasks, each counted once. Both have
    a ``reward/mean``, and the two differ when tasks have different numbers of rollouts.
    """
    logged: dict[str, float | int | None] = {}
    for entry in entries:
        levels = {
            "rollouts": entry["agent_metrics"],
            "tasks": {name: metric["value"] for name, metric in entry["key_metrics"].items()},
            "counts": entry["counts"],
        }
        for level, metrics in levels.items():
            logged |= {f"{entry['agent_ref']['name']}/{level}/{name}": value for name, value in metrics.items()}
    return {name: value for name, value in logged.items() if value is not None}
