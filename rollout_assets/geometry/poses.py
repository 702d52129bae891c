"""Rigid poses as 12 floats: the rotation row-major (9), then the translation (3). ``T_a_b`` maps b to a."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.errors import GeometryError

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

IDENTITY_POSE: Float32 = np.array([1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0], np.float32)
"""The pose that moves nothing."""

RIG_FROM_LUF: Float32 = np.array([0, -1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0], np.float32)
"""Right-multiply a raw rig pose by this, exactly once, to get its left-up-forward camera pose."""

WORLD_UP: Float64 = np.array([0.0, 0.0, 1.0])
"""The world's vertical."""

_PARALLEL = 1e-6


def rotation(pose: ArrayLike) -> Float64:
    """pose: (..., 12) -> (..., 3, 3)."""
    array = _poses(pose)
    return array[..., :9].reshape(*array.shape[:-1], 3, 3)


def translation(pose: ArrayLike) -> Float64:
    """pose: (..., 12) -> (..., 3)."""
    return _poses(pose)[..., 9:]


def make_pose(rotations: ArrayLike, translations: ArrayLike) -> Float32:
    """rotations: (..., 3, 3), translations: (..., 3) -> (..., 12), leading dimensions broadcast."""
    turn = np.asarray(rotations, np.float64)
    shift = np.asarray(translations, np.float64)
    if turn.shape[-2:] != (3, 3) or shift.shape[-1:] != (3,):
        raise GeometryError(f"a pose needs (..., 3, 3) and (..., 3), got {turn.shape} and {shift.shape}")
    lead = np.broadcast_shapes(turn.shape[:-2], shift.shape[:-1])
    flat = np.broadcast_to(turn.reshape(*turn.shape[:-2], 9), (*lead, 9))
    return np.concatenate([flat, np.broadcast_to(shift, (*lead, 3))], axis=-1).astype(np.float32)


def compose(pose_a_b: ArrayLike, pose_b_c: ArrayLike) -> Float32:
    """T_a_b and T_b_c -> T_a_c, leading dimensions broadcast."""
    outer, inner = rotation(pose_a_b), translation(pose_b_c)
    moved = np.einsum("...ij,...j->...i", outer, inner) + translation(pose_a_b)
    return make_pose(outer @ rotation(pose_b_c), moved)


def inverse(pose_a_b: ArrayLike) -> Float32:
    """T_a_b -> T_b_a."""
    turned_back = np.swapaxes(rotation(pose_a_b), -1, -2)
    return make_pose(turned_back, -np.einsum("...ij,...j->...i", turned_back, translation(pose_a_b)))


def transform(pose_a_b: ArrayLike, points_b: ArrayLike) -> Float32:
    """pose: (..., 12), points_b: (..., n, 3) -> the same points in frame a, (..., n, 3)."""
    points = np.asarray(points_b, np.float64)
    turned = np.einsum("...ij,...nj->...ni", rotation(pose_a_b), points)
    return (turned + translation(pose_a_b)[..., None, :]).astype(np.float32)


def look_along(positions: ArrayLike, forward: ArrayLike) -> Float32:
    """Roll-free LUF poses at ``positions`` (..., 3) that look along ``forward`` (..., 3, any length).

    Straight up or down has no roll-free answer: left is then taken along world +Y, so the result is still a rotation.
    """
    direction = normalise(forward)
    left = np.cross(WORLD_UP, direction)
    vertical = np.linalg.norm(left, axis=-1, keepdims=True) < _PARALLEL
    left = normalise(np.where(vertical, np.array([0.0, 1.0, 0.0]), left))
    up = np.cross(direction, left)
    return make_pose(np.stack([left, up, direction], axis=-1), positions)


def yaw_only(pose_world_camera: ArrayLike) -> Float32:
    """The LUF pose at the same place that keeps the heading and drops pitch and roll.

    A gaze straight up or down has the heading it would have when tilted back to the horizon.
    """
    turn = rotation(pose_world_camera)
    forward, up = turn[..., 2], turn[..., 1]
    vertical = np.linalg.norm(forward[..., :2], axis=-1, keepdims=True) < _PARALLEL
    heading = np.where(vertical, -np.sign(forward[..., 2:]) * up, forward) * np.array([1.0, 1.0, 0.0])
    return look_along(translation(pose_world_camera), heading)


def normalise(vectors: ArrayLike) -> Float64:
    """vectors: (..., 3) -> unit vectors; the zero vector is refused."""
    array = np.asarray(vectors, np.float64)
    length = np.linalg.norm(array, axis=-1, keepdims=True)
    if not np.all(length > 0):
        raise GeometryError(f"cannot normalise a vector of length {float(np.min(length))}")
    return array / length


def finite_rigid(pose: ArrayLike, tolerance: float = 1e-3) -> NDArray[np.bool_]:
    """pose: (..., 12) -> (...): finite, and its rotation is orthonormal and right-handed within ``tolerance``."""
    array = _poses(pose)
    finite = np.asarray(np.isfinite(array).all(axis=-1))
    turn = rotation(np.where(finite[..., None], array, IDENTITY_POSE))
    error = np.abs(turn @ np.swapaxes(turn, -1, -2) - np.eye(3)).max(axis=(-1, -2))
    return finite & (error <= tolerance) & (np.linalg.det(turn) > 0)


def _poses(pose: ArrayLike) -> Float64:
    array = np.asarray(pose, np.float64)
    if array.shape[-1:] != (12,):
        raise GeometryError(f"a pose has 12 floats (rotation row-major, translation), got shape {array.shape}")
    return array
