"""A campaign is in order only if there is a plan, and if readers get a version that is there and is its own."""

import json
import shutil

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config
from rollout_assets.errors import CampaignError
from rollout_assets.rollouts import promote_rollout_campaign, summarize_rollout_shard_campaign, unpin_promotion
from tests.campaigns.kill_campaigns import TINY, fake_campaign
from tests.support.commands import call
from tests.support.refusals import assert_names, refused

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
        with refused(CampaignError, plan, "campaign plan --anew"):
            verb(campaign.config)
    assert not summarize_rollout_shard_campaign(campaign.config, []).complete
    write_rollout_shard_manifest_from_config(campaign.config, store=campaign.source, anew=True)
    assert plan.read_bytes() == planned and summarize_rollout_shard_campaign(campaign.config).complete


@pytest.fixture
def campaign_file(campaign, tmp_path):
    """The campaign as a file."""
    lines = [f"{name} = {as_toml(value)}" for name, value in TINY.items()]
    path = tmp_path / "made-up.toml"
    shards = as_toml({"output_dir": str(tmp_path / "out"), "rows_per_shard": 1})
    path.write_text("\n".join(['name = "made-up"', *lines, f"shards = {shards}"]))
    return path


def as_toml(value):
    """A value as inline TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {as_toml(entry)}" for name, entry in value.items()) + "}"
    return "[" + ", ".join(map(as_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def _link_to(layout, target):
    layout.promoted.unlink()
    layout.promoted.symlink_to(target)


def _other_campaign_link(layout):
    other = layout.root.parent / "other" / "versions"
    shutil.copytree(layout.versions, other)
    _link_to(layout, other / "v000001")
    return other / "v000001"


def _dangling_link(layout):
    _link_to(layout, "versions/v000009")
    return "v000009"


def _folder_for_link(layout):
    layout.promoted.unlink()
    layout.promoted.mkdir()
    return layout.promoted


def _garbage_pin(layout):
    layout.pin.write_bytes(b"\xff{")
    return layout.pin


def _pin_to_nothing(layout):
    layout.pin.write_text(json.dumps({"version": "v000007", "by": "me", "since_utc": "2026-01-01T00:00:00Z"}))
    return "v000007"


@pytest.mark.parametrize(
    "damage", [_other_campaign_link, _dangling_link, _folder_for_link, _garbage_pin, _pin_to_nothing]
)
def test_status_names_what_readers_get_wrongly_and_fails(campaign, campaign_file, damage):
    layout = CampaignLayout.of(campaign.config)
    assert call("campaign", "status", "-c", str(campaign_file)).code == 0
    named = damage(layout)
    status = summarize_rollout_shard_campaign(campaign.config)
    assert status.complete and len(status.reader_problems) == 1
    assert_names(status.reader_problems[0], named, layout.place)
    told = call("campaign", "status", "-c", str(campaign_file))
    assert told.code == 2
    assert_names("".join(told.out.split()), named)


def test_a_link_to_another_campaigns_version_is_never_taken_for_its_own(campaign):
    layout = CampaignLayout.of(campaign.config)
    foreign = _other_campaign_link(layout)
    with refused(CampaignError, layout.promoted, foreign, "campaign promote"):
        promote_rollout_campaign(campaign.config)
    layout.promoted.unlink()
    promote_rollout_campaign(campaign.config)
    assert summarize_rollout_shard_campaign(campaign.config).reader_problems == ()


def test_a_garbage_pin_is_lifted_by_unpin(campaign):
    _garbage_pin(CampaignLayout.of(campaign.config))
    unpin_promotion(campaign.config)
    assert summarize_rollout_shard_campaign(campaign.config).reader_problems == ()
