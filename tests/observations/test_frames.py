"""Frames term by term: equal to the general functions, and to the bit whatever stands beside."""

import numpy as np
import pytest

from rollout_assets.geometry.poses import compose, inverse, look_along, transform
from rollout_assets.observations.frames import points_in_world, points_seen_from, poses_seen_from

pytestmark = pytest.mark.quick


def poses(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return look_along(rng.normal(size=(count, 3)), rng.normal(size=(count, 3)))


def test_frames_agree_with_composition() -> None:
    frame, others = poses(1, 0)[0], poses(50, 1)
    assert np.allclose(poses_seen_from(frame, others), compose(inverse(frame), others), atol=1e-6)
    points = np.random.default_rng(2).normal(size=(50, 3)).astype(np.float32)
    assert np.allclose(points_seen_from(frame, points), transform(inverse(frame), points), atol=1e-6)
    assert np.allclose(points_in_world(frame, points.astype(np.float64)), transform(frame, points), atol=1e-6)


def test_one_pose_and_a_thousand_give_the_same_bits() -> None:
    frames, others = poses(1000, 3), poses(1000, 4)
    together = poses_seen_from(frames, others)
    alone = np.stack([poses_seen_from(frame, other) for frame, other in zip(frames, others, strict=True)])
    assert np.array_equal(together, alone)
