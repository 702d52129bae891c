"""What the actor knew at stored states: as told from the typed records, from the right source, and from no truth."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from rollout_assets.config import CampaignConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import StoreError
from rollout_assets.learning.observable import COLUMNS_READ
from rollout_assets.learning.observed_states import ObservedStates
from rollout_assets.observations.assemble import ObservedState, ObservedTarget, observe
from rollout_assets.observations.cloud import TakenView, TargetCloud
from rollout_assets.observations.observation import MOTION_COLUMNS, Arrays, Observations
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import LABEL_COLUMNS
from rollout_assets.sources import layout
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.store import append_synthetic_snippets
from tests.inspection.conftest import campaign_of, write_campaign
from tests.support.refusals import refused

CONFIG = ObservationConfig(points=128, depth_px=16, history=2)


def observed(store: Path, source: Path, config: ObservationConfig = CONFIG) -> ObservedStates:
    return ObservedStates(RolloutZarrStoreReader(store), VinOfflineStore.open(source), config)


def all_observations(store: Path, source: Path, config: ObservationConfig = CONFIG) -> Observations[Arrays]:
    states = observed(store, source, config)
    return states.observations(range(RolloutZarrStoreReader(store).num_rows("steps")))


def same(left: Observations[Arrays], right: Observations[Arrays]) -> bool:
    pairs = zip(left.arrays().values(), right.arrays().values(), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def plain_states(reader: RolloutZarrStoreReader, source: VinOfflineStore) -> Iterator[ObservedState]:
    """The slow, obvious twin: chain by chain from typed records, every cloud built anew."""
    for row in range(reader.num_rows("rollouts")):
        rollout = reader.rollout(row)
        lineage = rollout.lineage
        actor = source.sample(source.row(lineage.source_sample_key)).actor
        support = ("semidense_support_count", "evl_support_count", "effective_support_count")
        target = ObservedTarget(
            np.array(lineage.target_pose_world_object, np.float32),
            np.array(lineage.target_extents, np.float32),
            lineage.target_class_name or "",
            lineage.target_confidence,
            tuple(float(getattr(lineage, f"target_{name}")) for name in support),
        )
        taken, views = [rollout.root.pose_world_camera], []
        for index, step in enumerate(rollout.chain.steps):
            shell = step.shell
            cloud = TargetCloud.of(actor.points_world, target.pose_world_object, target.extents_m, CONFIG)
            yield ObservedState(
                target,
                actor.camera,
                cloud.after(views),
                shell.pose_world_camera,
                shell.position_id,
                np.stack([getattr(shell.diagnostics, name) for name in MOTION_COLUMNS], axis=-1),
                shell.actor_action_mask,
                np.stack(taken),
                rollout.horizon - index,
            )
            depth, chosen = step.selected_depth, step.selection.selected_shell_index
            if depth is not None:
                taken.append(shell.pose_world_camera[chosen])
                image = depth.depth_m, depth.valid_mask, depth.focal_px, depth.principal_point_px
                views.append(TakenView.of(shell.pose_world_camera[chosen], *image))


def test_observations_are_those_of_the_typed_records_to_the_bit(observed_store: Path, small_store: Path) -> None:
    reader, source = RolloutZarrStoreReader(observed_store), VinOfflineStore.open(small_store)
    plain = observe(list(plain_states(reader, source)), CONFIG, int(reader.attribute("q_h_max_candidates")))
    stored = all_observations(observed_store, small_store)
    assert same(stored, plain)
    assert len(stored) == reader.num_rows("steps") > 20
    assert stored.candidate_mask.any(axis=1).sum() > 20
    assert {0.0, 1.0, 2.0} <= set(np.unique(stored.point_age[stored.point_mask]))


def test_a_state_does_not_depend_on_the_states_beside_it(observed_store: Path, small_store: Path) -> None:
    together = all_observations(observed_store, small_store)
    rows = np.random.default_rng(0).permutation(len(together))[:12]
    assert same(observed(observed_store, small_store).observations(rows), together.mapped(lambda values: values[rows]))
    for row in rows[:4]:
        alone = observed(observed_store, small_store).observations([int(row)])
        assert same(alone, together.mapped(lambda values, row=row: values[row : row + 1]))


def test_no_label_no_mesh_and_no_true_box_is_read(observed_store: Path, store_copy: Path, tmp_path: Path) -> None:
    before = all_observations(observed_store, store_copy)
    shutil.rmtree(store_copy / "meshes")
    for shard in (store_copy / layout.SHARDS_DIR).iterdir():
        boxes = zarr.open_group(shard, mode="r+")["gt/obbs"]
        boxes[...] = 7.0
    altered = shutil.copytree(observed_store, tmp_path / "altered.zarr")
    candidates = zarr.open_group(altered, mode="r+")["candidates"]
    for name in LABEL_COLUMNS:
        candidates[name][...] = 0.25
    measured = zarr.open_group(altered, mode="r+")["candidate_diagnostics"]
    for name in ("mesh_distance_m", "path_min_clearance_m", "free_space_margin_m"):
        measured[name][...] = 0.25
    assert same(all_observations(altered, store_copy), before)


def test_the_columns_that_are_read_hold_no_truth() -> None:
    read = {name for names in COLUMNS_READ.values() for name in names}
    assert not read & {*LABEL_COLUMNS, "mesh_distance_m", "path_min_clearance_m", "path_collision_mask"}
    assert not any("gt_" in name or "oracle" in name or "q_train" in name for name in read)


def test_rows_appended_to_the_source_since_do_not_matter(observed_store: Path, store_copy: Path) -> None:
    before = all_observations(observed_store, store_copy)
    append_synthetic_snippets(store_copy, snippets=1)
    assert same(all_observations(observed_store, store_copy), before)


def test_another_source_is_refused(observed_store: Path, store_copy: Path) -> None:
    manifest = store_copy / layout.MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace("2000-01-01", "2000-01-02"))
    with refused(StoreError, observed_store, store_copy, "manifest"):
        observed(observed_store, store_copy)


def test_a_row_that_was_changed_since_is_refused(observed_store: Path, store_copy: Path) -> None:
    for shard in (store_copy / layout.SHARDS_DIR).iterdir():
        zarr.open_group(shard, mode="r+")["oracle/reference_pose_world_rig"][:, 9] = 0.5
    with refused(StoreError, observed_store, store_copy, "pose"):
        all_observations(observed_store, store_copy)


def test_a_store_without_depth_is_refused(small_store: Path, tmp_path: Path) -> None:
    campaign: CampaignConfig = campaign_of(small_store, selected_depth={"enabled": False})
    store = write_campaign(campaign, tmp_path / "no-depth.zarr", [0])
    with refused(StoreError, store, "selected_depth.enabled = true"):
        observed(store, small_store)


def test_a_store_without_a_needed_column_is_refused(observed_store: Path, small_store: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(observed_store, tmp_path / "copy.zarr")
    shutil.rmtree(copy / "candidate_diagnostics" / "motion_yaw_delta_deg")
    root = copy / "zarr.json"
    root.write_text(root.read_text().replace("candidate_diagnostics/motion_yaw_delta_deg", "candidate_diagnostics/x"))
    with refused(StoreError, copy, "candidate_diagnostics/motion_yaw_delta_deg"):
        observed(copy, small_store)


@pytest.mark.parametrize("rows", [[], [-1], [10**6]])
def test_steps_that_are_not_there_are_refused(observed_store: Path, small_store: Path, rows: list[int]) -> None:
    with refused(StoreError, observed_store, "steps 0 to"):
        observed(observed_store, small_store).observations(rows)


def test_observing_needs_neither_warp_nor_dagster() -> None:
    code = "import sys, rollout_assets.learning.observed_states; print({'warp', 'dagster'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
