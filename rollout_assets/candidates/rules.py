"""Which candidate views may be taken: measure every row, judge every rule on every row.

Judgements are made on what is stored: poses rounded to float32 and float32 measures, against limits rounded to
float32, so that a reader of the store can repeat them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.candidates.reasons import VALID_BITSET, InvalidReason
from rollout_assets.candidates.shell import CandidateDiagnostics, CandidateShell
from rollout_assets.config import CandidateRules
from rollout_assets.errors import GeometryError
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.vectors import UNDEFINED, angle_deg, components, dot, heading, length

Extent = tuple[Float32, Float32]
"""Lowest and highest corner of an axis-aligned region of the world, (3,) each."""


class CollisionWorld(Protocol):
    """What a simulator may be asked about the scene's surface. Answers to one point never depend on the others."""

    @property
    def bounds(self) -> Extent:
        """Extent of the surface."""

    def distance_m(self, points: Float32) -> Float32:
        """points: (n, 3) -> (n,) unsigned distance to the surface."""

    def path_min_clearance_m(self, starts: Float32, ends: Float32, samples: int) -> Float32:
        """starts, ends: (n, 3) -> (n,) least distance to the surface over ``samples`` points, both ends included."""


@dataclass(frozen=True, eq=False)
class CandidateStates:
    """n states from which views are offered.

    reference_world_camera: (n, 12) LUF, target_center_world, extent_low_world, extent_high_world: (n, 3).
    """

    reference_world_camera: Float64
    target_center_world: Float64
    extent_low_world: Float64
    extent_high_world: Float64

    def __post_init__(self) -> None:
        n = len(self.reference_world_camera)
        for name, values in vars(self).items():
            width = 12 if name == "reference_world_camera" else 3
            if values.shape != (n, width):
                raise GeometryError(f"{name} must have shape ({n}, {width}), got {values.shape}")
        if not (self.extent_low_world <= self.extent_high_world).all():
            lows, highs = self.extent_low_world.tolist(), self.extent_high_world.tolist()
            raise GeometryError(f"an extent must run from low to high on every axis, got {lows} to {highs}")

    @property
    def heading(self) -> Float64:
        """(3, n): horizontal unit direction each reference faces."""
        axes = components(self.reference_world_camera)
        return heading(axes[2:9:3], axes[1:9:3])


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What came of m rows, flat over states. ``bitset`` is exactly VALID where every rule passed."""

    diagnostics: CandidateDiagnostics
    bitset: NDArray[np.uint32]
    primary: NDArray[np.uint16]


def _free_space(measured: CandidateDiagnostics, _: CandidateRules) -> NDArray[np.bool_]:
    return measured.free_space_margin_m >= 0.0


def _realistic_motion(measured: CandidateDiagnostics, rules: CandidateRules) -> NDArray[np.bool_]:
    return (
        (measured.motion_step_length_m <= rules.max_step_m)
        & (np.abs(measured.motion_height_delta_m) <= rules.max_height_delta_m)
        & (measured.motion_backward_step_m <= rules.max_backward_m)
        & (measured.motion_yaw_delta_deg <= rules.max_yaw_deg)
    )


def _clear_of_mesh(measured: CandidateDiagnostics, rules: CandidateRules) -> NDArray[np.bool_]:
    return measured.mesh_distance_m > rules.min_mesh_distance_m


def _clear_path(measured: CandidateDiagnostics, _: CandidateRules) -> NDArray[np.bool_]:
    return ~measured.path_collision_mask


RULES: tuple[tuple[InvalidReason, Callable[[CandidateDiagnostics, CandidateRules], NDArray[np.bool_]]], ...] = (
    (InvalidReason.POSE_OUT_OF_EXTENT, _free_space),
    (InvalidReason.SAMPLER_RULE_REJECTED, _realistic_motion),
    (InvalidReason.CLEARANCE_TOO_SMALL, _clear_of_mesh),
    (InvalidReason.PATH_SEGMENT_COLLISION, _clear_path),
)
"""Rules on measures, in order, each with a predicate that is true where a row passes."""


def judge_views(
    pose_world_camera: Float32, states: CandidateStates, rules: CandidateRules, world: CollisionWorld
) -> Verdicts:
    """pose_world_camera: (n, k, 12), k views of each of n states -> verdicts on n * k rows.

    A measure that the world cannot give for a finite pose (NaN) fails its rule. A non-finite pose is never measured:
    it carries POSE_NONFINITE alone.
    """
    finite = finite_poses(pose_world_camera).reshape(-1)
    measured = measure(pose_world_camera, states, rules, world)
    bitset, primary = judge_measures(measured, finite, duplicates(pose_world_camera).reshape(-1), rules)
    return Verdicts(diagnostics=measured, bitset=bitset, primary=primary)


def judge_measures(
    measured: CandidateDiagnostics, finite: NDArray[np.bool_], repeated: NDArray[np.bool_], rules: CandidateRules
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Bitset and primary reason of m measured rows, before any ray is cast.

    finite: (m,) whether the pose is; repeated: (m,) whether it equals an earlier pose of its state.
    """
    failures = [(reason, finite & ~passes(measured, rules)) for reason, passes in RULES]
    failures.append((InvalidReason.POSE_NONFINITE, ~finite))
    failures.append((InvalidReason.CANDIDATE_DUPLICATE, repeated))
    bitset = np.zeros(len(finite), np.uint32)
    primary = np.full(len(finite), InvalidReason.VALID, np.uint16)
    for reason, fails in reversed(failures):
        bitset[fails] |= np.uint32(1 << reason)
        primary[fails] = reason
    bitset[bitset == 0] = VALID_BITSET
    return bitset, primary


