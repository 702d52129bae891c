"""The plan: deterministic, append-only, and refused where source or config have moved away from it."""

import json
import os

import pytest

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import (
    entry_of,
    planned_rows,
    read_rollout_shard_manifest,
    write_rollout_shard_manifest_from_config,
)
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import CampaignError, ShardBusy, ShardDrift
from rollout_assets.files import file_lock
from rollout_assets.rollouts import ROLLOUT_SHARD_MANIFEST_VERSION, plan_rollout_shards
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.store import append_synthetic_snippets
from rollout_assets.testing.fake_shards import FakeSource
from tests.campaigns.kill_campaigns import fake_campaign
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


def plan_of(root, *runs, rows_per_shard=2, **changes):
    campaign = fake_campaign(root, runs, rows_per_shard=rows_per_shard, **changes)
    return campaign.config, campaign.source, campaign.plan()


def test_every_row_is_planned_once_in_index_order_per_split(tmp_path):
    _, source, plan = plan_of(tmp_path, ("train", 3), ("val", 2), ("train", 2))
    assert [entry.shard_id for entry in plan.entries] == [f"shard-{n:06d}" for n in range(4)]
    assert [entry.split for entry in plan.entries] == ["train", "train", "train", "val"]
    assert [[row.sample_index for row in entry.rows] for entry in plan.entries] == [[0, 1], [2, 5], [6], [3, 4]]
    assert [row.order for entry in plan.entries for row in entry.rows] == [0, 1, 0, 1, 0, 0, 1]
    assert plan.num_rows == len(source.rows())


def test_a_line_carries_version_rows_and_hashes(tmp_path, small_store):
    config = CampaignConfig(name="real", source={"store_dir": small_store}, shards={"output_dir": tmp_path})
    plan = write_rollout_shard_manifest_from_config(config)
    store = VinOfflineStore.open(small_store)
    line = json.loads(plan.path.read_text().splitlines()[0])
    assert line["manifest_version"] == ROLLOUT_SHARD_MANIFEST_VERSION
    assert line["writer_config_hash"] == config.writer_config_hash
    assert line["source_manifest_hash"] == store.source_manifest_hash
    assert line["split_manifest_hash"] == store.split_manifest_hash(line["split"])
    assert line["source_cache_version"] == "7" and line["source_store_dir"] == str(store.root)
    assert set(line["rows"][0]) == {
        "order",
        "sample_index",
        "sample_key",
        "scene_id",
        "snippet_id",
        "split",
        "source_shard_id",
        "source_shard_row",
    }


def test_planning_again_only_adds_lines_for_new_rows(tmp_path):
    _, _, first = plan_of(tmp_path, ("train", 3), ("val", 1))
    before = first.path.read_bytes()
    stamp = first.path.stat().st_mtime_ns
    _, _, same = plan_of(tmp_path, ("train", 3), ("val", 1))
    assert same.new == 0 and same.path.stat().st_mtime_ns == stamp
    _, _, grown = plan_of(tmp_path, ("train", 3), ("val", 1), ("train", 3))
    assert grown.new == 2 and grown.replaced is None
    assert grown.path.read_bytes().startswith(before)
    assert [len(entry.rows) for entry in grown.entries] == [2, 1, 1, 2, 1], "a short shard stays as it is"
    assert grown.entries[-1].source_manifest_hash != first.entries[0].source_manifest_hash


def test_a_real_append_only_adds_lines(tmp_path, store_copy):
    config = CampaignConfig(name="real", source={"store_dir": store_copy}, shards={"output_dir": tmp_path / "out"})
    first = write_rollout_shard_manifest_from_config(config)
    before = first.path.read_bytes()
    append_synthetic_snippets(store_copy, 1, workers=1)
    grown = write_rollout_shard_manifest_from_config(config)
    assert grown.new == 2 and grown.path.read_bytes().startswith(before)
    assert planned_rows(grown.entries[0], config, VinOfflineStore.open(store_copy)), "new rows are no drift"


def test_a_changed_config_replans_and_keeps_the_old_plan(tmp_path):
    _, _, first = plan_of(tmp_path, ("train", 3))
    before = first.path.read_bytes()
    config, _, second = plan_of(tmp_path, ("train", 3), seed=9)
    assert [entry.rows for entry in second.entries] == [entry.rows for entry in first.entries]
    assert {entry.writer_config_hash for entry in second.entries} == {config.writer_config_hash}
    assert second.replaced is not None and second.replaced.read_bytes() == before


def test_changed_rows_are_refused_until_planned_anew(tmp_path):
    config, _, _ = plan_of(tmp_path, ("train", 3))
    rebuilt = FakeSource((("val", 1), ("train", 2)))
    with refused(
        ShardDrift,
        "made-up",
        "shard-000000",
        "sample 0",
        "'room-train-00000/snippet-00000'",
        "'room-val-00000/snippet-00000'",
        "--anew",
    ):
        write_rollout_shard_manifest_from_config(config, store=rebuilt)
    with refused(ShardDrift, "shard-000001", "sample 2", "'room-train-00001/snippet-00002'"):
        write_rollout_shard_manifest_from_config(config, store=FakeSource((("train", 2),)))
    anew = write_rollout_shard_manifest_from_config(config, store=rebuilt, anew=True)
    assert anew.replaced is not None and [entry.split for entry in anew.entries] == ["train", "val"]


def test_a_plan_without_rows_is_refused(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 2)], source={"splits": ["val"]})
    with refused(CampaignError, "made-up", "split val"):
        campaign.plan()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (None, ["plan.jsonl: ", "'rollout-assets campaign plan'"]),
        ("{}\n", ["plan.jsonl:1: ", "shard_id", "split", "rows"]),
        ("nonsense\n", ["plan.jsonl:1: ", "JSON"]),
    ],
)
def test_a_missing_or_broken_plan_is_named(tmp_path, content, names):
    config, _, plan = plan_of(tmp_path, ("train", 1))
    plan.path.unlink()
    if content is not None:
        plan.path.write_text(content)
    with refused(CampaignError, *names):
        read_rollout_shard_manifest(config)


def test_lines_that_were_taken_out_are_noticed(tmp_path):
    config, _, plan = plan_of(tmp_path, ("train", 5))
    lines = plan.path.read_bytes().splitlines(keepends=True)
    plan.path.write_bytes(b"".join(lines[1:]))
    with refused(CampaignError, plan.path, "shard-000000"):
        read_rollout_shard_manifest(config)


def test_an_unknown_shard_is_named(tmp_path):
    config, _, _ = plan_of(tmp_path, ("train", 5))
    with refused(CampaignError, "shard-000009", "shard-000000 to shard-000002"):
        entry_of(config, "shard-000009")


def test_two_planners_do_not_write_at_once(tmp_path, monkeypatch):
    campaign = fake_campaign(tmp_path)
    monkeypatch.setattr("rollout_assets.campaigns.plan.PLAN_PATIENCE_S", 0.2)
    with (
        file_lock(CampaignLayout(tmp_path).lock("plan"), "a test"),
        refused(ShardBusy, "plan.jsonl", f"process {os.getpid()}"),
    ):
        campaign.plan()


def test_planning_is_a_pure_function_of_config_and_source(small_store, tmp_path):
    one = CampaignConfig(name="a", source={"store_dir": small_store}, shards={"output_dir": tmp_path / "a"})
    two = CampaignConfig(name="b", source={"store_dir": small_store}, shards={"output_dir": tmp_path / "b"})
    assert plan_rollout_shards(one) == plan_rollout_shards(two)
    assert list(tmp_path.iterdir()) == []
