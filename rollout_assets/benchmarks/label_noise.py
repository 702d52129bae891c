"""How far noise on the points of a view moves its gain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.oracle import naive
from rollout_assets.oracle.fusion import fusion_grid
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.scorer import OracleState, points_in


@dataclass(frozen=True, eq=False)
class NoiseEffect:
    """moved: (n,) how far each view's root gain moves; other_points: (n,) whether other points of the view are kept."""

    moved: Float64
    other_points: NDArray[np.bool_]


def noise_effect(
    state: OracleState, poses: Float32, config: OracleConfig, noise_m: float, rng: np.random.Generator
) -> NoiseEffect:
    """Fuse and measure the points of every pose (n, 12) twice: as they are, and with uniform noise of ``noise_m``."""
    images = render_depth(state.scene.bvh, poses, state.camera, config.znear_m, config.zfar_m).depth_m.cpu().numpy()
    moved, other_points = np.zeros(len(poses)), np.zeros(len(poses), bool)
    for row, (depth, pose) in enumerate(zip(images, poses, strict=True)):
        seen = naive.back_project(depth, pose, state.camera, config.pixel_stride).astype(np.float64)
        error, kept = _joined(state, seen, config)
        noisy, noisy_kept = _joined(state, seen + rng.uniform(-noise_m, noise_m, seen.shape), config)
        moved[row] = abs(error - noisy) / state.target.root_error_m2
        other_points[row] = not np.array_equal(kept, noisy_kept)
    return NoiseEffect(moved, other_points)


def _joined(state: OracleState, seen: Float64, config: OracleConfig) -> tuple[float, NDArray[np.int64]]:
    """Error once the points seen (n, 3) joined the state's, and which of them are kept."""
    grid, target = fusion_grid(config), state.target
    first = np.asarray(grid.first(seen), np.int64)
    kept = first[~np.isin(grid.keys(seen[first]), grid.keys(state.cloud.points))]
    new = seen[kept].astype(np.float32)
    extended = target.crop.surface.extended(target.state, new[points_in(new, target.crop.box_row)])
    return float(target.crop.surface.error(extended)), kept
