"""`rollout-assets inspect` and `report`: tables, JSON, CSV, exit codes, and one clear line for wrong input."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr
from typer.testing import CliRunner

from rollout_assets.cli import app
from rollout_assets.inspection.provenance import recorded_campaign
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.inspection import handmade_stores as made
from tests.support.commands import call
from tests.support.refusals import assert_names
from tests.support.waiting import PATIENCE_S

COMMAND = [sys.executable, "-c", "from rollout_assets.cli import main; main()"]


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


TABLES = {
    "waterfall": "full_shell",
    "targets": "matched",
    "candidates": "forward_local",
    "steps": "lookahead",
    "tree": "random_valid",
    "groups": "lateral_target_bypass",
    "depth": "depth median m",
    "suspicious": "",
}


@pytest.mark.parametrize(("verb", "word"), TABLES.items())
def test_tables_json_and_csv_hold_the_same_rows(real_store: Path, verb: str, word: str) -> None:
    code, text = run("inspect", verb, real_store)
    assert code == 0 and word in text
    _, as_json = run("inspect", verb, real_store, "--json")
    _, as_csv = run("inspect", verb, real_store, "--csv")
    rows, lines = json.loads(as_json), list(csv.DictReader(io.StringIO(as_csv)))
    assert len(rows) == len(lines)
    assert rows == [] or list(rows[0]) == list(lines[0])


def test_ready_prints_its_verdict(real_store: Path) -> None:
    code, text = run("inspect", "ready", real_store)
    assert code == 0 and "ready with care" in text


def test_rows_can_be_chosen(real_store: Path) -> None:
    _, text = run("inspect", "candidates", real_store, "--step", 1, "--limit", 2, "--json")
    assert [row["step_row_id"] for row in json.loads(text)] == [1, 1]
    _, text = run("inspect", "steps", real_store, "--rollout", 1, "--json")
    assert {row["rollout_row_id"] for row in json.loads(text)} == {1}
    for verb in ("steps", "depth"):
        _, text = run("inspect", verb, real_store, "--rollout", 0, "--step", 0, "--json")
        assert [(row["rollout_row_id"], row["step_row_id"]) for row in json.loads(text)] == [(0, 0)]
    for by in ("mixture", "reason", "target"):
        _, text = run("inspect", "groups", real_store, "--by", by, "--json")
        assert all(row[by] for row in json.loads(text))
    _, text = run("inspect", "inventory", real_store.parent, "--json")
    assert [(row["status"], row["valid"]) for row in json.loads(text)] == [("current", True)]


def test_explain_tells_a_story_and_gives_json(real_store: Path) -> None:
    code, text = run("inspect", "explain", real_store, 0)
    assert code == 0 and "distance to mesh" in text and "View 0 of step 0" in text
    assert json.loads(run("inspect", "explain", real_store, 0, "--json")[1])["candidate_row_id"] == 0


def test_replay_of_the_recorded_campaign_fails_on_a_difference(real_store: Path, tmp_path: Path) -> None:
    code, text = run("inspect", "replay", real_store, 0)
    assert code == 0 and "identical: 1 rollouts" in text
    copy = shutil.copytree(real_store, tmp_path / "copy.zarr")
    zarr.open_group(copy, mode="r+")["candidates/selection_logits"][0] = 7.0
    code, text = run("inspect", "replay", copy, 0)
    assert code == 2 and "selection_logits" in text and "1 of 1 differ" in text


def test_diff_says_equal_or_exits_2(real_store: Path, tmp_path: Path) -> None:
    assert run("inspect", "diff", real_store, real_store)[0] == 0
    copy = shutil.copytree(real_store, tmp_path / "copy.zarr")
    zarr.open_group(copy, mode="r+")["steps/cumulative_target_rri"][0] = 7.0
    code, text = run("inspect", "diff", real_store, copy, "--json")
    assert code == 2 and json.loads(text)["differences"][0]["column"] == "cumulative_target_rri"


def test_an_error_level_finding_exits_2(tmp_path: Path) -> None:
    made.write(tmp_path / "a.zarr", made.changed(made.valid_candidate_missing_label))
    code, text = run("inspect", "suspicious", tmp_path / "a.zarr")
    assert code == 2 and "valid_candidate_missing_label" in text
    assert run("inspect", "suspicious", tmp_path / "a.zarr", "--kind", "empty_depth")[0] == 0


def test_thresholds_and_errors_come_from_the_command_line(tmp_path: Path) -> None:
    made.write(tmp_path / "a.zarr", made.changed(made.label_unstable_under_noise))
    command = ("inspect", "suspicious", tmp_path / "a.zarr")
    code, text = run(*command)
    assert code == 0 and "label_unstable_under_noise" in text
    assert_names(text, "weight_concentrated", "--campaign")
    assert run(*command, "--error", "label_unstable_under_noise")[0] == 2
    assert run(*command, "--set", 'errors=["label_unstable_under_noise"]')[0] == 2
    code, text = run(*command, "--set", "unstable_gain=0.05", "--error", "label_unstable_under_noise", "--json")
    assert code == 0 and json.loads(text) == []


def test_thresholds_and_weights_come_from_a_campaign(real_store: Path, tmp_path: Path) -> None:
    recorded = recorded_campaign(RolloutZarrStoreReader(real_store)).model_dump(mode="json", exclude_none=True)
    for section, kind in (({"min_half_weight_area": 0.9}, "weight_concentrated"), ({}, "")):
        path = tmp_path / "strict.toml"
        raised = {"suspicious": section | {"errors": ["weight_concentrated"]}}
        path.write_text("".join(toml_lines(recorded | raised)))
        code, text = run("inspect", "suspicious", real_store, "--campaign", path, "--kind", "weight_concentrated")
        assert code == (2 if kind else 0) and "not looked for" not in text and kind in text


def toml_lines(campaign: dict[str, Any]) -> Iterator[str]:
    """A campaign as inline TOML, one key a line."""
    for key, value in campaign.items():
        yield f"{key} = {inline_toml(value)}\n"


def inline_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline_toml(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(inline_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def test_second_opinion_shows_both_values(real_store: Path) -> None:
    code, text = run("inspect", "second-opinion", real_store, "--limit", 1, "--fraction", 1.0)
    assert code == 0 and "agrees: 1 of" in text


WRONG = {
    "inspect waterfall /nowhere": ("/nowhere",),
    "inspect explain STORE 99999999": ("candidates", "99999999"),
    "inspect groups STORE --by colour": ("colour", "mixture"),
    "inspect suspicious STORE --kind ghosts": ("'ghosts'",),
    "inspect suspicious STORE --error ghosts": ("--error", "'ghosts'"),
    "inspect suspicious STORE --set max_abs_gian=2": ("max_abs_gian", "max_abs_gain"),
    "inspect suspicious STORE --set max_abs_gain=-2": ("--set: max_abs_gain", "-2"),
    "inspect replay PLAIN 0": ("plain.zarr", "--campaign"),
    "inspect tree STORE --json --csv": ("--json", "--csv"),
    "inspect tree FOREIGN": ("foreign.zarr", "None"),
    "report STORE -o page.png": (".html", "page.png"),
    "report STORE --rollout 99999 -o page.html": ("rollouts", "99999"),
}
"""Command -> what its one line names."""


@pytest.fixture(scope="module")
def places(real_store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A good store, one that records no campaign, and a Zarr group that is no store."""
    folder = tmp_path_factory.mktemp("places")
    made.write(folder / "plain.zarr", made.clean_records())
    zarr.create_group(folder / "foreign.zarr")
    return {"STORE": str(real_store), "PLAIN": str(folder / "plain.zarr"), "FOREIGN": str(folder / "foreign.zarr")}


@pytest.mark.parametrize(("command", "names"), WRONG.items(), ids=WRONG)
def test_wrong_input_is_one_line_and_exit_code_2(places, tmp_path: Path, monkeypatch, command, names) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*(places.get(word, word) for word in command.split()))
    assert done.code == 2 and done.out == "" and list(tmp_path.iterdir()) == []
    (line,) = done.err.strip().splitlines()
    assert line.startswith("error: ")
    assert_names(line, *names)


def test_damaged_store_is_one_line_of_a_real_process(real_store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(real_store, tmp_path / "copy.zarr")
    shutil.rmtree(copy / "candidates" / "position_id" / "c")
    command = [*COMMAND, "inspect", "tree", str(copy)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert result.returncode == 2 and result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: candidates/position_id: ")
    assert RolloutZarrStoreReader(copy).num_rows("steps")
