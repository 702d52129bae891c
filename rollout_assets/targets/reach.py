"""Which boxes the actor can look at with its first view: bearing and distance against what it can turn and walk."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import CandidateConfig
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.vectors import components, heading


def least_turn_deg(reference_world_camera: Float32, centers_world: Float32, step_m: float) -> Float64:
    """centers_world: (n, 3) -> (n,) least yaw, in degrees, that looks at each point after a step of at most ``step_m``.

    That is the horizontal bearing off the reference's heading, less what a step sideways changes: asin(step /
    distance), or everything where the point is nearer than the step. NaN for a point that is not finite.
    """
    axes = components(reference_world_camera.astype(np.float64)[None])
    ahead = heading(axes[2:9:3], axes[1:9:3])[:2, 0]
    x, y = (centers_world.astype(np.float64)[:, :2] - axes[9:11, 0]).T
    bearing = np.degrees(np.arctan2(np.abs(ahead[0] * y - ahead[1] * x), ahead[0] * x + ahead[1] * y))
    distance = np.hypot(x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        gained = np.where(distance > step_m, np.degrees(np.arcsin(np.minimum(step_m / distance, 1.0))), 180.0)
    return np.asarray(np.where(np.isfinite(distance), np.maximum(bearing - gained, 0.0), np.nan))


def within_turn(reference_world_camera: Float32, centers_world: Float32, config: CandidateConfig) -> NDArray[np.bool_]:
    """(n,): whether some view within one step may look at each point without turning further than is allowed."""
    step_m = min(config.radius_max_m, config.rules.max_step_m)
    return least_turn_deg(reference_world_camera, centers_world, step_m) <= config.rules.max_yaw_deg
