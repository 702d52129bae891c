"""Candidate rows, block by block: linked to their steps, masks nested, labels only where there may be any."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.reasons import INVALID_REASON_CODES, InvalidReason, bitset_is_consistent
from rollout_assets.candidates.shell import POSITION_IDS, STRATEGY_IDS
from rollout_assets.rollouts.zarr_store.checks.store_under_check import Block
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows
from rollout_assets.rollouts.zarr_store.label_rules import (
    SMALLEST_ERROR,
    TELESCOPE_TOLERANCE,
    oracle_label_mask,
    q_train_mask,
)
from rollout_assets.rollouts.zarr_store.schema import (
    CANDIDATE_DIAGNOSTICS,
    CANDIDATES,
    LABEL_COLUMNS,
    Q_H,
    ROLLOUTS,
    STEPS,
    TARGETS,
)
from rollout_assets.rollouts.zarr_store.training_view import CANDIDATE_COLUMNS, build_view

_KNOWN_BITS = np.uint32(sum(1 << bit for bit in INVALID_REASON_CODES.values()))
_POSE_TOLERANCE = 1e-4


def rows_linked(block: Block) -> Findings:
    """Candidates follow their steps: ids dense, parents right, shell and valid rows counted from 0."""
    state = block.state_of_row
    count = len(state)
    row = np.arange(block.rows.start, block.rows.start + count)
    actor = block.candidate("actor_action_mask")
    before = np.cumsum(actor) - actor
    for name, expected, text in (
        ("candidate_row_id", row, "must be the row's own number"),
        ("step_row_id", state + block.start, "must be the step whose shell the row lies in"),
        ("rollout_row_id", block.step("rollout_row_id")[state], "must be its step's rollout"),
        ("step_index", block.step("step_index")[state], "must be its step's index"),
        ("shell_index", np.arange(count) - block.shell_starts[state], "must count from 0 in each shell"),
        (
            "compact_valid_index",
            np.where(actor, before - before[block.shell_starts][state], -1),
            "must count the valid rows of a shell, -1 on invalid ones",
        ),
        ("selected_mask", _selected(block), "must be true at the step's selected candidate and nowhere else"),
    ):
        values = block.candidate(name)
        yield from bad_rows(CANDIDATES.path(name), values != expected, text, values, block.rows.start)


def counts_match(block: Block) -> Findings:
    """Steps count their valid candidates, and name the selected one the same way three times."""
    actor = block.candidate("actor_action_mask")
    stored = block.step("num_valid_candidates")
    wrong = stored != np.add.reduceat(actor.astype(np.int32), block.shell_starts)
    yield from bad_rows(
        STEPS.path("num_valid_candidates"), wrong, "must count the valid candidates", stored, block.start
    )
    has_selection, at = _selected_rows(block)
    shell = block.step("selected_shell_index")
    wrong = shell != np.where(has_selection, at - block.shell_starts, -1)
    yield from bad_rows(
        STEPS.path("selected_shell_index"), wrong, "must be that of the selected candidate", shell, block.start
    )
    compact = block.step("selected_compact_valid_index")
    expected = np.where(has_selection, block.candidate("compact_valid_index")[at], -1)
    text = "must be that of the selected candidate"
    yield from bad_rows(STEPS.path("selected_compact_valid_index"), compact != expected, text, compact, block.start)
    wrong = has_selection & ~actor[at]
    text = "must be a candidate that may be taken"
    selected = block.step("selected_candidate_row_id")
    yield from bad_rows(STEPS.path("selected_candidate_row_id"), wrong, text, selected, block.start)


def masks_nested(block: Block) -> Findings:
    """q_train within oracle_label within actor_action, each exactly as the label rules derive it."""
    actor, oracle = block.candidate("actor_action_mask"), block.candidate("oracle_label_mask")
    expected = oracle_label_mask(actor, block.candidate("target_root_gain"))
    text = "must be takeable with a finite target root gain"
    yield from bad_rows(CANDIDATES.path("oracle_label_mask"), oracle != expected, text, oracle, block.rows.start)
    train = block.candidate("q_train_mask")
    expected = q_train_mask(actor, oracle, _trainable_steps(block)[block.state_of_row])
    text = "must be takeable, labelled, and of a target whose label is valid"
    yield from bad_rows(CANDIDATES.path("q_train_mask"), train != expected, text, train, block.rows.start)


def reasons_match_masks(block: Block) -> Findings:
    """A takeable row carries VALID and nothing else; any other row a known reason, the primary among them."""
    actor, bitset = block.candidate("actor_action_mask"), block.candidate("invalid_reason_bitset")
    primary = block.candidate("primary_invalid_reason")
    wrong = ~bitset_is_consistent(bitset, actor) | (bitset & ~_KNOWN_BITS != 0)
    text = "must be VALID alone on takeable rows and known reasons on others"
    yield from bad_rows(CANDIDATES.path("invalid_reason_bitset"), wrong, text, bitset, block.rows.start)
    wrong = (bitset >> np.minimum(primary, 31).astype(np.uint32)) & 1 == 0
    text = "must be one of the bitset's reasons"
    yield from bad_rows(CANDIDATES.path("primary_invalid_reason"), wrong, text, primary, block.rows.start)


def labels_only_where_valid(block: Block) -> Findings:
    """Invalid rows have no label, no probability, no logit."""
    invalid = np.flatnonzero(~block.candidate("actor_action_mask"))
    fills = dict.fromkeys((*LABEL_COLUMNS, "selection_logits"), np.nan)
    fills |= {"selection_probabilities": 0.0, "selection_log_probabilities": -np.inf}
    for name, fill in fills.items():
        values = block.candidate(name)
        on_invalid = values[invalid]
        at = np.flatnonzero(~np.isnan(on_invalid) if np.isnan(fill) else on_invalid != fill)
        if len(at):
            wrong = np.zeros(len(values), np.bool_)
            wrong[invalid[at]] = True
            text = f"must be {fill} on invalid rows"
            yield from bad_rows(CANDIDATES.path(name), wrong, text, values, block.rows.start)


def choices_plausible(block: Block) -> Findings:
    """Probabilities lie between 0 and 1; ids are known; a takeable row says where it came from."""
    first = block.rows.start
    actor = block.candidate("actor_action_mask")
    probability = block.candidate("selection_probabilities")
    wrong = (probability < 0) | (probability > 1)
    yield from bad_rows(
        CANDIDATES.path("selection_probabilities"), wrong, "must be between 0 and 1", probability, first
    )
    logs = block.candidate("selection_log_probabilities")
    yield from bad_rows(CANDIDATES.path("selection_log_probabilities"), logs > 1e-6, "must be <= 0", logs, first)
    sampler = block.candidate("sampler_probability")
    wrong = actor & ~((sampler > 0) & (sampler <= 1))
    text = "must be in (0, 1] on takeable rows"
    yield from bad_rows(CANDIDATES.path("sampler_probability"), wrong, text, sampler, first)
    for name, highest in (
        ("strategy_id", len(STRATEGY_IDS) - 1),
        ("position_id", len(POSITION_IDS) - 1),
        ("mixture_id", np.iinfo(np.int32).max),
        ("score_source_id", len(block.store.strings("score_source")) - 1),
    ):
        ids = block.candidate(name)
        wrong = (ids < -1) | (ids > highest) | (actor & (ids < 0))
        text = f"must be 0 to {highest} on takeable rows, -1 to {highest} on others"
        yield from bad_rows(CANDIDATES.path(name), wrong, text, ids, first)


def labels_follow_errors(block: Block) -> Findings:
    """Gains are what errors before and after make them; all candidates of a step start from the same error."""
    first, state = block.rows.start, block.state_of_row
    for what in ("target", "scene"):
        before, after = block.candidate(f"{what}_pm_dist_before"), block.candidate(f"{what}_pm_dist_after")
        if np.isnan(before).all() and np.isnan(after).all():
            continue
        path = CANDIDATES.path(f"{what}_pm_dist_before")
        own = np.fmax.reduceat(before, block.shell_starts)[state]
        yield from bad_rows(path, _apart(before, own), "must be the same for all candidates of a step", before, first)
        yield from bad_rows(path, before < 0, "must be >= 0", before, first)
        yield from bad_rows(CANDIDATES.path(f"{what}_pm_dist_after"), after < 0, "must be >= 0", after, first)
        small = np.float32(SMALLEST_ERROR)
        gain = before - after
        rri = block.candidate(f"{what}_rri")
        wrong = _apart(rri, gain / np.maximum(before, small))
        yield from bad_rows(CANDIDATES.path(f"{what}_rri"), wrong, "must be (before - after) / before", rri, first)
        log_gain = block.candidate(f"{what}_log_error_gain")
        wrong = _apart(log_gain, np.log(np.maximum(before, small)) - np.log(np.maximum(after, small)))
        text = "must be ln before - ln after"
        yield from bad_rows(CANDIDATES.path(f"{what}_log_error_gain"), wrong, text, log_gain, first)


def poses_relative_to_root(block: Block) -> Findings:
    """Takeable rows have finite poses, and the root pose times the relative one is the pose in the world."""
    world, relative = block.candidate("pose_world_cam"), block.candidate("pose_relative_root")
    actor, first = block.candidate("actor_action_mask"), block.rows.start
    finite = np.isfinite(world).all(axis=1)
    yield from bad_rows(
        CANDIDATES.path("pose_world_cam"), actor & ~finite, "must be finite on takeable rows", world, first
    )
    rollout = np.clip(block.step("rollout_row_id"), 0, max(block.store.rows(ROLLOUTS) - 1, 0))
    root = block.store.column(ROLLOUTS, "root_pose_world")[rollout][block.state_of_row]
    wrong = np.zeros(len(world), np.bool_)
    for row in range(3):
        a, b, c = (root[:, 3 * row + k] for k in range(3))
        for column, at in ((0, (0, 3, 6)), (1, (1, 4, 7)), (2, (2, 5, 8)), (9 + row, (9, 10, 11))):
            target = 3 * row + column if column < 3 else column
            made = a * relative[:, at[0]] + b * relative[:, at[1]] + c * relative[:, at[2]]
            if target >= 9:
                made += root[:, target]
            off = np.abs(made - world[:, target])
            wrong |= off > _POSE_TOLERANCE * np.maximum(np.abs(world[:, target]), 1)
    text = "must be the candidate's pose as seen from the root"
    yield from bad_rows(CANDIDATES.path("pose_relative_root"), wrong & finite, text, relative, first)
    wrong = np.isfinite(relative).all(axis=1) != finite
    yield from bad_rows(
        CANDIDATES.path("pose_relative_root"), wrong, "must be finite where the pose is", relative, first
    )


def diagnostics_aligned(block: Block) -> Findings:
    """Diagnostics follow the candidates row by row; a colliding path and its reason bit always agree."""
    first = block.rows.start
    for name in ("candidate_row_id", "position_id"):
        values = block.diagnostic(name)
        wrong = values != block.candidate(name)
        yield from bad_rows(CANDIDATE_DIAGNOSTICS.path(name), wrong, "must be the candidate's", values, first)
    bit = np.uint32(1 << InvalidReason.PATH_SEGMENT_COLLISION)
    stored = block.diagnostic("path_collision_mask")
    wrong = stored != (block.candidate("invalid_reason_bitset") & bit != 0)
    text = "must be true exactly where PATH_SEGMENT_COLLISION is set"
    yield from bad_rows(CANDIDATE_DIAGNOSTICS.path("path_collision_mask"), wrong, text, stored, first)


def view_matches_tables(block: Block) -> Findings:
    """The stored training view equals the one that the tables make."""
    store = block.store
    candidates = {name: block.candidate(name) for name in CANDIDATE_COLUMNS}
    gamma = store.attributes.get("discount_gamma", 1.0)
    derived = build_view(store.states, candidates, block.start, block.stop, gamma)
    for name in Q_H.names:
        stored, expected = block.view(name), derived[name]
        if stored.shape != expected.shape:
            continue  # arrays_as_schema says so
        if stored.tobytes() != np.ascontiguousarray(expected).tobytes():
            wrong = stored != expected
            if stored.dtype.kind == "f":
                wrong &= ~(np.isnan(stored) & np.isnan(expected))
            text = "must equal the view derived from the tables"
            yield from bad_rows(Q_H.path(name), wrong, text, stored, block.start)


BLOCK_CHECKS: tuple[Callable[[Block], Findings], ...] = (
    rows_linked,
    counts_match,
    masks_nested,
    reasons_match_masks,
    labels_only_where_valid,
    choices_plausible,
    labels_follow_errors,
    poses_relative_to_root,
    diagnostics_aligned,
    view_matches_tables,
)
"""Checks of a block of candidates."""


def _selected_rows(block: Block) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    selected = block.step("selected_candidate_row_id") - block.rows.start
    sizes = block.store.states.shell_sizes[block.start : block.stop]
    has_selection = (selected >= block.shell_starts) & (selected < block.shell_starts + sizes)
    return has_selection, np.where(has_selection, selected, 0)


def _selected(block: Block) -> NDArray[np.bool_]:
    has_selection, at = _selected_rows(block)
    mask = np.zeros(len(block.state_of_row), np.bool_)
    mask[at[has_selection]] = True
    return mask


def _trainable_steps(block: Block) -> NDArray[np.bool_]:
    store = block.store
    usable = store.column(TARGETS, "target_valid_mask") & store.column(TARGETS, "gt_label_valid_mask")
    target = store.states.target_row_id[block.start : block.stop]
    has_target = (target >= 0) & (target < len(usable))
    return has_target & usable[np.where(has_target, target, 0)]


def _apart(stored: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Where two columns differ by more than the tolerance; NaN on either side is another check's matter."""
    return np.abs(stored - expected) > TELESCOPE_TOLERANCE * np.maximum(np.abs(expected), 1)
