"""A small furnished room, a target in it, and views of the target, for the oracle's tests."""

from __future__ import annotations

import numpy as np
import trimesh

from rollout_assets.config import OracleConfig
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import IDENTITY_POSE, look_along
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import OracleScorer, OracleState, Refused

CAMERA = PinholeCamera(fx_px=250.0, fy_px=250.0, cx_px=240.0, cy_px=240.0, height_px=480, width_px=480)


def room_mesh(subdivisions: int = 2) -> trimesh.Trimesh:
    target = trimesh.creation.icosphere(subdivisions=subdivisions, radius=0.4)
    table = trimesh.creation.box((1.0, 0.6, 0.4))
    table.apply_translation((-1.5, 0.5, -0.5))
    return trimesh.util.concatenate([trimesh.creation.box((6.0, 5.0, 3.0)), table, target])


def target_box(centre: tuple[float, float, float] = (0, 0, 0), size: float = 0.8) -> OrientedBoxes:
    pose = IDENTITY_POSE.copy()
    pose[9:] = centre
    return OrientedBoxes(pose[None], np.full((1, 3), size, np.float32))


def root_points(mesh: trimesh.Trimesh, count: int = 3000, seed: int = 0) -> np.ndarray:
    """Noisy points on the half of everything that lies at x < 0.1."""
    points = trimesh.sample.sample_surface(mesh, 4 * count, seed=seed)[0]
    noise = np.random.default_rng(seed).normal(0, 0.005, points.shape)
    return (points + noise)[points[:, 0] < 0.1][:count].astype(np.float32)


def views(count: int, seed: int = 0, distance_m: float = 1.2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    forward = rng.normal(size=(count, 3)) * [1, 1, 0.4]
    forward /= np.linalg.norm(forward, axis=1, keepdims=True)
    return look_along(-forward * distance_m, forward + rng.normal(0, 0.1, forward.shape))


def begin(
    config: OracleConfig | None = None, subdivisions: int = 2, seed: int = 0, with_scene: bool = False
) -> tuple[OracleScorer, OracleState]:
    config = config or OracleConfig(device="cpu")
    mesh = room_mesh(subdivisions)
    scene = OracleScene(mesh.vertices, mesh.faces, "cpu")
    scorer = OracleScorer(config)
    cloud = scorer.fuse(scene, root_points(mesh, seed=seed))
    whole = scorer.region(scene, cloud, target_box(size=10.0)) if with_scene else None
    assert not isinstance(whole, Refused)
    state = scorer.begin(scene, CAMERA, cloud, target_box(), whole)
    assert isinstance(state, OracleState)
    return scorer, state
