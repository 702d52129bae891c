"""What went in comes out: field by field, as tables, through plain zarr, and from far away."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import polars as pl
import pytest
import zarr

from rollout_assets.errors import StoreDamaged, StoreError
from rollout_assets.rollouts.trace import RolloutChain, RolloutLineage, RolloutStep
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.schema import Q_H, TABLES, array_paths
from tests.rollouts.zarr_store.store_under_test import RECORDS
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def reader(good_store: Path) -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(good_store)


def assert_same_lineage(found: RolloutLineage, expected: RolloutLineage) -> None:
    for field in dataclasses.fields(RolloutLineage):
        if field.name in ("source_row_id", "target_row_id"):
            assert getattr(found, field.name) is not None
            continue
        left, right = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(right, (float, tuple)):
            np.testing.assert_array_equal(np.float32(left), np.float32(right), err_msg=field.name)
        else:
            assert left == right, field.name


def assert_same_step(found: RolloutStep, expected: RolloutStep) -> None:
    for name in ("shell", "labels", "selection"):
        left, right = getattr(found, name), getattr(expected, name)
        for field in dataclasses.fields(right):
            if field.name == "diagnostics":
                for part in dataclasses.fields(right.diagnostics):
                    a, b = getattr(left.diagnostics, part.name), getattr(right.diagnostics, part.name)
                    np.testing.assert_array_equal(a, b, strict=True)
            elif isinstance(getattr(right, field.name), np.ndarray):
                a, b = getattr(left, field.name), getattr(right, field.name)
                np.testing.assert_array_equal(a, b, err_msg=field.name, strict=True)
            else:
                assert getattr(left, field.name) == getattr(right, field.name)
    if expected.selected_depth is None:
        assert found.selected_depth is None
        return
    assert found.selected_depth is not None
    np.testing.assert_array_equal(found.selected_depth.depth_m, expected.selected_depth.depth_m.astype(np.float16))
    np.testing.assert_array_equal(found.selected_depth.valid_mask, expected.selected_depth.valid_mask)
    for name in ("focal_px", "principal_point_px"):
        left, right = getattr(found.selected_depth, name), getattr(expected.selected_depth, name)
        assert left == tuple(np.float32(right).tolist())


def assert_same_chain(found: RolloutChain, expected: RolloutChain) -> None:
    assert found.chain_id == expected.chain_id
    assert found.termination_reason == expected.termination_reason
    assert found.selection_rng_state_hash == expected.selection_rng_state_hash
    assert len(found.steps) == len(expected.steps)
    for left, right in zip(found.steps, expected.steps, strict=True):
        assert_same_step(left, right)


def test_every_chain_comes_back_field_by_field(reader: RolloutZarrStoreReader) -> None:
    row = 0
    for record in RECORDS:
        for chain in record.chains:
            stored = reader.rollout(row)
            assert_same_lineage(stored.lineage, record.lineage_for_chain(chain))
            assert_same_chain(stored.chain, chain)
            np.testing.assert_array_equal(stored.root.pose_world_camera, record.root.pose_world_camera)
            assert (stored.root.time_ns, stored.root.trajectory_index, stored.root.frame_index) == (
                record.root.time_ns,
                record.root.trajectory_index,
                record.root.frame_index,
            )
            assert (stored.horizon, stored.branch_factor, stored.beam_width, stored.temperature) == (
                record.horizon,
                record.branch_factor,
                record.beam_width,
                record.temperature,
            )
            row += 1
    assert row == reader.num_rows("rollouts")


def test_single_steps_come_back(reader: RolloutZarrStoreReader) -> None:
    chain = next(record.chains[0] for record in RECORDS if record.chains)
    for index, step in enumerate(chain.steps):
        stored = reader.step(index)
        assert_same_step(stored.step, step)
        assert (stored.step_index, stored.rollout_row_id) == (index, 0)
        assert stored.q_train_mask.sum() <= step.oracle_label_mask.sum()
    with refused(StoreError, "steps", 10**6):
        reader.step(10**6)


def test_records_without_chains_keep_their_source_and_target(reader: RolloutZarrStoreReader) -> None:
    records = list(RECORDS)
    assert any(not record.chains for record in records)
    named = {record.lineage.target_id for record in records}
    assert set(reader.table("targets", decode=True)["target_id"]) == named


def test_tables_decode_strings_on_request(reader: RolloutZarrStoreReader) -> None:
    raw, decoded = reader.table("rollouts"), reader.table("rollouts", decode=True)
    assert raw["policy_id"].dtype == pl.Int32
    assert set(decoded["policy_id"]) == set(RECORDS.recipes)
    assert decoded["root_pose_world"].dtype == pl.Array(pl.Float32, 12)
    assert reader.table("lineage", decode=True)["model_checkpoint_id"].null_count() == len(decoded)
    some = reader.table("candidates", columns=["target_rri"], start=10, stop=14)
    np.testing.assert_array_equal(some["target_rri"].to_numpy(), reader.array("candidates/target_rri", 10, 14))
    with refused(StoreError, "steps", "nonsense", "step_row_id"):
        reader.table("steps", columns=["nonsense"])
    with refused(StoreError, "'nonsense'", "q_h"):
        reader.table("nonsense")


def test_direct_reading_equals_zarr(good_store: Path, reader: RolloutZarrStoreReader) -> None:
    root = zarr.open_group(good_store, mode="r")
    for path in array_paths():
        expected = root[path][...]
        np.testing.assert_array_equal(reader.array(path), expected, strict=True)
        rows = len(expected)
        for start, stop in ((0, rows), (rows // 3, rows // 2 + 1), (rows - 1, rows)):
            if 0 <= start < stop:
                np.testing.assert_array_equal(reader.array(path, start, stop), expected[start:stop], strict=True)


def test_plain_zarr_decodes_every_array_without_this_package(good_store: Path) -> None:
    program = """
