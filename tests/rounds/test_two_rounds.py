"""Two rounds from the first rollout to the second policy, by the commands of infra/docs/rounds.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.config import load_campaign
from rollout_assets.errors import ConfigError, EvaluationError
from rollout_assets.evaluation import read_evaluation
from rollout_assets.files import file_sha256
from rollout_assets.inspection.provenance import generation
from rollout_assets.learning.checkpoints import read_card
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rounds.evaluation import campaign_evaluation
from rollout_assets.rounds.training import campaign_training, train_campaign_policy
from tests.rounds.campaigns import write_rounds
from tests.support.commands import call
from tests.support.refusals import assert_names, refused


def run(*arguments: str) -> dict[str, Any]:
    """Run a command; what it printed as JSON, if it did."""
    done = call(*arguments)
    assert done.code == 0, done.err + done.out
    return json.loads(done.out) if "--json" in arguments else {}


def promote(campaign: Path) -> CampaignLayout:
    run("campaign", "run", "-c", str(campaign), "--promote")
    return CampaignLayout(load_campaign(campaign).shards.output_dir)


@pytest.mark.slow
def test_two_rounds_end_with_a_policy_trained_on_both_stores(four_homes: Path, tmp_path: Path) -> None:
    first, second = write_rounds(tmp_path, four_homes)
    with refused(ConfigError, "recipes[0].checkpoint", "first/policy/policy.safetensors"):
        load_campaign(second)
    one = promote(first)
    with refused(EvaluationError, "trained_policy"):
        campaign_evaluation(load_campaign(first))
    trained = run("train", "-c", str(first), "--json")
    assert one.policy.resolve() == Path(trained["folder"])

    two = promote(second)
    reader = RolloutZarrStoreReader(two.promoted / "train")
    lineages = [reader.rollout(row).lineage for row in range(reader.num_rows("rollouts"))]
    assert {lineage.model_checkpoint_hash for lineage in lineages} == {trained["checkpoint_sha256"]}
    recorded = generation(reader)
    assert recorded["writer_config"]["recipes"][0]["checkpoint_sha256"] == trained["checkpoint_sha256"]
    assert recorded["writer_config"]["oracle"]["width_px"] == 8
    assert "extends" not in recorded["invocation"]["raw_toml_text"], "the merged campaign is what is recorded"

    again = run("train", "-c", str(second), "--json")
    config = campaign_training(load_campaign(second))
    assert config.stores == (one.promoted.resolve(), two.promoted.resolve()) and config.sources == (four_homes,)
    cards = [read_card(layout.policy / "policy.safetensors") for layout in (one, two)]
    assert len(cards[0].stores) == 1 and len(cards[1].stores) == 2 and set(cards[0].stores) < set(cards[1].stores)

    evaluation = run("evaluate", "-c", str(second), "--json")
    assert set(evaluation["verdicts"]) == {"trained", "first"}
    facts = {policy["name"]: policy for policy in evaluation["facts"]["policies"]}
    assert facts["trained"]["checkpoint_sha256"] == again["checkpoint_sha256"]
    assert facts["first"]["checkpoint_sha256"] == trained["checkpoint_sha256"]
    assert not any(policy["seen_scenes"] for policy in facts.values())
    assert read_evaluation(two.evaluation).facts.seeds[0].seed == 106


@pytest.mark.slow
def test_a_training_is_found_again_and_an_edited_one_is_new(four_homes: Path, tmp_path: Path) -> None:
    path, _ = write_rounds(tmp_path, four_homes)
    with refused(ConfigError, "first/rollouts.zarr", "rollout-assets campaign promote -c"):
        campaign_training(load_campaign(path))
    layout = promote(path)
    before = train_campaign_policy(load_campaign(path))
    stamp = before.result.checkpoint.stat().st_mtime_ns
    assert train_campaign_policy(load_campaign(path)).result.seconds == before.result.seconds, (
        "nothing is trained again"
    )
    assert before.curves is not None and before.curves.is_file()

    path.write_text(path.read_text().replace("epochs = 2", "epochs = 1"))
    after = train_campaign_policy(load_campaign(path))
    assert after.result.folder != before.result.folder and layout.policy.resolve() == after.result.folder
    assert before.result.checkpoint.stat().st_mtime_ns >= stamp
    assert file_sha256(before.result.checkpoint) == before.result.checkpoint_sha256

    path.write_text(path.read_text().replace("epochs = 1", "epochs = 2"))
    assert train_campaign_policy(load_campaign(path)).result.folder == before.result.folder
    assert layout.policy.resolve() == before.result.folder


def test_settings_of_two_campaigns_are_refused(tmp_path: Path) -> None:
    first, _ = write_rounds(tmp_path, tmp_path / "homes")
    other = tmp_path / "other.toml"
    other.write_text(f'extends = "{first.name}"\nname = "other"\nshards.output_dir = "other"\n')
    done = call("train", "-c", str(first), "-c", str(other))
    assert done.code == 2
    assert_names(done.err, "[training]", "CONFIG.toml")
