"""Promotion by several workers: the files of one that is made shard by shard, whatever order the parts come in."""

import json

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.merging import shards as promotion_shards
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.errors import StoreError, WorkerDied
from rollout_assets.files import tree_sizes
from rollout_assets.progress import SILENT
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused

CHANGES = {
    "rows_per_shard": 1,
    "store": {"chunk_rows": 8, "chunk_states": 4},
    "options": {"targets": 1, "chains": 2, "barren": frozenset({2, 3, 6})},
}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    made = fake_campaign(tmp_path_factory.mktemp("workers"), [("train", 5), ("val", 2)], **CHANGES)
    made.run_all()
    return made


def here_and_last_part_first(prepare, tasks, _workers, *, on_result):
    """Runs tasks in this process; the last comes first, so that every part but one waits for another."""
    run = prepare()
    for count, name in enumerate(reversed(tasks), start=1):
        on_result(name, run(tasks[name], SILENT), count)


def without_times(path):
    document = json.loads(path.read_bytes())
    for part in (document, document.get("root_attrs", {}), document.get("attributes", {})):
        for name in ("created_at_utc", "manifest_sha256"):
            part.pop(name, None)
    return document


def assert_equal_files(first, second):
    """Every file is the same byte for byte, but for the time in a child's manifest and root."""
    assert tree_sizes(first).keys() == tree_sizes(second).keys()
    for name in tree_sizes(first):
        one, other = first / name, second / name
        if one.name in ("manifest.json", "zarr.json") and len(one.relative_to(first).parts) == 2:
            assert without_times(one) == without_times(other), name
        else:
            assert one.read_bytes() == other.read_bytes(), name


@pytest.mark.ci
def test_parts_give_the_files_that_shards_one_by_one_give(campaign, monkeypatch):
    one_by_one = promote_rollout_campaign(campaign.config, incremental=False)
    monkeypatch.setattr(promotion_shards, "run_tasks", here_and_last_part_first)
    by_parts = promote_rollout_campaign(campaign.config, incremental=False, workers=2)
    assert by_parts.version.name != one_by_one.version.name
    assert_equal_files(one_by_one.version.path, by_parts.version.path)
    assert list(CampaignLayout.of(campaign.config).staging.iterdir()) == []


@pytest.mark.ci
def test_parts_extend_an_earlier_version_as_shards_do(campaign, monkeypatch, tmp_path):
    few = fake_campaign(tmp_path, [("train", 2)], **CHANGES)
    few.run_all()
    promote_rollout_campaign(few.config)
    more = fake_campaign(tmp_path, [("train", 6)], **CHANGES)
    more.run_all()
    monkeypatch.setattr(promotion_shards, "run_tasks", here_and_last_part_first)
    extended = promote_rollout_campaign(more.config, workers=3)
    assert [child.how for child in extended.splits] == ["extended"]
    monkeypatch.undo()
    again = promote_rollout_campaign(more.config, incremental=False)
    assert_equal_files(again.version.path, extended.version.path)


def test_a_damaged_shard_stops_a_promotion_by_parts(tmp_path, monkeypatch):
    campaign = fake_campaign(tmp_path, [("train", 4)])
    campaign.run_all()
    layout = CampaignLayout.of(campaign.config)
    chunk = next((layout.shard("shard-000002") / "rollouts.zarr/candidates/target_rri").rglob("0"))
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    monkeypatch.setattr(promotion_shards, "run_tasks", here_and_last_part_first)
    with refused(StoreError, "shard-000002"):
        promote_rollout_campaign(campaign.config, workers=2)
    assert list(layout.staging.iterdir()) == [] and not layout.promoted.exists()


@pytest.mark.ci
def test_two_processes_give_equal_files_and_a_dead_one_none(campaign, monkeypatch):
    one_by_one = promote_rollout_campaign(campaign.config, incremental=False)
    two = promote_rollout_campaign(campaign.config, incremental=False, workers=2)
    assert_equal_files(one_by_one.version.path, two.version.path)

    def dying(*_arguments, **_options):
        raise WorkerDied("part-000000", -9)

    monkeypatch.setattr(promotion_shards, "run_tasks", dying)
    with pytest.raises(WorkerDied):
        promote_rollout_campaign(campaign.config, incremental=False, workers=2)
    layout = CampaignLayout.of(campaign.config)
    assert list(layout.staging.iterdir()) == [] and layout.promoted.readlink().name == two.version.name
