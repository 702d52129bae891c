"""Candidate rows, block by block: linked to their steps, masks nested, labels only where there may be any."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.reasons import INVALID_REASON_CODES, InvalidReason, bitset_is_consistent
from rollout_assets.candidates.shell import POSITION_IDS, STRATEGY_IDS
from rollout_assets.rollouts.zarr_store.checks.block import Block
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows, differs
from rollout_assets.rollouts.zarr_store.foreign.derived import SOURCE_OF_TARGET
from rollout_assets.rollouts.zarr_store.label_rules import (
    SMALLEST_ERROR,
    labels_apart,
    oracle_label_mask,
    q_train_mask,
)
from rollout_assets.rollouts.zarr_store.schema import (
    CANDIDATES,
    LABEL_COLUMNS,
    Q_H,
    ROLLOUTS,
)
from rollout_assets.rollouts.zarr_store.training_view import CANDIDATE_COLUMNS, build_view

_KNOWN_BITS = np.uint32(sum(1 << bit for bit in INVALID_REASON_CODES.values()))
_POSE_TOLERANCE = 1e-4
_PROBABILITY_TOLERANCE = 1e-5


def rows_linked(block: Block) -> Findings:
    """Candidates follow their steps: ids dense, parents right, shell and valid rows counted from 0."""
    state = block.state_of_row
    count = len(state)
    row = np.arange(block.rows.start, block.rows.start + count)
    actor = block.candidate("actor_action_mask")
    before = np.cumsum(actor) - actor
    compact = np.where(actor, before - before[block.shell_starts][state], -1)
    for name, expected, text in (
        ("candidate_row_id", row, "must be the row's own number"),
        ("step_row_id", state + block.start, "must be the step whose shell the row lies in"),
        ("rollout_row_id", block.step("rollout_row_id")[state], "must be its step's rollout"),
        ("step_index", block.step("step_index")[state], "must be its step's index"),
        ("shell_index", np.arange(count) - block.shell_starts[state], "must count from 0 in each shell"),
        ("compact_valid_index", compact, "must count the valid rows of a shell, -1 on invalid ones"),
        ("selected_mask", _selected(block), "must be true at the step's selected candidate and nowhere else"),
    ):
        yield from block.bad_candidates(name, block.candidate(name) != expected, text)


def counts_match(block: Block) -> Findings:
    """Steps count their valid candidates, and name the selected one the same way three times."""
    actor = block.candidate("actor_action_mask")
    wrong = block.step("num_valid_candidates") != np.add.reduceat(actor, block.shell_starts, dtype=np.int32)
    yield from block.bad_steps("num_valid_candidates", wrong, "must count the valid candidates")
    has_selection, at = block.selection
    text = "must be that of the selected candidate"
    wrong = block.step("selected_shell_index") != np.where(has_selection, at - block.shell_starts, -1)
    yield from block.bad_steps("selected_shell_index", wrong, text)
    expected = np.where(has_selection, block.candidate("compact_valid_index")[at], -1)
    wrong = block.step("selected_compact_valid_index") != expected
    yield from block.bad_steps("selected_compact_valid_index", wrong, text)
    text = "must be a candidate that may be taken"
    yield from block.bad_steps("selected_candidate_row_id", has_selection & ~actor[at], text)


def masks_nested(block: Block) -> Findings:
    """q_train within oracle_label within actor_action, each exactly as the label rules derive it."""
    actor, oracle = block.candidate("actor_action_mask"), block.candidate("oracle_label_mask")
    wrong = oracle != oracle_label_mask(actor, block.candidate("target_root_gain"))
    yield from block.bad_candidates("oracle_label_mask", wrong, "must be takeable with a finite target root gain")
    trainable = block.has_trainable_target[block.state_of_row]
    wrong = block.candidate("q_train_mask") != q_train_mask(actor, oracle, trainable)
    text = "must be takeable, labelled, and of a target whose label is valid"
    yield from block.bad_candidates("q_train_mask", wrong, text)


def reasons_match_masks(block: Block) -> Findings:
    """A takeable row carries VALID and nothing else; any other row a known reason, the primary among them."""
    actor, bitset = block.candidate("actor_action_mask"), block.candidate("invalid_reason_bitset")
    wrong = ~bitset_is_consistent(bitset, actor) | (bitset & ~_KNOWN_BITS != 0)
    text = "must be VALID alone on takeable rows and known reasons on others"
    yield from block.bad_candidates("invalid_reason_bitset", wrong, text)
    primary = np.minimum(block.candidate("primary_invalid_reason"), 31).astype(np.uint32)
    wrong = (bitset >> primary) & 1 == 0
    yield from block.bad_candidates("primary_invalid_reason", wrong, "must be one of the bitset's reasons")


def labels_only_where_valid(block: Block) -> Findings:
    """Invalid rows have no label, no probability, no logit."""
    invalid = np.flatnonzero(~block.candidate("actor_action_mask"))
    fills = dict.fromkeys((*LABEL_COLUMNS, "selection_logits"), np.nan)
    fills |= {"selection_probabilities": 0.0, "selection_log_probabilities": -np.inf}
    if CANDIDATES.path("selection_inclusion_probabilities") not in block.store.lacking:
        fills["selection_inclusion_probabilities"] = 0.0
    for name, fill in fills.items():
        on_invalid = block.candidate(name)[invalid]
        at = np.flatnonzero(~np.isnan(on_invalid) if np.isnan(fill) else on_invalid != fill)
        if len(at):
            wrong = np.zeros(len(block.state_of_row), np.bool_)
            wrong[invalid[at]] = True
            yield from block.bad_candidates(name, wrong, f"must be {fill} on invalid rows")


def choices_plausible(block: Block) -> Findings:
    """Probabilities lie between 0 and 1; ids are known; a takeable row says where it came from."""
    actor = block.candidate("actor_action_mask")
    probability = block.candidate("selection_probabilities")
    wrong = (probability < 0) | (probability > 1)
    yield from block.bad_candidates("selection_probabilities", wrong, "must be between 0 and 1")
    wrong = block.candidate("selection_log_probabilities") > 1e-6
    yield from block.bad_candidates("selection_log_probabilities", wrong, "must be <= 0")
    wrong = np.abs(np.exp(block.candidate("selection_log_probabilities")) - probability) > _PROBABILITY_TOLERANCE
    yield from block.bad_candidates("selection_log_probabilities", wrong, "must be the logarithm of the probability")
    sampler = block.candidate("sampler_probability")
    wrong = actor & ~((sampler > 0) & (sampler <= 1))
    yield from block.bad_candidates("sampler_probability", wrong, "must be in (0, 1] on takeable rows")
    for name, highest in (
        ("strategy_id", len(STRATEGY_IDS) - 1),
        ("position_id", len(POSITION_IDS) - 1),
        ("mixture_id", np.iinfo(np.int32).max),
        ("score_source_id", len(block.store.strings("score_source")) - 1),
    ):
        ids = block.candidate(name)
        wrong = (ids < -1) | (ids > highest) | (actor & (ids < 0))
        text = f"must be 0 to {highest} on takeable rows, -1 to {highest} on others"
        yield from block.bad_candidates(name, wrong, text)


def draws_consistent(block: Block) -> Findings:
    """Drawn rows could be drawn, the selected row among them, each at least as likely as it is to be the first pick."""
    if block.store.lacking - {SOURCE_OF_TARGET}:
        return
    drawn, inclusion = block.candidate("drawn_mask"), block.candidate("selection_inclusion_probabilities")
    wrong = (drawn & ~block.candidate("actor_action_mask")) | (_selected(block) & ~drawn)
    yield from block.bad_candidates(
        "drawn_mask", wrong, "must be true at the selected candidate, false on invalid rows"
    )
    lowest = block.candidate("selection_probabilities") * np.float32(1 - 1e-5)
    wrong = (inclusion < lowest) | (inclusion < 0) | (inclusion > 1) | (drawn & (inclusion == 0))
    text = "must be between selection_probabilities and 1, and above 0 on drawn rows"
    yield from block.bad_candidates("selection_inclusion_probabilities", wrong, text)
    has_selection, _ = block.selection
    log_draw = block.step("selected_draw_log_probability")
    wrong = np.where(has_selection, ~(np.isfinite(log_draw) & (log_draw <= 0)), ~np.isnan(log_draw))
    text = "must be finite and <= 0, NaN where nothing was selected"
    yield from block.bad_steps("selected_draw_log_probability", wrong, text)


def labels_follow_errors(block: Block) -> Findings:
    """Gains are what errors before and after make them; all candidates of a step start from the same error."""
    for what in ("target", "scene"):
        before, after = block.candidate(f"{what}_pm_dist_before"), block.candidate(f"{what}_pm_dist_after")
        if np.isnan(before).all() and np.isnan(after).all():
            continue
        wrong = labels_apart(before, np.fmax.reduceat(before, block.shell_starts)[block.state_of_row])
        text = "must be the same for all candidates of a step"
        yield from block.bad_candidates(f"{what}_pm_dist_before", wrong, text)
        yield from block.bad_candidates(f"{what}_pm_dist_before", before < 0, "must be >= 0")
        yield from block.bad_candidates(f"{what}_pm_dist_after", after < 0, "must be >= 0")
        floored, floored_after = (np.maximum(error, np.float32(SMALLEST_ERROR)) for error in (before, after))
        wrong = labels_apart(block.candidate(f"{what}_rri"), (before - after) / floored)
        yield from block.bad_candidates(f"{what}_rri", wrong, "must be (before - after) / before")
        wrong = labels_apart(block.candidate(f"{what}_log_error_gain"), np.log(floored) - np.log(floored_after))
        yield from block.bad_candidates(f"{what}_log_error_gain", wrong, "must be ln before - ln after")
        root = np.maximum(block.root_errors(what), np.float32(SMALLEST_ERROR))[block.state_of_row]
        wrong = labels_apart(block.candidate(f"{what}_root_gain"), (before - after) / root)
        yield from block.bad_candidates(f"{what}_root_gain", wrong, "must be (before - after) / root error")


def poses_relative_to_root(block: Block) -> Findings:
    """Takeable rows have finite poses, and the root pose times the relative one is the pose in the world."""
    world, relative = block.candidate("pose_world_cam"), block.candidate("pose_relative_root")
    finite = np.isfinite(world).all(axis=1)
    wrong = block.candidate("actor_action_mask") & ~finite
    yield from block.bad_candidates("pose_world_cam", wrong, "must be finite on takeable rows")
    rollout = np.clip(block.step("rollout_row_id"), 0, max(block.store.rows(ROLLOUTS) - 1, 0))
    root = block.store.column(ROLLOUTS, "root_pose_world")[rollout][block.state_of_row]
    wrong = np.zeros(len(world), np.bool_)
    for row in range(3):
        a, b, c = (root[:, 3 * row + k] for k in range(3))
        for target, at in ((3 * row, 0), (3 * row + 1, 1), (3 * row + 2, 2), (9 + row, None)):
            x, y, z = (relative[:, 9 + k if at is None else at + 3 * k] for k in range(3))
            made = a * x + b * y + c * z
            if at is None:
                made += root[:, target]
            off = np.abs(made - world[:, target])
            wrong |= off > _POSE_TOLERANCE * np.maximum(np.abs(world[:, target]), 1)
    text = "must be the candidate's pose as seen from the root"
    yield from block.bad_candidates("pose_relative_root", wrong & finite, text)
    wrong = np.isfinite(relative).all(axis=1) != finite
    yield from block.bad_candidates("pose_relative_root", wrong, "must be finite where the pose is")


def diagnostics_aligned(block: Block) -> Findings:
    """Diagnostics follow the candidates row by row; a colliding path and its reason bit always agree.

    Another writer's mask may be false for want of a measurement.
    """
    for name in ("candidate_row_id", "position_id"):
        wrong = block.diagnostic(name) != block.candidate(name)
        yield from block.bad_diagnostics(name, wrong, "must be the candidate's")
    bit = np.uint32(1 << InvalidReason.PATH_SEGMENT_COLLISION)
    collides, said = block.diagnostic("path_collision_mask"), block.candidate("invalid_reason_bitset") & bit != 0
    wrong = collides & ~said if block.store.of_other_writer else collides != said
    text = "must be true exactly where PATH_SEGMENT_COLLISION is set"
    yield from block.bad_diagnostics("path_collision_mask", wrong, text)


def view_matches_tables(block: Block) -> Findings:
    """The stored training view equals the one that the tables make."""
    store = block.store
    candidates = {name: block.candidate(name) for name in CANDIDATE_COLUMNS}
    gamma = store.attributes.get("discount_gamma", 1.0)
    derived = build_view(store.states, candidates, block.start, block.stop, gamma)
    for name in Q_H.names:
        stored, expected = block.view(name), derived[name]
        if stored.shape != expected.shape:
            continue  # arrays_as_schema or states_cover_steps says so
        if stored.tobytes() != np.ascontiguousarray(expected).tobytes():
            text = "must equal the view derived from the tables"
            first = store.states.states(block.start, block.stop).start
            yield from bad_rows(Q_H.path(name), differs(stored, expected), text, stored, first)


BLOCK_CHECKS: tuple[Callable[[Block], Findings], ...] = (
    rows_linked,
    counts_match,
    masks_nested,
    reasons_match_masks,
    labels_only_where_valid,
    choices_plausible,
    draws_consistent,
    labels_follow_errors,
    poses_relative_to_root,
    diagnostics_aligned,
    view_matches_tables,
)
"""Checks of a block of candidates."""


def _selected(block: Block) -> NDArray[np.bool_]:
    has_selection, at = block.selection
    mask = np.zeros(len(block.state_of_row), np.bool_)
    mask[at[has_selection]] = True
    return mask
