"""Promotion: the same rows however they were divided or grown, published in one step, refused where it must be."""

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from rollout_assets.benchmarks.promotion import benchmark_promotion
from rollout_assets.benchmarks.results import render
from rollout_assets.campaigns.funnel import campaign_funnel
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.errors import CampaignError, PromotionRefused, ShardBusy, StoreError
from rollout_assets.files import file_lock
from rollout_assets.rollouts import (
    current_version,
    promote_rollout_campaign,
    promoted_versions,
    prune_promoted_versions,
    rollback_promotion,
    unpin_promotion,
)
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    validate_rollout_zarr_store,
    write_rollout_zarr_store,
)
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.campaigns.kill_campaigns import fake_campaign, real
from tests.support.digests import version_digests
from tests.support.refusals import assert_names, refused


def manifest_of(store_dir):
    return json.loads((store_dir / "manifest.json").read_bytes())


def files_below(folder):
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """Promoted, then two more rows, promoted again and from the start; small chunks, so that some files are full."""
    root = tmp_path_factory.mktemp("grown")
    changes = {
        "rows_per_shard": 2,
        "store": {"chunk_rows": 8, "chunk_states": 4},
        "options": {"targets": 1, "chains": 2},
    }
    campaign = fake_campaign(root, [("train", 2), ("val", 1)], **changes)
    campaign.run_all()
    first = promote_rollout_campaign(campaign.config)
    campaign = fake_campaign(root, [("train", 2), ("val", 1), ("train", 2)], **changes)
    campaign.run_all()
    second = promote_rollout_campaign(campaign.config)
    third = promote_rollout_campaign(campaign.config, incremental=False)
    return campaign, first, second, third


def test_children_are_valid_stores_of_one_split_each(grown):
    _, first, second, _ = grown
    assert [path.name for path in second.version.children] == ["train", "val"]
    for result in (first, second):
        for child in result.version.children:
            assert validate_rollout_zarr_store(child, deep=True).errors == []
            assert RolloutZarrStoreReader(child).attributes["source_split"] == child.name


def test_a_promoted_child_equals_a_store_of_all_records(grown, tmp_path):
    campaign, _, _, third = grown
    config = campaign.config
    options = {"targets": 1, "chains": 2, "shell": (3, 5), "depth_hw": (8, 8), "seed": config.seed}
    rows = [row.sample_index for row in campaign.source.rows("train")]
    records = (
        record for row in rows for record in SyntheticRecords(sources=1, first_sample=row, split="train", **options)
    )
    write_rollout_zarr_store(tmp_path / "whole", records, RolloutZarrStoreConfig.from_campaign(config))
    whole = RolloutZarrStoreReader(tmp_path / "whole").sidecar_manifest()["content_sha256"]
    assert version_digests(third.version)["train"] == whole


def test_an_extended_version_equals_a_new_one_file_for_file(grown):
    _, first, second, third = grown
    assert [child.how for child in first.splits] == ["built", "built"]
    assert [(child.how, child.new_shards) for child in second.splits] == [("extended", 1), ("linked", 0)]
    assert [child.how for child in third.splits] == ["built", "built"]
    assert version_digests(second.version) == version_digests(third.version)
    ours, theirs = files_below(second.version.path), files_below(third.version.path)
    assert set(ours) == set(theirs)
    differ = {name for name in ours if ours[name].read_bytes() != theirs[name].read_bytes()}
    assert differ <= {f"{split}/{name}" for split in ("train", "val") for name in ("zarr.json", "manifest.json")}
    for split in ("train", "val"):
        left, right = (manifest_of(result.version.path / split) for result in (second, third))
        for manifest in (left, right):
            manifest.pop("created_at_utc")
            manifest["root_attrs"].pop("created_at_utc")
        assert left == right


def test_full_files_are_shared_and_the_old_version_is_unchanged(grown):
    _, first, second, _ = grown
    shared = [
        name
        for name, path in files_below(second.version.path / "train").items()
        if (old := first.version.path / "train" / name).exists() and path.samefile(old)
    ]
    assert "candidates/target_rri/c/0" in shared and "sources/sample_index/c/0" not in shared
    assert not any(name.endswith(".json") for name in shared)
    assert validate_rollout_zarr_store(first.version.path / "train", deep=True).ok


