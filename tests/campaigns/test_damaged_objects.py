"""Objects of a campaign in object storage that say nothing: each is named with the way out, and the way out works."""

import pytest

from rollout_assets.campaigns.objects.storage import CLAIM, POINTER, storage_at
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.campaigns.versions import current_version, rollback_promotion
from rollout_assets.errors import CampaignError
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused

GARBAGE = [b"", b"\xff\x00{", b"[]", b"{}", b"[" * 100_000]


@pytest.fixture(scope="module")
def promoted(object_storage):
    """One shard, promoted. Every test leaves it in order."""
    campaign = fake_campaign(object_storage.url("garbage"), [("train", 1)])
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    return campaign, storage_at(object_storage.url("garbage"))


def in_order(campaign):
    status = summarize_rollout_shard_campaign(campaign.config)
    return status.in_order and not status.behind and current_version(campaign.config).name == "v000001"


def test_a_damaged_pointer_is_named_and_made_again(promoted):
    campaign, storage = promoted
    for garbage in GARBAGE:
        storage.objects.put(POINTER, garbage)
        for verb in (summarize_rollout_shard_campaign, promote_rollout_campaign, rollback_promotion):
            with refused(CampaignError, f"{storage.url}/{POINTER}", "campaign promote"):
                verb(campaign.config)
    storage.objects.remove([POINTER])
    promote_rollout_campaign(campaign.config)
    assert in_order(campaign)


def test_a_damaged_marker_is_named_and_its_shard_built_again(promoted):
    campaign, storage = promoted
    (marker,) = (found.key for found in storage.marker_keys())
    (entry,) = campaign.plan().entries
    for garbage in GARBAGE:
        storage.objects.put(marker, garbage)
        for verb in (summarize_rollout_shard_campaign, lambda _: campaign.run(entry)):
            with refused(CampaignError, f"{storage.url}/{marker}", "campaign run"):
                verb(campaign.config)
    storage.objects.remove([marker])
    assert campaign.run(entry).outcome == "built"
    assert in_order(campaign)


def test_a_damaged_claim_is_named_and_written_again(promoted):
    campaign, storage = promoted
    for garbage in GARBAGE:
        storage.objects.put(CLAIM, garbage)
        for verb in (summarize_rollout_shard_campaign, lambda _: campaign.plan()):
            with refused(CampaignError, f"{storage.url}/{CLAIM}", "campaign plan"):
                verb(campaign.config)
    storage.objects.remove([CLAIM])
    campaign.plan()
    assert b"made-up" in storage.objects.read(CLAIM)
    assert in_order(campaign)
