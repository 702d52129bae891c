"""Fake observations of the right shapes, and labels that can be learned from them, for tests without a store."""

from __future__ import annotations

import numpy as np

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.geometry.poses import Float32, look_along
from rollout_assets.observations.observation import CLASS_BUCKETS, MOTION_COLUMNS, Arrays, Observations
from rollout_assets.randomness import rng_for


def fake_observations(
    states: int, width: int, config: ObservationConfig, seed: int = 0, valid_fraction: float = 0.8
) -> Observations[Arrays]:
    """b states of k candidates around targets at the origin; every state can take at least its first view."""
    rng = rng_for(seed, "fake observations")
    mask = rng.random((states, width)) < valid_fraction
    mask[:, 0] = True
    poses = _poses(rng, (states, width)) * mask[..., None]
    taken = _poses(rng, (states, config.history))
    return Observations(
        candidate_pose_camera=poses,
        candidate_pose_target=poses,
        candidate_position=np.where(mask, rng.integers(1, 4, (states, width)), -1),
        candidate_motion=rng.random((states, width, len(MOTION_COLUMNS)), np.float32) * mask[..., None],
        candidate_mask=mask,
        target_extents=rng.uniform(0.2, 2.0, (states, 3)).astype(np.float32),
        target_class=rng.integers(0, CLASS_BUCKETS, states),
        target_confidence=rng.random(states, np.float32),
        target_support=rng.integers(0, 200, (states, 3)).astype(np.float32),
        target_pose_camera=_poses(rng, (states,)),
        points=rng.normal(size=(states, config.points, 3)).astype(np.float32),
        point_age=rng.integers(0, 3, (states, config.points)).astype(np.float32),
        point_mask=rng.random((states, config.points)) < 0.9,
        taken_pose_target=taken,
        taken_mask=np.arange(config.history) < rng.integers(1, config.history + 1, states)[:, None],
        steps_left=rng.integers(1, 4, states),
        camera=np.full((states, 4), 0.5, np.float32),
    )


def _poses(rng: np.random.Generator, lead: tuple[int, ...]) -> Float32:
    count = int(np.prod(lead))
    centers = rng.normal(size=(count, 3)) * 2.0
    return look_along(centers, -centers).reshape(*lead, 12).astype(np.float32)
