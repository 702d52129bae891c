import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.errors import GeometryError
from rollout_assets.geometry import poses
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


def random_poses(rng: np.random.Generator, n: int, reach_m: float = 10.0) -> np.ndarray:
    turns, _ = np.linalg.qr(rng.normal(size=(n, 3, 3)))
    turns[np.linalg.det(turns) < 0, :, 0] *= -1
    return poses.make_pose(turns, rng.uniform(-reach_m, reach_m, (n, 3)))


@given(st.integers(0, 2**32 - 1))
def test_inverse_undoes_a_pose(seed):
    pose = random_poses(np.random.default_rng(seed), 16, reach_m=1.0)
    back = poses.compose(poses.inverse(pose), pose)
    assert np.abs(back - poses.IDENTITY_POSE).max() < 1e-6
    assert np.abs(poses.inverse(poses.inverse(pose)) - pose).max() < 1e-6


@given(st.integers(0, 2**32 - 1))
def test_composition_is_transformation_in_turn(seed):
    rng = np.random.default_rng(seed)
    a, b = random_poses(rng, 8, 1.0), random_poses(rng, 8, 1.0)
    points = rng.uniform(-1, 1, (8, 5, 3)).astype(np.float32)
    once = poses.transform(poses.compose(a, b), points)
    twice = poses.transform(a, poses.transform(b, points))
    assert np.abs(once - twice).max() < 2e-6


def test_composition_broadcasts_over_leading_dimensions():
    rng = np.random.default_rng(0)
    many, one = random_poses(rng, 4), random_poses(rng, 1)[0]
    assert poses.compose(one, many).shape == (4, 12)
    assert np.array_equal(poses.compose(one, many)[2], poses.compose(one, many[2]))
    assert poses.compose(many[:, None], many[None]).shape == (4, 4, 12)


def test_rig_becomes_left_up_forward():
    luf = poses.compose(poses.IDENTITY_POSE, poses.RIG_FROM_LUF)
    left, up, forward = poses.rotation(luf).T
    assert left.tolist() == [0, 1, 0] and up.tolist() == [-1, 0, 0] and forward.tolist() == [0, 0, 1]


def test_looking_along_x_has_left_along_y_and_up_along_z():
    pose = poses.look_along([1, 2, 3], [5, 0, 0])
    assert np.allclose(poses.rotation(pose), np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]]))
    assert poses.translation(pose).tolist() == [1, 2, 3]


@given(st.floats(-3.1, 3.1), st.floats(-1.5, 1.5))
def test_looking_is_roll_free_and_rigid(yaw, pitch):
    forward = [np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)]
    pose = poses.look_along([0, 0, 0], forward)
    turn = poses.rotation(pose)
    assert poses.finite_rigid(pose)
    assert abs(turn[2, 0]) < 1e-6  # left is level
    assert turn[2, 1] > 0  # up points up
    assert np.allclose(turn[:, 2], forward, atol=1e-6)


def test_looking_straight_up_is_still_a_rotation():
    assert poses.finite_rigid(poses.look_along([[0, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 0, -1]])).all()


@given(st.floats(-3.1, 3.1), st.floats(-1.4, 1.4))
def test_yaw_only_keeps_heading(yaw, pitch):
    forward = [np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)]
    level = poses.yaw_only(poses.look_along([1, 1, 1], forward))
    assert np.allclose(poses.rotation(level)[:, 2], [np.cos(yaw), np.sin(yaw), 0], atol=1e-5)
    assert poses.translation(level).tolist() == [1, 1, 1]


def test_straight_up_and_down_keep_the_heading_before_the_tilt():
    up = poses.make_pose([[0, -1, 0], [1, 0, 0], [0, 0, 1]], [0, 0, 0])  # heading +x tilted up: its top looks back
    down = poses.make_pose([[0, 1, 0], [1, 0, 0], [0, 0, -1]], [0, 0, 0])  # tilted down: its top looks ahead
    for pose in (up, down):
        assert poses.finite_rigid(pose)
        assert np.allclose(poses.rotation(poses.yaw_only(pose))[:, 2], [1, 0, 0])


def test_finite_rigid_refuses_what_is_no_pose():
    good = random_poses(np.random.default_rng(1), 4)
    bad = good.copy()
    bad[0, 3] = np.nan
    bad[1, :9] = 0
    bad[2, :3] *= -1  # a reflection
    assert poses.finite_rigid(good).all()
    assert poses.finite_rigid(bad).tolist() == [False, False, False, True]


@pytest.mark.parametrize("shape", [(11,), (3, 13), ()])
def test_wrong_width_is_refused_with_its_shape(shape):
    with refused(GeometryError, "12 floats", shape):
        poses.inverse(np.zeros(shape))


def test_zero_vector_cannot_be_normalised():
    with refused(GeometryError, "length 0"):
        poses.normalise([[1, 0, 0], [0, 0, 0]])
