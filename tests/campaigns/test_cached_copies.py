"""Copies of objects on this machine may be damaged: nothing is computed from them, and what was lost comes back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rollout_assets.campaigns.integrity import open_shard, shard_damage
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.plan import open_source
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.campaigns.versions import current_version
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import MeshError
from rollout_assets.files import tree_sizes
from rollout_assets.locations.objects import ObjectFolder
from rollout_assets.locations.url import ObjectUrl
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.sources.layout import MESHES_DIR
from rollout_assets.testing.object_storage import LocalObjectStorage
from tests.campaigns.kill_campaigns import fake_campaign, real
from tests.support.digests import store_digests, version_digests


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path) -> None:
    """As a disk leaves it whose file system has noted the size but not the bytes."""
    path.write_bytes(bytes(path.stat().st_size))


def damage_all(copies: Path, damage: Callable[[Path], None]) -> None:
    """Damage every copy, but not the notes that say what was copied."""
    for path in copies.rglob("*"):
        if path.is_file() and not {".tags", "copied", "locks"} & set(path.parts):
            damage(path)


@pytest.fixture(scope="module")
def source(object_storage: LocalObjectStorage, small_store: Path) -> ObjectUrl:
    """The shared source in object storage. Shared: put back what you change."""
    url = object_storage.url("cached-source")
    ObjectFolder(url).upload(small_store, tree_sizes(small_store), "")
    return url


def shards_of(config: CampaignConfig) -> dict[str, dict[str, str]]:
    shards = CampaignLayout.of(config).shards
    return {path.name: store_digests(path / STORE_NAME) for path in sorted(shards.glob("shard-*"))}


def built(folder: Path, source: ObjectUrl) -> dict[str, dict[str, str]]:
    config = real(folder, source, rows_per_shard=100)
    result = run_campaign(config)
    assert result.ok and not result.skipped
    return shards_of(config)


def test_damaged_copies_of_a_source_change_no_label(source: ObjectUrl, tmp_path: Path) -> None:
    expected = built(tmp_path / "whole", source)
    for number, damage in enumerate((emptied, halved, zeroed)):
        damage_all(source.cache_dir, damage)
        assert built(tmp_path / str(number), source) == expected


def test_a_row_that_cannot_be_used_is_read_from_the_origin_again(
    source: ObjectUrl, object_storage: LocalObjectStorage, tmp_path: Path
) -> None:
    """A mesh that is damaged where it lies: its shard is finished without it, until the mesh is put right."""
    config = real(tmp_path, source, rows_per_shard=100)
    opened = open_source(config)
    row = opened.rows()[0]
    mesh = opened.meshes.find(row.scene_id)
    assert mesh is not None
    objects, key, whole = ObjectFolder(source), f"{MESHES_DIR}/{mesh.name}", mesh.read_bytes()
    objects.put(key, whole[: len(whole) // 2])
    try:
        before = len(object_storage.requests())
        (skipped,) = _reasons(RolloutGenerator(config, open_source(config)), row)
        read = [path for method, path in object_storage.requests()[before:] if method == "GET" and mesh.name in path]
        assert skipped == MeshError.skip_reason and len(read) == 2
        barren = run_campaign(config)
        assert len(barren.skipped) > 0
    finally:
        objects.put(key, whole)
    again = run_campaign(config)
    assert again.ok and not again.skipped
    assert [shard.outcome for shard in again.shards].count("built") > 0
    assert [shard.outcome for shard in run_campaign(config).shards] == ["already_finished"] * len(again.shards)


def _reasons(generator: RolloutGenerator, row: object) -> list[str]:
    assert list(generator.records([row])) == []
    return list(generator.stats.skip_reasons.values())


@pytest.mark.ci
def test_damaged_copies_of_a_campaign_heal(
    object_storage: LocalObjectStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    campaign = fake_campaign(object_storage.url("healing"), [("train", 1)])
    campaign.run_all()
    promote_rollout_campaign(campaign.config)
    layout = CampaignLayout.of(campaign.config)
    expected = version_digests(current_version(campaign.config))

    damage_all(layout.root, emptied)
    status = summarize_rollout_shard_campaign(campaign.config)
    assert status.complete and not status.damaged_versions
    damage_all(layout.root, zeroed)
    (entry,) = campaign.plan().entries
    assert campaign.run(entry).outcome == "already_finished"
    damage_all(layout.root, emptied)
    assert open_shard(campaign.config, entry.shard_id).num_rows("candidates") > 0
    assert shard_damage(layout.shard(entry.shard_id)) == ()
    larger = fake_campaign(layout.url, [("train", 1), ("val", 1)])
    larger.run_all()
    damage_all(layout.root, zeroed)
    result = promote_rollout_campaign(larger.config)
    assert [split.how for split in result.splits] == ["linked", "built"]
    assert version_digests(result.version)["train"] == expected["train"]
    monkeypatch.setenv("ROLLOUT_ASSETS_CACHE", str(tmp_path / "elsewhere"))
    shutil.rmtree(layout.root)
    assert version_digests(current_version(larger.config)) == version_digests(result.version)
