"""One row of a synthetic store: every block of a snippet, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float32, rotation, translation
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.randomness import KeyPart, key_digest, rng_for
from rollout_assets.sources import layout
from rollout_assets.synthetic.config import SnippetConfig, SyntheticConfig
from rollout_assets.synthetic.detections import detected_boxes, true_boxes
from rollout_assets.synthetic.floor_grid import FloorGrid
from rollout_assets.synthetic.scene import LabelledScene, SyntheticScene
from rollout_assets.synthetic.sight import Sight, look, semidense_points
from rollout_assets.synthetic.walk import Walk, draw_walk

EVIDENCE_CUBE_M = 4.0
"""Side of the cube that the evidence voxels cover, in front of the last pose."""

GRAVITY_M_S2 = (0.0, 0.0, -9.81)


def build_snippet(
    config: SyntheticConfig,
    scene_index: int,
    snippet_index: int,
    scene: SyntheticScene,
    bvh: TriangleBvh,
    grid: FloorGrid,
) -> dict[str, NDArray[Any]]:
    """The arrays of snippet ``snippet_index`` by block name, each of the block's shape without the row axis.

    Nothing about a snippet depends on which other snippets are built.
    """
    rng = rng_for("synthetic snippet", config.seed, scene_index, snippet_index)
    walk = draw_walk(config, scene, grid, rng)
    sight = look(config, scene, bvh, walk, rng)
    points = semidense_points(config, sight, texture_seed(config.seed, scene_index), rng)
    return snippet_blocks(config, scene, walk, sight, points, detected_boxes(config, scene, walk, sight, rng))


def texture_seed(*scene_key: KeyPart) -> int:
    """What decides which patches of a scene have texture, the same for all its snippets."""
    return int.from_bytes(key_digest("texture", *scene_key)[:8], "little")


def snippet_blocks(
    config: SnippetConfig,
    scene: LabelledScene,
    walk: Walk,
    sight: Sight,
    points: Float32,
    detected: Float32,
) -> dict[str, NDArray[Any]]:
    """The arrays by block name; points (n, 4) with n at most ``max_points``, detected (1, 128, 34)."""
    padded = np.full((config.max_points, 4), np.nan, np.float32)
    padded[: len(points)] = points
    size = float(config.image_px)
    arrays: dict[str, NDArray[Any]] = {
        layout.POINTS_WORLD: padded,
        layout.LENGTHS: np.array([len(points)], np.int64),
        layout.T_WORLD_RIG: walk.pose_world_rig,
        layout.TIME_NS: walk.time_ns,
        layout.GRAVITY_IN_WORLD: np.array(GRAVITY_M_S2, np.float32),
        layout.REFERENCE_POSE: walk.pose_world_camera[-1],
        layout.FOCAL_LENGTH: np.full((1, 2), config.focal_px, np.float32),
        layout.PRINCIPAL_POINT: np.full((1, 2), size / 2, np.float32),
        layout.IMAGE_SIZE: np.full((1, 2), size, np.float32),
        layout.GT_OBBS: true_boxes(config, scene, walk, sight),
        layout.DETECTED_OBBS: detected,
    }
    if config.evidence:
        arrays[layout.EVIDENCE_POINTS], arrays[layout.EVIDENCE_COUNTS] = evidence_voxels(walk, sight)
    return arrays


def evidence_voxels(walk: Walk, sight: Sight) -> tuple[Float32, NDArray[np.int64]]:
    """Voxel centres (1, K, 3) float32 and how many rays end in each (1, 48, 48, 48), in a world-aligned cube."""
    side = layout.EVIDENCE_SIDE
    last = walk.pose_world_camera[-1]
    centre = translation(last) + 0.4 * EVIDENCE_CUBE_M * rotation(last)[:, 2]
    low = np.array([centre[0], centre[1], EVIDENCE_CUBE_M / 2 - 0.2]) - EVIDENCE_CUBE_M / 2
    cell = EVIDENCE_CUBE_M / side
    points = sight.points.reshape(-1, 3)
    cells = np.floor((points[np.isfinite(points).all(axis=1)] - low) / cell).astype(np.int64)
    cells = cells[((cells >= 0) & (cells < side)).all(axis=1)]
    flat = (cells[:, 0] * side + cells[:, 1]) * side + cells[:, 2]
    counts = np.bincount(flat, minlength=side**3).reshape(1, side, side, side)
    index = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), axis=-1).reshape(1, -1, 3)
    return (low + (index + 0.5) * cell).astype(np.float32), counts.astype(np.int64)
