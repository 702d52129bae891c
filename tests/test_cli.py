import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from rollout_assets.cli import main; main()"]


def run(*arguments: str, home: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:

    environment = os.environ | ({"DAGSTER_HOME": str(home)} if home else {}) | variables
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["source", "config", "demo"]),
        (["source", "--help"], ["build", "append", "info", "check"]),
        (["source", "build", "--help"], ["--scenes", "--furniture", "--seed"]),
        (["config", "--help"], ["show", "hash", "validate"]),
    ],
)
def test_help_reads_well(arguments, words):
    result = run(*arguments)
    assert result.returncode == 0
    for word in words:
        assert word in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["source", "info", "/nowhere"], "not a VIN offline store"),
        (["source", "check", "/nowhere"], "not a VIN offline store"),
        (
            ["source", "build", "/tmp/never", "--scenes", "0"],
            "scenes: input should be greater than or equal to 1",
        ),
        (["source", "build", "/tmp/never", "--faces", "-5"], "equal to 30000, got -5"),
        (["source", "build", "/tmp/never", "--furniture", "/nowhere"], "/nowhere"),
        (["source", "append", "/nowhere"], "/nowhere"),
        (["config", "hash", "no-such-campaign"], "no such campaign file"),
        (["demo", "--campaign", "no-such-campaign"], "no such campaign file"),
    ],
)
def test_wrong_input_is_one_line_on_stderr_and_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert "Traceback" not in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_debug_shows_the_traceback():
    result = run("--debug", "source", "info", "/nowhere")
    assert result.returncode != 0 and "Traceback" in result.stderr and "SourceError" in result.stderr


def test_unknown_options_are_refused():
    assert run("source", "build", "x", "--rooms", "3").returncode == 2


def test_config_hash_as_json_equals_the_library(small_store):
    from rollout_assets.config import load_campaign

    result = run("config", "hash", "demo", "--json")
    assert json.loads(result.stdout) == load_campaign("demo").hashes()
    assert "demo" in run("config", "list").stdout
    assert run("config", "validate").stdout.startswith("ok: campaign demo")
    assert json.loads(run("config", "show").stdout)["oracle"]["width_px"] == 48


def test_info_shows_rows_scenes_faces_points_and_boxes(small_store):
    result = run("source", "info", str(small_store))
    assert result.returncode == 0 and result.stderr == ""
    for word in ("scene", "split", "faces", "points", "gt boxes", "detected", "4 rows (2 train, 2 val) of 2 scenes"):
        assert word in result.stdout
    facts = json.loads(run("source", "info", str(small_store), "--json").stdout)
    assert facts["rows_per_split"] == {"train": 2, "val": 2}
    assert all(25_000 < scene["faces"] < 40_000 and scene["gt_boxes"] > 2 for scene in facts["scenes"])
    rows = json.loads(run("source", "info", str(small_store), "--rows", "--json").stdout)
    assert [row["sample_index"] for row in rows] == [0, 1, 2, 3]


@pytest.mark.parametrize("ending", ["png", "html"])
def test_info_writes_a_picture(small_store, tmp_path, ending):
    picture = tmp_path / f"overview.{ending}"
    result = run("source", "info", str(small_store), "--plot", str(picture), "--sample", "2")
    assert result.returncode == 0, result.stderr
    head = picture.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if ending == "png" else b"<html" in head
    assert picture.stat().st_size > 20_000


def test_info_refuses_a_picture_of_another_kind(small_store, tmp_path):
    result = run("source", "info", str(small_store), "--plot", str(tmp_path / "a.bmp"))
    assert result.returncode == 2 and ".bmp" in result.stderr


def test_check_exits_2_on_damage_and_prints_json(store_copy):
    assert run("source", "check", str(store_copy)).stdout.splitlines()[-1].startswith("ok: ")
    (store_copy / "splits" / "val.npy").unlink()
    result = run("source", "check", str(store_copy))
    assert result.returncode == 2 and "splits/val.npy: missing" in result.stdout
    facts = json.loads(run("source", "check", str(store_copy), "--json").stdout)
    assert facts["broken"] == ["splits/val.npy: missing"]


@pytest.mark.ci
def test_build_append_and_refusal_of_an_existing_destination(tmp_path):
    store = str(tmp_path / "homes")
    options = ["--scenes", "1", "--snippets", "1", "--faces", "30000", "--workers", "1", "--json"]
    built = run("source", "build", store, *options)
    assert json.loads(built.stdout)["num_samples"] == 1 and built.stderr == ""
    again = run("source", "build", store, *options)
    assert again.returncode == 2 and "homes" in again.stderr
    twice = run("source", "append", store, "--scene", "synthetic-0-00000", "--scene", "synthetic-0-00000")
    assert twice.returncode == 2 and "synthetic-0-00000 more than once" in twice.stderr
    assert json.loads(run("source", "append", store, "--json").stdout)["num_samples"] == 2


@pytest.mark.ci
def test_rollout_shows_steps_and_writes_a_page(small_store, tmp_path):
    campaign = tmp_path / "campaign.toml"
    campaign.write_text(f"name = 'test'\n[source]\nstore_dir = '{small_store}'\n")
    page = tmp_path / "new" / "folder" / "rollout.html"
    shown = run("rollout", "0", "-c", str(campaign), "--recipe", "oracle_greedy", "--plot", str(page))
    assert shown.returncode == 0, shown.stderr
    assert "oracle_greedy-000000" in shown.stdout and "fixed_horizon" in shown.stdout
    assert b"plotly" in page.read_bytes()[:5_000_000].lower()
    steps = json.loads(run("rollout", "0", "-c", str(campaign), "--recipe", "oracle_greedy", "--json").stdout)
    assert [step["step"] for step in steps] == [0, 1]
    assert all(step["root_gain"] == step["best_root_gain"] for step in steps)
    for arguments, message in (
        (["rollout", "99", "-c", str(campaign)], "no sample 99"),
        (["rollout", "0", "-c", str(campaign), "--target", "7"], "target must be 0 to"),
        (["rollout", "0", "-c", str(campaign), "--recipe", "best"], "has no recipe 'best'; it has random_valid"),
        (["rollout", "0", "-c", str(campaign), "--plot", "a.png"], "needs FILE.html, got a.png"),
    ):
        refused = run(*arguments)
        assert refused.returncode == 2 and message in refused.stderr
