"""Which boxes the actor can look at: bearing and distance against what it can turn and walk in the horizon.

Two things are judged, both from the actor's side alone. **Bearing:** where every candidate view looks at the target,
the first view must turn all the way, whatever the horizon: what it cannot turn to cannot be taken, and without a first
view there is no second. Where candidates may look elsewhere, the actor may walk first, and turn with every step.
**Distance:** some view of the horizon must come near enough to see the box.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import CampaignConfig, CandidateConfig
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64, translation
from rollout_assets.geometry.vectors import components, heading

MIN_IMAGE_PX = 1.0
"""A box whose diagonal is shorter than this in the oracle's image falls between the rays of its pixels."""


def least_turn_deg(reference_world_camera: Float32, centers_world: Float32, walk_m: float) -> Float64:
    """centers_world: (n, 3) -> (n,) least yaw, in degrees, that looks at each point after a walk of at most ``walk_m``.

    That is the horizontal bearing off the reference's heading, less what walking sideways changes: asin(walk /
    distance), or everything where the point is nearer than the walk. NaN for a point that is not finite.
    """
    axes = components(reference_world_camera.astype(np.float64)[None])
    ahead = heading(axes[2:9:3], axes[1:9:3])[:2, 0]
    x, y = (centers_world.astype(np.float64)[:, :2] - axes[9:11, 0]).T
    bearing = np.degrees(np.arctan2(np.abs(ahead[0] * y - ahead[1] * x), ahead[0] * x + ahead[1] * y))
    distance = np.hypot(x, y)
    with np.errstate(divide="ignore", invalid="ignore"):
        gained = np.where(distance > walk_m, np.degrees(np.arcsin(np.minimum(walk_m / distance, 1.0))), 180.0)
    return np.asarray(np.where(np.isfinite(distance), np.maximum(bearing - gained, 0.0), np.nan))


def within_turn(
    reference_world_camera: Float32, centers_world: Float32, config: CandidateConfig, horizon: int = 1
) -> NDArray[np.bool_]:
    """(n,): whether a view may look at each point without turning further than ``horizon`` steps allow."""
    gazes = {component.orientation for component in config.mixture}
    walks = 1 if gazes == {"target_point"} else horizon
    turns = horizon if gazes & {"radial_away", "radial_towards"} else 1
    least = least_turn_deg(reference_world_camera, centers_world, walks * _step_m(config))
    return least <= turns * config.rules.max_yaw_deg + config.yaw_jitter_deg


def within_sight(
    reference_world_camera: Float32, boxes: OrientedBoxes, camera: PinholeCamera, config: CampaignConfig
) -> NDArray[np.bool_]:
    """(n,): whether some view of the longest recipe can see each box after walking straight towards it.

    It must then lie within the depth that the oracle measures and be larger than a pixel of its image.
    """
    scoring = camera.resized(config.oracle.height_px, config.oracle.width_px)
    diagonal_m = np.linalg.norm(boxes.extents_m.astype(np.float64), axis=1)
    away_m = np.linalg.norm(boxes.centers_world.astype(np.float64) - translation(reference_world_camera), axis=1)
    least_m = np.maximum(away_m - longest_horizon(config) * _step_m(config.candidates), 0.0)
    with np.errstate(invalid="ignore"):  # boxes that are not eligible may have infinite sides
        large = max(scoring.fx_px, scoring.fy_px) * diagonal_m >= MIN_IMAGE_PX * least_m
        return np.asarray(large & (least_m - 0.5 * diagonal_m < config.oracle.zfar_m))


def longest_horizon(config: CampaignConfig) -> int:
    """Steps of the campaign's longest recipe."""
    return max(recipe.horizon for recipe in config.recipes)


def _step_m(config: CandidateConfig) -> float:
    return min(config.radius_max_m, config.rules.max_step_m)
