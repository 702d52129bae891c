"""Observations as a Gymnasium space: one entry per array, without the dimension of the states.

Everything is as in ``Observations``, except that the target's confidence is (1,) instead of a bare number, because the
default networks of common libraries cannot flatten a number.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from rollout_assets.candidates.shell import POSITION_IDS
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.observations.observation import CLASS_BUCKETS, MOTION_COLUMNS, Arrays, Observations

FAR_M = 10_000.0
"""No coordinate of an observation is larger."""

MOST_SUPPORT = 1e9
"""No count of supporting points is larger."""

_POSE = np.array([1.1] * 9 + [FAR_M] * 3)
"""Bounds of a pose: a rotation, with room for rounding, then a translation."""

_SCALARS = ("target_confidence",)
"""Arrays that get a dimension of their own."""


def observation_space(config: ObservationConfig, views: int, horizon: int) -> spaces.Dict:
    """The space of one state's observations, ``views`` candidates wide."""
    points, history = config.points, config.history
    return spaces.Dict(
        {
            "candidate_pose_camera": _symmetric(_POSE, views, 12),
            "candidate_pose_target": _symmetric(_POSE, views, 12),
            "candidate_position": spaces.Box(-1, max(POSITION_IDS.values()), (views,), np.int64),
            "candidate_motion": _symmetric(FAR_M, views, len(MOTION_COLUMNS)),
            "candidate_mask": _flags(views),
            "target_extents": _from_zero(FAR_M, 3),
            "target_class": spaces.Discrete(CLASS_BUCKETS),
            "target_confidence": _from_zero(1, 1),
            "target_support": _from_zero(MOST_SUPPORT, 3),
            "target_pose_camera": _symmetric(_POSE, 12),
            "points": _symmetric(FAR_M, points, 3),
            "point_age": _from_zero(horizon, points),
            "point_mask": _flags(points),
            "taken_pose_target": _symmetric(_POSE, history, 12),
            "taken_mask": _flags(history),
            "steps_left": spaces.Discrete(horizon + 1),
            "camera": _symmetric(FAR_M, 4),
        }
    )


def as_arrays(observations: Observations[Arrays]) -> dict[str, Arrays]:
    """Observations of n states as a vector environment gives them."""
    return {name: values[:, None] if name in _SCALARS else values for name, values in observations.arrays().items()}


def member(arrays: Mapping[str, Arrays], row: int) -> dict[str, Arrays]:
    """One state of them, as an environment gives it, in memory of its own."""
    return {name: values[row].copy() for name, values in arrays.items()}


def as_observations(observation: Mapping[str, ArrayLike]) -> Observations[Arrays]:
    """What an environment, or a vector environment, gave, as a ``ViewPolicy`` and a model take it."""
    arrays = {name: np.asarray(values) for name, values in observation.items()}
    if arrays["steps_left"].ndim == 0:
        arrays = {name: values[None] for name, values in arrays.items()}
    return Observations(**{name: values[:, 0] if name in _SCALARS else values for name, values in arrays.items()})


def _symmetric(bound: float | NDArray[np.float64], *shape: int) -> spaces.Box:
    high = np.broadcast_to(bound, shape).astype(np.float32)
    return spaces.Box(-high, high, dtype=np.float32)


def _from_zero(bound: float, *shape: int) -> spaces.Box:
    return spaces.Box(0, bound, shape, np.float32)


def _flags(*shape: int) -> spaces.Box:
    return spaces.Box(0, 1, shape, np.bool_)  # type: ignore[arg-type]  # its annotations leave out what it accepts