def measure(
    pose_world_camera: Float32, states: CandidateStates, rules: CandidateRules, world: CollisionWorld
) -> CandidateDiagnostics:
    """Everything the rules look at, for n * k rows flat over states; see ``CandidateDiagnostics`` for the signs.

    The world gets one distance query and one path query for all finite rows of all states together.
    """
    finite = finite_poses(pose_world_camera)
    centres = components(np.where(finite[..., None], pose_world_camera, np.nan))[9:]
    start = components(states.reference_world_camera)[9:, :, None]
    low, high = components(states.extent_low_world)[..., None], components(states.extent_high_world)[..., None]
    near, clearance = _ask_world(centres, start, finite, rules, world)
    with np.errstate(invalid="ignore"):
        margin = np.minimum(centres - low, high - centres).min(axis=0)
    return CandidateDiagnostics(
        mesh_distance_m=near,
        path_min_clearance_m=clearance,
        path_collision_mask=path_collides(clearance, finite.reshape(-1), rules),
        free_space_margin_m=_column(margin),
        **measure_motion(pose_world_camera, states),
    )


def path_collides(clearance_m: Float32, finite: NDArray[np.bool_], rules: CandidateRules) -> NDArray[np.bool_]:
    """(m,): the pose is finite, and its path is not known to keep the clearance that the rules ask for."""
    with np.errstate(invalid="ignore"):
        return finite & ~(clearance_m >= rules.min_path_clearance_m)


def measure_motion(pose_world_camera: Float32, states: CandidateStates) -> dict[str, Float32]:
    """The measures that follow from poses and the target's centre alone, by name, for n * k rows flat over states."""
    finite = finite_poses(pose_world_camera)
    poses = components(pose_world_camera if finite.all() else np.where(finite[..., None], pose_world_camera, np.nan))
    ahead = states.heading[..., None]
    step = poses[9:] - components(states.reference_world_camera)[9:, :, None]
    to_target = components(states.target_center_world)[..., None] - poses[9:]
    with np.errstate(invalid="ignore"):
        bearing = np.degrees(np.arctan2(to_target[1], to_target[0]))
        overhead = np.sqrt(to_target[0] * to_target[0] + to_target[1] * to_target[1]) < UNDEFINED
        yaw = angle_deg(ahead, heading(poses[2:9:3], poses[1:9:3]))
        return {
            "motion_step_length_m": _column(length(step)),
            "motion_height_delta_m": _column(step[2]),
            "motion_backward_step_m": _column(np.maximum(-dot(step, ahead), 0.0)),
            "motion_yaw_delta_deg": _column(yaw),
            "target_distance_m": _column(length(to_target)),
            "target_bearing_yaw_deg": _column(np.where(overhead, np.nan, bearing)),
        }


