"""Shells against the campaign, block by block: laid out, measured, judged and, with ``deep``, drawn as its rules say.

What only the source can say, such as the distance to a surface or a label itself, is held as far as tables allow: a
state that several chains pass through must be the same in all of them. ``inspect replay`` computes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.mixture import DRAWS_PER_CANDIDATE, ShellLayout, sample_poses
from rollout_assets.candidates.reasons import VALID_BITSET, InvalidReason
from rollout_assets.candidates.rules import (
    CandidateStates,
    duplicates,
    finite_poses,
    judge_measures,
    measure_motion,
    path_collides,
)
from rollout_assets.candidates.shell import CandidateDiagnostics
from rollout_assets.config import CampaignConfig
from rollout_assets.geometry.vectors import components
from rollout_assets.rollouts.zarr_store.checks.block import Block
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.findings import Findings
from rollout_assets.rollouts.zarr_store.label_rules import labels_apart
from rollout_assets.rollouts.zarr_store.schema import (
    CANDIDATE_DIAGNOSTICS,
    CANDIDATES,
    DIAGNOSTIC_COLUMNS,
    LABEL_COLUMNS,
    ROLLOUTS,
    STEPS,
)

_MEASURE_TOLERANCE = 1e-4
_POSE_TOLERANCE = 1e-5
_NO_HIT = np.uint32(1 << InvalidReason.DEPTH_NO_HIT)

_OF_A_STATE: Mapping[str, tuple[str, ...]] = {
    CANDIDATES.name: ("pose_world_cam", "invalid_reason_bitset", *LABEL_COLUMNS),
    CANDIDATE_DIAGNOSTICS.name: DIAGNOSTIC_COLUMNS,
}
"""Columns that depend on a state alone, whatever the recipe that came through it."""


def shells_as_offered(store: StoreUnderCheck) -> Findings:
    """Every step offers as many views as the campaign's mixture has."""
    if store.campaign is None:
        return
    count = store.campaign.candidates.num_candidates
    wrong = store.column(STEPS, "num_candidates") != count
    yield from store.bad_rows(STEPS, "num_candidates", wrong, f"must be the {count} views of the campaign's mixture")


def rows_as_laid_out(block: Block) -> Findings:
    """Gaze, position mode and component of each row follow from its place in the shell; all are equally likely."""
    campaign, width = block.store.campaign, block.width
    if campaign is None or width is None:
        return
    layout = ShellLayout.of(campaign.candidates)
    for name, expected in (
        ("strategy_id", layout.strategy_id),
        ("position_id", layout.position_id),
        ("mixture_id", layout.mixture_id),
        ("sampler_probability", np.full(width, 1.0 / width, np.float32)),
    ):
        wrong = (block.candidate(name).reshape(-1, width) != expected).reshape(-1)
        yield from block.bad_candidates(name, wrong, "must be that of its place in the campaign's mixture")


def measures_follow_poses(block: Block) -> Findings:
    """Motion and the target's direction are what poses make them; a path is never clearer than its end."""
    campaign, width = block.store.campaign, block.width
    if campaign is None or width is None:
        return
    distinct = np.unique(_first_states(block))
    views = block.candidate("pose_world_cam").reshape(-1, width, 12)[distinct]
    for name, expected in measure_motion(views, _states(block, distinct)).items():
        stored = block.diagnostic(name).reshape(-1, width)[distinct].reshape(-1)
        apart = np.abs(stored - expected)
        if name == "target_bearing_yaw_deg":
            apart = np.minimum(apart, np.abs(apart - np.float32(360.0)))
        wrong = (apart > np.float32(_MEASURE_TOLERANCE) * np.maximum(np.abs(expected), 1)) | (
            np.isnan(stored) != np.isnan(expected)
        )
        text = "must follow from the poses and the target's centre"
        yield from block.bad_diagnostics(name, _rows_of(block, distinct, wrong), text)
    near, clearance = block.diagnostic("mesh_distance_m"), block.diagnostic("path_min_clearance_m")
    yield from block.bad_diagnostics("mesh_distance_m", near < 0, "must be >= 0")
    wrong = (clearance < 0) | (clearance > near * np.float32(1 + _MEASURE_TOLERANCE) + np.float32(_MEASURE_TOLERANCE))
    text = "must be >= 0 and not above mesh_distance_m, where the path ends"
    yield from block.bad_diagnostics("path_min_clearance_m", wrong, text)


