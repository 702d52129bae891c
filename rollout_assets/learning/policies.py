"""The policies that this package registers: a trained checkpoint, and three simple ones that it should beat.

The simple ones are made of what the actor knows, in NumPy and state by state, so that how states are batched cannot
change a bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import PolicyRefused
from rollout_assets.geometry.poses import Float64
from rollout_assets.learning.checkpoints import load_policy
from rollout_assets.learning.unseen_surface import unseen_area_m2
from rollout_assets.observations.observation import Arrays, Observations
from rollout_assets.observations.policy import ViewPolicy

POSES_ONLY = ObservationConfig(points=1, near_margin_m=0.0, corridor_m=0.0, depth_px=1, history=64)
"""For policies that look at poses alone; of more than 64 poses taken, the latest."""

_DECIMALS = 9
"""Angles are rounded well above what a library's arc cosine may differ in."""


@dataclass(frozen=True)
class SimplePolicy:
    """A policy without weights: one function from observations to scores (b, k)."""

    observation: ObservationConfig
    score_source: str
    scores: Callable[[Observations[Arrays]], Float64]


def learned(checkpoint: Path | None) -> ViewPolicy:
    """The policy of a checkpoint that ``rollout-assets train`` wrote."""
    if checkpoint is None:
        raise PolicyRefused("policy learned needs a checkpoint, got none")
    return load_policy(checkpoint)


def nearest_to_target(checkpoint: Path | None = None) -> ViewPolicy:
    """Go to the view that is nearest to the target's centre."""
    _refuse_checkpoint("nearest_to_target", checkpoint)
    return SimplePolicy(POSES_ONLY, "minus_target_distance_m", minus_target_distance_m)


def largest_turn(checkpoint: Path | None = None) -> ViewPolicy:
    """Go to the view that sees the target from the side farthest from all sides seen so far."""
    _refuse_checkpoint("largest_turn", checkpoint)
    return SimplePolicy(POSES_ONLY, "turn_around_target_deg", turn_around_target_deg)


def most_new_points(checkpoint: Path | None = None) -> ViewPolicy:
    """Go to the view that shows most of the target's surface where no point is known yet."""
    _refuse_checkpoint("most_new_points", checkpoint)
    return SimplePolicy(ObservationConfig(), "unseen_target_area_m2", unseen_target_area_m2)


def minus_target_distance_m(observations: Observations[Arrays]) -> Float64:
    """(b, k) minus the distance of each view to the target's centre."""
    return -_lengths(observations.candidate_pose_target[..., 9:].astype(np.float64))


def turn_around_target_deg(observations: Observations[Arrays]) -> Float64:
    """(b, k) angle at the target's centre between each view and the pose taken whose direction is nearest to it."""
    views = _directions(observations.candidate_pose_target)
    taken = _directions(observations.taken_pose_target)
    cosines = sum(views[:, :, None, axis] * taken[:, None, :, axis] for axis in range(3))
    nearest = np.where(observations.taken_mask[:, None], cosines, -1.0).max(axis=2)
    return np.round(np.degrees(np.arccos(np.clip(nearest, -1.0, 1.0))), _DECIMALS)


def unseen_target_area_m2(observations: Observations[Arrays]) -> Float64:
    """(b, k) area of the target's box that each view would newly show; 0 where a view cannot be taken."""
    scores = np.zeros(observations.candidate_mask.shape)
    for row, takeable in enumerate(observations.candidate_mask):
        scores[row, takeable] = unseen_area_m2(
            observations.candidate_pose_target[row, takeable],
            observations.target_extents[row],
            observations.points[row, observations.point_mask[row]],
            observations.camera[row],
        )
    return scores


def _directions(poses: Arrays) -> Float64:
    """(..., 12) poses in the target's frame -> (..., 3) unit vectors from its centre; zero at the centre itself."""
    places = poses[..., 9:].astype(np.float64)
    return places / np.maximum(_lengths(places), 1e-9)[..., None]


def _lengths(vectors: Float64) -> Float64:
    """(..., 3) -> (...), written out: a matrix product may sum in another order when it gets more rows."""
    x, y, z = (vectors[..., axis] for axis in range(3))
    return np.asarray(np.sqrt(x * x + y * y + z * z))


def _refuse_checkpoint(policy: str, checkpoint: Path | None) -> None:
    if checkpoint is not None:
        raise PolicyRefused(f"policy {policy} has no weights and takes no checkpoint, got {checkpoint}")
