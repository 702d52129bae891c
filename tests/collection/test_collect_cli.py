"""`collect` and `aggregate` at the command line: what they print, exit codes, and one clear line for bad input."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
from typer.testing import CliRunner

from rollout_assets.cli import app
from rollout_assets.collection.configs import CollectCommandConfig
from rollout_assets.errors import RolloutAssetsError
from tests.collection.collect_processes import count_lines, run
from tests.collection.test_collector import lines_of, write_rows
from tests.serving.fake_server import FakeServer, running
from tests.support.refusals import assert_names


@pytest.fixture
def server():
    with running(FakeServer()) as found:
        yield found


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_collect_then_aggregate(tmp_path, server):
    rows = write_rows(tmp_path / "rows.jsonl", 6, agents=("greedy", "random"))
    output = tmp_path / "out" / "out.jsonl"
    shown = invoke("collect", rows, "-o", output, "--servers", server.url, "--repeats", "random=3,greedy=1")
    assert shown.exit_code == 0, shown.output
    assert_names(shown.output, "24 expected", "24 done", "100.0%", "0 failed", "0 missing", "best@", "random")
    seeds = [line["seed"] for line in lines_of(output)]
    assert len(set(seeds)) == 18, "repeats have seeds of their own, and agents share them"
    merged = invoke("aggregate", output.parent / "*.jsonl", "-o", output.parent / "merged.jsonl", "--json")
    facts = json.loads(merged.output)
    assert (facts["lines"], facts["files"]) == (24, [str(output)])
    assert [entry["counts"]["expected"] for entry in facts["metrics"]] == [6, 18]


def test_failures_and_the_rest_are_told_with_the_exit_code(tmp_path, server):
    server.fault = lambda row, _: "refuse" if row["_task_index"] < 2 else None
    rows = write_rows(tmp_path / "rows.jsonl", 6)
    shown = invoke("collect", rows, "-o", tmp_path / "out.jsonl", "--servers", server.url)
    assert shown.exit_code == 3
    assert_names(shown.output, "6 expected", "4 done", "66.7%", "2 failed", "0 missing")
    assert_names(shown.output, "out_failures.jsonl", "--retry-failed")
    server.fault = lambda *_: None
    again = invoke("collect", rows, "-o", tmp_path / "out.jsonl", "--servers", server.url, "--resume")
    assert again.exit_code == 3
    assert_names(again.output, "2 failed", "0 missing")
    again = invoke("collect", rows, "-o", tmp_path / "out.jsonl", "--servers", server.url, "--retry-failed", "--json")
    facts = json.loads(again.output)
    assert again.exit_code == 0 and facts["cached"] == 4
    assert facts["coverage"] == {"expected": 6, "done": 6, "failed": 0, "missing": 0, "complete": True}


def test_rows_of_a_campaign_are_written_and_counted(tmp_path, tiny_campaign):
    shown = invoke("collect", "--write-requests", tmp_path / "rows.jsonl", "-c", tiny_campaign, "--split", "train")
    assert shown.exit_code == 0, shown.output
    assert_names(shown.output, "7 requests", "2 source rows", "0 source rows")
    assert count_lines(tmp_path / "rows.jsonl") == 7


def test_a_campaigns_rows_are_collected_from_a_server(tmp_path, tiny_campaign, tiny_server):
    output = tmp_path / "out.jsonl"
    arguments = ["-c", tiny_campaign, "--servers", tiny_server, "--set", "responses_create_params.horizon=1", "--json"]
    shown = invoke("collect", "-o", output, *arguments)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["prepared"]["rows"] == 7
    assert {line["num_steps"] for line in lines_of(output) if line["status"] == "completed"} == {1}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("collect", "rows.jsonl"), ["--out"]),
        (("collect", "-o", "o.jsonl"), ["requests", "campaign"]),
        (("collect", "r", "--write-requests", "w.jsonl"), ["--write-requests", "--campaign"]),
        (
            ("collect", "r", "-o", "o.jsonl", "--set", "num_servers=2", "--set", 'server_urls=["http://x"]'),
            ["num_servers", "server_urls"],
        ),
        (("collect", "r", "-o", "o.jsonl", "--servers", "0"), ["num_servers: ", 0]),
        (("collect", "r", "-o", "o.jsonl", "--servers", "two"), ["http://", "https://", "'two'"]),
        (("collect", "r", "-o", "o.jsonl", "--repeats", "many"), ["--repeats", "AGENT=N", "'many'"]),
        (("collect", "r", "-o", "o.jsonl", "--set", "limit"), ["--set", "KEY=VALUE", "'limit'"]),
        (("collect", "r", "-o", "o.jsonl", "--set", "a b=1"), ["--set", "KEY=VALUE", "a b"]),
        (
            ("collect", "r", "-o", "o.jsonl", "--set", "responses_create_params.horizon=0"),
            ["responses_create_params: horizon"],
        ),
        (("collect", "r", "-o", "o.jsonl", "--set", "run_sed=1"), ["run_sed: ", "run_seed?"]),
        (("collect", "r", "-o", "o.jsonl", "--set", "metrics.sed=1"), ["metrics.sed: ", "seed?"]),
        (
            ("collect", "r", "-o", "o.jsonl", "--servers", "http://x", "--set", "upload_rollouts_to_wandb=true"),
            ["upload_rollouts_to_wandb", "'wandb'"],
        ),
        (("collect", "not-there.toml", "-o", "o.jsonl"), ["not-there.toml: ", "rollout-assets collect"]),
        (("collect", "r", "-o", "o.txt"), ["output_jsonl_fpath", ".jsonl", "o.txt"]),
        (("aggregate", "o.jsonl", "-o", "o.jsonl"), ["o.jsonl: "]),
        (("aggregate", "nothing*", "-o", "o.jsonl"), ["nothing*: "]),
    ],
)
def test_wrong_input_is_one_clear_error(tmp_path, monkeypatch, arguments, names):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rollout_assets.collection.configs.find_spec", lambda _: None)
    shown = invoke(*arguments)
    assert isinstance(shown.exception, RolloutAssetsError), shown.output
    assert_names(str(shown.exception), *names)


def test_a_toml_file_says_what_to_collect_and_options_override_it(tmp_path, server):
    write_rows(tmp_path / "rows.jsonl", 6)
    file = tmp_path / "night.toml"
    file.write_text(
        f"""
        input_jsonl_fpath = "rows.jsonl"
        output_jsonl_fpath = "night.jsonl"
        server_urls = ["{server.url}"]
        num_repeats = 2
        metrics.success_threshold = 0.5
        """
    )
    shown = invoke("collect", file, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["output"] == str(tmp_path / "night.jsonl"), "relative to the file"
    lines = lines_of(tmp_path / "night.jsonl")
    assert len(lines) == 12 and len({line["seed"] for line in lines}) == 12
    arguments = ("--limit", 3, "--repeats", 1, "-o", tmp_path / "other.jsonl", "--set", "metrics.bootstrap_samples=7")
    assert invoke("collect", file, *arguments).exit_code == 0
    assert {line["seed"] for line in lines_of(tmp_path / "other.jsonl")} == {0, 1, 2}, "seeds of their own lines"


def test_an_unknown_key_of_a_toml_file_names_a_known_one(tmp_path):
    file = tmp_path / "night.toml"
    file.write_text('campaing = "demo"\nnum_repeat = 2\n')
    shown = invoke("collect", file, "-o", tmp_path / "o.jsonl", "-c", "demo")
    assert_names(str(shown.exception), "campaing: ", "campaign?", "num_repeat: ", "num_repeats?")
    file.write_text("limit = \n")
    assert_names(str(invoke("collect", file).exception), f"{file}: ", "TOML")


def test_the_example_names_every_key_and_can_be_used(tmp_path):
    shown = invoke("collect", "--example")
    assert shown.exit_code == 0 and CollectCommandConfig(**tomllib.loads(shown.output)).campaign == "demo"
    all_keys = re.sub(r"(?m)^# (?=\w+ = )", "", shown.output)
    assert set(tomllib.loads(all_keys)) == set(CollectCommandConfig.model_fields)
    defaults = CollectCommandConfig(output_jsonl_fpath="night.jsonl", campaign="demo")
    for name, value in tomllib.loads(all_keys).items():
        if isinstance(value, bool | float) and name != "num_repeats_add_seed":
            assert getattr(defaults, name) == value, name
    assert CollectCommandConfig(**tomllib.loads(all_keys) | {"num_servers": None}).limit == 8


def test_an_error_is_printed_without_a_traceback(tmp_path):
    code, told = run("aggregate", tmp_path / "nothing*", "-o", tmp_path / "o.jsonl")
    assert code == 2 and told.startswith("error: ") and "Traceback" not in told


def test_help_says_what_to_do():
    shown = invoke("collect", "--help")
    assert shown.exit_code == 0 and "--resume" in shown.output
