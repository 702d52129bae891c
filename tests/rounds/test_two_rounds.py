"""Two rounds from the first rollout to the second policy, by the commands of infra/docs/rounds.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.config import load_campaign
from rollout_assets.errors import ConfigError, EvaluationError
from rollout_assets.files import file_sha256
from rollout_assets.inspection.provenance import generation
from rollout_assets.learning.checkpoints import read_card
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rounds.evaluation import campaign_evaluation, evaluate_campaign_policy
from rollout_assets.rounds.training import campaign_training, train_campaign_policy
from tests.commands.in_process import call
from tests.rounds.campaigns import write_rounds


def promote(campaign: Path) -> CampaignLayout:
    for verb in ("run", "promote"):
        done = call("campaign", verb, "-c", str(campaign))
        assert done.code == 0, done.err + done.out
    return CampaignLayout(load_campaign(campaign).shards.output_dir)


@pytest.mark.slow
def test_two_rounds_end_with_a_policy_that_was_trained_on_both_stores(four_homes: Path, tmp_path: Path) -> None:
    first, second = write_rounds(tmp_path, four_homes)
    with pytest.raises(ConfigError, match=r"recipes\[0\].checkpoint: .*first/policy/policy.safetensors: no such"):
        load_campaign(second)
    one = promote(first)
    with pytest.raises(EvaluationError, match="not trained yet; materialize trained_policy first"):
        campaign_evaluation(load_campaign(first))
    trained = train_campaign_policy(load_campaign(first))
    assert one.policy.resolve() == trained.result.folder

    two = promote(second)
    reader = RolloutZarrStoreReader(two.promoted / "train")
    lineage = reader.table("lineage").to_dicts() if "lineage" in reader.tables() else []
    hashes = {row["model_checkpoint_hash"] for row in lineage}
    assert hashes <= {trained.result.checkpoint_sha256}
    recorded = generation(reader)
    assert recorded["writer_config"]["recipes"][0]["checkpoint_sha256"] == trained.result.checkpoint_sha256
    assert "extends" not in recorded["invocation"]["raw_toml_text"], "the merged campaign is what is recorded"
    assert recorded["writer_config"]["oracle"]["width_px"] == 8

    again = train_campaign_policy(load_campaign(second))
    assert again.config.stores == (one.promoted.resolve(), two.promoted.resolve())
    assert again.config.sources == (four_homes,)
    card = read_card(again.result.checkpoint)
    assert len(card.stores) == 2 and set(trained.result.folder.parts).isdisjoint({again.result.folder.name})
    assert card.stores[0] == read_card(trained.result.checkpoint).stores[0]

    evaluation = evaluate_campaign_policy(load_campaign(second))
    digests = {policy.name: policy.checkpoint_sha256 for policy in evaluation.facts.policies}
    assert digests["trained"] == again.result.checkpoint_sha256
    assert digests["first"] == trained.result.checkpoint_sha256
    assert evaluation.facts.named == ("trained", "first")
    assert not any(policy.seen_scenes for policy in evaluation.facts.policies)

    paths = [f"{name}={layout.policy / 'policy.safetensors'}" for name, layout in (("one", one), ("two", two))]
    options = [option for path in paths for option in ("--policy", path)]
    done = call(
        *("evaluate", "-c", str(first), *options, "-o", str(tmp_path / "both"), "--horizon", "1", "--seeds", "1"),
        *("--set", "random_repeats=1", "--set", "max_pages=0", "--json"),
    )
    assert done.code == 0, done.err
    assert set(json.loads(done.out)["verdicts"]) == {"one", "two"}


@pytest.mark.slow
def test_a_training_is_found_again_and_an_edited_one_has_a_folder_of_its_own(four_homes: Path, tmp_path: Path) -> None:
    path, _ = write_rounds(tmp_path, four_homes)
    with pytest.raises(ConfigError, match=r"first/rollouts.zarr: not there yet; 'rollout-assets campaign promote -c"):
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
