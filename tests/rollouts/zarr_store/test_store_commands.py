"""`rollout-assets store`: every verb prints what it promises, as a table, as JSON, or as a file."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from rollout_assets.commands.store import app
from rollout_assets.errors import StoreError
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.full_disk import full_after
from tests.rollouts.zarr_store.store_under_test import Mutable
from tests.support.refusals import refused


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_info(good_store: Path) -> None:
    found = json.loads(run("info", str(good_store), "--json"))
    reader = RolloutZarrStoreReader(good_store)
    assert found["counts"]["candidates"] == reader.num_rows("candidates")
    assert found["trainable_states"] == int(reader.array("q_h/q_train_mask").any(axis=1).sum())
    assert "1.0-target-rollout-core" in run("info", str(good_store))


def test_validate(good_store: Path, mutable_store: Mutable) -> None:
    assert "nothing wrong" in run("validate", str(good_store), "--deep")
    try:
        (mutable_store.path / "steps" / "step_index" / "zarr.json").unlink()
        assert "steps/step_index" in run("validate", str(mutable_store.path), code=2)
        found = json.loads(run("validate", str(mutable_store.path), "--json", code=2))
    finally:
        mutable_store.restore()
    assert found["ok"] is False
    assert {"check", "where", "row", "count", "problem", "value"} == set(found["findings"][0])


def test_schema() -> None:
    rows = json.loads(run("schema", "--json"))
    assert {"array": "candidates/pose_world_cam", "dtype": "float32", "row_shape": "12"}.items() <= rows[
        [row["array"] for row in rows].index("candidates/pose_world_cam")
    ].items()
    assert "steps/step_index" in run("schema", "steps")
    with refused(StoreError, "'nonsense'", "candidates"):
        run("schema", "nonsense")


def test_head(good_store: Path) -> None:
    rows = json.loads(run("head", str(good_store), "rollouts", "-n", "3", "--column", "policy_id", "--json"))
    assert rows == [{"policy_id": "random_valid"}] * 3 or len(rows) == 3
    assert "policy_id" in run("head", str(good_store), "rollouts", "--column", "policy_id")
    assert "null" in run("head", str(good_store), "candidates", "--json")


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("table", ["candidates", "rollouts", "q_h", "selected_depth", "target_eval_crops"])
def test_export(good_store: Path, tmp_path: Path, table: str, suffix: str) -> None:
    reader = RolloutZarrStoreReader(good_store)
    file = tmp_path / "new" / f"{table}.{suffix}"
    assert f"{reader.num_rows(table):,} rows" in run("export", str(good_store), table, str(file))
    found = pl.read_parquet(file) if suffix == "parquet" else pl.read_csv(file, infer_schema_length=None)
    assert found.height == reader.num_rows(table)
    if suffix == "parquet":
        assert found.equals(reader.table(table, decode=True), null_equal=True)
    with refused(StoreError, file):
        run("export", str(good_store), table, str(file))
    with refused(StoreError, tmp_path / "x.txt", ".parquet", ".csv"):
        run("export", str(good_store), table, str(tmp_path / "x.txt"))


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_an_export_that_a_full_disk_does_not_take(good_store: Path, tmp_path: Path, suffix: str) -> None:
    with refused(StoreError, tmp_path / f"table.{suffix}", os.strerror(errno.EFBIG)), full_after(100):
        run("export", str(good_store), "candidates", str(tmp_path / f"table.{suffix}"))
    assert list(tmp_path.iterdir()) == []
