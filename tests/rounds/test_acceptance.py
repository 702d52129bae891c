"""A policy is accepted when it passes every check, and later ones are held against it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import EvaluationError
from rollout_assets.evaluation import BootstrapConfig, PolicyEvaluation
from rollout_assets.files import file_sha256
from rollout_assets.rounds.acceptance import accept_policy, judge_policy, last_accepted
from tests.evaluation.test_accepted import evaluation as handmade
from tests.support.refusals import assert_names, refused


@pytest.fixture
def campaign(tmp_path: Path) -> CampaignConfig:
    return CampaignConfig(name="x", shards={"output_dir": tmp_path})


def evaluated(campaign: CampaignConfig, better_by: float = 0.0, **facts: object) -> PolicyEvaluation:
    """The hand-made evaluation, of a policy called trained, with a checkpoint of its own, as it lies on disk."""
    layout = CampaignLayout.of(campaign)
    checkpoint = layout.policies / str(better_by) / "policy.safetensors"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_bytes(str(better_by).encode())
    found = handmade(better_by)
    own = {"name": "trained", "checkpoint": str(checkpoint), "checkpoint_sha256": file_sha256(checkpoint)}
    seen = {"seen_scenes": facts.pop("seen_scenes", ())}
    policies = [p.model_copy(update=own | seen) if p.name == "mine" else p for p in found.facts.policies]
    tables = {
        name: getattr(found, name).with_columns(pl.col("policy").replace("mine", "trained"))
        for name in ("outcomes", "policies", "views", "comparisons", "groups", "failures")
    }
    layout.evaluation.mkdir(exist_ok=True)
    about = found.facts.model_copy(update={"policies": tuple(policies), **facts})
    result = replace(found, folder=layout.evaluation, facts=about, **tables)
    result.write()
    return result


def test_the_first_policy_that_beats_chance_is_accepted_once(campaign: CampaignConfig) -> None:
    evaluated(campaign)
    judgement = judge_policy(campaign)
    assert judgement.accepted and judgement.previous is None and judgement.comparison is None
    folder = accept_policy(campaign, judgement)
    assert {path.name for path in folder.iterdir()} == {"policy.safetensors", "evaluation.json", "outcomes.parquet"}
    assert accept_policy(campaign, judge_policy(campaign)) == folder, "the same evaluation is kept once"
    assert judge_policy(campaign).accepted, "it is not worse than itself"


def test_a_better_policy_takes_its_place_and_a_worse_one_does_not(campaign: CampaignConfig) -> None:
    layout = CampaignLayout.of(campaign)
    for better_by, number in ((0.0, "000001"), (0.01, "000002")):
        evaluated(campaign, better_by)
        assert accept_policy(campaign, judge_policy(campaign)).name == number
    evaluated(campaign, 0.001)
    judgement = judge_policy(campaign)
    assert judgement.beats_random and not judgement.not_worse and not judgement.accepted
    assert judgement.comparison is not None and judgement.comparison.worse
    assert last_accepted(layout) == layout.accepted / "000002"
    assert (layout.accepted / "000001" / "policy.safetensors").read_bytes() == b"0.0", "earlier ones stay"


def test_chance_must_be_beaten_with_95_percent_confidence(campaign: CampaignConfig) -> None:
    evaluated(campaign, bootstrap=BootstrapConfig(confidence=0.8))
    judgement = judge_policy(campaign)
    assert judgement.verdict.beats_random and not judgement.beats_random and not judgement.accepted


def test_a_policy_that_has_seen_a_scene_is_not_accepted(campaign: CampaignConfig) -> None:
    evaluated(campaign, seen_scenes=("scene-1",))
    judgement = judge_policy(campaign)
    assert judgement.seen_scenes == {"trained": ("scene-1",)} and not judgement.accepted


def test_what_cannot_be_compared_is_not_accepted_and_says_why(campaign: CampaignConfig) -> None:
    evaluated(campaign)
    accepted = accept_policy(campaign, judge_policy(campaign))
    found = evaluated(campaign, 0.01, oracle_config_hash="another")
    judgement = judge_policy(campaign)
    assert judgement.comparison is None and not judgement.accepted
    assert_names(judgement.incomparable, "oracle_config_hash", "another", " o")

    content = file_sha256(accepted / "policy.safetensors")
    together = [
        policy.model_copy(update={"checkpoint_sha256": content, "role": "policy"})
        if policy.name == "oracle_lookahead"
        else policy
        for policy in found.facts.policies
    ]
    replace(found, facts=found.facts.model_copy(update={"policies": tuple(together)})).write()
    judgement = judge_policy(campaign)
    assert judgement.comparison is not None, "in one evaluation they stand on the same ground"
    assert judgement.comparison.accepted == "oracle_lookahead" and not judgement.not_worse


def test_a_checkpoint_that_was_not_evaluated_is_not_accepted(campaign: CampaignConfig) -> None:
    found = evaluated(campaign)
    Path(str(found.facts.policies[-1].checkpoint)).write_bytes(b"another")
    with refused(EvaluationError, found.facts.policies[-1].checkpoint, found.facts.policies[-1].checkpoint_sha256):
        accept_policy(campaign, judge_policy(campaign))
    assert last_accepted(CampaignLayout.of(campaign)) is None
