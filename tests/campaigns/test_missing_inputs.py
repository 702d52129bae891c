"""Inputs that vanish after they were planned or built: nothing shrinks without the operator's word."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_assets.campaigns import run
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.markers import read_owner
from rollout_assets.campaigns.plan import open_source, write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.campaigns.status import summarize_rollout_shard_campaign
from rollout_assets.campaigns.versions import current_name, current_version
from rollout_assets.errors import FewerRecords, InputMissing, PromotionRefused
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from tests.campaigns.kill_campaigns import fake_campaign, real
from tests.support.refusals import assert_names, refused

SHARD = "shard-000000"


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RETRY_AFTER_S", (0.0, 0.0))


def tree(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_ino for path in sorted(folder.rglob("*")) if path.parent.name != "locks"}


def rollouts(config) -> dict[str, int]:
    return {
        child.name: RolloutZarrStoreReader(child).num_rows("rollouts") for child in current_version(config).children
    }


def test_a_mesh_that_vanished_stops_its_shards_and_nothing_else(store_copy, tmp_path):
    config = real(tmp_path / "out", store_copy, rows_per_shard=1)
    layout = CampaignLayout.of(config)
    source = open_source(config)
    scene = source.row(0).scene_id
    mesh = next((store_copy / "meshes").glob(f"*{scene}.ply"))
    assert write_rollout_shard_manifest_from_config(config).scenes_without_mesh == ()

    mesh.rename(store_copy / "unmounted")
    planned = write_rollout_shard_manifest_from_config(config)
    assert planned.scenes_without_mesh == planned.scenes_that_had_mesh == (scene,)
    first, second, *_ = run_campaign(config, shard_ids=[SHARD, "shard-000002"]).shards
    assert (first.outcome, second.outcome) == ("failed", "built"), "planned with its mesh, and not built without it"
    assert_names(first.reason, SHARD, scene, "--allow-fewer")
    assert not layout.shard(SHARD).exists() and not layout.failures(SHARD)

    (store_copy / "unmounted").rename(mesh)
    assert run_campaign(config).ok
    promote_rollout_campaign(config)
    had = rollouts(config)
    mesh.rename(store_copy / "unmounted")
    before = tree(layout.root)
    done = run_campaign(config)
    assert [shard.outcome for shard in done.shards].count("failed") == 2 and tree(layout.root) == before
    with refused(InputMissing, SHARD, scene):
        run_rollout_shard(config, SHARD)
    status = summarize_rollout_shard_campaign(config, source=open_source(config)).shards[0]
    assert status.state == "incomplete"
    assert_names(status.reason, scene, "missing")

    allowed = run_campaign(config, allow_fewer=True)
    assert allowed.ok
    assert_names(allowed.shards[0].fewer, SHARD, "MESH_REFERENCE_MISSING")
    assert run_campaign(config).shards[0].outcome == "already_finished", "the word was given once"
    with refused(PromotionRefused, "rollouts", "v000001", SHARD, "MESH_REFERENCE_MISSING", "--allow-fewer"):
        promote_rollout_campaign(config)
    assert rollouts(config) == had
    published = promote_rollout_campaign(config, allow_fewer=True)
    assert sum(rollouts(config).values()) < sum(had.values())
    assert_names("\n".join(published.fewer), "rollouts", "v000001", SHARD)

    (store_copy / "unmounted").rename(mesh)
    assert run_campaign(config).ok
    promote_rollout_campaign(config)
    assert rollouts(config) == had, "what comes back needs no word"


def test_a_finished_shard_is_not_replaced_by_one_with_fewer_records(store_copy, tmp_path):
    config = real(tmp_path / "out", store_copy, rows_per_shard=2)
    assert run_campaign(config).ok
    shard = CampaignLayout.of(config).shard(SHARD)
    owner, scene = read_owner(shard), open_source(config).row(0).scene_id
    mesh = next((store_copy / "meshes").glob(f"*{scene}.ply"))
    mesh.unlink()
    mesh.write_bytes(b"cut off by a full disk")
    with refused(FewerRecords, SHARD, owner.records, scene, "MESH_UNUSABLE", "--allow-fewer"):
        run_rollout_shard(config, SHARD)
    assert read_owner(shard) == owner and not CampaignLayout.of(config).set_aside_dir.exists()
    done = run_rollout_shard(config, SHARD, allow_fewer=True)
    assert done.outcome == "built" and done.owner.records < owner.records
    assert len(done.set_aside) == 1 and read_owner(done.set_aside[0].path, SHARD) == owner


def test_a_promotion_with_fewer_rows_needs_the_word_whatever_took_them(tmp_path):
    whole = fake_campaign(tmp_path, (("train", 2), ("val", 2)))
    whole.run_all()
    promote_rollout_campaign(whole.config)
    (tmp_path / "shards/shard-000003/_SUCCESS.json").unlink()
    with refused(PromotionRefused, "val rollouts", "v000001", "shard-000003", "_SUCCESS.json"):
        promote_rollout_campaign(whole.config, partial=True)
    assert current_name(CampaignLayout(tmp_path)) == "v000001"
    assert promote_rollout_campaign(whole.config, partial=True, allow_fewer=True).version.name == "v000002"
    whole.run_all()
    assert promote_rollout_campaign(whole.config).fewer == ()
