"""`rollout-assets evaluate`: a table, complete JSON, one clear line for what is wrong, and learned policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_assets.campaigns.plan import open_source
from rollout_assets.config import load_campaign
from rollout_assets.evaluation import read_evaluation
from rollout_assets.files import file_sha256
from tests.evaluation.checkpoints import write_checkpoint
from tests.support.commands import call
from tests.support.refusals import assert_names

pytestmark = pytest.mark.ci


def quickly(campaign: Path, output: Path) -> tuple[str, ...]:
    """The least that can be evaluated: one view from every root of one scene."""
    small = ("--set", "random_repeats=1", "--set", "failures=0")
    return (
        "evaluate",
        "-c",
        str(campaign),
        "-o",
        str(output),
        "--split",
        "train",
        "--horizon",
        "1",
        "--seeds",
        "1",
        *small,
    )


def scenes_of(campaign: Path, split: str) -> tuple[str, ...]:
    rows = open_source(load_campaign(campaign)).rows(split)
    return tuple(dict.fromkeys(row.scene_id for row in rows))


def test_the_table_names_every_policy_and_the_page(tiny_config, tiny_evaluation, tmp_path):
    settings = tmp_path / "again.toml"
    settings.write_text(
        f'campaign = "{tiny_config.campaign}"\noutput_dir = "{tiny_config.output_dir}"\nrandom_repeats = 2\n'
        'policies = ["farthest_from_history", "soft=temperature_softmax"]\nsplit = "train"\nhorizon = 2\n'
        "rows_per_shard = 1\nfailures = 2\nmax_pages = 1\n"
    )
    done = call("evaluate", str(settings))
    assert done.code == 0, done.err
    for name in ("random_valid", "oracle_greedy", "oracle_lookahead", "farthest_from_history", "soft"):
        assert name in done.out
    assert "too few scenes for intervals" in done.out and str(tiny_evaluation.page) in done.out
    assert read_evaluation(tiny_evaluation.folder).facts == tiny_evaluation.facts


def test_a_learned_policy_is_evaluated_and_named_by_its_content(evaluated_campaign, tmp_path):
    checkpoint = write_checkpoint(tmp_path / "Mine 1.safetensors", scenes_of(evaluated_campaign, "val"))
    done = call(*quickly(evaluated_campaign, tmp_path / "out"), "--policy", str(checkpoint), "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    facts = next(policy for policy in result["facts"]["policies"] if policy["role"] == "policy")
    assert facts["name"] == "mine-1" and facts["checkpoint_sha256"] == file_sha256(checkpoint)
    assert (facts["trained_on"], facts["seen_scenes"]) == (1, [])
    assert result["verdicts"]["mine-1"]["sentence"] and result["policies"] and result["groups"]


def test_a_policy_trained_on_an_evaluated_scene_is_refused(evaluated_campaign, tmp_path):
    (scene,) = scenes_of(evaluated_campaign, "train")
    checkpoint = write_checkpoint(tmp_path / "cheat.safetensors", (scene, "elsewhere"))
    command = (*quickly(evaluated_campaign, tmp_path / "out"), "--policy", str(checkpoint))
    done = call(*command)
    assert done.code == 2 and done.err.count("\n") == 1
    assert_names(done.err, "policy cheat", scene)
    assert not (tmp_path / "out" / "campaigns").exists(), "nothing is run before"
    allowed = call(*command, "--allow-seen-scenes")
    assert allowed.code == 0 and "trained on evaluated scenes" in allowed.out
    assert "trained on" in (tmp_path / "out" / "evaluation.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), ["--campaign", "--policy", "--output"]),
        (("-c", "demo", "-o", "out"), ["--policy"]),
        (("-c", "nowhere.toml", "-o", "out", "--policy", "random"), ["nowhere.toml"]),
        (("-c", "CAMPAIGN", "-o", "OUT", "--policy", "guess"), ["policy guess", "farthest_from_history"]),
        (("-c", "CAMPAIGN", "-o", "OUT", "--policy", "no.safetensors"), ["no.safetensors"]),
        (("-c", "CAMPAIGN", "-o", "OUT", "--policy", "TEXT"), ["text.safetensors"]),
        (("-c", "CAMPAIGN", "-o", "OUT", "--policy", "random", "--set", "horizn=2"), ["horizn: ", "horizon?"]),
        (("-c", "CAMPAIGN", "-o", "OUT", "--policy", "random", "--set", "horizon=0"), ["horizon: ", "0"]),
        (("gone.toml",), ["gone.toml: "]),
    ],
)
def test_wrong_input_is_one_clear_line(arguments, names, evaluated_campaign, tmp_path):
    text = tmp_path / "text.safetensors"
    text.write_text("text")
    places = {"CAMPAIGN": str(evaluated_campaign), "OUT": str(tmp_path / "out"), "TEXT": str(text)}
    done = call("evaluate", *(places.get(argument, argument) for argument in arguments))
    assert done.code == 2, done.err
    assert_names(done.err, *names)
    assert "Traceback" not in done.err and done.out == ""
