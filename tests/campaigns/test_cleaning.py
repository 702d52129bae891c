"""Cleaning: what nobody needs goes, with its size and the reason; what anything refers to stays, whoever is at work."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from rollout_assets.campaigns.cleaning import clean as cleaning
from rollout_assets.campaigns.cleaning.clean import clean_campaign, removable_parts
from rollout_assets.campaigns.layout import CampaignLayout, machine_name
from rollout_assets.campaigns.markers import write_failure
from rollout_assets.campaigns.versions import PROMOTION_LOCK, versions_on_disk
from rollout_assets.files import file_lock, switch_link
from rollout_assets.rollouts import promote_rollout_campaign, rollback_promotion, unpin_promotion
from tests.campaigns.kill_campaigns import fake_campaign

AT_ONCE = {"set_aside_days": 0, "staging_days": 0, "replaced_plans": 0, "trainings": 0, "versions": 1}


def campaign_at(root, rows=(("train", 2), ("val", 1)), **changes):
    return fake_campaign(root, rows, **({"retention": AT_ONCE} | changes))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A campaign of three shards with two versions, made once; tests change copies of it."""
    root = tmp_path_factory.mktemp("made")
    campaign = campaign_at(root)
    campaign.run_all()
    for _ in range(2):
        promote_rollout_campaign(campaign.config, incremental=False)
    return root


@pytest.fixture
def campaign(made, tmp_path):
    shutil.copytree(made, tmp_path / "copy", symlinks=True)
    return campaign_at(tmp_path / "copy")


def kinds(parts):
    return sorted((part.kind, part.name.split(".")[0]) for part in parts)


def age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def test_only_apply_removes_and_then_nothing_is_left_to_remove(campaign):
    (found,) = clean_campaign(campaign.config).found
    assert (found.kind, found.name) == ("version", "v000001")
    assert found.bytes > 10_000
    assert [version.name for version in versions_on_disk(campaign.config)] == ["v000001", "v000002"]
    assert clean_campaign(campaign.config, apply=True).removed == (found,)
    assert [version.name for version in versions_on_disk(campaign.config)] == ["v000002"]
    assert clean_campaign(campaign.config, apply=True).found == ()
    assert {campaign.run(entry).outcome for entry in campaign.plan().entries} == {"already_finished"}
    assert promote_rollout_campaign(campaign.config).splits == ()


def test_the_current_and_the_pinned_version_stay(campaign):
    rollback_promotion(campaign.config)
    assert clean_campaign(campaign.config, apply=True).removed == (), "v000001 is current, v000002 the newest"
    layout = CampaignLayout.of(campaign.config)
    switch_link(layout.promoted, "versions/v000002")
    assert clean_campaign(campaign.config, apply=True).removed == (), "v000001 is pinned"
    unpin_promotion(campaign.config)
    assert [part.name for part in clean_campaign(campaign.config, apply=True).removed] == ["v000001"]


def test_a_version_that_readers_were_moved_to_meanwhile_stays(campaign, monkeypatch):
    found = removable_parts(campaign.config)
    assert [part.name for part in found] == ["v000001"]
    rollback_promotion(campaign.config)
    monkeypatch.setattr(cleaning, "removable_parts", lambda _: found)
    assert clean_campaign(campaign.config, apply=True).removed == ()
    assert len(versions_on_disk(campaign.config)) == 2


def test_leftovers_of_dead_attempts_go_and_those_of_live_ones_stay(campaign):
    layout = CampaignLayout.of(campaign.config)
    names = [f"{name}.x-{machine_name()}" for name in ("shard-000000", "shard-000001", PROMOTION_LOCK, "clean")]
    for name in (*names, "shard-000002.x-another_machine"):
        (layout.staging / name / "inside").mkdir(parents=True)
    with file_lock(layout.lock("shard-000001"), "a build"), file_lock(layout.lock(PROMOTION_LOCK), "a promotion"):
        removed = clean_campaign(campaign.config, apply=True).removed
    assert kinds(removed) == [("staging", "clean"), ("staging", "shard-000000")], "the version waits for the promotion"
    left = sorted(path.name.split(".")[0] for path in layout.staging.iterdir())
    assert left == [PROMOTION_LOCK, "shard-000001", "shard-000002"], "another machine may still be at work"


def test_what_a_process_takes_up_after_it_was_found_is_kept_back(campaign, monkeypatch):
    layout = CampaignLayout.of(campaign.config)
    (layout.staging / f"shard-000000.x-{machine_name()}").mkdir()
    found = [part for part in removable_parts(campaign.config) if part.kind == "staging"]
    monkeypatch.setattr(cleaning, "removable_parts", lambda _: found)
    with file_lock(layout.lock("shard-000000"), "a build"):
        result = clean_campaign(campaign.config, apply=True)
    assert result.removed == () and f"process {os.getpid()}" in result.kept_back[0]
    assert (layout.staging / f"shard-000000.x-{machine_name()}").is_dir()


