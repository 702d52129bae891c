"""A plan that lost lines hides finished shards from nobody, and an empty one stops planning at once."""

from __future__ import annotations

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import read_rollout_shard_manifest, write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.errors import CampaignError, PromotionRefused, ShardBusy
from rollout_assets.locations.objects import ObjectFolder
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import assert_names, refused


def cut(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def test_a_plan_cut_at_a_line_end_leaves_no_finished_shard_out(tmp_path):
    campaign = fake_campaign(tmp_path)
    campaign.run_all()
    plan = CampaignLayout(tmp_path).plan
    whole = plan.read_bytes()
    plan.write_bytes(cut(whole))
    for _ in range(2):
        with refused(PromotionRefused, plan, "shard-000001", "shard-000002", "campaign plan"):
            promote_rollout_campaign(campaign.config)
        with refused(PromotionRefused, plan, "shard-000002"):
            promote_rollout_campaign(campaign.config, partial=True, allow_fewer=True)
    status = summarize_rollout_shard_campaign(campaign.config)
    assert not status.complete
    assert_names(status.cut_plan, plan, "shard-000001", "shard-000002")
    campaign.plan()
    assert plan.read_bytes() == whole and summarize_rollout_shard_campaign(campaign.config).complete
    assert sum(map(len, promote_rollout_campaign(campaign.config).version.record.splits.values())) == 3


def test_a_plan_with_fewer_shards_after_an_edit_is_not_taken_for_a_cut_one(tmp_path):
    train = {"splits": ("train",)}
    fake_campaign(tmp_path, (("train", 4),), source=train).run_all()
    split = {"mode": "explicit", "scenes": {"val": ["room-train-00000"]}, "rest": "train"}
    edited = fake_campaign(tmp_path, (("train", 4),), source=train, split=split)
    edited.run_all()
    assert len(read_rollout_shard_manifest(edited.config)) == 2
    status = summarize_rollout_shard_campaign(edited.config)
    assert status.complete and status.cut_plan == ""
    promote_rollout_campaign(edited.config)


def test_an_empty_plan_is_named_and_planned_anew_on_request(tmp_path):
    campaign = fake_campaign(tmp_path)
    campaign.run_all()
    plan = CampaignLayout(tmp_path).plan
    whole = plan.read_bytes()
    for damaged in (b"", b"\n", b"{}\n"):
        plan.write_bytes(damaged)
        with refused(CampaignError, plan):
            campaign.plan()
        with refused(CampaignError, plan):
            read_rollout_shard_manifest(campaign.config)
    assert len(write_rollout_shard_manifest_from_config(campaign.config, store=campaign.source, anew=True).entries) == 3
    assert plan.read_bytes() == whole


def test_an_empty_or_cut_plan_object_stops_planning_and_promotion(object_storage, tmp_path):
    url = object_storage.url("cut-plan")
    campaign = fake_campaign(url)
    campaign.run_all()
    objects = ObjectFolder(url)
    whole = objects.read("plan.jsonl")
    objects.put("plan.jsonl", cut(whole))
    with refused(PromotionRefused, "shard-000001", "shard-000002"):
        promote_rollout_campaign(campaign.config)
    assert summarize_rollout_shard_campaign(campaign.config).cut_plan
    campaign.plan()
    assert objects.read("plan.jsonl") == whole

    objects.put("plan.jsonl", b"")
    with refused(CampaignError, "plan.jsonl", "--anew"):
        campaign.plan()
    write_rollout_shard_manifest_from_config(campaign.config, store=campaign.source, anew=True)
    assert objects.read("plan.jsonl") == whole


def test_planning_gives_up_while_others_replace_the_plan(tmp_path, monkeypatch):
    monkeypatch.setattr("rollout_assets.campaigns.plan.publish_plan", lambda *_: False)
    with pytest.raises(ShardBusy):
        fake_campaign(tmp_path).plan()
