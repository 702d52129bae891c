"""Poses and points seen from another frame, term by term, so that one state and a thousand give the same bits.

A matrix product may sum in another order when it gets more rows; sums that are written out cannot.
"""

from __future__ import annotations

import numpy as np

from rollout_assets.geometry.poses import Float32, Float64


def poses_seen_from(pose_world_frame: Float32, poses_world: Float32) -> Float32:
    """pose_world_frame: (..., 12), poses_world: (..., 12), leading dimensions broadcast -> the poses in that frame."""
    frame, poses = pose_world_frame.astype(np.float64), poses_world.astype(np.float64)
    lead = np.broadcast_shapes(frame.shape[:-1], poses.shape[:-1])
    seen = np.empty((*lead, 12), np.float64)
    for row in range(3):
        for column in range(3):
            seen[..., 3 * row + column] = _turned_back(
                frame, row, poses[..., column], poses[..., 3 + column], poses[..., 6 + column]
            )
    seen[..., 9:] = _points_seen_from(frame, poses[..., 9:])
    return seen.astype(np.float32)


def points_seen_from(pose_world_frame: Float32, points_world: Float32) -> Float32:
    """pose_world_frame: (..., 12), points_world: (..., 3), leading dimensions broadcast -> the points in that frame."""
    return _points_seen_from(pose_world_frame.astype(np.float64), points_world.astype(np.float64)).astype(np.float32)


def points_in_world(pose_world_frame: Float32, points: Float64) -> Float32:
    """pose_world_frame: (12,), points: (n, 3) in that frame -> (n, 3) in the world."""
    pose = pose_world_frame.astype(np.float64)
    x, y, z = points[:, 0], points[:, 1], points[:, 2]
    rows = [pose[3 * row] * x + pose[3 * row + 1] * y + pose[3 * row + 2] * z + pose[9 + row] for row in range(3)]
    return np.stack(rows, axis=-1).astype(np.float32)


def _points_seen_from(frame: Float64, points: Float64) -> Float64:
    x, y, z = (points[..., axis] - frame[..., 9 + axis] for axis in range(3))
    return np.stack([_turned_back(frame, row, x, y, z) for row in range(3)], axis=-1)


def _turned_back(frame: Float64, row: int, x: Float64, y: Float64, z: Float64) -> Float64:
    """One row of the frame's transposed rotation times (x, y, z)."""
    return frame[..., row] * x + frame[..., 3 + row] * y + frame[..., 6 + row] * z
