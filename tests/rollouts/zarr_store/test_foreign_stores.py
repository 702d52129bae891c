"""Stores that others wrote: read in any layout, validated by what their rows say, and refused by name if not 1.0."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

from rollout_assets.cli import app, main
from rollout_assets.errors import StoreDamaged
from rollout_assets.learning import QHDataset, QHIterableDataset
from rollout_assets.learning.pinned import UnverifiedStoreWarning
from rollout_assets.rollouts import diff_stores, training_readiness
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreReader,
    schema,
    validate_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store.foreign.derived import named_sources, sources_of_targets
from rollout_assets.rollouts.zarr_store.foreign.mixtures import mixture_components
from rollout_assets.rollouts.zarr_store.foreign.schema_versions import schema_problem
from tests.rollouts.zarr_store.research_store import COMPONENTS, change, columns
from tests.rollouts.zarr_store.store_under_test import Mutable
from tests.support.refusals import assert_names, refused

ADDED = {
    "targets/source_row_id",
    "candidates/selection_inclusion_probabilities",
    "candidates/drawn_mask",
    "steps/selected_draw_log_probability",
}


def lines_of(*arguments: object, code: int = 0) -> list[str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output.splitlines()


@pytest.fixture(scope="module")
def mutable_research(research_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Mutable:
    return Mutable(Path(shutil.copytree(research_store, tmp_path_factory.mktemp("faulty") / "faulty.zarr")))


@pytest.fixture
def faulty(mutable_research: Mutable) -> Iterator[Path]:
    """A copy to plant faults in, put back afterwards."""
    yield mutable_research.path
    mutable_research.restore()


@pytest.mark.quick
def test_research_layout_is_the_schema_without_added_columns() -> None:
    ours = {table.path(name): table[name] for table in schema.TABLES.values() for name in table.names}
    assert set(ours) - set(columns()) == ADDED == set(schema.added_paths())
    assert all(ours[path].numpy_dtype == dtype for path, dtype in columns().items())


def test_every_array_reads_as_plain_zarr_reads_it(research_store: Path) -> None:
    reader, plain = RolloutZarrStoreReader(research_store), zarr.open_group(research_store, mode="r")
    for path in columns():
        np.testing.assert_array_equal(reader.array(path), plain[path][...])
    assert reader.num_rows("target_eval_crops") == 5


def test_the_source_row_of_a_target_is_derived(research_store: Path, every_step_store: Path) -> None:
    theirs, ours = RolloutZarrStoreReader(research_store), RolloutZarrStoreReader(every_step_store)
    path = "targets/source_row_id"
    np.testing.assert_array_equal(theirs.array(path), ours.array(path))
    np.testing.assert_array_equal(theirs.array(path, 2, 5), ours.array(path, 2, 5))
    assert theirs.table("targets").equals(ours.table("targets"), null_equal=True)


@pytest.mark.quick
def test_a_target_without_rollouts_is_found_by_its_snippet() -> None:
    owner = sources_of_targets(4, np.array([0, 0, 0, 2, 9, -1]), np.array([5, 1, 1, 0, 3, 3]))
    assert owner.tolist() == [1, -1, 0, -1]
    names = ["", "room:snip-b:box", "", "room:snip-c:box"]
    assert named_sources(owner, names, ["snip-a", "snip-b"]).tolist() == [1, 1, 0, -1]
    assert named_sources(owner, names, ["snip-b", "snip-b"]).tolist() == [1, -1, 0, -1]


def test_columns_of_ours_are_null_in_tables(research_store: Path) -> None:
    reader = RolloutZarrStoreReader(research_store)
    rows = reader.table("candidates", columns=["drawn_mask", "selection_inclusion_probabilities"], start=3, stop=10)
    assert rows.height == 7 and rows.null_count().row(0) == (7, 7)
    assert reader.table("steps")["selected_draw_log_probability"].null_count() == reader.num_rows("steps")
    assert not reader.has("candidates/drawn_mask")
    step = reader.step(0).step.selection
    assert step.draw_log_probability is None and np.isnan(step.inclusion_probabilities).all()


def test_what_needs_the_draws_is_left_out(research_store: Path, every_step_store: Path) -> None:
    theirs, ours = (training_readiness(RolloutZarrStoreReader(path)) for path in (research_store, every_step_store))
    assert {one.name for one in ours.measures} - {one.name for one in theirs.measures} == {"effective sample size"}
    assert theirs.by_policy["effective_sample_fraction"].is_null().all()


def test_stores_are_equal_but_for_the_columns_of_ours(research_store: Path, every_step_store: Path) -> None:
    theirs, ours = RolloutZarrStoreReader(research_store), RolloutZarrStoreReader(every_step_store)
    rows = diff_stores(theirs, ours).differences.select("table", "column", "what").rows()
    assert {(f"{table}/{column}", what) for table, column, what in rows} == {
        (path, "only_in_b") for path in ADDED if path != "targets/source_row_id"
    }
    assert diff_stores(theirs, theirs).equal


def test_sound_store_has_only_layout_notes(research_store: Path) -> None:
    result = validate_rollout_zarr_store(research_store, deep=True)
    assert result.ok and result.profile == "foreign"
    counts = {note.kind: note.count for note in result.layout}
    assert counts["metadata"] == 1 and counts["columns"] == 4 and counts["digests"] == 2
    assert counts["chunks"] == len(schema.array_paths()) - 4
    lines = lines_of("store", "validate", research_store, "--deep")
    assert "nothing wrong" in lines[0] and len(lines) == 1 + len(counts) <= 10
    assert len(validate_rollout_zarr_store(research_store, profile="own").findings) > 600
    assert lines_of("store", "validate", research_store, "--profile", "foreign", "--deep") == lines
    lines_of("store", "validate", research_store, "--profile", "own", code=2)


INVALID = -1
"""Stands for the first candidate row that the actor may not take."""

FAULTS = {
    "candidates/q_train_mask": (INVALID, True),
    "candidates/target_root_gain": (INVALID, 0.5),
    "candidates/invalid_reason_bitset": (INVALID, 1),
    "steps/cumulative_target_root_gain": (1, 7.0),
    "steps/selected_shell_index": (2, 3_000),
    "rollouts/final_cumulative_target_rri": (0, -3.0),
    "rollouts/source_row_id": (0, 4),
    "targets/gt_label_valid_mask": (0, False),
    "q_h/td_reward": (0, 0.125),
    "q_h/td_discount": (0, 0.3),
    "sources/scene_id": (1, 99),
    "selected_depth/depth_m": (0, -1.0),
}
"""Array -> the row that is wrong, and what it says."""


@pytest.mark.parametrize("array", FAULTS)
def test_a_planted_fault_is_named_in_ten_lines(faulty: Path, array: str) -> None:
    row, value = FAULTS[array]
    if row == INVALID:
        row = int(np.argmin(zarr.open_array(faulty / "candidates/actor_action_mask", mode="r")[...]))
    change(faulty, array, row, value)
    lines = lines_of("store", "validate", faulty, "--deep", code=2)
    assert any(f"{array} row {row}:" in line for line in lines), lines
    assert len(lines) <= 10


def test_many_faults_are_ten_lines_too_and_none_is_lost(faulty: Path) -> None:
    invalid = int(np.argmin(zarr.open_array(faulty / "candidates/actor_action_mask", mode="r")[...]))
    for array, (row, value) in FAULTS.items():
        change(faulty, array, invalid if row == INVALID else row, value)
    findings = validate_rollout_zarr_store(faulty, deep=True).findings
    lines = lines_of("store", "validate", faulty, "--deep", code=2)
    assert len(findings) > 10 >= len(lines) and f"{len(findings)} findings" in lines[0]
    checks = list(dict.fromkeys(finding.check for finding in findings))
    assert [line.split(":")[0] for line in lines[1:8]] == checks[:7]
    assert lines[8].startswith(f"and {len(findings) - 7} more: ") and lines[8].endswith("; --all shows them")
    everything = lines_of("store", "validate", faulty, "--deep", "--all", code=2)
    assert all(any(str(finding) in line for line in everything) for finding in findings)
    assert sum(line.startswith("foreign layout") for line in everything) > 1
    stored = json.loads("\n".join(lines_of("store", "validate", faulty, "--deep", "--json", code=2)))
    assert len(stored["findings"]) == len(findings) and stored["layout"]


def test_a_wrong_summary_is_a_finding(faulty: Path) -> None:
    zarr.open_group(faulty, mode="r+").attrs["num_steps"] = 3
    errors = validate_rollout_zarr_store(faulty).errors
    assert errors == [e for e in errors if "num_steps" in e] and len(errors) == 1
    with (faulty / "manifest.json").open("ab") as file:
        file.write(b" ")
    assert any("manifest_sha256" in line for line in validate_rollout_zarr_store(faulty).errors)


def test_a_column_of_the_schema_that_is_missing_is_a_finding(faulty: Path) -> None:
    shutil.rmtree(faulty / "candidates" / "target_rri")
    errors = validate_rollout_zarr_store(faulty).errors
    assert any("candidates/target_rri" in line and "missing" in line for line in errors[:3])


def test_a_store_of_ours_is_never_taken_for_a_foreign_one(good_store: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(good_store, tmp_path / "copy.zarr"))
    manifest = json.loads((copy / "manifest.json").read_text())
    del manifest["content_sha256"], manifest["stored_crc32c"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    result = validate_rollout_zarr_store(copy)
    assert result.profile == "own" and not result.ok
    (copy / "manifest.json").unlink()
    assert validate_rollout_zarr_store(copy).profile == "own"


@pytest.mark.parametrize("history", [0, 1])
def test_training_reads_it_and_says_that_it_is_not_verified(
    research_store: Path, every_step_store: Path, history: int
) -> None:
    with pytest.warns(UnverifiedStoreWarning, match=r"research.zarr: .*store convert"):
        theirs = QHDataset(research_store, history=history)
    ours = QHDataset(every_step_store, history=history)
    assert not theirs.verified and ours.verified and len(theirs) == len(ours)
    one, other = (dataset.batch(range(len(dataset))) for dataset in (theirs, ours))
    parts = [(one, other), (one.depth_history, other.depth_history)] if history else [(one, other)]
    for mine, yours in parts:
        for name in {*vars(mine)} - {"depth_history"}:
            np.testing.assert_array_equal(getattr(mine, name), getattr(yours, name))
    with pytest.warns(UnverifiedStoreWarning):
        batches = QHIterableDataset(research_store, 16, tail="drop")
    assert not batches.verified and sum(len(batch.td_reward) for batch in batches) > 0


def test_dataset_refuses_attributes_the_manifest_denies(faulty: Path) -> None:
    zarr.open_group(faulty, mode="r+").attrs["q_h_state_count"] = 3
    with refused(StoreDamaged, "q_h_state_count", where=f"{faulty}/zarr.json"):
        QHDataset(faulty)


VERSIONS = {
    "0.5-rollouts": "older",
    "0.9-target-rollout": "older",
    "2.0-target-rollout-provenance": "newer",
    "2.01": "not known",
    "7": "not known",
    None: "not known",
}


@pytest.mark.quick
@pytest.mark.parametrize("version", VERSIONS)
def test_other_versions_are_known_by_name(version: str | None) -> None:
    said = schema_problem({"schema_id": schema.ROLLOUT_ZARR_SCHEMA_ID, "schema_version": version})
    assert_names(str(said), repr(version), VERSIONS[version], "'1.0-target-rollout-core'")
    assert len(schema_problem({"schema_id": "x" * 9_999, "schema_version": version}) or "") < 300


@pytest.mark.quick
def test_mixture_components_are_found_for_either_writer() -> None:
    theirs = {"a": {"b": {"candidate_mixture": {"components": [{"name": name} for name in COMPONENTS]}}}}
    assert [part["name"] for part in mixture_components(theirs)] == list(COMPONENTS)
    ours = {"candidates": {"mixture": [{"position": "forward_local"}]}}
    assert mixture_components(ours) == [{"position": "forward_local"}]
    for nothing in (None, [], {"candidate_mixture": 3}, {"candidate_mixture": {"components": "x"}}):
        assert mixture_components(nothing) == []


def test_main_gives_one_line_for_another_version(
    faulty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr.open_group(faulty, mode="r+").attrs["schema_version"] = "2.0-target-rollout-provenance"
    monkeypatch.setattr("sys.argv", ["rollout-assets", "inspect", "tree", str(faulty)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err.strip().splitlines()
    assert end.value.code == 2 and len(said) == 1
    assert_names(said[0], "'2.0-target-rollout-provenance'", "'1.0-target-rollout-core'")
