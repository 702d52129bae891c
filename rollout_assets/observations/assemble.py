"""From what is known of some states to their observations: the one function behind stored states and live ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32
from rollout_assets.observations.cloud import TargetCloud
from rollout_assets.observations.frames import poses_seen_from
from rollout_assets.observations.observation import CLASS_BUCKETS, MOTION_COLUMNS, Arrays, Observations


@dataclass(frozen=True, eq=False)
class ObservedTarget:
    """What the actor knows of a target: its box as detected, and how much supports it, as a store keeps it."""

    pose_world_object: Float32
    extents_m: Float32
    class_name: str
    confidence: float
    support: tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class ObservedState:
    """One state, as far as the actor knows it.

    poses_world_camera (k, 12), position_id (k,), motion (k, 4) in the order of ``MOTION_COLUMNS`` and takeable (k,) are
    its candidates; taken_world_camera (s, 12) the poses from the root on, the last is where the actor stands.
    """

    target: ObservedTarget
    camera: PinholeCamera
    cloud: TargetCloud
    poses_world_camera: Float32
    position_id: NDArray[np.int32]
    motion: Float32
    takeable: NDArray[np.bool_]
    taken_world_camera: Float32
    steps_left: int


def observe(
    states: Sequence[ObservedState], config: ObservationConfig, width: int | None = None
) -> Observations[Arrays]:
    """Observations of some states, ``width`` candidates wide (the widest of them by default).

    What is made of a state does not depend on the states beside it, to the bit.
    """
    widest = max((len(state.takeable) for state in states), default=0)
    return Observations(
        **_candidates(states, widest if width is None else width),
        **_targets(states),
        **_points(states, config),
        **_taken(states, config.history),
        steps_left=np.array([state.steps_left for state in states], np.int64),
        camera=np.array([_shares(state.camera) for state in states], np.float32).reshape(-1, 4),
    )


def class_bucket(class_name: str) -> int:
    """The number that stands for a class."""
    return crc32(class_name.encode()) % CLASS_BUCKETS


def _candidates(states: Sequence[ObservedState], width: int) -> dict[str, Arrays]:
    count = len(states)
    mask = np.zeros((count, width), np.bool_)
    poses = np.zeros((count, width, 12), np.float32)
    position = np.full((count, width), -1, np.int64)
    motion = np.zeros((count, width, len(MOTION_COLUMNS)), np.float32)
    for row, state in enumerate(states):
        takeable = np.flatnonzero(state.takeable)
        mask[row, takeable] = True
        poses[row, takeable] = state.poses_world_camera[takeable]
        position[row, takeable] = state.position_id[takeable]
        motion[row, takeable] = np.nan_to_num(state.motion[takeable])
    camera, target = _current(states), _target_poses(states)
    return {
        "candidate_pose_camera": _where(mask, poses_seen_from(camera[:, None], poses)),
        "candidate_pose_target": _where(mask, poses_seen_from(target[:, None], poses)),
        "candidate_position": position,
        "candidate_motion": motion,
        "candidate_mask": mask,
    }


def _targets(states: Sequence[ObservedState]) -> dict[str, Arrays]:
    return {
        "target_extents": np.array([state.target.extents_m for state in states], np.float32).reshape(-1, 3),
        "target_class": np.array([class_bucket(state.target.class_name) for state in states], np.int64),
        "target_confidence": np.array([state.target.confidence for state in states], np.float32),
        "target_support": np.array([state.target.support for state in states], np.float32).reshape(-1, 3),
        "target_pose_camera": poses_seen_from(_current(states), _target_poses(states)),
    }


def _points(states: Sequence[ObservedState], config: ObservationConfig) -> dict[str, Arrays]:
    points = np.zeros((len(states), config.points, 3), np.float32)
    age = np.zeros((len(states), config.points), np.float32)
    mask = np.zeros((len(states), config.points), np.bool_)
    positions = poses_seen_from(_target_poses(states), _current(states))[:, 9:]
    for row, state in enumerate(states):
        points[row], age[row], mask[row] = state.cloud.sample(positions[row])
    return {"points": points, "point_age": age, "point_mask": mask}


def _taken(states: Sequence[ObservedState], history: int) -> dict[str, Arrays]:
    poses = np.zeros((len(states), history, 12), np.float32)
    mask = np.zeros((len(states), history), np.bool_)
    for row, state in enumerate(states):
        latest_first = state.taken_world_camera[::-1][:history]
        poses[row, : len(latest_first)] = latest_first
        mask[row, : len(latest_first)] = True
    seen = poses_seen_from(_target_poses(states)[:, None], poses)
    return {"taken_pose_target": _where(mask, seen), "taken_mask": mask}


def _where(mask: NDArray[np.bool_], poses: Float32) -> Float32:
    """Poses (b, n, 12) where the mask (b, n) is set, zero elsewhere: 0.0 and not -0.0, whatever the padding."""
    return np.where(mask[..., None], poses, np.float32(0.0))


def _current(states: Sequence[ObservedState]) -> Float32:
    return np.array([state.taken_world_camera[-1] for state in states], np.float32).reshape(-1, 12)


def _target_poses(states: Sequence[ObservedState]) -> Float32:
    return np.array([state.target.pose_world_object for state in states], np.float32).reshape(-1, 12)


def _shares(camera: PinholeCamera) -> tuple[float, float, float, float]:
    width, height = camera.width_px, camera.height_px
    return camera.fx_px / width, camera.fy_px / height, camera.cx_px / width, camera.cy_px / height
