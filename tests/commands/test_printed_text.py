"""What commands print: text of others as it is, JSON that is JSON, errors in one line, tables with whole columns."""

import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from rollout_assets.commands import source as source_command
from rollout_assets.commands import terminal
from rollout_assets.errors import error_line, visible
from rollout_assets.progress import ProgressEvent, terminal_progress
from rollout_assets.sources.summary import SceneSummary, StoreSummary
from tests.commands.test_campaign_cli import TINY
from tests.inspection.handmade_stores import clean_records, write
from tests.support.commands import call
from tests.support.refusals import assert_names
from tests.test_cli import run

COMMANDS = Path(terminal.__file__).parent


@pytest.fixture
def marked(tmp_path):
    """A folder whose path looks like a closing tag of console markup."""
    folder = tmp_path / "[" / "x]"
    folder.mkdir(parents=True)
    return folder


def test_markup_in_lines_tables_and_progress_is_text(capsys):
    terminal.say("a [/x] and ", terminal.green("[bold]b"))
    terminal.print_table("title [/x]", ["[/y]"], [["[/z]"], [None], [True], [1_000]])
    shown = capsys.readouterr().out
    for text in ("a [/x] and [bold]b", "title [/x]", "[/y]", "[/z]", "yes", "1,000"):
        assert text in shown
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with terminal_progress(console) as progress:
        progress(ProgressEvent("task [/x]", 1, 2, note="note [/y]\n\x1b[2J"))
    assert "task [/x]" in console.file.getvalue() and "\x1b[2J" not in console.file.getvalue()


def test_no_command_writes_markup():
    """Colours are given as styles; markup in a text would be printed as it is."""
    for path in COMMANDS.glob("*.py"):
        assert not re.search(r"\[/\]|\[/?(red|green|yellow|bold|dim|cyan)\]|rich\.markup", path.read_text()), path.name


def test_a_path_that_looks_like_markup_is_printed_as_it_is(marked, small_store):
    source = marked / "source"
    shutil.copytree(small_store, source)
    campaign = marked / "tiny.toml"
    campaign.write_text(TINY.format(source=source))
    store = marked / "rollouts.zarr"
    write(store, clean_records())
    for arguments in (
        ("source", "info", str(source)),
        ("source", "check", str(source)),
        ("config", "hash", str(campaign)),
        ("campaign", "plan", "-c", str(campaign)),
        ("campaign", "status", "-c", str(campaign)),
        ("store", "info", str(store)),
        ("store", "validate", str(store)),
        ("store", "export", str(store), "steps", str(marked / "steps.csv")),
        ("inspect", "inventory", "--no-validate", str(store)),
        ("inspect", "diff", str(store), str(store)),
    ):
        done = call(*arguments)
        assert done.code in (0, 2) and done.err == "", (arguments, done)
        assert "[/x]" in done.out or arguments[1] in ("diff",), (arguments, done.out)


def test_json_has_no_colours_even_where_they_are_forced(tmp_path):
    forced = run("config", "hash", "--json", FORCE_COLOR="1")
    assert set(json.loads(forced.stdout)) == {"candidate", "oracle", "rollout", "writer"}
    assert json.loads(run("config", "show", FORCE_COLOR="1").stdout)["name"] == "demo"


def test_json_holds_what_json_can_hold(capsys):
    terminal.print_json(
        {"a": float("nan"), "b": (1, Path("x")), "c": "\ud800", "d": SceneSummary("s", "t", 1, *[None] * 5)}
    )
    printed = json.loads(capsys.readouterr().out)
    assert (printed["a"], printed["b"], printed["c"]) == (None, [1, "x"], "\ud800") and printed["d"]["scene_id"] == "s"


def test_an_error_is_one_line_and_one_more_for_each_problem():
    assert error_line("a\nb: \x1b[31m\ud800") == "a\\nb: \\x1b[31m\\ud800"
    assert error_line("x: 2 problems\n  - a\n  - b\nc") == "x: 2 problems\n  - a\n  - b\\nc"
    assert len(error_line("y" * 100_000)) < 2_100
    assert visible("plain ü 😀") == "plain ü 😀"


def test_wrong_options_are_one_line_too(tmp_path):
    for arguments, names in (
        (("source", "build", "x", "--rooms", "3"), ["--rooms", "rollout-assets source build"]),
        (("source", "build"), ["STORE", "rollout-assets source build"]),
        (("collect", "--split", "x"), ["--split", "'x'", "train"]),
        (("nonsense",), ["'nonsense'", "rollout-assets --help"]),
        (("ci", "--workers", "0"), ["--workers"]),
        (("demo", "--workers", "0"), ["--workers"]),
        (("campaign", "run", "--workers", "0"), ["--workers"]),
        (("source", "build", str(tmp_path / "s"), "--workers", "0"), ["--workers"]),
    ):
        done = call(*arguments)
        assert done.code == 2 and done.err.startswith("error: ") and done.err.count("\n") == 1, done
        assert_names(done.err, *names)
    assert call("config").code == 2 and "Usage: rollout-assets config" in call("config").out


