"""A campaign file that extends another one: what it says counts, the rest is as if read from where it is written."""

from pathlib import Path

import pytest

from rollout_assets.config import CampaignConfig, data_home, load_campaign, read_campaign_text, toml_text
from rollout_assets.errors import ConfigError
from rollout_assets.parsing import parse_toml
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation
from tests.support.refusals import refused

FIRST = """
name = "first"
seed = 5
source = { store_dir = "homes", mesh_dirs = ["meshes"] }
oracle = { width_px = 16, height_px = 16, device = "cpu" }
recipes = [{ name = "random", policy = "random_valid", horizon = 3 }]
shards = { rows_per_shard = 2, output_dir = "first" }

[training]
stores = ["earlier/rollouts.zarr"]
epochs = 4
validation = { stores = ["held_out.zarr"] }

[evaluation]
policies = ["before=old/policy.safetensors", "largest_turn"]
"""
SECOND = """
extends = "base/first.toml"
name = "second"
seed = 6
recipes = [{ name = "learned", policy = "learned", checkpoint = "p.safetensors", draw = true, horizon = 3 }]
shards.output_dir = "second"
oracle.width_px = 24
training.stores = ["base/first/rollouts.zarr"]
"""


@pytest.fixture
def second(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "first.toml").write_text(FIRST)
    (tmp_path / "p.safetensors").write_bytes(b"weights")
    (tmp_path / "second.toml").write_text(SECOND)
    return tmp_path / "second.toml"


def test_tables_are_merged_and_lists_are_replaced(second: Path) -> None:
    config = load_campaign(second)
    assert (config.name, config.seed, config.shards.rows_per_shard) == ("second", 6, 2)
    assert (config.oracle.width_px, config.oracle.height_px, config.oracle.device) == (24, 16, "cpu")
    assert [recipe.name for recipe in config.recipes] == ["learned"]
    assert config.training is not None and config.training.epochs == 4


def test_every_path_starts_at_the_file_that_names_it(second: Path) -> None:
    config, base = load_campaign(second), second.parent / "base"
    assert config.source.store_dir == base / "homes" and config.source.mesh_dirs == (base / "meshes",)
    assert config.shards.output_dir == second.parent / "second"
    assert config.recipes[0].checkpoint == second.parent / "p.safetensors"
    assert config.training is not None and config.evaluation is not None
    assert config.training.stores == (base / "first/rollouts.zarr",)
    assert config.training.validation.stores == (base / "held_out.zarr",)
    assert [policy.checkpoint for policy in config.evaluation.policies] == [base / "old/policy.safetensors", None]


def test_what_the_base_leaves_out_is_what_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "demo"\nname = "mine"\nshards.output_dir = "mine"\n')
    assert load_campaign(tmp_path / "mine.toml").source.store_dir == data_home() / "demo" / "source"


def test_hashes_and_recorded_text_are_of_the_merged_campaign(second: Path) -> None:
    config = load_campaign(second)
    whole = second.with_name("whole.toml")
    whole.write_text(toml_text(config))
    assert load_campaign(whole) == config and load_campaign(whole).hashes() == config.hashes()
    recorded = RolloutStoreInvocation.of_campaign(second, "cli").raw_toml_text
    assert recorded is not None and recorded == read_campaign_text(second).text
    assert CampaignConfig.model_validate(parse_toml(recorded)) == config
    first = second.parent / "base" / "first.toml"
    assert read_campaign_text(first).text == FIRST, "a campaign that extends none is recorded as it is written"


def test_an_edited_base_is_an_edited_campaign(second: Path) -> None:
    before = load_campaign(second)
    base = second.parent / "base" / "first.toml"
    base.write_text(FIRST.replace("height_px = 16", "height_px = 20").replace("epochs = 4", "epochs = 5"))
    after = load_campaign(second)
    assert after.oracle_config_hash != before.oracle_config_hash
    assert after.candidate_config_hash == before.candidate_config_hash


def test_training_and_evaluation_change_no_hash_of_stored_bytes(second: Path) -> None:
    first = second.parent / "base" / "first.toml"
    with_policy = load_campaign(first)
    first.write_text(FIRST.split("[training]")[0])
    assert load_campaign(first).hashes() == with_policy.hashes() and load_campaign(first).training is None


def test_settings_count_more_than_both_files(second: Path) -> None:
    assert load_campaign(second, {"oracle": {"height_px": 9}}).oracle.height_px == 9


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ('"base/first.toml"', '"gone.toml"', ["extends", "gone.toml"]),
        ('"base/first.toml"', "3", ["extends", "got 3"]),
        ('"base/first.toml"', '"second.toml"', ["second.toml -> second.toml"]),
        ('name = "second"\n', "", ["name", "first"]),
        ('shards.output_dir = "second"', "", ["shards.output_dir", "base/first", "first"]),
        ('"second"\noracle', '"base/../base/first"\noracle', ["shards.output_dir"]),
        ("oracle.width_px = 24", "oracle.width_px = 0", ["oracle.width_px", "got 0"]),
    ],
)
def test_an_unusable_extension_is_refused(second: Path, old: str, new: str, names: list[str]) -> None:
    second.write_text(SECOND.replace(old, new))
    with refused(ConfigError, "second.toml", *names):
        load_campaign(second)


def test_a_cycle_of_two_files_is_named(second: Path) -> None:
    base = second.parent / "base" / "first.toml"
    base.write_text('extends = "../second.toml"\n' + FIRST)
    with refused(ConfigError, "second.toml -> first.toml -> second.toml"):
        load_campaign(second)
    with refused(ConfigError, "first.toml -> second.toml -> first.toml"):
        load_campaign(base)


def test_a_problem_of_the_base_names_the_base(second: Path) -> None:
    (second.parent / "base" / "first.toml").write_text(FIRST.replace("epochs = 4", "epoch = 4"))
    with refused(ConfigError, "first.toml", "training.epoch", "epochs"):
        load_campaign(second)


def test_an_evaluation_needs_a_training(second: Path) -> None:
    base = second.parent / "base" / "first.toml"
    base.write_text(FIRST.split("[training]")[0] + "[evaluation]\n")
    with refused(ConfigError, "[evaluation]", "[training]"):
        load_campaign(base)