def reasons_follow_measures(block: Block) -> Findings:
    """Which rules a row broke follows from its measures and the campaign's limits; a free row may still see nothing."""
    campaign, width = block.store.campaign, block.width
    if campaign is None or width is None:
        return
    views = block.candidate("pose_world_cam").reshape(-1, width, 12)
    finite, repeated = finite_poses(views).reshape(-1), duplicates(views).reshape(-1)
    measured = CandidateDiagnostics(**{name: block.diagnostic(name) for name in DIAGNOSTIC_COLUMNS})
    rules = campaign.candidates.rules
    collides = path_collides(measured.path_min_clearance_m, finite, rules)
    text = f"must be true exactly where the path's clearance is below {rules.min_path_clearance_m} m"
    yield from block.bad_diagnostics("path_collision_mask", measured.path_collision_mask != collides, text)
    bitset, primary = judge_measures(measured, finite, repeated, rules)
    stored = block.candidate("invalid_reason_bitset")
    blind = (bitset == VALID_BITSET) & (stored == _NO_HIT)
    text = "must name the rules that the row's measures break, or DEPTH_NO_HIT alone"
    yield from block.bad_candidates("invalid_reason_bitset", (stored != bitset) & ~blind, text)
    primary = np.where(blind, np.uint16(InvalidReason.DEPTH_NO_HIT), primary)
    wrong = block.candidate("primary_invalid_reason") != primary
    yield from block.bad_candidates("primary_invalid_reason", wrong, "must be the first rule that the row breaks")


def supports_countable(block: Block) -> Findings:
    """Supports are counts: the state's own the same for all views of a step, a view's at most the image's pixels."""
    campaign = block.store.campaign
    if campaign is None:
        return
    current, seen = block.candidate("target_current_support"), block.candidate("target_candidate_support")
    common = np.fmax.reduceat(current, block.shell_starts)[block.state_of_row]
    lowest = campaign.oracle.min_current_points
    wrong = (current != np.floor(current)) | (current < lowest) | (current != common)
    wrong &= np.isfinite(current)
    text = f"must be one whole number of at least {lowest} for all labelled views of a step"
    yield from block.bad_candidates("target_current_support", wrong, text)
    most = _scored_pixels(campaign)
    wrong = (seen != np.floor(seen)) | (seen < 0) | (seen > most)
    text = f"must be a whole number of 0 to {most}, the pixels that are scored"
    yield from block.bad_candidates("target_candidate_support", wrong & np.isfinite(seen), text)
    before, after = block.candidate("target_pm_dist_before"), block.candidate("target_pm_dist_after")
    wrong = (seen == 0) & labels_apart(after, before)
    yield from block.bad_candidates("target_pm_dist_after", wrong, "must not change by a view without the target")
    labelled = np.isfinite(before)
    for name, values in (("target_current_support", current), ("target_candidate_support", seen)):
        yield from block.bad_candidates(name, np.isfinite(values) != labelled, "must be given exactly with a label")


def scenes_labelled_if_asked(block: Block) -> Findings:
    """Labels of the whole scene are there only where the campaign asks for them."""
    campaign = block.store.campaign
    if campaign is None or campaign.oracle.scene_labels:
        return
    for name in (name for name in LABEL_COLUMNS if name.startswith("scene_")):
        wrong = ~np.isnan(block.candidate(name))
        yield from block.bad_candidates(name, wrong, "must be nan: the campaign labels no scenes")


def same_state_same_shell(block: Block) -> Findings:
    """Chains that took the same views towards the same target were offered, measured and labelled the same."""
    if block.store.campaign is None or block.width is None:
        return
    first = _first_states(block)
    again = np.flatnonzero(first != np.arange(len(first)))
    if not len(again):
        return
    text = "must be the same in all chains that pass through the state"
    for table, names in _OF_A_STATE.items():
        of_candidates = table == CANDIDATES.name
        for name in names:
            values = block.candidate(name) if of_candidates else block.diagnostic(name)
            bits = values.view(np.uint8).reshape(len(first), block.width, -1)
            bits = bits.view(np.uint32) if bits.shape[2] % 4 == 0 else bits
            unequal = bits[again] != bits[first[again]]
            if unequal.any():
                wrong = np.zeros((len(first), block.width), np.bool_)
                wrong[again] = unequal.any(axis=2)
                report = block.bad_candidates if of_candidates else block.bad_diagnostics
                yield from report(name, wrong.reshape(-1), text)


