"""An evaluation from start to end: ordinary stores, paired outcomes, files that say the same, and reuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.config import load_campaign
from rollout_assets.errors import ConfigError, EvaluationError
from rollout_assets.evaluation import EvaluationConfig, PolicyEvaluation, evaluate_policies, read_evaluation
from rollout_assets.evaluation.config import read_evaluation_file
from rollout_assets.evaluation.outcomes import ROOT
from rollout_assets.evaluation.roster import roster
from rollout_assets.files import stamp_tree
from rollout_assets.inspection.replay import replay
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.support.refusals import refused


def store_of(evaluation: PolicyEvaluation, seed: int = 0) -> RolloutZarrStoreReader:
    folder = evaluation.folder / evaluation.facts.seeds[seed].folder
    return RolloutZarrStoreReader(folder / "rollouts.zarr" / evaluation.facts.split)


def test_every_policy_starts_from_the_same_roots(tiny_evaluation):
    outcomes = tiny_evaluation.outcomes
    roots = {
        key: frozenset(part.select(ROOT).rows())
        for key, part in outcomes.partition_by("policy", "draw", as_dict=True).items()
    }
    assert len(set(roots.values())) == 1 and len(roots) == 2 + 2 + 2
    assert outcomes.group_by(ROOT).agg(pl.col("root_headroom").n_unique())["root_headroom"].max() == 1


def test_the_oracle_is_best_first_and_lookahead_last(tiny_evaluation):
    wide = tiny_evaluation.outcomes.filter(pl.col("draw") == 0)
    first = wide.pivot("policy", index=list(ROOT), values="gain_1")
    for other in ("random_valid", "farthest_from_history", "soft"):
        assert (first["oracle_greedy"] >= first[other] - 1e-6).all()
    rows = {row["policy"]: row for row in tiny_evaluation.policies.iter_rows(named=True)}
    assert rows["oracle_greedy"]["first_headroom"] == 1.0 and rows["random_valid"]["headroom"] == 0.0


def test_its_stores_are_ordinary_ones(tiny_evaluation):
    reader = store_of(tiny_evaluation)
    assert reader.validate(deep=True).ok
    campaign = load_campaign(tiny_evaluation.folder / tiny_evaluation.facts.seeds[0].folder / "campaign.toml")
    assert summarize_rollout_shard_campaign(campaign).complete
    assert campaign.writer_config_hash == tiny_evaluation.facts.seeds[0].writer_config_hash
    row = tiny_evaluation.outcomes.filter(pl.col("seed") == campaign.seed)["rollout_row_id"][0]
    assert replay(reader, row, campaign).identical


def test_what_was_written_reads_back(tiny_evaluation):
    again = read_evaluation(tiny_evaluation.folder)
    assert again.facts == tiny_evaluation.facts
    assert again.outcomes.equals(tiny_evaluation.outcomes)
    assert again.verdict("soft") == tiny_evaluation.verdict("soft")
    values = json.loads((tiny_evaluation.folder / "evaluation.json").read_text())
    assert values["policies"] == tiny_evaluation.to_jsonable()["policies"]


def test_damaged_results_are_refused(tiny_evaluation, tmp_path):
    with refused(EvaluationError, tmp_path, "evaluation.json"):
        read_evaluation(tmp_path)
    for name in ("evaluation.json", "outcomes.parquet"):
        (tmp_path / name).write_bytes((tiny_evaluation.folder / name).read_bytes())
    assert read_evaluation(tmp_path).facts == tiny_evaluation.facts
    with (tmp_path / "outcomes.parquet").open("ab") as stream:
        stream.write(b"!")
    with refused(EvaluationError, tmp_path / "outcomes.parquet", "evaluation.json"):
        read_evaluation(tmp_path)
    (tmp_path / "evaluation.json").write_text("{}")
    with refused(EvaluationError, tmp_path / "evaluation.json", "'facts'"):
        read_evaluation(tmp_path)


def test_one_scene_decides_nothing(tiny_evaluation):
    verdict = tiny_evaluation.verdict("soft")
    assert not verdict.beats_random and verdict.headroom.low is None
    assert "random_valid" in verdict.sentence
    with refused(EvaluationError, "hard", "farthest_from_history, soft"):
        tiny_evaluation.verdict("hard")


def test_the_page_links_to_pages_that_are_there(tiny_evaluation):
    page = tiny_evaluation.page.read_text()
    links = set(re.findall(r'href="(evaluation_rollouts/[^"#]+)"', page))
    assert len(links) == 1
    assert [link for link in links if not (tiny_evaluation.folder / link).is_file()] == []
    assert "<script src" not in page and "<link rel=stylesheet" not in page
    for policy in tiny_evaluation.facts.policies:
        assert policy.name in page
    assert tiny_evaluation.facts.seeds[0].writer_config_hash[:16] in page


def test_the_same_evaluation_again_builds_nothing_anew(tiny_config, tiny_evaluation):
    campaigns = tiny_evaluation.folder / "campaigns"
    shards = {path: stamp_tree(path) for path in campaigns.glob("*/shards/shard-*")}
    result = (tiny_evaluation.folder / "evaluation.json").read_bytes()
    again = evaluate_policies(tiny_config)
    assert again.policies.equals(tiny_evaluation.policies)
    assert (tiny_evaluation.folder / "evaluation.json").read_bytes() == result
    assert {path: stamp_tree(path) for path in campaigns.glob("*/shards/shard-*")} == shards and len(shards) == 4


def test_a_limit_takes_the_first_scenes_only(evaluated_campaign, small_store, tmp_path):
    config = EvaluationConfig(
        campaign=str(evaluated_campaign),
        campaign_settings={"split": {"mode": "explicit", "rest": "val", "scenes": {"train": ["nowhere"]}}},
        policies=["farthest_from_reference"],
        output_dir=tmp_path,
        horizon=1,
        seeds=1,
        random_repeats=1,
        limit=1,
        failures=0,
    )
    evaluation = evaluate_policies(config)
    assert len(evaluation.facts.scenes) == 1 and evaluation.facts.seeds[0].source_rows == 2
    assert evaluation.failures.is_empty()
    assert set(evaluation.outcomes["scene"]) == set(evaluation.facts.scenes)


def test_names_of_policies(tmp_path):
    def names(*policies: object) -> list[str]:
        config = EvaluationConfig(campaign="demo", policies=policies, output_dir=tmp_path)
        return [contestant.name for contestant in roster(config)][3:]

    assert names("oracle_greedy", "random_valid", "mine=random_valid") == ["mine"]
    assert names({"name": "cold", "policy": "temperature_softmax", "temperature": 0.1}) == ["cold"]
    with refused(ConfigError, "temperature_softmax"):
        names("temperature_softmax", "temperature_softmax")
    with refused(ConfigError, "'best_guess'", "farthest_from_history", "rollout_assets.policies"):
        names("best_guess")
    with refused(ConfigError, "random_valid, oracle_greedy"):
        names("oracle_greedy", "random_valid")
    with refused(ConfigError, tmp_path / "missing.safetensors"):
        names(str(tmp_path / "missing.safetensors"))


def test_paths_in_a_file_start_at_the_file(tmp_path):
    path = tmp_path / "evaluation.toml"
    path.write_text('campaign = "mine.toml"\noutput_dir = "out"\npolicies = ["a=runs/1.safetensors", "random"]\n')
    values = read_evaluation_file(path)
    assert values["campaign"] == str(tmp_path / "mine.toml") and values["output_dir"] == tmp_path / "out"
    assert values["policies"][0].checkpoint == tmp_path / "runs" / "1.safetensors"
    assert EvaluationConfig(**values).policies[1].policy == "random"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"policies": []}, ["policies: "]),
        ({"horizon": 0}, ["horizon: ", 0]),
        ({"sedes": 2}, ["sedes: ", "seeds"]),
        ({"bootstrap": {"samples": 3}}, ["bootstrap.samples: "]),
        ({"policies": [{"name": "a b", "policy": "random"}]}, ["name: "]),
    ],
)
def test_wrong_settings_are_named(changes, names, tmp_path):
    with refused(ConfigError, *names):
        EvaluationConfig(**{"campaign": "demo", "policies": ["random"], "output_dir": Path("out"), **changes})


@pytest.mark.slow
def test_what_policies_see_does_not_depend_on_depth_that_is_kept(evaluated_campaign, tmp_path):
    gains = [
        evaluate_policies(
            EvaluationConfig(
                campaign=str(evaluated_campaign),
                policies=["most_new_points"],
                output_dir=tmp_path / str(kept),
                split="train",
                seeds=1,
                random_repeats=1,
                failures=0,
                keep_depth=kept,
            )
        ).outcomes
        for kept in (False, True)
    ]
    assert gains[0].equals(gains[1])
