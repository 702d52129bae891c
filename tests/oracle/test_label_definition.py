"""What a label promises: no trace of the tessellation, of rounding, or of a wall that stands beside the target."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import trimesh

from rollout_assets.benchmarks.label_noise import NoiseEffect, noise_effect
from rollout_assets.config import CampaignConfig, OracleConfig
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import IDENTITY_POSE, look_along
from rollout_assets.oracle.crops import crop_surface
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import OracleScorer, OracleState, ScoreRequest
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.oracle.rooms import CAMERA, room_mesh, root_points, target_box, views

ARIA_NBV: dict[str, Any] = {"crop_policy": "vertex_in_box", "face_weighting": "uniform", "voxel_origin": "zero"}
OLD = OracleConfig(device="cpu", **ARIA_NBV)
NEW = OracleConfig(device="cpu")

OLD_LABELS_SHA256 = "49bcc35acf4c9e826aeb82e7850e4fdc026412c4a7a17aea82b45cb330c40bec"
"""Labels of the small store under the research code's definitions, as they were before there were others."""


def cut_in_four(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    """Every triangle at the middles of its edges, as a float32 mesh."""
    vertices, faces = trimesh.remesh.subdivide(mesh.vertices.astype(np.float32), mesh.faces)
    return trimesh.Trimesh(vertices.astype(np.float32), faces, process=False)


def begin(mesh: trimesh.Trimesh, box: OrientedBoxes, points: np.ndarray, config: OracleConfig) -> OracleState:
    scorer = OracleScorer(config)
    scene = OracleScene(mesh.vertices, mesh.faces, "cpu")
    state = scorer.begin(scene, CAMERA, scorer.fuse(scene, points), box)
    assert isinstance(state, OracleState)
    return state


def gains(state: OracleState, poses: np.ndarray, config: OracleConfig) -> np.ndarray:
    request = ScoreRequest(state, poses, np.ones(len(poses), bool))
    return OracleScorer(config).score([request])[0].target.root_gain


def moved_by_cutting(config: OracleConfig) -> float:
    mesh, poses = room_mesh(), views(24, seed=3)
    coarse, fine = (
        gains(begin(cut, target_box(), root_points(mesh), config), poses, config)
        for cut in (mesh, cut_in_four(cut_in_four(mesh)))
    )
    return float(np.abs(coarse - fine).max())


def test_cutting_every_triangle_in_sixteen_moves_no_label():
    assert moved_by_cutting(NEW) < 1e-6
    assert moved_by_cutting(OLD) > 1e-2, "the old definition shows what this test can see"


def lamp_by_a_wall() -> tuple[trimesh.Trimesh, OrientedBoxes]:
    """A pole 0.3 m before a wall of two triangles; its box, as wide as its shade, just reaches into the wall."""
    pole = trimesh.creation.cylinder(radius=0.02, height=1.4, sections=12).subdivide().subdivide()
    wall = trimesh.Trimesh([[-3, 0.3, -2], [3, 0.3, -2], [3, 0.3, 2], [-3, 0.3, 2]], [[0, 1, 2], [0, 2, 3]])
    pose = IDENTITY_POSE.copy()[None]
    return trimesh.util.concatenate([pole, wall]), OrientedBoxes(pose, np.array([[0.6, 0.6, 1.4]], np.float32))


def test_exact_points_of_a_wall_beside_the_target_do_not_count():
    mesh, box = lamp_by_a_wall()
    rng = np.random.default_rng(0)
    on_pole = trimesh.sample.sample_surface(mesh.submesh([np.arange(len(mesh.faces) - 2)], append=True), 40, seed=1)[0]
    points = (on_pole + rng.normal(0, 0.002, on_pole.shape)).astype(np.float32)
    toward = np.array([[0.6, 1.0, 0.1], [-0.6, 1.0, 0.0], [0.3, 1.0, -0.1]])
    poses = look_along(np.array([[-0.8, -1.0, 0.0], [0.8, -1.0, 0.1], [-0.3, -1.2, 0.1]]), toward)
    old, new = (gains(begin(mesh, box, points, config), poses, config) for config in (OLD, NEW))
    assert (old < 0).any(), "the old definition punishes a good view"
    assert (new > 0).all()


def test_a_crop_ends_at_the_box():
    mesh, box = lamp_by_a_wall()
    surface = crop_surface(OracleScene(mesh.vertices, mesh.faces, "cpu"), box, NEW)
    assert surface is not None
    low, high = surface.bvh.bounds
    assert (np.maximum(-low, high) <= 0.5 * box.extents_m[0] + NEW.crop_margin_m + 1e-6).all()
    assert surface.weight_sum == pytest.approx(0.7 * 1.5 + 2 * np.pi * 0.02 * 1.4, rel=0.05), "wall sliver and pole"


def under_noise(config: OracleConfig, noise_m: float = 1e-7) -> NoiseEffect:
    mesh, poses = room_mesh(), views(24, seed=5)
    box = OrientedBoxes(IDENTITY_POSE[None], np.array([[2.0, 2.0, 2.96]], np.float32))  # reaches floor and ceiling
    return noise_effect(begin(mesh, box, root_points(mesh), config), poses, config, noise_m, np.random.default_rng(0))


def test_noise_of_a_tenth_of_a_micrometre_moves_no_gain():
    still = under_noise(NEW)
    assert still.moved.max() < 1e-5 and not still.other_points.any()
    unstable = under_noise(NEW.model_copy(update={"voxel_origin": "zero"}))
    assert unstable.other_points.sum() > 5, "floor and ceiling lie on planes of the old grid"
    assert under_noise(NEW, noise_m=1e-3).moved.max() > 1e-5, "what this test can see"


def test_old_definitions_give_the_old_labels_to_the_bit(small_store):
    recipe = {"name": "greedy", "policy": "oracle_greedy", "horizon": 2, "branch": 2, "beam_width": 2}
    config = CampaignConfig(
        name="pinned",
        source={"store_dir": small_store},
        targets={"require_reachable": False},
        selected_depth={"enabled": False},
        oracle=OLD,
        recipes=[recipe],
    )
    store, digest = VinOfflineStore.open(small_store), hashlib.sha256()
    names = ("rri", "root_gain", "log_error_gain", "pm_dist_before", "pm_dist_after")
    for record in RolloutGenerator(config, store).records(store.rows()):
        for step in (step for chain in record.chains for step in chain.steps):
            for name in names:
                digest.update(np.ascontiguousarray(getattr(step.labels, f"target_{name}"), np.float32).tobytes())
    assert digest.hexdigest() == OLD_LABELS_SHA256
