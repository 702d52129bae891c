"""Chains: steps in order, sums that add up, gains that telescope from the root's error to the last one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.rollouts.trace import TerminationReason
from rollout_assets.rollouts.zarr_store.checks.block import Block
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows, differs, problem
from rollout_assets.rollouts.zarr_store.label_rules import (
    SMALLEST_ERROR,
    TELESCOPE_TOLERANCE,
    labels_apart,
    running_sums,
)
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, CUMULATIVE_OF, Q_H, ROLLOUTS, STEPS

_GATHERED = (
    *CUMULATIVE_OF.values(),
    *(f"{what}_pm_dist_{when}" for what in ("target", "scene") for when in ("before", "after")),
    "target_current_support",
    "target_candidate_support",
)


@dataclass(eq=False)
class SelectedLabels:
    """Labels of each step's selected candidate, gathered while blocks pass; NaN where nothing was selected.

    ``target_start`` and ``scene_start`` are the errors that steps start from, as any labelled candidate gives them.
    """

    parts: defaultdict[str, list[Float32]] = field(default_factory=lambda: defaultdict(list))

    def gather(self, block: Block) -> Findings:
        """Take over what the chain checks need of a block."""
        rows = block.step("selected_candidate_row_id") - block.rows.start
        inside = (rows >= 0) & (rows < len(block.state_of_row))
        at = np.where(inside, rows, 0)
        for name in _GATHERED:
            self.parts[name].append(np.where(inside, block.candidate(name)[at], np.float32(np.nan)))
        for what in ("target", "scene"):
            start = np.fmax.reduceat(block.candidate(f"{what}_pm_dist_before"), block.shell_starts)
            self.parts[f"{what}_start"].append(start)
        yield from ()

    def column(self, name: str) -> Float64:
        """(steps,): a label of the selected candidates, or the error each step starts from."""
        return np.concatenate([np.zeros(0, np.float32), *self.parts[name]]).astype(np.float64)


def steps_in_order(store: StoreUnderCheck) -> Findings:
    """Steps lie chain by chain, counted from 0; every rollout has at least one and at most its horizon."""
    rollout, index = store.column(STEPS, "rollout_row_id"), store.column(STEPS, "step_index")
    count = store.rows(ROLLOUTS)
    outside = (rollout < 0) | (rollout >= count)
    yield from store.bad_rows(STEPS, "rollout_row_id", outside, "must be a rollout row")
    before = np.concatenate([rollout[:1], rollout[:-1]])
    yield from store.bad_rows(STEPS, "rollout_row_id", rollout < before, "must not decrease")
    last = np.ones(len(rollout), np.bool_)
    last[:-1] = rollout[1:] != rollout[:-1]
    expected = np.zeros(len(index), np.int64)
    expected[1:] = np.where(last[:-1], 0, index[:-1].astype(np.int64) + 1)
    yield from store.bad_rows(STEPS, "step_index", index != expected, "must count from 0 in each rollout")
    lengths = np.bincount(rollout[~outside], minlength=count)
    yield from bad_rows(ROLLOUTS.path("rollout_row_id"), lengths == 0, "must have at least one step")
    horizon = store.column(ROLLOUTS, "horizon")
    yield from store.bad_rows(ROLLOUTS, "horizon", lengths > horizon, "must not be shorter than the chain")
    selected = store.column(STEPS, "selected_candidate_row_id")
    text = "must be a candidate of the step; only a chain's last step may select nothing"
    yield from store.bad_rows(STEPS, "selected_candidate_row_id", (selected < 0) & ~last, text)
    states = store.states
    inside = (selected >= states.shell_starts) & (selected < states.shell_starts + states.shell_sizes)
    wrong = (selected != -1) & ~inside
    yield from store.bad_rows(STEPS, "selected_candidate_row_id", wrong, "must lie in the step's own shell")
    reasons = np.array(store.decoded(ROLLOUTS, "termination_reason"))
    finished = np.zeros(count, np.bool_)
    finished[rollout[last & ~outside]] = selected[last & ~outside] >= 0
    finished &= lengths == horizon
    text = "must be fixed_horizon exactly where a chain selected a view at every step of its horizon"
    yield from bad_rows(ROLLOUTS.path("termination_reason"), (reasons == "fixed_horizon") != finished, text, reasons)
    stuck = np.zeros(count, np.bool_)
    stuck[rollout[last & ~outside]] = selected[last & ~outside] < 0
    text = "must not be incomplete_rollout where the last step selected nothing: that is terminated_early"
    wrong = (reasons == "incomplete_rollout") & stuck
    yield from bad_rows(ROLLOUTS.path("termination_reason"), wrong, text, reasons)
    accepted = np.isin(reasons, get_args(TerminationReason))
    yield from bad_rows(ROLLOUTS.path("termination_reason"), ~accepted, "must be a known reason", reasons)


def shells_cover_candidates(store: StoreUnderCheck) -> Findings:
    """The steps' shells, one after another, are exactly the candidate rows."""
    sizes = store.column(STEPS, "num_candidates")
    yield from store.bad_rows(STEPS, "num_candidates", sizes < 1, "must be >= 1")
    total, rows = int(sizes.sum(dtype=np.int64)), store.rows(CANDIDATES)
    if total != rows:
        yield problem(STEPS.path("num_candidates"), f"must add up to the {rows} candidate rows", total)