def test_younger_things_are_left_for_a_while(made, tmp_path):
    shutil.copytree(made, tmp_path / "copy", symlinks=True)
    campaign = campaign_at(tmp_path / "copy", retention={"staging_days": 2.0, "set_aside_days": 5.0})
    layout = CampaignLayout.of(campaign.config)
    aside = layout.move_aside(layout.shard("shard-000001"), "for a test")
    campaign.run_all()
    (layout.staging / f"shard-000000.x-{machine_name()}").mkdir()
    assert removable_parts(campaign.config) == ()
    age(layout.staging / f"shard-000000.x-{machine_name()}", 3)
    assert kinds(removable_parts(campaign.config)) == [("staging", "shard-000000")]
    age(aside.path.with_name(f"{aside.path.name}.reason.json"), 6)
    assert kinds(removable_parts(campaign.config)) == [("set aside", "shard-000001"), ("staging", "shard-000000")]


@pytest.mark.ci
def test_a_set_aside_shard_stays_while_it_can_be_taken_over(tmp_path):
    rows = (("train", 4),)
    campaign = campaign_at(tmp_path, rows)
    campaign.run_all()
    layout = CampaignLayout.of(campaign.config)
    split = {"mode": "explicit", "scenes": {"val": ["room-train-00001"]}, "rest": "train"}
    moved = campaign_at(tmp_path, rows, split=split)
    moved.run_all()
    aside = [path.name for path in layout.set_aside_dir.iterdir() if path.is_dir()]
    assert aside, "shards of the moved scene were set aside"
    found = kinds(removable_parts(moved.config))
    assert found == sorted(("set aside", name.split(".")[0]) for name in aside), "their plan stays as long as they do"
    campaign.plan()
    found = kinds(removable_parts(campaign.config))
    assert not any(kind == "set aside" and name in {part.split(".")[0] for part in aside} for kind, name in found)
    assert {campaign.run(entry).outcome for entry in campaign.plan().entries} <= {"reused", "already_finished"}
    assert {kind for kind, _ in kinds(removable_parts(campaign.config))} == {"set aside", "replaced plan"}
    clean_campaign(campaign.config, apply=True)
    clean_campaign(campaign.config, apply=True)
    assert removable_parts(campaign.config) == () and not any(layout.replaced_plans.iterdir())


def test_notes_about_failures_go_when_their_shard_is_finished(tmp_path):
    campaign = campaign_at(tmp_path)
    entries = campaign.plan().entries
    layout = CampaignLayout.of(campaign.config)
    layout.shards.mkdir()
    for number in (0, 1, 1):
        write_failure(layout, entries[number], RuntimeError("no"))
    campaign.run(entries[0])
    found = removable_parts(campaign.config)
    assert [part.name.split(".")[1] for part in found] == ["shard-000000", "shard-000001"]
    clean_campaign(campaign.config, apply=True)
    assert [path.name.split(".")[1] for path in layout.shards.glob("_FAILED*")] == ["shard-000001"]


def test_current_evaluated_and_running_trainings_stay(campaign):
    layout = CampaignLayout.of(campaign.config)
    for name in ("aa", "bb", "cc", "dd"):
        (layout.policies / name).mkdir(parents=True)
    layout.policy.symlink_to("policies/aa")
    layout.evaluation.mkdir()
    checkpoint = str(layout.policies / "bb/policy.safetensors")
    (layout.evaluation / "evaluation.json").write_text(json.dumps({"checkpoint": checkpoint}))
    (layout.policies / "cc/training.json").write_text(json.dumps({"store": str(layout.versions / "v000001/train")}))
    with file_lock(layout.policies / "cc/.lock", "a training"):
        assert kinds(removable_parts(campaign.config)) == [("training", "dd")], "it reads the old version"
    assert kinds(clean_campaign(campaign.config, apply=True).removed) == [
        ("training", "cc"),
        ("training", "dd"),
        ("version", "v000001"),
    ]
    assert sorted(path.name for path in layout.policies.iterdir()) == ["aa", "bb"]


def test_a_killed_cleaning_is_finished_by_the_next(campaign, monkeypatch):
    clean_campaign(campaign.config, apply=True)
    layout = CampaignLayout.of(campaign.config)
    (layout.policies / "old").mkdir(parents=True)
    (layout.policies / "old/policy.safetensors").write_bytes(b"weights")

    def killed(_path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cleaning, "remove_path", killed)
        with pytest.raises(KeyboardInterrupt):
            clean_campaign(campaign.config, apply=True)
    assert not (layout.policies / "old").exists(), "nobody meets half a training"
    assert kinds(clean_campaign(campaign.config, apply=True).removed) == [("staging", "clean")]
    assert list(layout.staging.iterdir()) == []
