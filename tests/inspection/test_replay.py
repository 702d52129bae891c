"""A store recomputed from its lineage and seed: nothing differs, unless something was changed, and then it is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, ReplayRefused, StoreError
from rollout_assets.inspection.other_rays import tiled_depth
from rollout_assets.rollouts import replay, replay_sources, second_opinion
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.sources import layout
from tests.inspection.conftest import campaign_of, write_campaign
from tests.sources.test_vin_store import edit_array, put
from tests.support.refusals import refused


def change(path: Path, array: str, row: int, value: object) -> RolloutZarrStoreReader:
    zarr.open_group(path, mode="r+")[array][row] = value
    return RolloutZarrStoreReader(path)


@pytest.fixture
def copied(real_store: Path, tmp_path: Path) -> Path:
    return shutil.copytree(real_store, tmp_path / "copy.zarr")


def test_every_source_row_is_met_to_the_bit(real: RolloutZarrStoreReader, campaign: CampaignConfig) -> None:
    done = list(replay_sources(real, campaign))
    assert [found.differences.to_dicts() for found in done] == [[]] * real.num_rows("sources")
    for table in ("targets", "rollouts", "steps", "candidates", "candidate_diagnostics", "selected_depth"):
        assert sum(found.diff.rows_compared[table] for found in done) == real.num_rows(table)


def test_single_chains_of_every_recipe_are_met(real: RolloutZarrStoreReader, campaign: CampaignConfig) -> None:
    ids = real.table("rollouts", columns=("rollout_id",), decode=True)["rollout_id"].to_list()
    second_branch = next(row for row, name in enumerate(ids) if name.endswith("lookahead-000001"))
    last = len(ids) - 1
    for row in (0, second_branch, last):
        found = replay(real, row, campaign)
        assert found.subject == ids[row] and found.identical, found.differences.to_dicts()
        assert found.diff.rows_compared["rollouts"] == 1


def test_a_changed_label_is_found_and_named(copied: Path, campaign: CampaignConfig) -> None:
    rows = np.flatnonzero(RolloutZarrStoreReader(copied).array("candidates/oracle_label_mask"))
    row = int(rows[len(rows) // 2])
    reader = change(copied, "candidates/target_rri", row, 0.125)
    about = reader.table("candidates", columns=("rollout_row_id", "step_index", "shell_index")).row(row, named=True)
    found = replay(reader, about["rollout_row_id"], campaign)
    (line,) = found.differences.to_dicts()
    assert (line["table"], line["column"], line["rows"], line["value_a"]) == ("candidates", "target_rri", 1, "0.125")
    assert line["first"] == f"{found.subject} step {about['step_index']} view {about['shell_index']}"
    assert float(line["value_b"]) != 0.125 and line["max_abs_difference"] > 0


CHANGES = {
    "sources/source_shard_row": 3,
    "targets/gt_match_iou": 0.5,
    "rollouts/random_seed": 6,
    "lineage/mesh_version_id": -1,
    "steps/cumulative_target_root_gain": 0.5,
    "candidates/pose_relative_root": 0.5,
    "candidates/q_train_mask": None,
    "candidate_diagnostics/mesh_distance_m": 9.0,
    "selected_depth/depth_m": 1.5,
}
"""Array -> what its first row becomes; None turns a mask over."""


def test_a_change_in_any_table_is_named(copied: Path, campaign: CampaignConfig) -> None:
    root = zarr.open_group(copied, mode="r+")
    for array, value in CHANGES.items():
        root[array][0] = not root[array][0] if value is None else value
    found = replay(RolloutZarrStoreReader(copied), 0, campaign)
    named = [f"{table}/{column}" for table, column in found.differences.select("table", "column").rows()]
    assert sorted(named) == sorted(CHANGES)
    assert set(found.differences["rows"]) == {1}


def test_dead_ends_and_refused_targets_are_replayed(store_copy: Path, tmp_path: Path) -> None:
    far = {"radius_min_m": 30, "radius_max_m": 31, "mixture": [{"position": "forward_local", "count": 5}]}
    stuck = campaign_of(store_copy, candidates=far, targets={"top_k": 2, "require_reachable": False})
    edit_array(store_copy, layout.GT_OBBS, put((0,), -1.0))
    reader = RolloutZarrStoreReader(write_campaign(stuck, tmp_path / "stuck.zarr", [0, 1]))
    reasons = reader.table("rollouts", columns=("termination_reason",), decode=True)["termination_reason"]
    assert set(reasons) == {"terminated_early"}
    assert not reader.table("targets")["gt_label_valid_mask"][:2].any()
    refused, dead = replay_sources(reader, stuck)
    compared = refused.diff.rows_compared
    assert refused.identical and compared["targets"] == compared["rollouts"] == 2, "each keeps the views at its root"
    assert dead.identical and dead.diff.rows_compared["rollouts"] + 2 == reader.num_rows("rollouts")
    assert replay(reader, 0, stuck).identical


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"oracle": {"width_px": 32}}, ("oracle.width_px", 48, 32)),
        ({"seed": 6}, ("seed: ", 5, 6)),
        ({"targets": {"top_k": 2, "min_support": 9}}, ("targets.min_support", 3, 9)),
        ({"candidates": {"kappa": 2.0}}, ("candidates.kappa", 8.0, 2.0)),
        ({"selected_depth": {"width_px": 12, "height_px": 24}}, ("selected_depth.width_px", 24, 12)),
    ],
)
def test_another_campaign_is_refused_by_section(real, small_store, changes, names) -> None:
    with refused(ReplayRefused, *names):
        replay(real, 0, campaign_of(small_store, **changes))


def test_rows_that_are_not_there_are_refused(real: RolloutZarrStoreReader, campaign: CampaignConfig) -> None:
    with refused(StoreError, "rollouts", 10_000):
        replay(real, 10_000, campaign)
    with refused(StoreError, "sources", 77):
        list(replay_sources(real, campaign, [77]))


def test_the_naive_oracle_agrees(real: RolloutZarrStoreReader, campaign: CampaignConfig) -> None:
    found = second_opinion(real, 1.0, 3, campaign, limit=3)
    assert found.agrees, found.findings.to_dicts()
    assert found.candidates == 3 and found.labels.height == 3 * 6
    again = second_opinion(real, 1.0, 3, campaign, limit=1)
    assert again.labels["candidate_row_id"][0] in real.table("candidates")["candidate_row_id"]


def test_the_naive_oracle_finds_a_changed_label(copied: Path, campaign: CampaignConfig) -> None:
    reader = RolloutZarrStoreReader(copied)
    row = int(second_opinion(reader, 1.0, 3, campaign, limit=1).labels["candidate_row_id"][0])
    true = float(reader.array("candidates/target_pm_dist_after")[row])
    reader = change(copied, "candidates/target_pm_dist_after", row, true * (1 + 5e-5))
    (finding,) = second_opinion(reader, 1.0, 3, campaign, limit=1).findings.to_dicts()
    assert (finding["candidate_row_id"], finding["label"]) == (row, "target_pm_dist_after")


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_a_fraction_that_is_none_is_refused(real, campaign, fraction: float) -> None:
    with refused(ConfigError, "fraction", fraction):
        second_opinion(real, fraction, 0, campaign)


def test_tiles_give_the_same_image_as_all_faces_at_once(real: RolloutZarrStoreReader, campaign: CampaignConfig) -> None:
    from rollout_assets.inspection.replay import source_of
    from rollout_assets.oracle import naive

    source = source_of(campaign)
    sample = source.sample(source.row(0))
    mesh = source.meshes.load(sample.actor.identity.scene_id)
    camera = sample.actor.camera.resized(13, 11)
    pose = sample.actor.reference_pose_world_camera
    whole = naive.depth(mesh.vertices, mesh.faces, pose, camera, 0.001, 20.0)
    assert np.allclose(tiled_depth(mesh.vertices, mesh.faces, pose, camera, 0.001, 20.0), whole, rtol=1e-6, atol=0)
    assert (whole > 0).mean() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "val"])
def test_the_demo_campaign_replays_without_a_difference(tmp_path: Path, split: str) -> None:
    from rollout_assets.config import load_campaign
    from rollout_assets.sources.vin_store import VinOfflineStore
    from rollout_assets.synthetic.config import SyntheticConfig
    from rollout_assets.synthetic.store import build_synthetic_store

    demo = load_campaign("demo")
    demo = demo.model_copy(update={"source": demo.source.model_copy(update={"store_dir": tmp_path / "source"})})
    build_synthetic_store(tmp_path / "source", SyntheticConfig(scenes=8, snippets_per_scene=2, seed=demo.seed))
    rows = [row.sample_index for row in VinOfflineStore.open(tmp_path / "source").rows(split)]
    reader = RolloutZarrStoreReader(write_campaign(demo, tmp_path / "demo.zarr", rows))
    assert all(found.identical for found in replay_sources(reader, demo))