def test_the_promoted_store_is_a_zarr_group_of_its_children(grown):
    campaign, _, _, third = grown
    group = zarr.open_group(CampaignLayout.of(campaign.config).promoted, mode="r")
    assert sorted(name for name, _ in group.groups()) == ["train", "val"]
    assert group["train/candidates/target_rri"].shape[0] == group["train"].attrs["num_candidates"]
    assert group.attrs["rollout_promotion"]["writer_config_hash"] == campaign.config.writer_config_hash
    assert current_version(campaign.config).name == third.version.name


@pytest.mark.ci
def test_a_wider_shell_widens_the_view_as_a_new_build_does(tmp_path):
    narrow = fake_campaign(tmp_path, [("train", 2)], options={"shell": (3, 3)})
    narrow.run_all()
    promote_rollout_campaign(narrow.config)
    wide = fake_campaign(tmp_path, [("train", 4)], options={"shell": (7, 7)})
    wide.run_all()
    extended = promote_rollout_campaign(wide.config)
    assert [child.how for child in extended.splits] == ["extended"]
    assert RolloutZarrStoreReader(extended.version.path / "train").attributes["q_h_max_candidates"] == 7
    assert version_digests(extended.version) == version_digests(
        promote_rollout_campaign(wide.config, incremental=False).version
    )


def test_promoting_the_same_shards_again_changes_nothing(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 1)])
    campaign.run_all()
    first = promote_rollout_campaign(campaign.config)
    again = promote_rollout_campaign(campaign.config)
    assert again.splits == () and again.version.name == first.version.name == "v000001"
    shutil.rmtree(tmp_path / "shards/shard-000000")
    campaign.run_all()
    assert promote_rollout_campaign(campaign.config).splits == (), "a shard rebuilt with the same content is the same"


def test_damage_in_the_last_version_is_not_carried_on(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 2)], store={"chunk_rows": 4, "chunk_states": 4})
    campaign.run_all()
    first = promote_rollout_campaign(campaign.config)
    path = first.version.path / "train/candidates/target_rri/c/0"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    campaign = fake_campaign(tmp_path, [("train", 3)], store={"chunk_rows": 4, "chunk_states": 4})
    campaign.run_all()
    second = promote_rollout_campaign(campaign.config)
    assert [child.how for child in second.splits] == ["built"]
    assert validate_rollout_zarr_store(second.version.path / "train", deep=True).ok


def test_an_open_reader_keeps_its_version_after_the_switch(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 2)])
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    reader = RolloutZarrStoreReader(tmp_path / "rollouts.zarr/train")
    before = reader.array("candidates/pose_world_cam").tobytes()
    steps = reader.num_rows("steps")
    campaign = fake_campaign(tmp_path, [("train", 3)])
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    assert reader.array("candidates/pose_world_cam").tobytes() == before and reader.num_rows("steps") == steps
    assert reader.rollout(0) is not None and reader.validate(deep=True).ok
    assert RolloutZarrStoreReader(tmp_path / "rollouts.zarr/train").num_rows("steps") > steps
    assert rollback_promotion(campaign.config).name == "v000001"
    assert RolloutZarrStoreReader(tmp_path / "rollouts.zarr/train").num_rows("steps") == steps


def test_rollback_and_prune(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 1)])
    with refused(CampaignError, "campaign promote"):
        rollback_promotion(campaign.config)
    campaign.run_all()
    for _ in range(4):
        promote_rollout_campaign(campaign.config, incremental=False)
    assert rollback_promotion(campaign.config).name == "v000003"
    assert rollback_promotion(campaign.config, "v000001").name == "v000001"
    with refused(CampaignError, "v000001, v000002"):
        rollback_promotion(campaign.config)
    with refused(CampaignError, "v000009"):
        rollback_promotion(campaign.config, "v000009")
    pruned = prune_promoted_versions(campaign.config)
    assert pruned.versions == ("v000002",) and pruned.kept == ("v000001", "v000003", "v000004")
    assert current_version(campaign.config).name == "v000001", "the current one always stays"
    rollback_promotion(campaign.config, "v000004")
    assert prune_promoted_versions(campaign.config, 1).kept == ("v000004",)
    assert [version.name for version in promoted_versions(campaign.config)] == ["v000004"]
    unpin_promotion(campaign.config)
    assert promote_rollout_campaign(campaign.config, incremental=False).version.name == "v000005"
    with refused(CampaignError, "keep", 0):
        prune_promoted_versions(campaign.config, 0)


