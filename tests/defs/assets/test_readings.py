"""What is read off the promoted store: pages, metrics, and a second opinion that a false label does not pass."""

import json

import numpy as np
import pytest
import zarr
from dagster import AssetKey

from rollout_assets.campaigns.versions import current_version
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from tests.defs.test_headless import failed


def latest(instance, asset):
    return instance.get_latest_materialization_event(AssetKey(["tiny", asset])).asset_materialization.metadata


def test_the_report_of_every_split_is_written_and_its_path_is_shown(finished_desk):
    desk, _ = finished_desk
    with desk.runner().instance as instance:
        metadata = latest(instance, "rollout_report")
    for split in ("train", "val"):
        page = desk.layout.reports / f"{split}.html"
        assert metadata[f"report_{split}"].value == str(page)
        text = page.read_text()
        assert "Plotly" in text and "confirms every label" in text, "pages are written after the second opinion"
        assert desk.layout.second_opinion(split).is_file()
    assert metadata["pictures"].value.startswith("![](data:image/svg+xml;base64,")


def test_metrics_per_recipe_are_those_of_the_stored_chains(finished_desk):
    desk, _ = finished_desk
    with desk.runner().instance as instance:
        metadata = latest(instance, "rollout_metrics")
    rows = {record.data["where"]: record.data for record in metadata["per_recipe"].records}
    assert sorted(rows) == ["train", "val"]
    for child in current_version(desk.config).children:
        reader = RolloutZarrStoreReader(child)
        rewards = {}
        for row in range(reader.num_rows("rollouts")):
            stored = reader.rollout(row)
            taken = [step for step in stored.chain.steps if step.selection.selected_shell_index >= 0]
            gains = [float(step.labels.target_root_gain[step.selection.selected_shell_index]) for step in taken]
            rewards.setdefault(stored.lineage.target_row_id, sum(gains))
        shown = rows[child.name]
        assert shown["recipe"] == "oracle_greedy" and shown["rollouts"] == len(rewards)
        assert shown["reward/mean"] == pytest.approx(np.mean(list(rewards.values())), abs=1e-3)
        assert shown["reward max"] == pytest.approx(max(rewards.values()), abs=1e-3)


def test_a_false_label_does_not_pass_the_second_opinion(made_desk):
    for child in current_version(made_desk.config).children:
        labels = zarr.open_array(child / "candidates" / "target_root_gain", mode="r+")
        labels[:] = labels[:] + np.float32(0.01)
    runner = made_desk.runner()
    with runner.instance:
        run = runner.run("store_checks")
    found = failed(run)
    assert {"second_opinion", "stores_valid"} <= set(found)
    assert "target_root_gain" in found["second_opinion"] and "gap 0.0" in found["second_opinion"]


@pytest.mark.ci
def test_collected_results_are_shown_beside_the_stored_ones(made_desk):
    made_desk.layout.collected.mkdir()
    lines = [
        {"agent_ref": {"name": "oracle_greedy"}, "_task_index": task, "_rollout_index": 0, "reward": reward}
        for task, reward in enumerate((0.25, 0.75))
    ]
    lines.append(lines[0] | {"_task_index": 2, "status": "refused", "reward": None})
    path = made_desk.layout.collected / "night.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    path.with_name("night_failures.jsonl").write_text("")
    runner = made_desk.runner()
    with runner.instance as instance:
        before = latest(instance, "rollout_metrics")
        assert "collected" not in before
        assert runner.run("promote").ok
        (row,) = (record.data for record in latest(instance, "rollout_metrics")["collected"].records)
    assert row["where"] == "night.jsonl" and row["recipe"] == "oracle_greedy"
    assert row["rollouts"] == 3 and row["refused"] == 1 and row["reward/mean"] == 0.5
