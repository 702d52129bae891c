"""Results and metrics at Weights & Biases, for those who ask for it and have the package."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any


def upload_rollouts(output: Path, metrics: Path | None) -> None:
    """Log the key metrics of every agent, and the result file as an artifact, in one run named after the file."""
    wandb: Any = import_module("wandb")
    run = wandb.init(project="rollout-assets", name=output.stem, job_type="rollout-collection")
    try:
        if metrics is not None:
            run.log(_flat(json.loads(metrics.read_bytes())))
        artifact = wandb.Artifact(output.stem, type="rollouts")
        artifact.add_file(str(output))
        run.log_artifact(artifact)
    finally:
        run.finish()


def _flat(entries: list[dict[str, Any]]) -> dict[str, float | int | None]:
    """``agent/metric`` -> value."""
    logged: dict[str, float | int | None] = {}
    for entry in entries:
        agent = entry["agent_ref"]["name"]
        logged |= {f"{agent}/{name}": value for name, value in entry["agent_metrics"].items()}
        logged |= {f"{agent}/{name}": found["value"] for name, found in entry["key_metrics"].items()}
        logged |= {f"{agent}/{name}": count for name, count in entry["counts"].items()}
    return logged
