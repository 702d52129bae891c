"""Uploading: every metric under a key of its own, and the real package, where it is installed, takes them all."""

import json

import pytest

from rollout_assets.collection.wandb_upload import logged_metrics, upload_rollouts
from rollout_assets.metrics.results import aggregate_results, publish_metrics
from tests.metrics.test_results import result


@pytest.fixture
def entries():
    """Two agents; tasks of the first have different numbers of rollouts."""
    lines = [result("greedy", 0, n, reward=0.8) for n in range(3)]
    lines += [result("greedy", 1, 0, reward=0.0), result("random", 0, 0, reward=0.1)]
    return aggregate_results(lines)


def test_every_metric_has_a_key_of_its_own(entries):
    logged = logged_metrics(entries)
    assert logged["greedy/rollouts/reward/mean"] == pytest.approx(0.6)
    assert logged["greedy/tasks/reward/mean"] == pytest.approx(0.4)
    assert logged["greedy/counts/done"] == 4
    levels = [(entry["agent_metrics"], entry["key_metrics"], entry["counts"]) for entry in entries]
    values = sum(value is not None for parts in levels for part in parts for value in part.values())
    assert len(logged) == values, "no two metrics share a key"
    assert "random/rollouts/reward/std" not in logged, "one value has no spread, which is not zero"
    assert "greedy/counts/expected" not in logged


@pytest.fixture
def summaries(tmp_path, monkeypatch):
    """What the real package holds of each run at its end, without the fields that it adds itself."""
    wandb = pytest.importorskip("wandb")
    for name in ("DIR", "CACHE_DIR", "DATA_DIR", "CONFIG_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    start, held = wandb.init, []

    def watched(**options):
        run = start(**options)
        finish = run.finish

        def noted():
            held.append({name: value for name, value in dict(run.summary).items() if not name.startswith("_")})
            finish()

        monkeypatch.setattr(run, "finish", noted)
        return run

    monkeypatch.setattr(wandb, "init", watched)
    return held


def test_the_real_package_takes_them_offline(tmp_path, summaries, entries):
    output, metrics = tmp_path / "night (2).jsonl", tmp_path / "metrics.json"
    output.write_text(json.dumps(result()) + "\n")
    publish_metrics(metrics, entries)
    upload_rollouts(output, metrics)
    assert summaries == [logged_metrics(entries)]
    upload_rollouts(output, None)
    assert summaries[1:] == [{}]
