"""A recipe with a trained checkpoint, from its file to stored scores; a wrong file is one line before any work."""

from pathlib import Path

import numpy as np
import pytest

from rollout_assets.campaigns.run import run_campaign
from rollout_assets.config import load_campaign
from rollout_assets.errors import PolicyRefused
from rollout_assets.learning.checkpoints import save_checkpoint
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.inspection.conftest import write_campaign
from tests.learning.test_checkpoints import card_of, network
from tests.support.refusals import refused

SIZES = """
oracle = { width_px = 12, height_px = 12, device = "cpu" }
selected_depth = { width_px = 24, height_px = 24 }
"""

RECIPES = """
[[recipes]]
name = "policy"
policy = "learned"
checkpoint = "policy.safetensors"
horizon = 3

[[recipes]]
name = "drawn"
policy = "learned"
checkpoint = "policy.safetensors"
draw = true
"""


def campaign_file(folder: Path, source: Path) -> Path:
    path = folder / "campaign.toml"
    sizes = (
        "oracle = { width_px = 12, height_px = 12, device = 'cpu' }\nselected_depth = { width_px = 24, height_px = 24 }"
    )
    path.write_text(f"name = 'learned'\nseed = 5\nsource.store_dir = '{source}'\n{sizes}\n{RECIPES}")
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    net = network()
    save_checkpoint(tmp_path / "policy.safetensors", card_of(net), net.state_dict())
    return tmp_path / "policy.safetensors"


def test_a_trained_policy_rolls_out_and_its_scores_are_stored(tmp_path, small_store, checkpoint):
    config = load_campaign(campaign_file(tmp_path, small_store))
    source = VinOfflineStore.open(small_store)
    rows = [row.sample_index for row in source.rows("train")][:1]
    reader = RolloutZarrStoreReader(write_campaign(config, tmp_path / "store.zarr", rows))
    assert reader.validate(deep=True).errors == []
    assert reader.strings("score_source") == ["learned_gain"]
    lineage = reader.rollout(0).lineage
    assert lineage.model_checkpoint_hash == config.recipes[0].checkpoint_sha256 and lineage.rollout_policy == "learned"
    logits = reader.array("candidates/selection_logits")
    takeable = reader.array("candidates/actor_action_mask")
    assert np.array_equal(np.isfinite(logits), takeable) and len(np.unique(logits[takeable])) > takeable.sum() // 4


@pytest.mark.parametrize("damage", ["truncated", "text", "not finite"])
def test_an_unusable_checkpoint_is_one_line_before_any_work(tmp_path, small_store, checkpoint, damage):
    if damage == "truncated":
        checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    elif damage == "text":
        checkpoint.write_text("not a checkpoint")
    else:
        net = network()
        weights = {name: tensor * np.nan for name, tensor in net.state_dict().items()}
        save_checkpoint(checkpoint, card_of(net), weights)
    config = load_campaign(campaign_file(tmp_path, small_store))
    with refused(PolicyRefused, "policy.safetensors") as caught:
        run_campaign(config)
    assert "\n" not in str(caught.value)
    assert not config.shards.output_dir.exists()