import hashlib, json, sys, zarr
root = zarr.open_group(sys.argv[1], mode="r")
found = {}
def visit(group, prefix):
    for name, node in group.members():
        if isinstance(node, zarr.Group):
            visit(node, prefix + name + "/")
        else:
            found[prefix + name] = hashlib.sha256(node[...].tobytes()).hexdigest()
visit(root, "")
assert not any(name.startswith("rollout_assets") for name in sys.modules)
print(json.dumps(found))
"""
    command = (sys.executable, "-W", "ignore", "-c", program, str(good_store))
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    manifest = json.loads((good_store / "manifest.json").read_text())
    assert json.loads(done.stdout) == manifest["content_sha256"]
    assert set(manifest["content_sha256"]) == set(array_paths())


def test_manifest_is_canonical_and_named_by_the_root(good_store: Path, reader: RolloutZarrStoreReader) -> None:
    data = (good_store / "manifest.json").read_bytes()
    payload = json.loads(data)
    assert data == json.dumps(payload, indent=2, sort_keys=True, ensure_ascii=True).encode()
    both = reader.manifest()
    assert both["root_attrs"]["manifest_sha256"] == hashlib.sha256(data).hexdigest()
    assert both["manifest"] == payload
    runtime = payload["generation"]["runtime"]
    assert set(runtime) == {"python", "platform", "git", "packages"}
    assert "environ" not in data.decode().lower()


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_remote_stores_open_through_the_same_class(good_store: Path, tmp_path: Path, scheme: str) -> None:
    url = "memory://rollouts/store.zarr" if scheme == "memory" else f"file://{good_store}"
    if scheme == "memory":
        fsspec.filesystem("memory").put(str(good_store), "/rollouts/store.zarr", recursive=True)
    local, far = RolloutZarrStoreReader(good_store), RolloutZarrStoreReader(url)
    for name in TABLES:
        assert far.table(name).equals(local.table(name), null_equal=True)
    assert_same_chain(far.rollout(3).chain, local.rollout(3).chain)
    assert far.manifest() == local.manifest()
    assert validate_rollout_zarr_store(url, deep=True).errors == []
    with refused(Exception, "read-only"):
        zarr.open_group(far.root.store, mode="r+").attrs["x"] = 1


def test_what_is_not_there_is_said(tmp_path: Path, reader: RolloutZarrStoreReader) -> None:
    with refused(StoreError, tmp_path / "nowhere"):
        RolloutZarrStoreReader(tmp_path / "nowhere")
    with refused(StoreError, f"{tmp_path}: ", "zarr.json"):
        RolloutZarrStoreReader(tmp_path)
    with refused(StoreDamaged, where="candidates/nonsense"):
        reader.array("candidates/nonsense")


def test_the_view_is_persisted_and_rebuilt_for_another_discount(reader: RolloutZarrStoreReader) -> None:
    stored, same, other = reader.q_h_view(), reader.q_h_view(discount_gamma=0.9), reader.q_h_view(discount_gamma=0.5)
    for name in Q_H.names:
        np.testing.assert_array_equal(stored[name], same[name], strict=True)
        if name != "td_discount":
            np.testing.assert_array_equal(stored[name], other[name])
    np.testing.assert_array_equal(other["td_discount"], np.where(stored["td_terminal_mask"], 0, np.float32(0.5)))


def test_stores_without_the_added_columns_are_read(good_store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    shutil.copytree(good_store, folder)
    document = json.loads((folder / "zarr.json").read_text())
    for path in ("candidates/drawn_mask", "candidates/selection_inclusion_probabilities"):
        shutil.rmtree(folder / path)
        del document["consolidated_metadata"]["metadata"][path]
    shutil.rmtree(folder / "steps/selected_draw_log_probability")
    del document["consolidated_metadata"]["metadata"]["steps/selected_draw_log_probability"]
    (folder / "zarr.json").write_text(json.dumps(document))
    foreign = RolloutZarrStoreReader(folder)
    selection = foreign.step(0).step.selection
    assert np.flatnonzero(selection.drawn_mask).tolist() == [selection.selected_shell_index]
    assert np.isnan(selection.inclusion_probabilities).all() and selection.draw_log_probability is None
    assert foreign.table("candidates")["drawn_mask"].is_null().all()
    with refused(StoreDamaged, where="candidates/drawn_mask"):
        foreign.array("candidates/drawn_mask")
