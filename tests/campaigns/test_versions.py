"""Promoted versions: damage is named and concerns its version only, a rollback lasts, and a folder has one campaign."""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.errors import CampaignError, PromotionRefused, StoreDamaged
from rollout_assets.rollouts import (
    current_version,
    promote_rollout_campaign,
    promoted_versions,
    prune_promoted_versions,
    rollback_promotion,
    summarize_rollout_shard_campaign,
    unpin_promotion,
)
from rollout_assets.rollouts.zarr_store import validate_rollout_zarr_store
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused

CHUNK = "candidates/target_rri/c/0"
ROWS = [("train", 1), ("val", 1)]
MORE_ROWS = [*ROWS, ("train", 1)]


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


@pytest.fixture(scope="module")
def promoted_three_times(tmp_path_factory):
    """The same shard as v000001 to v000003. Shared: copy before changing."""
    root = tmp_path_factory.mktemp("thrice") / "out"
    campaign = fake_campaign(root, [("train", 1)])
    campaign.run_all()
    for _ in range(3):
        promote_rollout_campaign(campaign.config, incremental=False)
    return root


@pytest.fixture
def three_versions(promoted_three_times, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(promoted_three_times, tmp_path / "out", symlinks=True)
    return fake_campaign(tmp_path / "out", [("train", 1)])


def grown(campaign):
    """The campaign after one more train row was built."""
    more = fake_campaign(campaign.config.shards.output_dir, MORE_ROWS)
    more.run_all()
    return more


def flip(campaign, path, *, keep_time=True):
    """Alter one bit of a file of a version in place, if asked to without a trace in its time."""
    file = campaign.config.shards.output_dir / "versions" / path
    status = file.stat()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    if keep_time:
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def problems(campaign, **options):
    """Version -> what status says of it, for those that are damaged."""
    damaged = summarize_rollout_shard_campaign(campaign.config, **options).damaged_versions
    return {version.name: version.problems for version in damaged}


ALTERED = f"v000001 val {CHUNK.removesuffix('/c/0')}: c/0 was altered since it was published"


def test_a_damaged_split_is_never_linked_and_is_built_again(campaign):
    flip(campaign, f"v000001/val/{CHUNK}")
    more = grown(campaign)
    result = promote_rollout_campaign(more.config)
    assert [(child.split, child.how) for child in result.splits] == [("train", "extended"), ("val", "built")]
    assert result.damaged == (ALTERED,)
    assert all(validate_rollout_zarr_store(child, deep=True).ok for child in result.version.children)
    assert problems(more, deep=True) == {"v000001": (ALTERED,)}


def test_promoting_the_same_shards_heals_a_damaged_version(campaign):
    flip(campaign, f"v000001/val/{CHUNK}")
    result = promote_rollout_campaign(campaign.config)
    assert result.version.name == "v000002" and result.damaged == (ALTERED,)
    assert [(child.split, child.how) for child in result.splits] == [("train", "linked"), ("val", "built")]
    status = summarize_rollout_shard_campaign(campaign.config, deep=True)
    assert [(version.name, version.hint) for version in status.damaged_versions] == [
        ("v000001", "campaign clean removes it")
    ]
    assert promote_rollout_campaign(campaign.config).splits == (), "the healed one is sound"
    assert prune_promoted_versions(campaign.config).damaged == ()
    flip(campaign, f"v000001/val/{CHUNK}", keep_time=False)
    flip(campaign, f"v000001/train/{CHUNK}", keep_time=False)
    pruned = prune_promoted_versions(campaign.config)
    assert pruned.damaged == pruned.versions == ("v000001",) and pruned.kept == ("v000002",)


def test_status_compares_sizes_and_times_and_deeply_every_byte(campaign):
    assert problems(campaign) == problems(campaign, deep=True) == {}
    flip(campaign, f"v000001/val/{CHUNK}")
    assert problems(campaign) == {}
    assert problems(campaign, deep=True) == {"v000001": (ALTERED,)}
    flip(campaign, f"v000001/val/{CHUNK}", keep_time=False)
    assert problems(campaign, deep=True) == {}, "altered back; another time alone is no damage"
    version = campaign.config.shards.output_dir / "versions/v000001"
    (version / "train/steps/step_index/c/0").unlink()
    (version / "train/candidates/notes.txt").write_text("mine")
    (version / "val" / CHUNK).write_bytes(b"short")
    flip(campaign, "v000001/val/manifest.json")
    assert [line.split(" ", 1)[1] for line in problems(campaign)["v000001"]] == [
        "train candidates: notes.txt does not belong there",
        "train steps/step_index: c/0 is missing",
        f"val candidates/target_rri: c/0 has 5 bytes, {_published_bytes(campaign, f'val/{CHUNK}')} were published",
        "val: manifest.json was altered since it was published",
    ]


def _published_bytes(campaign, path):
    inventory = campaign.config.shards.output_dir / "inventories/v000001.json"
    return json.loads(inventory.read_bytes())["files"][path]["bytes"]


def test_times_that_changed_with_a_copy_are_taken_over_by_the_next_promotion(campaign):
    root = campaign.config.shards.output_dir
    inventory = (root / "inventories/v000001.json").read_bytes()
    for path in (root / "versions").rglob("*"):
        os.utime(path)
    assert problems(campaign) == {}
    result = promote_rollout_campaign(campaign.config)
    assert result.splits == () and not result.moved
    assert (root / "inventories/v000001.json").read_bytes() != inventory
    flip(campaign, f"v000001/val/{CHUNK}")
    assert problems(campaign) == {}, "it was not read, because its time is known now"


def test_a_version_without_an_inventory_is_not_vouched_for_and_is_made_again(campaign):
    inventory = campaign.config.shards.output_dir / "inventories/v000001.json"
    for content in (b"{", b"{}", None):
        inventory.unlink() if content is None else inventory.write_bytes(content)
        assert "inventory" in problems(campaign)["v000001"][0]
    result = promote_rollout_campaign(campaign.config)
    assert result.version.name == "v000002" and [child.how for child in result.splits] == ["built", "built"]
    assert prune_promoted_versions(campaign.config).versions == (), "that alone is no reason to remove it"
    assert rollback_promotion(campaign.config).name == "v000001"


def test_a_damaged_old_version_stops_no_verb_and_can_be_pruned(three_versions):
    campaign = three_versions
    document = campaign.config.shards.output_dir / "versions/v000002/zarr.json"
    for content in (b"\xff\x00 garbage", document.read_bytes()[:99], b"{}", None):
        document.unlink() if content is None else document.write_bytes(content)
        status = summarize_rollout_shard_campaign(campaign.config)
        (version,) = status.damaged_versions
        (problem,) = named = version.problems
        assert problem.startswith("v000002: zarr.json") and "campaign clean" in version.hint
        assert status.behind == ""
        assert [version.name for version in promoted_versions(campaign.config)] == ["v000001", "v000003"]
        promoted = promote_rollout_campaign(campaign.config)
        assert promoted.version.name == "v000003" and promoted.damaged == named
        with refused(CampaignError, "v000002", "zarr.json"):
            rollback_promotion(campaign.config, "v000002")
    assert promote_rollout_campaign(campaign.config, incremental=False).version.name == "v000004"
    assert [rollback_promotion(campaign.config).name for _ in range(2)] == ["v000003", "v000001"]
    pruned = prune_promoted_versions(campaign.config, 3)
    assert pruned.versions == pruned.damaged == ("v000002",) and pruned.kept == ("v000001", "v000003", "v000004")


def test_a_damaged_current_version_is_named_and_promotion_makes_another(three_versions):
    campaign = three_versions
    layout = CampaignLayout.of(campaign.config)
    (layout.versions / "v000003/zarr.json").write_bytes(b"")
    with refused(StoreDamaged, "'rollout-assets campaign promote'", where=str(layout.versions / "v000003/zarr.json")):
        current_version(campaign.config)
    status = summarize_rollout_shard_campaign(campaign.config)
    assert "v000003/zarr.json" in status.behind
    (version,) = status.damaged_versions
    assert "campaign promote" in version.hint
    assert promote_rollout_campaign(campaign.config).version.name == "v000002", "it holds the same shards"
    (layout.versions / "v000002/zarr.json").unlink()
    flip(campaign, "v000001/zarr.json")
    assert promote_rollout_campaign(campaign.config).version.name == "v000004"
    assert prune_promoted_versions(campaign.config).versions == ("v000001", "v000002", "v000003")


def test_something_else_at_the_place_of_the_link_is_named_and_dangling_links_too(three_versions):
    campaign = three_versions
    layout = CampaignLayout.of(campaign.config)
    layout.promoted.unlink()
    layout.promoted.mkdir()
    assert str(layout.promoted) in summarize_rollout_shard_campaign(campaign.config).behind
    with refused(CampaignError, layout.promoted):
        promote_rollout_campaign(campaign.config, incremental=False)
    layout.promoted.rmdir()
    layout.promoted.symlink_to("versions/v000009")
    assert "v000009" in summarize_rollout_shard_campaign(campaign.config).behind
    assert promote_rollout_campaign(campaign.config).version.name == "v000003"


def test_a_rollback_skips_damaged_versions_and_says_so(three_versions):
    campaign = three_versions
    flip(campaign, f"v000002/train/{CHUNK}", keep_time=False)
    with refused(CampaignError, "v000002 train candidates/target_rri", "c/0"):
        rollback_promotion(campaign.config, "v000002")
    assert rollback_promotion(campaign.config).name == "v000001"
    with refused(CampaignError, "v000001, v000002, v000003"):
        rollback_promotion(campaign.config)


def test_the_name_of_a_removed_version_is_not_given_again(three_versions):
    campaign = three_versions
    rollback_promotion(campaign.config)
    flip(campaign, f"v000003/train/{CHUNK}", keep_time=False)
    assert prune_promoted_versions(campaign.config).versions == ("v000003",)
    unpin_promotion(campaign.config)
    assert promote_rollout_campaign(campaign.config, incremental=False).version.name == "v000004"
    assert sorted(path.name for path in CampaignLayout.of(campaign.config).inventories.iterdir()) == [
        f"v00000{number}.json" for number in (1, 2, 3, 4)
    ]


def test_a_rollback_lasts_until_it_is_lifted(campaign):
    layout = CampaignLayout.of(campaign.config)
    more = grown(campaign)
    assert promote_rollout_campaign(more.config).moved
    rollback_promotion(more.config)
    before = sorted(path.name for path in layout.versions.iterdir())
    for incremental in (True, False):
        with refused(PromotionRefused, "v000001", "'rollout-assets campaign unpin'"):
            promote_rollout_campaign(more.config, incremental=incremental)
    assert current_version(more.config).name == "v000001"
    assert sorted(path.name for path in layout.versions.iterdir()) == before
    status = summarize_rollout_shard_campaign(more.config)
    assert status.pin is not None and status.pin.version == "v000001" and "1 shard" in status.behind
    assert unpin_promotion(more.config) == status.pin and unpin_promotion(more.config) is None
    again = promote_rollout_campaign(more.config)
    assert again.splits == () and again.moved and again.version.name == "v000002"
    rollback_promotion(more.config, "v000002")
    assert not promote_rollout_campaign(more.config).moved, "what is pinned holds every shard"


def test_a_pin_that_cannot_be_read_holds_and_can_be_lifted(campaign):
    layout = CampaignLayout.of(campaign.config)
    layout.pin.write_bytes(b"{")
    with refused(PromotionRefused, "pin.json", "'rollout-assets campaign unpin'"):
        promote_rollout_campaign(campaign.config, incremental=False)
    assert summarize_rollout_shard_campaign(campaign.config).pin is not None
    assert prune_promoted_versions(campaign.config).versions == ()
    unpin_promotion(campaign.config)
    assert promote_rollout_campaign(campaign.config, incremental=False).moved


def test_a_rollback_that_dies_before_the_switch_is_not_undone(three_versions, monkeypatch):
    campaign = three_versions

    def die(*_):
        raise OSError("no more")

    with monkeypatch.context() as patched, refused(OSError, "no more"):
        patched.setattr("rollout_assets.campaigns.versions.switch_link", die)
        rollback_promotion(campaign.config)
    pin = read_pin(CampaignLayout.of(campaign.config))
    assert pin is not None and pin.version == "v000002"
    with refused(PromotionRefused, "v000002"):
        promote_rollout_campaign(campaign.config, incremental=False)


def test_another_campaign_is_refused_in_the_same_folder_by_name(campaign):
    root = campaign.config.shards.output_dir
    other = fake_campaign(root, ROWS, name="other")
    entry = campaign.plan().entries[0]
    before = sorted(root.rglob("*"))
    for write in (
        other.plan,
        lambda: other.run(entry),
        lambda: promote_rollout_campaign(other.config),
        lambda: rollback_promotion(other.config),
        lambda: unpin_promotion(other.config),
        lambda: prune_promoted_versions(other.config),
        lambda: summarize_rollout_shard_campaign(other.config),
    ):
        with refused(CampaignError, root, "'made-up'", "'other'", "shards.output_dir"):
            write()
    assert sorted(root.rglob("*")) == before
    edited = fake_campaign(root, ROWS, seed=7)
    assert edited.plan().replaced is not None, "an edited campaign is the same one"


def test_a_folder_that_lost_its_claim_belongs_to_the_campaign_of_its_promoted_store(campaign):
    root = campaign.config.shards.output_dir
    (root / "campaign.json").unlink()
    other = fake_campaign(root, ROWS, name="other")
    for write in (other.plan, lambda: promote_rollout_campaign(other.config)):
        with refused(CampaignError, root, "'made-up'", "'other'", "shards.output_dir"):
            write()
    assert not (root / "campaign.json").exists()
    campaign.plan()
    claim = json.loads((root / "campaign.json").read_bytes())
    assert claim["campaign"] == "made-up"
    (root / "campaign.json").write_text(json.dumps(claim | {"campaign": "other"}))
    assert other.plan().new == 0, "a renamed campaign whose new name is in the claim goes on"


def test_of_two_campaigns_that_plan_at_once_one_gets_the_folder(tmp_path):
    campaigns = [fake_campaign(tmp_path, ROWS, name=f"racer-{number}") for number in range(6)]

    def plan(campaign):
        try:
            return len(campaign.plan().entries)
        except CampaignError as error:
            return str(error)

    with ThreadPoolExecutor(len(campaigns)) as threads:
        outcomes = list(threads.map(plan, campaigns))
    winner = json.loads((tmp_path / "campaign.json").read_bytes())["campaign"]
    assert outcomes.count(2) == 1 and campaigns[outcomes.index(2)].config.name == winner
    assert sum(f"belongs to campaign '{winner}'" in str(outcome) for outcome in outcomes) == 5


def test_a_planning_that_fails_claims_nothing_and_a_broken_claim_is_named(tmp_path):
    with refused(CampaignError, "split train, val"):
        fake_campaign(tmp_path, [], name="empty").plan()
    fake_campaign(tmp_path, ROWS, name="second").plan()
    (tmp_path / "campaign.json").write_bytes(b"{")
    with refused(CampaignError, tmp_path / "campaign.json", "'second'"):
        fake_campaign(tmp_path, ROWS, name="second").plan()