def states_cover_steps(store: StoreUnderCheck) -> Findings:
    """The training view has one state for each step, or for each step that took a view where dead ends are kept out."""
    expected, states = store.states.state_count, store.rows(Q_H)
    if states != expected:
        yield problem(Q_H.path("state_step_row_id"), f"must have one row for each of the {expected} states", states)


def sums_add_up(store: StoreUnderCheck, labels: SelectedLabels) -> Findings:
    """Cumulative columns are running sums of the selected labels; a rollout's final value is its last step's.

    Another writer may have rounded its sums in another order.
    """
    apart = _apart_or_one_nan if store.of_other_writer else differs
    index = store.column(STEPS, "step_index")
    has_selection = store.column(STEPS, "selected_candidate_row_id") >= 0
    stacked = np.stack([labels.column(label) for label in CUMULATIVE_OF.values()], axis=1)
    if len(stacked) != len(index):
        return
    expected = running_sums(stacked, has_selection, np.maximum(index, 0))
    last = _last_steps(store)
    for column, (name, label) in enumerate(CUMULATIVE_OF.items()):
        stored, final = store.column(STEPS, name), f"final_{name}"
        wrong = apart(stored, expected[:, column])
        yield from store.bad_rows(STEPS, name, wrong, f"must be the running sum of the selected {label}")
        if last is not None:
            wrong = apart(store.column(ROLLOUTS, final), stored[last])
            yield from store.bad_rows(ROLLOUTS, final, wrong, f"must be the last step's {name}")


def gains_telescope(store: StoreUnderCheck, labels: SelectedLabels) -> Findings:
    """Each step starts from the error the step before ended with, and the gains sum to the whole fall of the error."""
    index = store.column(STEPS, "step_index")
    follows = np.flatnonzero(index[1:] == index[:-1] + 1) + 1
    chain_start = np.maximum.accumulate(np.where(index == 0, np.arange(len(index)), 0))
    for what in ("target", "scene"):
        start, after = labels.column(f"{what}_start"), labels.column(f"{what}_pm_dist_after")
        if len(start) != len(store.states) or not len(start):
            continue
        apart = np.zeros(len(start), np.bool_)
        left, right = after[follows - 1], start[follows]
        apart[follows] = np.abs(left - right) > TELESCOPE_TOLERANCE * np.maximum(np.abs(right), SMALLEST_ERROR)
        text = "step starts from another error than the step before ended with"
        yield from bad_rows(CANDIDATES.path(f"{what}_pm_dist_before"), apart, text, start)
        root = start[chain_start]
        gain = labels.column(f"{what}_root_gain")
        own = (labels.column(f"{what}_pm_dist_before") - after) / np.maximum(root, SMALLEST_ERROR)
        text = "of the selected candidate must be (before - after) / root error"
        yield from bad_rows(CANDIDATES.path(f"{what}_root_gain"), labels_apart(gain, own), text, gain)
        summed = store.column(STEPS, f"cumulative_{what}_root_gain").astype(np.float64)
        wrong = labels_apart(summed, (root - after) / np.maximum(root, SMALLEST_ERROR))
        text = "must be (root error - last after) / root error"
        yield from bad_rows(STEPS.path(f"cumulative_{what}_root_gain"), wrong, text, summed)


def supports_grow(store: StoreUnderCheck, labels: SelectedLabels) -> Findings:
    """A selected view adds to the target's points at most the pixels with which it sees the target."""
    index = store.column(STEPS, "step_index")
    current, seen = labels.column("target_current_support"), labels.column("target_candidate_support")
    if store.campaign is None or len(current) != len(index):
        return
    follows = np.flatnonzero(index[1:] == index[:-1] + 1) + 1
    gained = current[follows] - current[follows - 1]
    wrong = np.zeros(len(index), np.bool_)
    wrong[follows] = (gained < 0) | (gained > seen[follows - 1])
    text = "of the selected candidate must grow by 0 to what the view before saw of the target"
    yield from bad_rows(CANDIDATES.path("target_current_support"), wrong, text, current)


STEP_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (
    steps_in_order,
    shells_cover_candidates,
    states_cover_steps,
)
"""Checks of the steps table alone."""

CHAIN_CHECKS: tuple[Callable[[StoreUnderCheck, SelectedLabels], Findings], ...] = (
    sums_add_up,
    gains_telescope,
    supports_grow,
)
"""Checks of chains, once every block has passed."""


def _apart_or_one_nan(stored: Float32, expected: Float32) -> NDArray[np.bool_]:
    return labels_apart(stored, expected) | (np.isnan(stored) != np.isnan(expected))


def _last_steps(store: StoreUnderCheck) -> NDArray[np.int64] | None:
    rollout = store.column(STEPS, "rollout_row_id")
    rows = np.searchsorted(rollout, np.arange(store.rows(ROLLOUTS)), side="right") - 1
    return rows if len(rollout) and (rollout[rows] == np.arange(len(rows))).all() else None