def poses_as_drawn(block: Block) -> Findings:
    """With ``deep``: every view is the one that the campaign's seed draws at its state."""
    campaign, width = block.store.campaign, block.width
    if campaign is None or width is None or not block.store.deep:
        return
    distinct = np.unique(_first_states(block)[max(block.store.deep_from_step - block.start, 0) :])
    if not len(distinct):
        return
    draws = [rng.random((width, DRAWS_PER_CANDIDATE)) for rng in _generators(block, distinct)]
    config = campaign.candidates
    states = _states(block, distinct)
    expected = sample_poses(states, ShellLayout.of(config), components(np.stack(draws)), config).reshape(-1, 12)
    stored = block.candidate("pose_world_cam").reshape(-1, width, 12)[distinct].reshape(-1, 12)
    wrong = (np.abs(stored - expected) > _POSE_TOLERANCE * np.maximum(np.abs(expected), 1)).any(axis=1)
    wrong |= finite_poses(stored) != finite_poses(expected)
    text = "must be the view that the campaign's seed draws at this state"
    yield from block.bad_candidates("pose_world_cam", _rows_of(block, distinct, wrong), text)


SHELL_CHECKS: tuple[Callable[[Block], Findings], ...] = (
    rows_as_laid_out,
    measures_follow_poses,
    reasons_follow_measures,
    supports_countable,
    scenes_labelled_if_asked,
    same_state_same_shell,
    poses_as_drawn,
)
"""Checks of a block of candidates against the campaign."""


def _states(block: Block, steps: NDArray[np.int64]) -> CandidateStates:
    """Where the actor of some steps stands and what it looks for; a store does not say how far known space reaches."""
    centres = block.store.of_target("target_center_world")[block.rollout_of_step[steps]].astype(np.float64)
    everywhere = np.full_like(centres, np.inf)
    return CandidateStates(block.visited_poses[0][steps].astype(np.float64), centres, -everywhere, everywhere)


def _generators(block: Block, steps: NDArray[np.int64]) -> list[np.random.Generator]:
    store = block.store
    rollouts, depths = block.rollout_of_step[steps].tolist(), block.step("step_index")[steps].tolist()
    return [
        store.rollout_keys[rollout].candidates_rng(store.rollout_paths[rollout][:depth])
        for rollout, depth in zip(rollouts, depths, strict=True)
    ]


def _rows_of(block: Block, steps: NDArray[np.int64], wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows (m,) of some steps' shells -> rows (n,) of the block."""
    rows = np.zeros((block.stop - block.start, len(wrong) // max(len(steps), 1)), np.bool_)
    rows[steps] = wrong.reshape(len(steps), -1)
    return rows.reshape(-1)


def _first_states(block: Block) -> NDArray[np.int64]:
    """(steps,): the first step of the block that is in the same state.

    What follows from a state alone is computed once; ``same_state_same_shell`` holds the others against the first.
    """
    if "first_states" not in block.kept:
        _, first, inverse = np.unique(_state_ids(block), return_index=True, return_inverse=True)
        block.kept["first_states"] = first[inverse]
    first_states: NDArray[np.int64] = block.kept["first_states"]
    return first_states


def _state_ids(block: Block) -> NDArray[np.int64]:
    """(steps,): equal exactly for steps with the same target and path, as far as their chains begin in this block."""
    target = block.store.column(ROLLOUTS, "target_row_id")[block.rollout_of_step]
    index, shell = block.step("step_index").astype(np.int64), block.step("selected_shell_index").astype(np.int64)
    ids = -1 - np.arange(len(index))  # a chain that began in an earlier block equals no other
    assigned = 0
    for depth in range(int(index.max(initial=0)) + 1):
        steps = np.flatnonzero((index == depth) & (np.arange(len(index)) >= depth))
        parents = np.stack([ids[steps - 1], shell[steps - 1]], axis=1) if depth else target[steps][:, None]
        _, numbers = np.unique(parents, axis=0, return_inverse=True)
        ids[steps] = assigned + numbers.reshape(-1)
        assigned += len(steps)
    return ids


def _scored_pixels(campaign: CampaignConfig) -> int:
    oracle = campaign.oracle
    return -(-oracle.width_px // oracle.pixel_stride) * -(-oracle.height_px // oracle.pixel_stride)