def finite_poses(pose_world_camera: Float32) -> NDArray[np.bool_]:
    """pose_world_camera: (..., 12) -> (...)."""
    return np.asarray(np.isfinite(pose_world_camera).all(axis=-1))


def duplicates(pose_world_camera: Float32) -> NDArray[np.bool_]:
    """pose_world_camera: (n, k, 12) -> (n, k): equal to an earlier pose of the same state. NaN equals nothing."""
    repeated = np.zeros(pose_world_camera.shape[:2], bool)
    in_order = np.sort(pose_world_camera[..., 9], axis=1)
    for state in np.flatnonzero((in_order[:, 1:] == in_order[:, :-1]).any(axis=1)):
        seen: set[tuple[float, ...]] = set()
        for row in np.flatnonzero(finite_poses(pose_world_camera[state])):
            key = tuple(pose_world_camera[state, row].tolist())
            repeated[state, row] = key in seen
            seen.add(key)
    return repeated


def with_no_hit(shell: CandidateShell, hit_counts: ArrayLike) -> CandidateShell:
    """The shell after ray casting: a takeable view that hits nothing gets DEPTH_NO_HIT and is takeable no more.

    hit_counts: (k,) valid depth pixels per row; those of rows that were not takeable before are not looked at.
    """
    hits = np.asarray(hit_counts)
    if hits.shape != (len(shell),):
        raise GeometryError(f"hit_counts must have shape ({len(shell)},), got {hits.shape}")
    blind = shell.actor_action_mask & ~(hits > 0)
    bit, reason = np.uint32(1 << InvalidReason.DEPTH_NO_HIT), np.uint16(InvalidReason.DEPTH_NO_HIT)
    return replace(
        shell,
        actor_action_mask=shell.actor_action_mask & ~blind,
        invalid_reason_bitset=np.where(blind, bit, shell.invalid_reason_bitset),
        primary_invalid_reason=np.where(blind, reason, shell.primary_invalid_reason),
    )


def _ask_world(
    centres: Float64, start: Float64, finite: NDArray[np.bool_], rules: CandidateRules, world: CollisionWorld
) -> tuple[Float32, Float32]:
    """Distance and path clearance of n * k rows; NaN where the pose is not finite."""
    asked = finite.reshape(-1)
    near = np.full(len(asked), np.nan, np.float32)
    clearance = np.full(len(asked), np.nan, np.float32)
    if asked.any():
        ends = _points(centres)[asked]
        starts = _points(np.broadcast_to(start, centres.shape))[asked]
        near[asked] = _answer("distance_m", world.distance_m(ends), len(ends))
        answer = world.path_min_clearance_m(starts, ends, rules.path_samples)
        clearance[asked] = _answer("path_min_clearance_m", answer, len(ends))
    return near, clearance


def _answer(query: str, values: Float32, expected: int) -> Float32:
    answer = np.asarray(values, np.float32)
    if answer.shape != (expected,):
        raise GeometryError(f"{query} of the collision world must answer ({expected},), got {answer.shape}")
    return answer


def _points(vectors: Float64) -> Float32:
    """(3, n, k) -> (n * k, 3) contiguous float32."""
    return np.ascontiguousarray(vectors.reshape(3, -1).T, dtype=np.float32)


def _column(values: Float64) -> Float32:
    return values.reshape(-1).astype(np.float32)
