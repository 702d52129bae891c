"""Chains: steps in order, sums that add up, gains that telescope from the root's error to the last one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.rollouts.zarr_store.checks.store_under_check import Block, StoreUnderCheck
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows, problem
from rollout_assets.rollouts.zarr_store.label_rules import SMALLEST_ERROR, TELESCOPE_TOLERANCE, running_sums
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, CUMULATIVE_OF, ROLLOUTS, STEPS

_GATHERED = (
    *CUMULATIVE_OF.values(),
    "target_pm_dist_before",
    "target_pm_dist_after",
    "scene_pm_dist_before",
    "scene_pm_dist_after",
)


@dataclass(eq=False)
class SelectedLabels:
    """Labels of each step's selected candidate, gathered while blocks pass; NaN where nothing was selected.

    ``before`` holds the error each step starts from, as any of its labelled candidates gives it.
    """

    selected: dict[str, list[Float32]] = field(default_factory=lambda: {name: [] for name in _GATHERED})
    before: dict[str, list[Float32]] = field(default_factory=lambda: {"target": [], "scene": []})

    def gather(self, block: Block) -> Findings:
        """Take over what the chain checks need of a block."""
        rows = block.step("selected_candidate_row_id") - block.rows.start
        inside = (rows >= 0) & (rows < len(block.state_of_row))
        at = np.where(inside, rows, 0)
        for name, parts in self.selected.items():
            parts.append(np.where(inside, block.candidate(name)[at], np.float32(np.nan)))
        for what, parts in self.before.items():
            parts.append(np.fmax.reduceat(block.candidate(f"{what}_pm_dist_before"), block.shell_starts))
        yield from ()

    def column(self, name: str) -> Float64:
        """(steps,): a label of the selected candidates."""
        return np.concatenate([np.zeros(0, np.float32), *self.selected[name]]).astype(np.float64)

    def start(self, what: str) -> Float64:
        """(steps,): the error each step starts from."""
        return np.concatenate([np.zeros(0, np.float32), *self.before[what]]).astype(np.float64)


def steps_in_order(store: StoreUnderCheck) -> Findings:
    """Steps lie chain by chain, counted from 0; every rollout has at least one and at most its horizon."""
    rollout, index = store.column(STEPS, "rollout_row_id"), store.column(STEPS, "step_index")
    count = store.rows(ROLLOUTS)
    outside = (rollout < 0) | (rollout >= count)
    yield from bad_rows(STEPS.path("rollout_row_id"), outside, "must be a rollout row", rollout)
    first = np.ones(len(rollout), np.bool_)
    first[1:] = rollout[1:] != rollout[:-1]
    back = np.zeros(len(rollout), np.bool_)
    back[1:] = rollout[1:] < rollout[:-1]
    yield from bad_rows(STEPS.path("rollout_row_id"), back, "must not decrease", rollout)
    expected = np.where(first, 0, np.concatenate([[0], index[:-1].astype(np.int64) + 1])[: len(index)])
    yield from bad_rows(STEPS.path("step_index"), index != expected, "must count from 0 in each rollout", index)
    lengths = np.bincount(rollout[~outside], minlength=count)
    horizon = store.column(ROLLOUTS, "horizon")
    yield from bad_rows(ROLLOUTS.path("rollout_row_id"), lengths == 0, "must have at least one step")
    yield from bad_rows(ROLLOUTS.path("horizon"), lengths > horizon, "must not be shorter than the chain", horizon)
    last = np.ones(len(rollout), np.bool_)
    last[:-1] = rollout[1:] != rollout[:-1]
    selected = store.column(STEPS, "selected_candidate_row_id")
    text = "must be a candidate of the step; only a chain's last step may select nothing"
    yield from bad_rows(STEPS.path("selected_candidate_row_id"), (selected < 0) & ~last, text, selected)
    states = store.states
    inside = (selected >= states.shell_starts) & (selected < states.shell_starts + states.shell_sizes)
    wrong = (selected != -1) & ~inside
    yield from bad_rows(STEPS.path("selected_candidate_row_id"), wrong, "must lie in the step's own shell", selected)
    reasons = np.array(store.decoded(ROLLOUTS, "termination_reason"))
    finished = np.zeros(count, np.bool_)
    finished[rollout[last & ~outside]] = selected[last & ~outside] >= 0
    finished &= lengths == horizon
    wrong = np.where(reasons == "fixed_horizon", ~finished, (reasons == "terminated_early") & finished)
    text = "must be fixed_horizon exactly where a chain selected a view at every step of its horizon"
    yield from bad_rows(ROLLOUTS.path("termination_reason"), wrong, text, reasons)
    accepted = np.isin(reasons, ("fixed_horizon", "terminated_early", "incomplete_rollout"))
    yield from bad_rows(ROLLOUTS.path("termination_reason"), ~accepted, "must be a known reason", reasons)


def shells_cover_candidates(store: StoreUnderCheck) -> Findings:
    """The steps' shells, one after another, are exactly the candidate rows."""
    sizes = store.column(STEPS, "num_candidates")
    yield from bad_rows(STEPS.path("num_candidates"), sizes < 1, "must be >= 1", sizes)
    total, rows = int(sizes.sum(dtype=np.int64)), store.rows(CANDIDATES)
    if total != rows:
        yield problem(STEPS.path("num_candidates"), f"must add up to the {rows} candidate rows", total)


