"""Killed and resumed, an evaluation ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollout_assets.evaluation import EvaluationConfig, read_evaluation
from tests.support.waiting import PATIENCE_S


def command(config: EvaluationConfig, output: Path) -> list[str]:
    program = [sys.executable, "-m", "rollout_assets", "evaluate", "-c", config.campaign, "-o", str(output)]
    policies = ["--policy", "farthest_from_history", "--policy", "soft=temperature_softmax", "--split", config.split]
    settings = {"random_repeats": 2, "rows_per_shard": 1, "failures": 2, "max_pages": 1, "horizon": 2, "seeds": 2}
    return [*program, *policies, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def killed_when(pattern: str, config: EvaluationConfig, output: Path) -> None:
    """Start, and kill with SIGKILL once something matches the pattern below the output."""
    process = subprocess.Popen(command(config, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not list(output.glob(pattern)) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is None, "it was killed at work"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_killed_at_several_moments_it_equals_an_undisturbed_one(tiny_config, tiny_evaluation, tmp_path):
    output = tmp_path / "killed"
    for pattern in ("campaigns/*/shards/shard-000000", "campaigns/*/rollouts.zarr", "campaigns/seed-7-*/staging/*"):
        killed_when(pattern, tiny_config, output)
        assert not (output / "evaluation.json").exists()
    done = subprocess.run(command(tiny_config, output), capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    for name in ("evaluation.json", "outcomes.parquet"):
        assert (output / name).read_bytes() == (tiny_evaluation.folder / name).read_bytes(), name
    assert read_evaluation(output).facts == tiny_evaluation.facts
