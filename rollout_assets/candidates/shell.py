"""The shell: every view offered at one state, takeable or not, as columns."""

from __future__ import annotations

from dataclasses import dataclass, fields

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
    """What the rules measured, for every row, valid or not: k values each; NaN or False where unavailable."""

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
        columns = [field.name for field in fields(self) if field.name != "diagnostics"]
        for owner, names in (
            (self, columns),
            (self.diagnostics, [field.name for field in fields(CandidateDiagnostics)]),
        ):
            for name in names:
                if len(getattr(owner, name)) != k:
                    raise GeometryError(f"shell column {name} has {len(getattr(owner, name))} rows, expected {k}")

    def __len__(self) -> int:
        return len(self.pose_world_camera)

    @property
    def compact_valid_index(self) -> NDArray[np.int32]:
        """(k,) rank of each row among the valid ones; -1 where invalid."""
        rank = np.cumsum(self.actor_action_mask) - 1
        return np.where(self.actor_action_mask, rank, -1).astype(np.int32)
