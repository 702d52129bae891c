"""A campaign is in order only if there is a plan, and if readers get a version that is there and is its own."""

import shutil

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.errors import CampaignError
from rollout_assets.rollouts import promote_rollout_campaign, summarize_rollout_shard_campaign
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused

ROWS = [("train", 1), ("val", 1)]


@pytest.fixture(scope="module")
def promoted_once(tmp_path_factory):
    """One shard a split, promoted as v000001. Shared: copy before changing."""
    root = tmp_path_factory.mktemp("once") / "out"
    campaign = fake_campaign(root, ROWS)
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    return root


@pytest.fixture
def campaign(promoted_once, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(promoted_once, tmp_path / "out", symlinks=True)
    return fake_campaign(tmp_path / "out", ROWS)


def test_an_empty_plan_is_not_a_finished_campaign(campaign):
    plan = CampaignLayout.of(campaign.config).plan
    planned = plan.read_bytes()
    plan.write_bytes(b"")
    for verb in (summarize_rollout_shard_campaign, promote_rollout_campaign):
        with refused(CampaignError, plan, "campaign plan"):
            verb(campaign.config)
    assert not summarize_rollout_shard_campaign(campaign.config, []).complete
    campaign.plan()
    assert plan.read_bytes() == planned and summarize_rollout_shard_campaign(campaign.config).complete