def sums_add_up(store: StoreUnderCheck, labels: SelectedLabels) -> Findings:
    """Cumulative columns are running sums of the selected labels; a rollout's final value is its last step's."""
    index = store.column(STEPS, "step_index")
    has_selection = store.column(STEPS, "selected_candidate_row_id") >= 0
    stacked = np.stack([labels.column(label) for label in CUMULATIVE_OF.values()], axis=1)
    if len(stacked) != len(index):
        return
    expected = running_sums(stacked, has_selection, np.maximum(index, 0))
    last = _last_steps(store)
    for column, name in enumerate(CUMULATIVE_OF):
        stored = store.column(STEPS, name)
        wrong = _differs(stored, expected[:, column])
        text = f"must be the running sum of the selected {CUMULATIVE_OF[name]}"
        yield from bad_rows(STEPS.path(name), wrong, text, stored)
        final = store.column(ROLLOUTS, f"final_{name}")
        if last is not None:
            wrong = _differs(final, stored[last])
            yield from bad_rows(ROLLOUTS.path(f"final_{name}"), wrong, f"must be the last step's {name}", final)


def gains_telescope(store: StoreUnderCheck, labels: SelectedLabels) -> Findings:
    """Each step starts from the error the step before ended with, and the gains sum to the whole fall of the error."""
    states = store.states
    index = store.column(STEPS, "step_index")
    follows = np.flatnonzero(index[1:] == index[:-1] + 1) + 1
    chain_start = np.maximum.accumulate(np.where(index == 0, np.arange(len(index)), 0))
    for what in ("target", "scene"):
        start, after = labels.start(what), labels.column(f"{what}_pm_dist_after")
        if len(start) != len(states) or not len(start):
            continue
        apart = np.zeros(len(start), np.bool_)
        left, right = after[follows - 1], start[follows]
        apart[follows] = np.abs(left - right) > TELESCOPE_TOLERANCE * np.maximum(np.abs(right), SMALLEST_ERROR)
        path = CANDIDATES.path(f"{what}_pm_dist_before")
        text = "step starts from another error than the step before ended with"
        yield from bad_rows(path, apart, text, start)
        root = start[chain_start]
        gain = labels.column(f"{what}_root_gain")
        own = (labels.column(f"{what}_pm_dist_before") - after) / np.maximum(root, SMALLEST_ERROR)
        wrong = np.abs(gain - own) > TELESCOPE_TOLERANCE * np.maximum(np.abs(own), 1)
        path = CANDIDATES.path(f"{what}_root_gain")
        yield from bad_rows(path, wrong, "of the selected candidate must be (before - after) / root error", gain)
        summed = store.column(STEPS, f"cumulative_{what}_root_gain").astype(np.float64)
        whole = (root - after) / np.maximum(root, SMALLEST_ERROR)
        wrong = np.abs(summed - whole) > TELESCOPE_TOLERANCE * np.maximum(np.abs(whole), 1)
        text = "must be (root error - last after) / root error"
        yield from bad_rows(STEPS.path(f"cumulative_{what}_root_gain"), wrong, text, summed)


STEP_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (steps_in_order, shells_cover_candidates)
"""Checks of the steps table alone."""

CHAIN_CHECKS: tuple[Callable[[StoreUnderCheck, SelectedLabels], Findings], ...] = (sums_add_up, gains_telescope)
"""Checks of chains, once every block has passed."""


def _last_steps(store: StoreUnderCheck) -> NDArray[np.int64] | None:
    rollout = store.column(STEPS, "rollout_row_id")
    rows = np.searchsorted(rollout, np.arange(store.rows(ROLLOUTS)), side="right") - 1
    return rows if len(rollout) and (rollout[rows] == np.arange(len(rows))).all() else None


def _differs(stored: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    return (stored != expected) & ~(np.isnan(stored) & np.isnan(expected))
