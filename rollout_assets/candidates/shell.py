"""The shell: every view offered at one state, takeable or not, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import GeometryError
from rollout_assets.geometry.poses import Float32

POSITION_IDS: dict[str, int] = {
    "upper_bound_free_shell": 0,
    "forward_local": 1,
    "target_bearing_local": 2,
    "lateral_target_bypass": 3,
    "local_refinement": 4,
    "revisit_backtrack": 5,
}
"""Position mode -> stored id."""

STRATEGY_IDS: dict[str, int] = {"forward_rig": 0, "radial_away": 1, "radial_towards": 2, "target_point": 3}
"""Orientation -> stored id; the store calls orientations strategies."""


@dataclass(frozen=True, eq=False)
class CandidateDiagnostics:
    """What the rules measured, for every row, valid or not: k values each; NaN or False where unavailable.

    Measured on the stored float32 pose, against the reference pose's position and horizontal heading:

    - mesh_distance_m: from the view's centre to the nearest surface, >= 0.
    - path_min_clearance_m: least distance to a surface on the straight path from the reference, >= 0;
      path_collision_mask: that is below its limit. It agrees with the bit PATH_SEGMENT_COLLISION on every row.
    - free_space_margin_m: distance to the nearest plane of the extent, > 0 inside; outside, minus the farthest
      overshoot along one axis.
    - motion_step_length_m: straight-line distance, >= 0. motion_height_delta_m: world z, > 0 when the view is higher.
    - motion_backward_step_m: step against the heading, 0 for a step ahead or aside, never negative.
    - motion_yaw_delta_deg: angle between the headings, 0..180, without sign.
    - target_distance_m: from the view's centre to the target's. target_bearing_yaw_deg: world azimuth of the target
      seen from the view, atan2(dy, dx), -180..180, counter-clockwise from +X; NaN straight above or below.

    A row whose pose is not finite has NaN in every measure and False in the mask.
    """

    mesh_distance_m: Float32
    path_min_clearance_m: Float32
    path_collision_mask: NDArray[np.bool_]
    free_space_margin_m: Float32
    motion_step_length_m: Float32
    motion_height_delta_m: Float32
    motion_backward_step_m: Float32
    motion_yaw_delta_deg: Float32
    target_distance_m: Float32
    target_bearing_yaw_deg: Float32


@dataclass(frozen=True, eq=False)
class CandidateShell:
    """k candidate views of one state; row order is the shell index.

    pose_world_camera: (k, 12) float32 LUF. actor_action_mask is true exactly where invalid_reason_bitset is VALID.
    """

    pose_world_camera: Float32
    position_id: NDArray[np.int32]
    strategy_id: NDArray[np.int32]
    mixture_id: NDArray[np.int32]
    sampler_probability: Float32
    actor_action_mask: NDArray[np.bool_]
    invalid_reason_bitset: NDArray[np.uint32]
    primary_invalid_reason: NDArray[np.uint16]
    diagnostics: CandidateDiagnostics

    def __post_init__(self) -> None:
        k = len(self.pose_world_camera)
        for name, values in (vars(self) | vars(self.diagnostics)).items():
            if name != "diagnostics" and len(values) != k:
                raise GeometryError(f"shell column {name} has {len(values)} rows, expected {k}")

    def __len__(self) -> int:
        return len(self.pose_world_camera)
