"""`store convert`: a store of another writer becomes one of ours, value for value, or nothing is left behind."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

from rollout_assets.commands.store import app
from rollout_assets.errors import StoreError, StoreExists
from rollout_assets.files import tree_sizes
from rollout_assets.learning import QHDataset
from rollout_assets.rollouts import diff_stores
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, schema, validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.foreign.convert import Conversion, convert_store
from tests.full_disk import full_after
from tests.rollouts.zarr_store.research_store import change, columns
from tests.support.refusals import refused

pytestmark = pytest.mark.ci

REPOSITORY = Path(__file__).resolve().parents[3]

DRAWS = {
    "steps/selected_draw_log_probability",
    "candidates/selection_inclusion_probabilities",
    "candidates/drawn_mask",
}


@pytest.fixture(scope="module")
def source(research_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The research store with arrays and attributes that no schema knows."""
    path = Path(shutil.copytree(research_store, tmp_path_factory.mktemp("source") / "theirs.zarr"))
    root = zarr.open_group(path, mode="r+")
    steps = root["steps/step_row_id"].shape[0]
    root["steps"].create_array("novelty", data=np.linspace(0, 1, steps))
    root["q_h"].create_array("embedding", data=np.arange(steps * 6, dtype="f4").reshape(steps, 2, 3))
    root["dictionaries"].create_array("camera", data=np.frombuffer(b'["rgb"]', "u1"))
    root.create_group("traces").create_array("raw", data=np.arange(3))
    root["candidates/target_rri"].attrs["unit"] = "1"
    root["targets"].attrs["spread"] = float("nan")
    return path


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    return convert_store(source, tmp_path_factory.mktemp("converted") / "new" / "ours.zarr")


def test_every_value_is_carried_over(source: Path, converted: Conversion) -> None:
    theirs, ours = (zarr.open_group(path, mode="r") for path in (source, converted.written.store_dir))
    extra = ("steps/novelty", "q_h/embedding", "dictionaries/camera")
    for path in (*columns(), *schema.TEXT_ARRAYS, *extra):
        assert theirs[path].dtype == ours[path].dtype, path
        np.testing.assert_array_equal(theirs[path][...], ours[path][...], err_msg=path)
    assert converted.extra_arrays == tuple(sorted(extra))
    assert diff_stores(RolloutZarrStoreReader(source), RolloutZarrStoreReader(ours.store.root)).equal


def test_the_result_is_a_store_of_ours(
    every_step_store: Path, converted: Conversion, recwarn: pytest.WarningsRecorder
) -> None:
    path = converted.written.store_dir
    for profile in ("own", None):
        result = validate_rollout_zarr_store(path, deep=True, profile=profile)
        assert result.ok and result.profile == "own", result.errors[:5]
    reader, ours = RolloutZarrStoreReader(path), RolloutZarrStoreReader(every_step_store)
    np.testing.assert_array_equal(reader.array("targets/source_row_id"), ours.array("targets/source_row_id"))
    assert converted.derived == ("targets/source_row_id",) and set(converted.absent) == DRAWS
    assert not any(reader.has(name) for name in DRAWS)
    assert QHDataset(path, history=1).verified and not recwarn.list


def test_the_manifest_says_where_it_came_from(source: Path, converted: Conversion) -> None:
    theirs = json.loads((source / "manifest.json").read_text())
    ours = json.loads(converted.written.manifest_path.read_text())
    record = ours["converted_from"]
    assert record["store"] == "theirs.zarr"
    assert record["manifest_sha256"] == zarr.open_group(source, mode="r").attrs["manifest_sha256"]
    assert ours["generation"] == theirs["generation"] and ours["created_at_utc"] == theirs["created_at_utc"]
    assert record["manifest"]["notes"] == theirs["notes"]
    assert record["manifest"]["config_hashes"] == theirs["config_hashes"]
    assert record["attributes"]["rollout_experiment"] == "ablation-7"
    assert record["attributes"]["candidates/target_rri unit"] == "1"
    assert record["left_behind"] == list(converted.left_behind)
    assert set(converted.left_behind) == {"traces", "traces/raw", "attributes targets spread"}


