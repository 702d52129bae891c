"""Where views look: four gazes with analytic answers, roll-free, jitter inside its box."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_assets.candidates.orientations import gaze_directions, jittered, roll_free_poses
from rollout_assets.candidates.shell import STRATEGY_IDS
from rollout_assets.config import CandidateConfig
from rollout_assets.geometry.poses import finite_rigid, look_along, rotation, yaw_only
from rollout_assets.geometry.vectors import heading, roll_free_axes
from rollout_assets.randomness import rng_for

pytestmark = pytest.mark.quick


def column(*values: float) -> np.ndarray:
    return np.reshape(np.array(values, float), (3, 1, 1))


def gaze(strategy: str, centre=(1.0, 2.0, 1.0), reference=(1.0, 1.0, 1.0), target=(1.0, 2.0, 3.0)) -> np.ndarray:
    ids = np.array([STRATEGY_IDS[strategy]], np.int32)
    return gaze_directions(ids, column(*centre), column(*reference), column(0.6, 0.0, 0.8), column(*target))[:, 0, 0]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("forward_rig", (0.6, 0.0, 0.8)),
        ("radial_away", (0.0, 1.0, 0.0)),
        ("radial_towards", (0.0, -1.0, 0.0)),
        ("target_point", (0.0, 0.0, 1.0)),
    ],
)
def test_each_gaze_looks_where_it_says(strategy, expected):
    assert gaze(strategy).tolist() == pytest.approx(expected)


def test_a_view_at_its_target_has_no_gaze():
    assert np.isnan(gaze("target_point", target=(1.0, 2.0, 1.0))).all()
    assert np.isnan(gaze("radial_away", reference=(1.0, 2.0, 1.0))).all()


def test_roll_free_poses_equal_look_along():
    rng = rng_for("roll free")
    directions = rng.normal(size=(500, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    directions = np.concatenate([directions, np.eye(3), -np.eye(3)])
    centres = rng.normal(size=directions.shape)
    poses = roll_free_poses(centres.T[:, None], directions.T[:, None])[0]
    assert np.allclose(poses, look_along(centres, directions), atol=1e-6)
    assert finite_rigid(poses, tolerance=1e-6).all()
    assert np.abs(rotation(poses)[:, 2, 0]).max() == 0.0, "left is horizontal"


def test_a_partly_undefined_pose_is_nan_throughout():
    poses = roll_free_poses(np.zeros((3, 1, 2)), np.stack([[[1.0, np.nan]], [[0.0, 0.0]], [[0.0, 0.0]]]))
    assert np.isfinite(poses[0, 0]).all()
    assert np.isnan(poses[0, 1]).all()


def test_jitter_fills_its_box_and_keeps_roll_free():
    config = CandidateConfig(yaw_jitter_deg=20.0, pitch_jitter_deg=10.0)
    yaw, pitch = rng_for("jitter").random((2, 20_000))
    start = np.array([0.6, 0.8, 0.0])[:, None]
    turned = jittered(start, yaw, pitch, config)
    axes = roll_free_axes(start)
    left, up, ahead = (np.einsum("ck,cn->n", axis, turned) for axis in axes)
    across, rise = np.degrees(np.arctan2(left, ahead)), np.degrees(np.arcsin(up))
    assert np.abs(across).max() <= 20 + 1e-9
    assert np.abs(rise).max() <= 10 + 1e-9
    assert np.ptp(across) > 39.9
    assert np.ptp(rise) > 19.9
    assert np.array_equal(jittered(start, yaw, pitch, CandidateConfig()), start)


def test_heading_is_that_of_the_yaw_only_frame():
    forwards = rng_for("heading").normal(size=(200, 3))
    poses = look_along(np.zeros((200, 3)), forwards)
    turns = rotation(poses)
    ours = heading(turns[:, :, 2].T, turns[:, :, 1].T)
    assert np.allclose(ours.T, rotation(yaw_only(poses))[:, :, 2], atol=1e-6)


def test_heading_survives_tilting_past_the_vertical_limit():
    for tilt in (np.pi / 2, -np.pi / 2):
        forward = np.array([0.0, np.cos(tilt), np.sin(tilt)])
        up = np.array([0.0, -np.sin(tilt), np.cos(tilt)])
        assert np.allclose(heading(forward, up), [0.0, 1.0, 0.0])
