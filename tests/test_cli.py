"""`rollout-assets source`, `config` and `rollout`: what they print and how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout_assets.config import load_campaign
from tests.support.commands import Done, call
from tests.support.refusals import assert_names
from tests.support.waiting import PATIENCE_S

COMMAND = [sys.executable, "-c", "from rollout_assets.cli import main; main()"]


def run(*arguments: str, home: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    environment = os.environ | ({"DAGSTER_HOME": str(home)} if home else {}) | variables
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, env=environment)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["source", "config", "demo"]),
        (["source", "--help"], ["build", "append", "info", "check"]),
        (["source", "build", "--help"], ["--scenes", "--furniture", "--seed"]),
        (["config", "--help"], ["show", "hash", "validate"]),
    ],
)
def test_help_names_verbs_and_options(arguments, words):
    shown = call(*arguments)
    assert shown.code == 0
    assert_names(shown.out, *words)


def assert_refused(done: Done, *names: object) -> None:
    """Assert exit code 2 and one line on stderr that names these things."""
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: ") and done.err.count("\n") == 1, done.err
    assert_names(done.err, *names)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["source", "info", "/nowhere"], ["/nowhere"]),
        (["source", "check", "/nowhere"], ["/nowhere"]),
        (["source", "build", "/tmp/never", "--scenes", "0"], ["scenes", 1]),
        (["source", "build", "/tmp/never", "--faces", "-5"], ["faces", 30000, -5]),
        (["source", "build", "/tmp/never", "--furniture", "/nowhere"], ["/nowhere"]),
        (["source", "build", "x", "--rooms", "3"], ["--rooms"]),
        (["source", "append", "/nowhere"], ["/nowhere"]),
        (["config", "hash", "no-such-campaign"], ["no-such-campaign"]),
        (["demo", "--campaign", "no-such-campaign"], ["no-such-campaign"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, names):
    assert_refused(call(*arguments), *names)


def test_a_real_process_ends_with_the_code_of_the_command():
    done = run("source", "info", "/nowhere")
    assert_refused(Done(done.returncode, done.stdout, done.stderr), "/nowhere")
    done = run("config", "hash", "demo", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == load_campaign("demo").hashes()


def test_debug_shows_the_traceback():
    done = run("--debug", "source", "info", "/nowhere")
    assert done.returncode != 0 and "Traceback" in done.stderr and "SourceError" in done.stderr


def test_shipped_campaigns_are_listed_validated_and_shown():
    assert "demo" in call("config", "list").out
    assert call("config", "validate").out.startswith("ok: campaign demo")
    assert json.loads(call("config", "show").out)["oracle"]["width_px"] == 48


def test_info_shows_rows_scenes_faces_points_and_boxes(small_store):
    shown = call("source", "info", str(small_store))
    assert (shown.code, shown.err) == (0, "")
    assert_names(shown.out, "scene", "split", "faces", "points", "gt boxes", "detected")
    assert_names(shown.out, "4 rows", "2 train", "2 val", "2 scenes")
    facts = json.loads(call("source", "info", str(small_store), "--json").out)
    assert facts["rows_per_split"] == {"train": 2, "val": 2}
    assert all(25_000 < scene["faces"] < 40_000 and scene["gt_boxes"] > 2 for scene in facts["scenes"])
    rows = json.loads(call("source", "info", str(small_store), "--rows", "--json").out)
    assert [row["sample_index"] for row in rows] == [0, 1, 2, 3]


@pytest.mark.parametrize("ending", ["png", "html"])
def test_info_writes_a_picture(small_store, tmp_path, ending):
    picture = tmp_path / f"overview.{ending}"
    done = call("source", "info", str(small_store), "--plot", str(picture), "--sample", "2")
    assert done.code == 0, done.err
    head = picture.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if ending == "png" else b"<html" in head
    assert picture.stat().st_size > 20_000


def test_info_refuses_a_picture_of_another_kind(small_store, tmp_path):
    done = call("source", "info", str(small_store), "--plot", str(tmp_path / "a.bmp"))
    assert done.code == 2
    assert_names(done.err, ".bmp")


def test_check_exits_2_on_damage_and_prints_json(store_copy):
    assert call("source", "check", str(store_copy)).out.splitlines()[-1].startswith("ok: ")
    (store_copy / "splits" / "val.npy").unlink()
    done = call("source", "check", str(store_copy))
    assert done.code == 2
    assert_names(done.out, "splits/val.npy")
    (broken,) = json.loads(call("source", "check", str(store_copy), "--json").out)["broken"]
    assert_names(broken, "splits/val.npy")


def test_build_append_and_refusal_of_an_existing_store(tmp_path):
    store = str(tmp_path / "homes")
    options = ["--scenes", "1", "--snippets", "1", "--faces", "30000", "--workers", "1", "--json"]
    built = call("source", "build", store, *options)
    assert json.loads(built.out)["num_samples"] == 1 and built.err == ""
    assert_refused(call("source", "build", store, *options), store)
    scene = "synthetic-0-00000"
    assert_refused(call("source", "append", store, "--scene", scene, "--scene", scene), scene)
    assert json.loads(call("source", "append", store, "--json").out)["num_samples"] == 2


CAMPAIGN = """
name = "test"
source.store_dir = "{source}"
targets.top_k = 1
oracle = {{ width_px = 8, height_px = 8 }}
selected_depth = {{ width_px = 8, height_px = 8 }}

[[candidates.mixture]]
position = "forward_local"
count = 4

[[recipes]]
name = "greedy"
policy = "oracle_greedy"
horizon = 2
"""


def test_rollout_shows_steps_and_writes_a_page(small_store, tmp_path):
    campaign = tmp_path / "campaign.toml"
    campaign.write_text(CAMPAIGN.format(source=small_store))
    of_campaign = ("-c", str(campaign))
    page = tmp_path / "new" / "folder" / "rollout.html"
    shown = call("rollout", "0", *of_campaign, "--plot", str(page))
    assert shown.code == 0, shown.err
    assert_names(shown.out, "greedy-000000", "fixed_horizon")
    assert b"plotly" in page.read_bytes()[:5_000_000].lower()
    steps = json.loads(call("rollout", "0", *of_campaign, "--recipe", "greedy", "--json").out)
    assert [step["step"] for step in steps] == [0, 1]
    assert all(step["root_gain"] == step["best_root_gain"] for step in steps)
    for arguments, names in (
        (["99"], ["sample", 99]),
        (["0", "--target", "7"], ["target", 7]),
        (["0", "--recipe", "best"], ["best", "greedy"]),
        (["0", "--plot", "a.png"], ["a.png", ".html"]),
    ):
        assert_refused(call("rollout", *arguments, *of_campaign), *names)
