"""Two stores compared: equal whatever their row ids, and every difference named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import zarr

from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.errors import StoreError
from rollout_assets.rollouts import diff_stores
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    write_rollout_zarr_store,
)
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.support.refusals import refused

RECORDS = SyntheticRecords(sources=3, targets=2, horizon=2, shell=(4, 9), depth_hw=(6, 6), scene_labels=True)
CONFIG = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(width_px=6, height_px=6), chunk_rows=50)


def stored(path: Path, records) -> RolloutZarrStoreReader:
    write_rollout_zarr_store(path, records, CONFIG)
    return RolloutZarrStoreReader(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RolloutZarrStoreReader:
    return stored(tmp_path_factory.mktemp("diff") / "a.zarr", RECORDS)


def test_a_store_equals_itself_and_its_copy_in_another_order(store: RolloutZarrStoreReader, tmp_path: Path) -> None:
    assert diff_stores(store, store).equal
    other = stored(tmp_path / "b.zarr", reversed(list(RECORDS)))
    assert other.array("candidates/shell_index").tolist() != store.array("candidates/shell_index").tolist()
    found = diff_stores(store, other)
    assert found.equal, found.differences.to_dicts()
    assert found.rows_compared["candidates"] == store.num_rows("candidates")


def test_rows_that_only_one_has_are_counted_and_named(store: RolloutZarrStoreReader, tmp_path: Path) -> None:
    fewer = stored(tmp_path / "b.zarr", [record for record in RECORDS if record.lineage.source_sample_index != 2])
    lines = diff_stores(store, fewer).differences.to_dicts()
    assert {line["what"] for line in lines} == {"only_in_a"}
    by_table = {line["table"]: line for line in lines}
    assert by_table["sources"]["first"] == "room-001/snippet-00002"
    assert by_table["candidates"]["rows"] == store.num_rows("candidates") - fewer.num_rows("candidates")
    assert {line["what"] for line in diff_stores(fewer, store).differences.to_dicts()} == {"only_in_b"}


@pytest.mark.parametrize(
    ("array", "row", "value"),
    [
        ("candidates/target_root_gain", 5, 0.5),
        ("candidates/actor_action_mask", 5, None),
        ("candidates/pose_world_cam", 7, 1.0),
        ("candidate_diagnostics/mesh_distance_m", 3, 9.0),
        ("lineage/oracle_config_id", 0, 0),
        ("steps/num_valid_candidates", 1, 99),
        ("selected_depth/valid_mask", 0, False),
    ],
)
def test_one_changed_value_is_one_line(store, tmp_path: Path, array: str, row: int, value: object) -> None:
    copy = shutil.copytree(store.location, tmp_path / "copy.zarr")
    target = zarr.open_group(copy, mode="r+")[array]
    target[row] = not target[row] if value is None else value
    (line,) = diff_stores(store, RolloutZarrStoreReader(copy)).differences.to_dicts()
    assert (f"{line['table']}/{line['column']}", line["rows"], line["what"]) == (array, 1, "value")
    assert line["value_a"] != line["value_b"] and "-target-" in line["first"]


def test_tolerance_and_depth_can_be_left_out(store: RolloutZarrStoreReader, tmp_path: Path) -> None:
    copy = shutil.copytree(store.location, tmp_path / "copy.zarr")
    root = zarr.open_group(copy, mode="r+")
    root["steps/cumulative_target_rri"][0] += 1e-4
    root["selected_depth/depth_m"][0] = 2.0
    changed = RolloutZarrStoreReader(copy)
    assert diff_stores(store, changed).differences["column"].to_list() == ["cumulative_target_rri", "depth_m"]
    assert diff_stores(store, changed, depth=False).differences["column"].to_list() == ["cumulative_target_rri"]
    assert diff_stores(store, changed, tolerance=1e-3, depth=False).equal
    with refused(StoreError, "tolerance", -1):
        diff_stores(store, store, tolerance=-1)


def test_depth_of_another_size_is_named(store: RolloutZarrStoreReader, tmp_path: Path) -> None:
    small = SyntheticRecords(**{**vars(RECORDS), "depth_hw": (5, 5)})
    config = CONFIG.model_copy(update={"selected_depth": SelectedDepthRetentionConfig(width_px=5, height_px=5)})
    write_rollout_zarr_store(tmp_path / "b.zarr", small, config)
    lines = diff_stores(store, RolloutZarrStoreReader(tmp_path / "b.zarr")).differences.to_dicts()
    shapes = {line["column"]: (line["value_a"], line["value_b"]) for line in lines if line["what"] == "shape"}
    assert shapes["depth_m"] == ("float16[6, 6]", "float16[5, 5]")
