"""Consecutive steps of the store under examination, with all candidates, diagnostics and states that belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows
from rollout_assets.rollouts.zarr_store.schema import CANDIDATE_DIAGNOSTICS, CANDIDATES, Q_H, ROLLOUTS, STEPS, TARGETS

BLOCK_ROWS = 1 << 20
"""Candidate rows examined together, about."""


@dataclass(eq=False)
class Block:
    """Consecutive steps with all rows that belong to them; columns are read when first asked for.

    ``kept`` is where a family of checks leaves what its members share.
    """

    store: StoreUnderCheck
    start: int
    stop: int
    kept: dict[str, Any] = field(default_factory=dict)
    _loaded: dict[str, NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def rows(self) -> slice:
        """Candidate rows of this block."""
        return self.store.states.rows(self.start, self.stop)

    @cached_property
    def state_of_row(self) -> NDArray[np.int64]:
        """(n,): which step, counted from ``start``, each row belongs to."""
        return np.repeat(np.arange(self.stop - self.start), self.store.states.shell_sizes[self.start : self.stop])

    @cached_property
    def shell_starts(self) -> NDArray[np.int64]:
        """(steps,): first row of each step, counted from the block's first row."""
        return self.store.states.shell_starts[self.start : self.stop] - self.rows.start

    @cached_property
    def width(self) -> int | None:
        """Rows in each shell, if all shells have as many as the campaign offers; None otherwise."""
        campaign = self.store.campaign
        sizes = self.store.states.shell_sizes[self.start : self.stop]
        if campaign is None or not (sizes == campaign.candidates.num_candidates).all():
            return None
        return campaign.candidates.num_candidates

    @cached_property
    def rollout_of_step(self) -> NDArray[np.int64]:
        """(steps,): the rollout of each step; an id that points nowhere takes some row."""
        return np.clip(self.step("rollout_row_id"), 0, max(self.store.rows(ROLLOUTS) - 1, 0))

    @cached_property
    def has_labelled_target(self) -> NDArray[np.bool_]:
        """(steps,): whether the target of each step has a label."""
        return self._of_targets("gt_label_valid_mask")

    @cached_property
    def has_trainable_target(self) -> NDArray[np.bool_]:
        """(steps,): whether the target of each step is valid and has a label."""
        return self._of_targets("target_valid_mask") & self.has_labelled_target

    def _of_targets(self, mask: str) -> NDArray[np.bool_]:
        held = self.store.column(TARGETS, mask)
        target = self.store.states.target_row_id[self.start : self.stop]
        is_known = (target >= 0) & (target < len(held))
        return is_known & held[np.where(is_known, target, 0)]

    @cached_property
    def selection(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """(steps,), (steps,): whether a step selected one of its rows, and which, counted from the block's first."""
        selected = self.step("selected_candidate_row_id") - self.rows.start
        sizes = self.store.states.shell_sizes[self.start : self.stop]
        has_selection = (selected >= self.shell_starts) & (selected < self.shell_starts + sizes)
        return has_selection, np.where(has_selection, selected, 0)

    @cached_property
    def visited_poses(self) -> list[NDArray[np.float32]]:
        """Poses (steps, 12) where the actor of each step stands, stood one step before, and so on; NaN before the root.

        Blocks must pass in order, because a chain may have begun in an earlier one.
        """
        has_selection, at = self.selection
        poses = self.store.selected_poses
        poses[self.start : self.stop][has_selection] = self.candidate("pose_world_cam")[at[has_selection]]
        root = self.store.column(ROLLOUTS, "root_pose_world")[self.rollout_of_step]
        index, step = self.step("step_index").astype(np.int64), np.arange(self.start, self.stop)
        visited = []
        for back in range(int(index.max(initial=0)) + 1):
            before = poses[np.maximum(step - back - 1, 0)]
            before = np.where((index == back)[:, None], root, before)
            visited.append(np.where((index < back)[:, None], np.float32(np.nan), before))
        return visited

    def root_errors(self, what: str) -> NDArray[np.float32]:
        """(steps,): the error of the target or scene that each step's chain started from. Blocks must pass in order."""
        errors = self.store.start_errors(what)
        before = self.candidate(f"{what}_pm_dist_before")
        errors[self.start : self.stop] = np.fmax.reduceat(before, self.shell_starts)
        return errors[np.maximum(np.arange(self.start, self.stop) - self.step("step_index"), 0)]

    def step(self, name: str) -> NDArray[Any]:
        """A step column, one value a step."""
        return self.store.column(STEPS, name)[self.start : self.stop]

    def candidate(self, name: str) -> NDArray[Any]:
        """A candidate column."""
        return self._load(CANDIDATES, name, self.rows.start, self.rows.stop)

    def diagnostic(self, name: str) -> NDArray[Any]:
        """A column of the diagnostics."""
        return self._load(CANDIDATE_DIAGNOSTICS, name, self.rows.start, self.rows.stop)

    def view(self, name: str) -> NDArray[Any]:
        """A column of the stored training view."""
        states = self.store.states.states(self.start, self.stop)
        return self._load(Q_H, name, states.start, states.stop)

    def bad_steps(self, name: str, wrong: NDArray[np.bool_], expectation: str) -> Findings:
        """One finding, with the first value, for all steps where ``wrong`` is true."""
        return bad_rows(STEPS.path(name), wrong, expectation, self.step(name), self.start)

    def bad_candidates(self, name: str, wrong: NDArray[np.bool_], expectation: str) -> Findings:
        """One finding, with the first value, for all candidates where ``wrong`` is true."""
        return bad_rows(CANDIDATES.path(name), wrong, expectation, self.candidate(name), self.rows.start)

    def bad_diagnostics(self, name: str, wrong: NDArray[np.bool_], expectation: str) -> Findings:
        """One finding, with the first value, for the diagnostics of all candidates where ``wrong`` is true."""
        return bad_rows(CANDIDATE_DIAGNOSTICS.path(name), wrong, expectation, self.diagnostic(name), self.rows.start)

    def _load(self, table: Table, name: str, start: int, stop: int) -> NDArray[Any]:
        path = table.path(name)
        if path not in self._loaded:
            values = self.store.read(path, start, stop)
            if values.dtype != table[name].numpy_dtype or len(values) != stop - start:
                raise StoreDamaged(path, f"cannot be used: {values.dtype} with shape {self.store.array(path).shape}")
            self._loaded[path] = values
        return self._loaded[path]


def blocks_of(store: StoreUnderCheck) -> Iterator[Block]:
    """Candidates, diagnostics and training view of a store in blocks of whole steps."""
    for start, stop in store.states.blocks(BLOCK_ROWS):
        yield Block(store, start, stop)
