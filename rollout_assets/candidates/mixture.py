"""The finite set of views of a step: a mixture of position modes and gazes, for all frontier states at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.orientations import gaze_directions, jittered, roll_free_poses
from rollout_assets.candidates.positions import draw_directions, draw_radius, offset_directions
from rollout_assets.candidates.rules import CandidateStates, CollisionWorld, Extent, Verdicts, judge_views
from rollout_assets.candidates.shell import POSITION_IDS, STRATEGY_IDS, CandidateDiagnostics, CandidateShell
from rollout_assets.config import CandidateConfig
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.vectors import components, level_axes, to_local, to_world, unit

DRAWS_PER_CANDIDATE = 5
"""Uniforms a candidate takes from its state's generator: polar, turn, radius, yaw jitter, pitch jitter.

All five are drawn whether or not a configuration uses them, so that switching jitter on moves no position.
"""


@dataclass(frozen=True, eq=False)
class CandidateRequest:
    """One state that wants a shell.

    reference_pose_world_camera: (12,) LUF, roll-corrected: the root or the last selected view. target_center_world:
    (3,). extent: lowest and highest corner, (3,) each, of where a view may stand. rng: this state's own generator; one
    call draws from it exactly once, so a request is used once.
    """

    reference_pose_world_camera: Float32
    target_center_world: Float32
    extent: Extent
    rng: np.random.Generator


@dataclass(frozen=True, eq=False)
class ShellLayout:
    """What each of the k rows of a shell is, in component order: (k,) int32 each."""

    position_id: NDArray[np.int32]
    strategy_id: NDArray[np.int32]
    mixture_id: NDArray[np.int32]

    @classmethod
    def of(cls, config: CandidateConfig) -> ShellLayout:
        """The layout of every shell made with ``config``."""
        counts = [component.count for component in config.mixture]
        positions = np.array([POSITION_IDS[component.position] for component in config.mixture], np.int32)
        strategies = np.array([STRATEGY_IDS[component.orientation] for component in config.mixture], np.int32)
        return cls(
            position_id=np.repeat(positions, counts),
            strategy_id=np.repeat(strategies, counts),
            mixture_id=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        )


def generate_candidates(
    requests: Sequence[CandidateRequest], config: CandidateConfig, world: CollisionWorld
) -> tuple[CandidateShell, ...]:
    """One shell per request, all generated and judged together.

    A shell depends on its own request only, to the bit, as far as the world's answers do. A view without a defined
    direction or gaze keeps its row with a NaN pose and POSE_NONFINITE.
    """
    if not requests:
        return ()
    states = CandidateStates(
        reference_world_camera=np.array([request.reference_pose_world_camera for request in requests], np.float64),
        target_center_world=np.array([request.target_center_world for request in requests], np.float64),
        extent_low_world=np.array([request.extent[0] for request in requests], np.float64),
        extent_high_world=np.array([request.extent[1] for request in requests], np.float64),
    )
    layout = ShellLayout.of(config)
    shape = (config.num_candidates, DRAWS_PER_CANDIDATE)
    uniforms = components(np.stack([request.rng.random(shape) for request in requests]))
    with np.errstate(invalid="ignore"):
        poses = sample_poses(states, layout, uniforms, config)
        verdicts = judge_views(poses, states, config.rules, world)
    return tuple(_shells(poses, layout, verdicts))


def sample_poses(states: CandidateStates, layout: ShellLayout, uniforms: Float64, config: CandidateConfig) -> Float32:
    """Views before any rule: uniforms (5, n, k) -> LUF poses (n, k, 12), NaN throughout where undefined."""
    polar, turn, radius, yaw, pitch = uniforms
    reference = components(states.reference_world_camera)[..., None]
    target = components(states.target_center_world)[..., None]
    frame = level_axes(states.heading[..., None])
    to_target = to_local(frame, unit(target - reference[9:]))
    drawn = draw_directions(polar, turn, config)
    direction = offset_directions(layout.position_id, drawn, to_target)
    centres = reference[9:] + to_world(frame, direction) * draw_radius(radius, config)
    centres = centres.astype(np.float32).astype(np.float64)
    gaze = gaze_directions(layout.strategy_id, centres, reference[9:], unit(reference[2:9:3]), target)
    return roll_free_poses(centres, jittered(gaze, yaw, pitch, config))


def _shells(poses: Float32, layout: ShellLayout, verdicts: Verdicts) -> Iterator[CandidateShell]:
    """Cut flat verdicts into shells. Each owns its arrays, so that a kept shell does not keep its siblings alive."""
    n, k = poses.shape[:2]
    probability = np.full(k, 1.0 / k, np.float32)
    for state in range(n):
        rows = slice(state * k, (state + 1) * k)
        primary = verdicts.primary[rows].copy()
        measured = {name: values[rows].copy() for name, values in vars(verdicts.diagnostics).items()}
        yield CandidateShell(
            pose_world_camera=poses[state].copy(),
            position_id=layout.position_id,
            strategy_id=layout.strategy_id,
            mixture_id=layout.mixture_id,
            sampler_probability=probability,
            actor_action_mask=primary == 0,
            invalid_reason_bitset=verdicts.bitset[rows].copy(),
            primary_invalid_reason=primary,
            diagnostics=CandidateDiagnostics(**measured),
        )