@pytest.fixture
def odd_files(tmp_path, monkeypatch):
    """Campaign files and others that cannot be used, in the working directory."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.toml")
    Path("folder.toml").mkdir()
    Path("user.toml").write_text('name = "x"\n[source]\nstore_dir = "~nosuchuser/a"\n')
    Path("nul.toml").write_text('name = "x"\n[shards]\noutput_dir = "a\\u0000b"\n')
    Path("deep.toml").write_text(f"a = {'[' * 100_000}{']' * 100_000}\n")
    Path("deep.jsonl").write_text(f"{'[' * 100_000}{']' * 100_000}\n")
    Path("latin.toml").write_bytes("# é".encode("latin-1"))
    Path("store.zarr").mkdir()
    Path("store.zarr/zarr.json").write_text("[" * 100_000)
    Path("source").mkdir()
    Path("source/manifest.json").write_text("[" * 100_000)


@pytest.mark.usefixtures("odd_files")
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("config validate pipe.toml", ["pipe.toml", "is a pipe"]),
        ("collect pipe.toml", ["pipe.toml", "is a pipe"]),
        ("collect -o o.jsonl --servers http://127.0.0.1:9 pipe.toml", ["pipe.toml", "is a pipe"]),
        ("config validate folder.toml", ["folder.toml", "is a folder"]),
        ("config validate /dev/zero", ["/dev/zero", "is a device"]),
        ("config validate latin.toml", ["latin.toml", "UTF-8"]),
        ("config validate user.toml", ["source.store_dir", "~nosuchuser/a", "home"]),
        ("config validate nul.toml", ["shards.output_dir", "NUL"]),
        ("config validate deep.toml", ["deep.toml", "TOML", "nested"]),
        ("collect deep.toml", ["deep.toml", "TOML", "nested"]),
        ("aggregate deep.jsonl -o all.jsonl", ["deep.jsonl:1", "JSON"]),
        ("aggregate nothing.jsonl -o all.jsonl --success-threshold nan", ["success_threshold", "finite"]),
        ("store info store.zarr", ["store.zarr", "nested"]),
        ("source info source", ["source", "nested"]),
        ("store info nosuch://x", ["nosuch://x"]),
        ("store validate http://", ["http://"]),
        ("store info ://x", ["://x", "rollout store"]),
        ("store info ~nosuchuser/x", ["home", "~nosuchuser"]),
        ("source info ~nosuchuser/x", ["home", "~nosuchuser"]),
        ("source check ~nosuchuser/x", ["home", "~nosuchuser"]),
        ("inspect inventory ~nosuchuser/x", ["home", "~nosuchuser"]),
    ],
)
def test_odd_files_and_addresses_are_ordinary_errors(arguments, names):
    done = call(*arguments.split())
    assert done.code == 2 and done.out == "" and "internal error" not in done.err
    assert_names(done.err, *names)


def test_a_row_by_an_odd_number_is_a_missing_row(small_store, tmp_path):
    campaign = tmp_path / "tiny.toml"
    campaign.write_text(TINY.format(source=small_store))
    for sample in ("²", "9" * 5_000, "99"):
        done = call("rollout", sample, "-c", str(campaign))
        assert done.code == 2 and "no sample" in done.err, done.err


def test_a_table_in_a_pipe_keeps_whole_columns(tmp_path):
    write(tmp_path / "s.zarr", clean_records())
    heading = call("store", "head", str(tmp_path / "s.zarr"), "candidates").out.splitlines()[2]
    assert "candidate_row_id" in heading and "selection_inclusion_probabilities" in heading


def test_a_narrow_terminal_gets_fewer_columns_and_is_told(monkeypatch):
    monkeypatch.setattr(terminal, "out", Console(width=40))
    assert terminal.columns_that_fit(["a", "b", "c"], [["x" * 12] * 3]) == 2
    assert terminal.columns_that_fit(["x" * 100], [[1]]) == 1


def test_a_scene_of_two_splits_is_one_scene(capsys):
    scenes = tuple(SceneSummary("kitchen", split, 1, 10, 1.0, 1.0, None, 2.0) for split in ("train", "val"))
    source_command._show_scenes(StoreSummary("s", 7, "0", {"train": 1, "val": 1}, 1, scenes))
    assert "2 rows (1 train, 1 val) of 1 scene in 1 source shard;" in capsys.readouterr().out