def test_the_input_is_not_changed(source: Path, tmp_path: Path) -> None:
    before = tree_sizes(source), [file.stat().st_mtime_ns for file in sorted(source.rglob("*"))]
    convert_store(source, tmp_path / "ours.zarr")
    assert before == (tree_sizes(source), [file.stat().st_mtime_ns for file in sorted(source.rglob("*"))])


def test_a_training_view_that_is_wrong_is_rebuilt_and_named(source: Path, tmp_path: Path) -> None:
    wrong = Path(shutil.copytree(source, tmp_path / "wrong.zarr"))
    change(wrong, "q_h/td_reward", 4, 9.0)
    result = convert_store(wrong, tmp_path / "ours.zarr")
    assert result.view_differences == ("q_h/td_reward: 1 state other than the tables make, first state 4",)
    good, bad = (zarr.open_array(path / "q_h/td_reward", mode="r")[4] for path in (result.written.store_dir, wrong))
    assert bad == 9.0 and good == zarr.open_array(source / "q_h/td_reward", mode="r")[4]


def test_refusals_leave_nothing(source: Path, good_store: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken.zarr"
    taken.mkdir()
    wrong = Path(shutil.copytree(source, tmp_path / "wrong.zarr"))
    change(wrong, "steps/cumulative_target_root_gain", 1, 7.0)
    for given, destination, kind, names in (
        (source, taken, StoreExists, [taken]),
        (good_store, tmp_path / "a.zarr", StoreError, [good_store]),
        (wrong, tmp_path / "b.zarr", StoreError, [wrong, "steps/cumulative_target_root_gain row 1", 7.0]),
    ):
        with refused(kind, *names):
            convert_store(given, destination)
    with refused(OSError, "c.zarr", errno=errno.EFBIG), full_after(20_000):
        convert_store(source, tmp_path / "c.zarr")
    assert {path.name for path in tmp_path.iterdir()} == {"taken.zarr", "wrong.zarr"}


def test_the_command_says_what_it_did(source: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "ours.zarr")], catch_exceptions=False)
    assert result.exit_code == 0
    for line in (
        "ours.zarr: 1,521 candidate rows of 54 rollouts, validated",
        "derived: targets/source_row_id",
        "their training view is the one that their tables make",
        "not carried over: traces/raw",
    ):
        assert line in result.output


_MAKE = """
import sys
from pathlib import Path
from rollout_assets.benchmarks.store_workloads import WITHOUT_DEPTH, bench_records
from rollout_assets.rollouts.zarr_store import write_rollout_zarr_store
from tests.rollouts.zarr_store.research_store import write_research_store
folder, rows = Path(sys.argv[1]), int(sys.argv[2])
config = WITHOUT_DEPTH.model_copy(update={"dead_ends_in_training_view": True})
write_rollout_zarr_store(folder / "rows.zarr", bench_records(rows), config)
write_research_store(folder / "theirs.zarr", folder / "rows.zarr", chunk_rows=20_000)
"""
_CONVERT = """
import resource, sys, time
from pathlib import Path
from rollout_assets.rollouts.zarr_store.foreign.convert import convert_store
result = convert_store(Path(sys.argv[1]) / "theirs.zarr", Path(sys.argv[1]) / "ours.zarr")
peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(result.written.num_candidates, peak_kb, time.process_time())
"""


@pytest.mark.slow
def test_two_million_rows_are_converted_in_bounded_memory(tmp_path: Path) -> None:
    """681 MB and 14 s of processor time when it was written; 535 MB and 5 s for half a million rows."""
    for program in (_MAKE, _CONVERT):
        command = [sys.executable, "-c", program, str(tmp_path), "2000000"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    rows, peak_kb, processor_seconds = (float(word) for word in done.stdout.split())
    assert rows >= 2_000_000
    assert peak_kb < 1_000_000 and processor_seconds < 120, done.stdout
