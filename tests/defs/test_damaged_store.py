"""A damaged promoted store: checks name version, split, array and the way out, and promoting is that way."""

import shutil

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.versions import current_version
from rollout_assets.defs.checks.store import rows_add_up, stores_valid
from rollout_assets.defs.keys import PROMOTE, ROLLOUTS_ZARR, STORE_CHECKS
from rollout_assets.rollouts import promote_rollout_campaign
from tests.campaigns.kill_campaigns import fake_campaign
from tests.campaigns.test_reading_again import alter

ROWS = [("train", 1), ("val", 1)]
RRI = "val/candidates/target_rri"
VERSION = "versions/v000001"
REMEDY = "builds it again from its shards"

DAMAGE = {
    "a flipped bit": (lambda root: alter(root / VERSION / RRI / "c/0"), RRI),
    "a missing chunk": (lambda root: (root / VERSION / RRI / "c/0").unlink(), RRI),
    "an altered document": (lambda root: alter(root / VERSION / RRI / "zarr.json"), RRI),
    "an altered root of a split": (lambda root: alter(root / VERSION / "val/zarr.json"), "val/"),
    "an altered manifest": (lambda root: alter(root / VERSION / "val/manifest.json"), "val/"),
    "a file too many": (lambda root: (root / VERSION / "val/steps/notes.txt").write_text("mine"), "val/steps"),
    "a missing split": (lambda root: shutil.rmtree(root / VERSION / "val"), "val/"),
    "a missing inventory": (lambda root: (root / "inventories/v000001.json").unlink(), "/"),
    "a broken inventory": (lambda root: (root / "inventories/v000001.json").write_text("{"), "/"),
}
"""Kind of damage -> what does it, and the split and array that it is in."""

OFTEN = ("a flipped bit", "a missing split")
"""Kinds that every run of the tests does."""


@pytest.fixture(scope="module")
def promoted(tmp_path_factory):
    """One shard a split, promoted as v000001. Shared: copy before changing."""
    root = tmp_path_factory.mktemp("damaged") / "out"
    campaign = fake_campaign(root, ROWS)
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    return root


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.ci) for kind in DAMAGE])
def test_every_kind_of_damage_fails_the_check_with_its_place_and_promoting_heals_it(promoted, tmp_path, kind):
    root = tmp_path / "out"
    shutil.copytree(promoted, root, symlinks=True)
    config = fake_campaign(root, ROWS).config
    version = current_version(config)
    assert stores_valid(config, version, deep=False).passed
    damage, place = DAMAGE[kind]
    damage(root)
    result = stores_valid(config, current_version(config), deep=False)
    assert not result.passed
    evidence = result.metadata["evidence"].records[0].data
    assert evidence["version"] == "v000001" and REMEDY in evidence["to go on"]
    assert f"{evidence.get('split', '')}/{evidence.get('array', '')}" == place
    promotion = promote_rollout_campaign(config)
    assert promotion.version.name == "v000002" and promotion.moved and promotion.damaged
    healed = current_version(config)
    assert stores_valid(config, healed, deep=True).passed and rows_add_up(config, healed).passed


@pytest.mark.parametrize("what", ["cut short", "removed"])
def test_a_version_that_no_longer_says_what_it_is_made_of_is_made_again(promoted, tmp_path, what):
    root = tmp_path / "out"
    shutil.copytree(promoted, root, symlinks=True)
    record = root / VERSION / "zarr.json"
    record.unlink() if what == "removed" else record.write_bytes(record.read_bytes()[:40])
    result = promote_rollout_campaign(fake_campaign(root, ROWS).config)
    assert result.version.name == "v000002"
    assert result.damaged == ("v000001: zarr.json does not say what the version was made from",)


def test_the_check_says_how_much_it_read_and_when_all_was_last_read(promoted, tmp_path):
    root = tmp_path / "out"
    shutil.copytree(promoted, root, symlinks=True)
    config = fake_campaign(root, ROWS).config
    shutil.rmtree(root / "full_reads")
    metadata = stores_valid(config, current_version(config), deep=False).metadata
    assert metadata["last_full_read"].value.startswith("never") and metadata["sample_seed"].value >= 0
    assert 0 < metadata["bytes_read"].value <= metadata["bytes"].value
    metadata = stores_valid(config, current_version(config), deep=True).metadata
    assert metadata["bytes_read"].value == metadata["bytes"].value and "evidence" not in metadata
    assert metadata["last_full_read"].value.endswith("Z")


@pytest.mark.ci
def test_in_dagster_the_checks_name_the_place_and_the_next_promotion_heals(made_desk, finished_desk):
    assert finished_desk[1].ok, finished_desk[1].runs
    runner = made_desk.runner()
    alter(made_desk.layout.promoted.resolve() / RRI / "c/0")
    checked = runner.run(STORE_CHECKS)
    assert not checked.ok
    (failed,) = [check for check in checked.checks if check.check == "stores_valid"]
    assert not failed.passed
    assert all(word in failed.evidence for word in ("v000001", "val", "candidates/target_rri", REMEDY))
    assert all(word in checked.error for word in ("v000001 val candidates/target_rri", REMEDY)), "second_opinion"
    promoted = runner.run(PROMOTE)
    assert promoted.ok and not promoted.failed_checks("ERROR")
    event = runner.instance.get_latest_materialization_event(runner.keys.key(ROLLOUTS_ZARR))
    metadata = event.asset_materialization.metadata
    assert metadata["version"].value == "v000002" and "v000001 val candidates/target_rri" in metadata["damaged"].value
    assert CampaignLayout.of(made_desk.config).promoted.readlink().name == "v000002"
