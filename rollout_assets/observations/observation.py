"""The observation type: what a policy gets of b states, k candidates wide. The one list of what an actor knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

A = TypeVar("A")
B = TypeVar("B")

Arrays = NDArray[Any]

MOTION_COLUMNS = (
    "motion_step_length_m",
    "motion_height_delta_m",
    "motion_backward_step_m",
    "motion_yaw_delta_deg",
)
"""Columns of ``candidate_motion``, in order: what the actor knows of the way to a view."""

CLASS_BUCKETS = 256
"""Classes are told apart by a digest of their name, so that sources with other class ids agree."""


@dataclass(frozen=True, eq=False)
class Observations(Generic[A]):
    """b states of k candidates, n points and h poses, as NumPy arrays or as tensors (``mapped``).

    Poses are (12,): rotation row-major, then translation. Rows of candidates that cannot be taken, and of padding, are
    zero, with position -1.

    - candidate_pose_camera, candidate_pose_target: (b, k, 12) float32, in the frame of the current camera and of the
      target's box. candidate_position: (b, k) int64 position mode. candidate_motion: (b, k, 4) float32, see
      ``MOTION_COLUMNS``. candidate_mask: (b, k) bool, which can be taken.
    - target_extents: (b, 3) float32 in metres. target_class: (b,) int64 below ``CLASS_BUCKETS``. target_confidence:
      (b,) float32. target_support: (b, 3) float32, semi-dense, evidence and effective counts. target_pose_camera:
      (b, 12) float32, the box in the frame of the current camera.
    - points: (b, n, 3) float32 in the target's frame, zero where padded. point_age: (b, n) float32, how many steps ago
      the point was first seen. point_mask: (b, n) bool.
    - taken_pose_target: (b, h, 12) float32 in the target's frame: where the actor stands, then where it stood before,
      back to the root. taken_mask: (b, h) bool.
    - steps_left: (b,) int64 views that may still be taken, this one included. camera: (b, 4) float32, focal lengths and
      principal point as shares of the image's width and height.
    """

    candidate_pose_camera: A
    candidate_pose_target: A
    candidate_position: A
    candidate_motion: A
    candidate_mask: A
    target_extents: A
    target_class: A
    target_confidence: A
    target_support: A
    target_pose_camera: A
    points: A
    point_age: A
    point_mask: A
    taken_pose_target: A
    taken_mask: A
    steps_left: A
    camera: A

    def mapped(self, change: Callable[[A], B]) -> Observations[B]:
        """Every array changed by one function, for example ``torch.from_numpy``."""
        return Observations(**{name: change(value) for name, value in self.arrays().items()})

    def arrays(self) -> dict[str, A]:
        """The arrays by name, in order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __len__(self) -> int:
        return len(self.steps_left)  # type: ignore[arg-type]


def stacked(parts: list[Observations[Arrays]]) -> Observations[Arrays]:
    """Observations of several lists of states as one; all must have the same widths."""
    arrays = [part.arrays() for part in parts]
    return Observations(**{name: np.concatenate([part[name] for part in arrays]) for name in arrays[0]})
