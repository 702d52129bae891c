"""`rollout-assets inspect` and `report`: tables, JSON, CSV, exit codes, and one clear line for wrong input."""

from __future__ import annotations

import csv
import io
import json
import os
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
    "ready": "ready with care",
}


@pytest.mark.parametrize(("verb", "word"), TABLES.items())
def test_tables_read_well(real_store: Path, verb: str, word: str) -> None:
    code, text = run("inspect", verb, real_store)
    assert code == 0 and word in text


@pytest.mark.parametrize(
    "verb", ["waterfall", "targets", "candidates", "steps", "tree", "groups", "depth", "suspicious"]
)
def test_json_and_csv_hold_the_same_rows(real_store: Path, verb: str) -> None:
    _, as_json = run("inspect", verb, real_store, "--json")
    _, as_csv = run("inspect", verb, real_store, "--csv")
    rows, lines = json.loads(as_json), list(csv.DictReader(io.StringIO(as_csv)))
    assert len(rows) == len(lines)
    assert rows == [] or list(rows[0]) == list(lines[0])


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


def test_replay_uses_the_recorded_campaign_and_fails_on_a_difference(real_store: Path, tmp_path: Path) -> None:
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
    assert "weight_concentrated was not looked for: give --campaign" in " ".join(text.split())
    assert run(*command, "--error", "label_unstable_under_noise")[0] == 2
    assert run(*command, "--set", 'errors=["label_unstable_under_noise"]')[0] == 2
    code, text = run(*command, "--set", "unstable_gain=0.05", "--error", "label_unstable_under_noise", "--json")
    assert code == 0 and json.loads(text) == []


def test_thresholds_come_from_a_campaign_and_its_source_gives_weights(real_store: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "waterfall", "/nowhere"], "/nowhere: no rollout store there"),
        (["inspect", "explain", "STORE", "99999999"], "candidates has rows 0 to"),
        (["inspect", "groups", "STORE", "--by", "colour"], "group_by must be one of"),
        (["inspect", "suspicious", "STORE", "--kind", "ghosts"], "no kind 'ghosts'"),
        (["inspect", "suspicious", "STORE", "--error", "ghosts"], "--error: there is no kind 'ghosts'"),
        (["inspect", "suspicious", "STORE", "--set", "max_abs_gian=2"], "did you mean max_abs_gain?"),
        (
            ["inspect", "suspicious", "STORE", "--set", "max_abs_gain=-2"],
            "--set: max_abs_gain: input should be",
        ),
        (["inspect", "replay", "PLAIN", "0"], "records no campaign; name it with --campaign"),
        (["inspect", "tree", "STORE", "--json", "--csv"], "--json and --csv exclude each other"),
        (["inspect", "tree", "FOREIGN"], "is not a rollout store that this package reads: schema is None"),
        (["report", "STORE", "-o", "page.png"], "must end in .html, got page.png"),
        (["report", "STORE", "--rollout", "99999", "-o", "page.html"], "rollouts has rows 0 to"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(real_store: Path, tmp_path: Path, arguments, message) -> None:
    made.write(tmp_path / "plain.zarr", made.clean_records())
    zarr.create_group(tmp_path / "foreign.zarr")
    places = {"STORE": real_store, "PLAIN": tmp_path / "plain.zarr", "FOREIGN": tmp_path / "foreign.zarr"}
    command = [*COMMAND, *(str(places.get(argument, argument)) for argument in arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ, cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_damaged_store_is_one_clear_line(real_store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(real_store, tmp_path / "copy.zarr")
    shutil.rmtree(copy / "candidates" / "position_id" / "c")
    result = subprocess.run([*COMMAND, "inspect", "tree", str(copy)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and result.stderr.startswith("error: candidates/position_id: ")
    assert RolloutZarrStoreReader(copy).num_rows("steps")