def test_unfinished_shards_refuse_promotion_or_are_left_out(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 3)])
    entries = campaign.plan().entries
    with refused(PromotionRefused, *(entry.shard_id for entry in entries)) as caught:
        promote_rollout_campaign(campaign.config)
    assert len([problem for problem in caught.value.problems if problem.startswith("shard-")]) == 3
    for entry in (entries[0], entries[2]):
        campaign.run(entry)
    (tmp_path / "shards/shard-000002/_SUCCESS.json").unlink()
    with refused(PromotionRefused, "shard-000002 (train)", "_SUCCESS.json"):
        promote_rollout_campaign(campaign.config)
    partial = promote_rollout_campaign(campaign.config, partial=True)
    assert len(partial.left_out) == 2 and partial.version.shard_ids == ("shard-000000",)
    campaign.run_all()
    whole = promote_rollout_campaign(campaign.config)
    assert [child.how for child in whole.splits] == ["extended"] and whole.left_out == ()


def test_a_shard_that_filled_a_gap_is_not_appended_at_the_end(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 3)])
    entries = campaign.plan().entries
    for entry in (entries[0], entries[2]):
        campaign.run(entry)
    promote_rollout_campaign(campaign.config, partial=True)
    campaign.run(entries[1])
    whole = promote_rollout_campaign(campaign.config)
    assert [child.how for child in whole.splits] == ["built"]
    order = RolloutZarrStoreReader(whole.version.path / "train").array("sources/sample_index")
    assert order.tolist() == [0, 1, 2]


def test_altered_bytes_in_a_shard_stop_a_promotion(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 2)])
    campaign.run_all()
    path = tmp_path / f"shards/shard-000001/{STORE_NAME}/candidates/target_rri/c/0"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with refused(StoreError, "campaign run --shard shard-000001"):
        promote_rollout_campaign(campaign.config)
    assert list((tmp_path / "staging").iterdir()) == [] and not (tmp_path / "rollouts.zarr").exists()


def test_a_scene_or_a_mesh_in_two_splits_refuses_promotion(tmp_path):
    campaign = fake_campaign(tmp_path / "scene", [("train", 1), ("val", 1)])
    campaign.run_all()
    for shard, scene in (("shard-000000", "kitchen"), ("shard-000001", "kitchen")):
        _rewrite_owner(tmp_path / "scene/shards" / shard, {scene: "a" * 64})
    with refused(PromotionRefused, "mesh aaaaaaaaaaaa", "train (shard-000000 scene kitchen)", "val"):
        promote_rollout_campaign(campaign.config)
    _rewrite_owner(tmp_path / "scene/shards/shard-000001", {"kitchen again": "a" * 64})
    with refused(PromotionRefused, "mesh aaaaaaaaaaaa", "kitchen again", '[split] mode = "explicit"'):
        promote_rollout_campaign(campaign.config)
    assert not (tmp_path / "scene/rollouts.zarr").exists()


def test_a_real_scene_that_leaks_is_refused(store_copy, tmp_path):
    index = store_copy / "sample_index.jsonl"
    rows = [json.loads(line) for line in index.read_text().splitlines()]
    rows[1]["split"] = "val"
    index.write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = json.loads((store_copy / "manifest.json").read_text())
    manifest["stats"] |= {"num_train": 1, "num_val": 3}
    (store_copy / "manifest.json").write_text(json.dumps(manifest))
    np.save(store_copy / "splits/train.npy", np.array([0], np.int64))
    np.save(store_copy / "splits/val.npy", np.array([1, 2, 3], np.int64))
    config = real(tmp_path / "out", store_copy, rows_per_shard=4)
    assert run_campaign(config).ok
    with pytest.raises(PromotionRefused) as caught:
        promote_rollout_campaign(config)
    scene, mesh, way_out = caught.value.problems
    assert_names(scene, "scene synthetic-11-00000", "train (shard-000000", "val (shard-000001")
    assert_names(mesh, "mesh ", "train (shard-000000", "val (shard-000001")
    assert_names(way_out, '[split] mode = "by_scene"')


