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


def test_the_real_package_takes_them_offline(tmp_path, monkeypatch, entries):
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "DIR": tmp_path, "CACHE_DIR": tmp_path, "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(value))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    output, metrics = tmp_path / "night (2).jsonl", tmp_path / "metrics.json"
    output.write_text(json.dumps(result()) + "\n")
    publish_metrics(metrics, entries)
    upload_rollouts(output, metrics)
    assert read_offline_history(tmp_path) == [logged_metrics(entries)]


def read_offline_history(folder):
    """What the package wrote of a run, without the fields that it adds itself."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (path,) = folder.rglob("run-*.wandb")
    store, history = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            history.append({name: value for name, value in items.items() if not name.startswith("_")})
    return history
