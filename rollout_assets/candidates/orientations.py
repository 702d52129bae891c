"""Where candidate views look: four gazes, roll-free, optionally jittered inside a yaw and pitch box."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.shell import STRATEGY_IDS
from rollout_assets.config import CandidateConfig
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.vectors import roll_free_axes, to_world, unit


def gaze_directions(
    strategy_id: NDArray[np.int32], centres: Float64, reference: Float64, forward: Float64, target: Float64
) -> Float64:
    """Unit directions (3, n, k) in the world; NaN where a gaze has no direction.

    strategy_id: (k,). centres: (3, n, k). reference, forward, target: (3, n, 1). ``forward_rig`` keeps the reference's
    own gaze, pitch included; the radial ones look along the line from the reference; ``target_point`` at the target.
    """
    outward = centres - reference
    gaze = np.where(strategy_id == STRATEGY_IDS["forward_rig"], forward, target - centres)
    gaze = np.where(strategy_id == STRATEGY_IDS["radial_away"], outward, gaze)
    gaze = np.where(strategy_id == STRATEGY_IDS["radial_towards"], -outward, gaze)
    return unit(gaze)


def jittered(gaze: Float64, yaw: Float64, pitch: Float64, config: CandidateConfig) -> Float64:
    """Turn unit ``gaze`` (3, ...) inside its own view by a uniform box: yaw to the left, then pitch upwards.

    yaw, pitch: (...) uniforms in [0, 1). ``yaw_jitter_deg`` and ``pitch_jitter_deg`` are half widths.
    """
    if config.yaw_jitter_deg == 0.0 and config.pitch_jitter_deg == 0.0:
        return gaze
    left = np.radians(config.yaw_jitter_deg) * (2.0 * yaw - 1.0)
    rise = np.radians(config.pitch_jitter_deg) * (2.0 * pitch - 1.0)
    level = np.cos(rise)
    local = np.stack([np.sin(left) * level, np.sin(rise), np.cos(left) * level])
    return unit(to_world(roll_free_axes(gaze), local))


def roll_free_poses(centres: Float64, gaze: Float64) -> Float32:
    """centres, gaze: (3, n, k) -> LUF poses (n, k, 12). A pose with any non-finite part is NaN throughout."""
    axes = roll_free_axes(gaze)
    rows = np.concatenate([np.moveaxis(axes, 0, 1).reshape(9, *gaze.shape[1:]), centres])
    poses = np.ascontiguousarray(np.moveaxis(rows, 0, -1)).astype(np.float32)
    poses[~np.isfinite(poses).all(axis=-1)] = np.nan
    return poses