@pytest.mark.parametrize(
    "step", ["temp/before", "flush/candidates", "manifest/before", "fsync/before", "rename/before"]
)
def test_a_full_disk_stops_a_promotion_and_keeps_the_version(two_versions, step):
    campaign, first = two_versions

    def full(reached):
        if reached == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with refused(OSError, errno=errno.ENOSPC):
        promote_rollout_campaign(campaign.config, on_step=full)
    root = campaign.config.shards.output_dir
    assert list((root / "staging").iterdir()) == []
    assert [version.name for version in promoted_versions(campaign.config) if version.is_current] == [first]


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory):
    """One version is promoted, and one more shard is finished."""
    root = tmp_path_factory.mktemp("two")
    campaign = fake_campaign(root, [("train", 1)])
    campaign.run_all()
    first = promote_rollout_campaign(campaign.config)
    campaign = fake_campaign(root, [("train", 2)])
    campaign.run_all()
    return campaign, first.version.name


@pytest.mark.ci
def test_without_hard_links_everything_is_written_again(tmp_path, monkeypatch):
    small_files = {"store": {"chunk_rows": 2, "chunk_states": 2}}
    campaign = fake_campaign(tmp_path, [("train", 1), ("val", 1)], **small_files)
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    campaign = fake_campaign(tmp_path, [("train", 1), ("val", 1), ("train", 1)], **small_files)
    campaign.run_all()

    def refuse(self, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "hardlink_to", refuse)
        result = promote_rollout_campaign(campaign.config)
    assert [child.how for child in result.splits] == ["built", "built"]
    assert version_digests(result.version) == version_digests(
        promote_rollout_campaign(campaign.config, incremental=False).version
    )


def test_two_promotions_do_not_run_at_once(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 1)])
    campaign.run_all()
    with (
        file_lock(CampaignLayout(tmp_path).lock("promotion"), "a test"),
        refused(ShardBusy, os.getpid()),
    ):
        promote_rollout_campaign(campaign.config)


def test_splits_without_any_record_have_no_child(tmp_path):
    campaign = fake_campaign(tmp_path, [("train", 2), ("val", 1)], options={"barren": frozenset({1, 2})})
    campaign.run_all()
    result = promote_rollout_campaign(campaign.config)
    assert [(child.split, child.how) for child in result.splits] == [("train", "built"), ("val", "empty")]
    assert [path.name for path in result.version.children] == ["train"]
    everything = fake_campaign(tmp_path / "other", [("train", 1)], options={"barren": frozenset({0})})
    everything.run_all()
    with refused(PromotionRefused, everything.config.shards.output_dir):
        promote_rollout_campaign(everything.config)


@pytest.mark.parametrize(("rows_per_shard", "workers"), [(3, 2), (7, 1)])
@pytest.mark.ci
def test_resharding_and_workers_give_equal_promoted_content(
    small_store, one_row_a_shard, tmp_path, rows_per_shard, workers
):
    config = real(tmp_path / "out", small_store, rows_per_shard=rows_per_shard)
    result = run_campaign(config, workers=workers)
    assert result.ok, result.shards
    assert version_digests(promote_rollout_campaign(config).version) == one_row_a_shard


@pytest.fixture(scope="module")
def one_row_a_shard(small_store, tmp_path_factory):
    config = real(tmp_path_factory.mktemp("one") / "out", small_store, rows_per_shard=1)
    assert run_campaign(config).ok
    found = version_digests(promote_rollout_campaign(config).version)
    funnel = {stage.name: stage for stage in campaign_funnel(config)}
    assert funnel["rows"].count == 4 and funnel["candidates"].count == funnel["steps"].count * 4
    lost = sum(funnel["candidates"].lost.values())
    assert funnel["actor-valid"].count == funnel["candidates"].count - lost
    assert funnel["actor-valid"].count >= funnel["labelled"].count >= funnel["trainable"].count > 0
    return found


@pytest.mark.ci
def test_the_benchmark_reports_what_it_measured():
    result = benchmark_promotion(shards=2, rows_per_shard=1, depth_px=8, tiny_shards=1)
    assert [stage.what for stage in result.stages] == ["gate", "promotion", "checks"] and result.one_of_many > 0
    assert result.equals_from_start and result.reader_undisturbed
    assert [count for count, _ in result.seconds_by_shards] == [1, 2] and result.ratio > 0
    assert render(result).renderables


def _rewrite_owner(shard, mesh_versions):
    """A shard as it would be if its scenes had these meshes."""
    from rollout_assets.campaigns.markers import read_owner, write_success
    from rollout_assets.files import publish_json

    owner = read_owner(shard).model_copy(update={"mesh_versions": mesh_versions})
    publish_json(shard / "_owner.json", owner.model_dump(mode="json"))
    write_success(shard, shard.name)
