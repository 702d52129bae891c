"""Stores on a disk: found newest first, and whatever is wrong with one is a row of its own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import zarr

from rollout_assets.errors import StoreError
from rollout_assets.inspection.depth import selected_depth_extremes
from rollout_assets.rollouts import (
    decode_invalid_reason,
    decode_position_id,
    decode_strategy_id,
    decode_target_invalid_reason,
    discover_rollout_store_paths,
    rollout_store_inventory_rows,
    selected_depth_preview,
    selected_depth_summary_rows,
)
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.inspection import handmade_stores as made
from tests.inspection.plain_twins import depths
from tests.support.refusals import refused


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A good store, a promoted pair, and everything that can be wrong."""
    made.write(tmp_path / "good.zarr", made.clean_records())
    promoted = tmp_path / "deep" / "rollouts.zarr"
    promoted.mkdir(parents=True)
    shutil.copytree(tmp_path / "good.zarr", promoted / "train")
    shutil.copytree(tmp_path / "good.zarr", tmp_path / "stale.zarr")
    stale = tmp_path / "stale.zarr" / "zarr.json"
    text = json.loads(stale.read_text())
    text["attributes"]["schema_version"] = "0.9"
    stale.write_text(json.dumps(text))
    shutil.copytree(tmp_path / "good.zarr", tmp_path / "damaged.zarr")
    shutil.rmtree(tmp_path / "damaged.zarr" / "candidates" / "q_train_mask" / "c")
    shutil.copytree(tmp_path / "good.zarr", tmp_path / "broken.zarr")
    (tmp_path / "broken.zarr" / "zarr.json").write_text("{not json")
    shutil.copytree(tmp_path / "good.zarr", tmp_path / "unsigned.zarr")
    (tmp_path / "unsigned.zarr" / "manifest.json").unlink()
    zarr.create_group(tmp_path / "foreign.zarr", attributes={"title": "weather"})
    (tmp_path / "nothing.zarr").mkdir()
    return tmp_path


def test_every_store_is_a_row_and_none_ends_the_inventory(shelf: Path) -> None:
    paths = discover_rollout_store_paths(shelf)
    rows = {Path(row["path"]).name: row for row in rollout_store_inventory_rows(paths).to_dicts()}
    assert set(rows) == {
        "good.zarr",
        "train",
        "stale.zarr",
        "damaged.zarr",
        "broken.zarr",
        "unsigned.zarr",
        "foreign.zarr",
    }
    statuses = {name: (row["status"], row["valid"]) for name, row in rows.items()}
    assert statuses["good.zarr"] == statuses["train"] == ("current", True)
    assert statuses["stale.zarr"] == ("stale", None) and "'0.9'" in rows["stale.zarr"]["problem"]
    assert statuses["foreign.zarr"] == ("stale", None) and "schema is None" in rows["foreign.zarr"]["problem"]
    assert statuses["broken.zarr"] == ("unreadable", None) and rows["broken.zarr"]["problem"]
    assert statuses["damaged.zarr"] == ("current", False)
    assert "q_train_mask" in rows["damaged.zarr"]["problem"] and "q_train_mask" in rows["damaged.zarr"]["first_finding"]
    assert statuses["unsigned.zarr"] == ("current", False) and "manifest.json" in rows["unsigned.zarr"]["problem"]
    good = rows["good.zarr"]
    assert (good["rollouts"], good["candidates"], good["policies"], good["horizons"]) == (3, 60, "oracle_greedy", "1")
    assert good["q_train_fraction"] == 1.0 and good["oracle_config_hash"] == "0" * 64
    files = [file for file in (shelf / "good.zarr").rglob("*") if file.is_file()]
    assert (good["files"], good["bytes"]) == (len(files), sum(file.stat().st_size for file in files))


def test_newest_stores_come_first(shelf: Path) -> None:
    os.utime(shelf / "stale.zarr" / "zarr.json", (2e9, 2e9))
    os.utime(shelf / "foreign.zarr" / "zarr.json", (1, 1))
    paths = discover_rollout_store_paths(shelf)
    assert (paths[0].name, paths[-1].name) == ("stale.zarr", "foreign.zarr")
    assert discover_rollout_store_paths(shelf, "good*") == [shelf / "good.zarr"]
    assert discover_rollout_store_paths(shelf / "deep" / "rollouts.zarr") == [
        shelf / "deep" / "rollouts.zarr" / "train"
    ]


def test_places_without_stores(tmp_path: Path) -> None:
    assert discover_rollout_store_paths(tmp_path) == []
    with refused(StoreError, tmp_path / "nowhere"):
        discover_rollout_store_paths(tmp_path / "nowhere")
    (row,) = rollout_store_inventory_rows([tmp_path / "nowhere.zarr"]).to_dicts()
    assert row["status"] == "unreadable" and str(tmp_path / "nowhere.zarr") in row["problem"]
    assert rollout_store_inventory_rows([]).is_empty()


def test_validation_can_be_left_out(shelf: Path) -> None:
    (row,) = rollout_store_inventory_rows([shelf / "damaged.zarr"], validate=False).to_dicts()
    assert row["valid"] is None and row["rollouts"] == 3


@pytest.mark.parametrize(
    ("decode", "known", "unknown"),
    [
        (decode_invalid_reason, {0: "VALID", 5: "CLEARANCE_TOO_SMALL", 23: "RUNTIME_ERROR"}, "reason_99"),
        (decode_target_invalid_reason, {0: "VALID", 11: "TARGET_GT_AMBIGUOUS"}, "target_reason_99"),
        (decode_position_id, {0: "upper_bound_free_shell", 5: "revisit_backtrack"}, "position_99"),
        (decode_strategy_id, {0: "forward_rig", 3: "target_point"}, "strategy_99"),
    ],
)
def test_names_are_stable_and_unknown_codes_keep_their_number(decode, known, unknown) -> None:
    assert {code: decode(code) for code in known} == known
    assert decode(99) == unknown and decode(-1) == decode(-7) == "unknown"


def test_depth_summaries_equal_plain_python(real: RolloutZarrStoreReader) -> None:
    rows = selected_depth_summary_rows(real, None)
    taken = (real.array("steps/selected_candidate_row_id") >= 0).nonzero()[0].tolist()
    assert rows["step_row_id"].to_list() == taken
    for row, expected in zip(rows.to_dicts(), depths(real), strict=True):
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    extremes = selected_depth_extremes(real)
    assert extremes["valid_fraction"].to_list() == rows["valid_fraction"].to_list()
    assert extremes["far_fraction"].to_list() == rows["far_fraction"].to_list()
    few = selected_depth_summary_rows(real, 3)["step_row_id"].to_list()
    assert len(few) == 3 and few[0] == taken[0] and few[-1] == taken[-1]


def test_a_preview_is_small_and_true(real: RolloutZarrStoreReader) -> None:
    preview = selected_depth_preview(real, 0, max_size=10)
    assert preview.depth_m.shape == (8, 8) and preview.stride == 3 and preview.full_size_hw == (24, 24)
    stored, valid = real.array("selected_depth/depth_m")[0], real.array("selected_depth/valid_mask")[0]
    assert (preview.depth_m[valid[::3, ::3]] == stored[::3, ::3][valid[::3, ::3]]).all()
    for arguments, names in (((9999,), ("steps", 9999)), ((0, 0), ("max_size", 0))):
        with refused(StoreError, *names):
            selected_depth_preview(real, *arguments)
