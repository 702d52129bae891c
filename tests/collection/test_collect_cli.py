"""`collect` and `aggregate` at the command line: what they print, exit codes, and one clear line for bad input."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rollout_assets.cli import app
from rollout_assets.errors import RolloutAssetsError
from tests.collection.collect_processes import count_lines, run
from tests.collection.test_collector import lines_of, write_rows
from tests.serving.fake_server import FakeServer, running


@pytest.fixture
def server():
    with running(FakeServer()) as found:
        yield found


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_collect_then_aggregate(tmp_path, server):
    rows = write_rows(tmp_path / "rows.jsonl", 6, agents=("greedy", "random"))
    output = tmp_path / "out" / "out.jsonl"
    shown = invoke("collect", rows, "-o", output, "--server", server.url, "--repeats", "random=3,greedy=1")
    assert shown.exit_code == 0, shown.output
    assert "24 expected, 24 done (100.0%), 0 failed, 0 missing" in shown.output
    assert "best@" in shown.output and "random" in shown.output
    seeds = [line["seed"] for line in lines_of(output)]
    assert len(set(seeds)) == 24, "repeats have seeds of their own"
    merged = invoke("aggregate", output.parent / "*.jsonl", "-o", output.parent / "merged.jsonl", "--json")
    facts = json.loads(merged.output)
    assert (facts["lines"], facts["files"]) == (24, [str(output)])
    assert [entry["counts"]["expected"] for entry in facts["metrics"]] == [6, 18]


def test_failures_and_the_rest_are_told_with_the_exit_code(tmp_path, server):
    server.fault = lambda row, _: "refuse" if row["_task_index"] < 2 else None
    rows = write_rows(tmp_path / "rows.jsonl", 6)
    shown = invoke("collect", rows, "-o", tmp_path / "out.jsonl", "--server", server.url)
    assert shown.exit_code == 3
    assert "6 expected, 4 done (66.7%), 2 failed, 0 missing" in shown.output
    assert "out_failures.jsonl says why rows failed; --resume tries them again" in shown.output
    server.fault = lambda *_: None
    again = invoke("collect", rows, "-o", tmp_path / "out.jsonl", "--server", server.url, "--resume", "--json")
    facts = json.loads(again.output)
    assert again.exit_code == 0 and facts["cached"] == 4
    assert facts["coverage"] == {"expected": 6, "done": 6, "failed": 0, "missing": 0, "complete": True}


def test_rows_of_a_campaign_are_written_and_counted(tmp_path, tiny_campaign):
    shown = invoke("collect", tmp_path / "rows.jsonl", "-c", tiny_campaign, "--from-campaign", "--split", "train")
    assert shown.exit_code == 0, shown.output
    assert "7 rows of 2 source rows, 1 targets without a label, 0 source rows skipped" in shown.output
    assert count_lines(tmp_path / "rows.jsonl") == 7


def test_a_campaigns_rows_are_collected_from_a_server(tmp_path, tiny_campaign, tiny_server):
    output = tmp_path / "out.jsonl"
    arguments = ["-c", tiny_campaign, "--from-campaign", "--server", tiny_server, "--param", "horizon=1", "--json"]
    shown = invoke("collect", "-o", output, *arguments)
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.output)["prepared"]["rows"] == 7
    assert {line["num_steps"] for line in lines_of(output) if line["status"] == "completed"} == {1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("collect", "rows.jsonl"), "--out is missing"),
        (("collect", "-o", "o.jsonl"), "ROWS.jsonl is missing; name a file of rows, or take a campaign's"),
        (("collect", "--from-campaign"), "--from-campaign needs ROWS.jsonl to write the rows to, or --out"),
        (("collect", "r", "-o", "o.jsonl", "--servers", 2, "--server", "http://x"), "give one of the two"),
        (("collect", "r", "-o", "o.jsonl", "--repeats", "many"), "--repeats must be a number or AGENT=N,…, got 'many'"),
        (("collect", "r", "-o", "o.jsonl", "--param", "horizon"), "--param must be NAME=VALUE, got 'horizon'"),
        (("collect", "r", "-o", "o.jsonl", "--param", "horizon=0"), "responses_create_params: horizon"),
        (("collect", "r", "-o", "o.jsonl", "--server", "http://x", "--wandb"), "'wandb' is not installed"),
        (("collect", "r", "-o", "o.txt"), "output_jsonl_fpath must end in .jsonl, got o.txt"),
        (("aggregate", "nothing*", "-o", "o.jsonl"), "nothing*: matches no result file"),
    ],
)
def test_wrong_input_is_one_clear_error(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    shown = invoke(*arguments)
    assert isinstance(shown.exception, RolloutAssetsError), shown.output
    assert says in str(shown.exception)


def test_an_error_is_printed_without_a_traceback(tmp_path):
    code, told = run("aggregate", tmp_path / "nothing*", "-o", tmp_path / "o.jsonl")
    assert code == 2 and told.startswith("error: ") and "Traceback" not in told


def test_help_says_what_to_do():
    shown = invoke("collect", "--help")
    assert shown.exit_code == 0 and "--resume" in shown.output and "Exit code 0 when" in shown.output
