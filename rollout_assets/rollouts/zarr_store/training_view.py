"""``q_h``: the dense training view, derived from the factual tables in one vectorised pass.

A state is a step at which a view was taken. A dead end, a step without a takeable view, is a state too in stores whose
attribute ``dead_ends_in_training_view`` says so; elsewhere the step before it is terminal. A state's candidates lie
along the second axis in shell order, padded to the widest shell of the store, dead ends included. The same function
fills the view when a store is written, rebuilds it for another discount, and is what validation compares the stored
view with. ``naive_view`` is its slow, obvious twin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.rollouts.zarr_store.schema import ABSENT, Q_H

Columns = Mapping[str, NDArray[Any]]

VIEW_OF: Mapping[str, str] = {
    "candidate_row_id": "candidate_row_id",
    "valid_action_mask": "actor_action_mask",
    "q_train_mask": "q_train_mask",
    "position_id": "position_id",
    "one_step_target_rri": "target_rri",
    "one_step_target_root_gain": "target_root_gain",
    "invalid_reason_bitset": "invalid_reason_bitset",
}
"""Dense view column -> the candidate column it is."""

STEP_COLUMNS = (
    "step_row_id",
    "rollout_row_id",
    "step_index",
    "selected_candidate_row_id",
    "num_candidates",
)
"""Step columns that the view is derived from."""

CANDIDATE_COLUMNS = tuple(VIEW_OF.values())
"""Candidate columns that the view is derived from."""

ROLLOUT_COLUMNS = ("rollout_row_id", "source_row_id", "target_row_id")
"""Rollout columns that the view is derived from."""


@dataclass(frozen=True, eq=False)
class StateIndex:
    """Where each step's candidates lie, who owns it, and which state follows: one entry per step of the store.

    ``first_state`` has one entry more than there are steps: how many states of the view come before each step. A step
    that is no state, a dead end that is kept out, adds none.
    """

    step_row_id: NDArray[np.int64]
    source_row_id: NDArray[np.int64]
    target_row_id: NDArray[np.int64]
    selected_candidate_row_id: NDArray[np.int64]
    next_step_row_id: NDArray[np.int64]
    shell_sizes: NDArray[np.int64]
    shell_starts: NDArray[np.int64]
    first_state: NDArray[np.int64]
    width: int

    def __len__(self) -> int:
        return len(self.step_row_id)

    @classmethod
    def build(cls, steps: Columns, rollouts: Columns, dead_ends: bool) -> StateIndex:
        """From the steps and rollouts tables; rows of a damaged table that point nowhere own nothing (-1).

        ``dead_ends`` says whether steps without a selected view are states of the training view.
        """
        is_state = dead_ends | (steps["selected_candidate_row_id"] != ABSENT)
        rollout = steps["rollout_row_id"]
        has_rollout = (rollout >= 0) & (rollout < len(rollouts["rollout_row_id"]))
        safe = np.where(has_rollout, rollout, 0)
        follows = np.zeros(len(rollout), np.bool_)
        follows[:-1] = (rollout[1:] == rollout[:-1]) & (
            steps["step_index"][1:].astype(np.int64) == steps["step_index"][:-1].astype(np.int64) + 1
        )
        follows[:-1] &= is_state[1:]
        next_row = np.full(len(rollout), ABSENT, np.int64)
        next_row[:-1] = steps["step_row_id"][1:]
        sizes = np.maximum(steps["num_candidates"].astype(np.int64), 0)
        return cls(
            step_row_id=steps["step_row_id"],
            source_row_id=_owned(rollouts["source_row_id"], safe, has_rollout),
            target_row_id=_owned(rollouts["target_row_id"], safe, has_rollout),
            selected_candidate_row_id=steps["selected_candidate_row_id"],
            next_step_row_id=np.where(follows, next_row, ABSENT),
            shell_sizes=sizes,
            shell_starts=np.cumsum(sizes) - sizes,
            first_state=np.concatenate([[0], np.cumsum(is_state)]).astype(np.int64),
            width=int(sizes.max(initial=0)),
        )

    @property
    def state_count(self) -> int:
        """States of the training view."""
        return int(self.first_state[-1])

    def states(self, start: int, stop: int) -> slice:
        """The states of the training view that steps ``start`` to ``stop`` are."""
        return slice(int(self.first_state[start]), int(self.first_state[stop]))

    def step_after(self, states: int) -> int:
        """The first step that is not yet covered by the first ``states`` states."""
        return int(np.searchsorted(self.first_state, states))

    def rows(self, start: int, stop: int) -> slice:
        """The candidate rows of steps ``start`` to ``stop``."""
        if stop <= start:
            return slice(0, 0)
        return slice(int(self.shell_starts[start]), int(self.shell_starts[stop - 1] + self.shell_sizes[stop - 1]))

    def blocks(self, max_rows: int) -> Iterator[tuple[int, int]]:
        """Step ranges of at most ``max_rows`` candidate rows, or of one step."""
        count = max(max_rows // max(self.width, 1), 1)
        for start in range(0, len(self), count):
            yield start, min(start + count, len(self))


def build_view(
    index: StateIndex, candidates: Columns, start: int, stop: int, discount_gamma: float
) -> dict[str, NDArray[Any]]:
    """The states among steps ``start`` to ``stop``; ``candidates`` holds exactly the rows of these steps."""
    sizes = index.shell_sizes[start:stop]
    first_row = int(index.shell_starts[start]) if stop > start else 0
    states = np.arange(stop - start)
    uniform = bool((sizes == index.width).all())
    cell = None
    if not uniform:
        state_of_row = np.repeat(states, sizes)
        shell = np.arange(len(state_of_row)) - (index.shell_starts[start:stop] - first_row)[state_of_row]
        cell = state_of_row * index.width + shell
    view = {name: _dense(name, candidates[column], len(states), index.width, cell) for name, column in VIEW_OF.items()}

    selected = index.selected_candidate_row_id[start:stop]
    local = selected - index.shell_starts[start:stop]
    has_selection = (selected != ABSENT) & (local >= 0) & (local < sizes)
    at = np.where(has_selection, local, 0)
    next_step = np.where(has_selection, index.next_step_row_id[start:stop], ABSENT)
    reward, reward_rri = np.full((2, len(states)), np.nan, np.float32)
    if index.width:
        reward = np.where(has_selection, view["one_step_target_root_gain"][states, at], np.float32(np.nan))
        reward_rri = np.where(has_selection, view["one_step_target_rri"][states, at], np.float32(np.nan))
    invalid = ~view["valid_action_mask"]
    view["q_train_mask"] &= view["valid_action_mask"]
    for name in ("one_step_target_rri", "one_step_target_root_gain"):
        view[name][invalid] = np.nan
    view |= {
        "state_step_row_id": index.step_row_id[start:stop],
        "source_row_id": index.source_row_id[start:stop],
        "target_row_id": index.target_row_id[start:stop],
        "selected_candidate_index": np.where(has_selection, local, ABSENT).astype(np.int32),
        "td_selected_candidate_row_id": selected,
        "td_reward": reward,
        "td_reward_target_rri": reward_rri,
        "td_next_step_row_id": next_step,
        "td_terminal_mask": next_step == ABSENT,
        "td_discount": np.where(next_step == ABSENT, 0.0, discount_gamma).astype(np.float32),
    }
    kept = np.diff(index.first_state[start : stop + 1]) > 0
    return {name: view[name] if kept.all() else view[name][kept] for name in Q_H.names}


def naive_view(
    steps: Columns, candidates: Columns, rollouts: Columns, discount_gamma: float, dead_ends: bool
) -> dict[str, list[Any]]:
    """The view that ``build_view`` makes, state by state and row by row, in plain Python lists."""
    owner = {
        int(row): (int(source), int(target))
        for row, source, target in zip(*(rollouts[name] for name in ROLLOUT_COLUMNS), strict=True)
    }
    rows_of: dict[int, list[int]] = {int(step): [] for step in steps["step_row_id"]}
    for row, step in enumerate(candidates["step_row_id"]):
        rows_of[int(step)].append(row)
    at_depth = {
        (int(rollout), int(depth)): int(step)
        for step, rollout, depth, chosen in zip(*(steps[name] for name in STEP_COLUMNS[:4]), strict=True)
        if dead_ends or chosen != ABSENT
    }
    width = max((len(rows) for rows in rows_of.values()), default=0)
    view: dict[str, list[Any]] = {name: [] for name in Q_H.names}
    for state, step in enumerate(steps["step_row_id"]):
        if not dead_ends and steps["selected_candidate_row_id"][state] == ABSENT:
            continue
        rows = rows_of[int(step)]
        for name, column in VIEW_OF.items():
            cells = [candidates[column][row] for row in rows]
            if name in ("one_step_target_rri", "one_step_target_root_gain"):
                cells = [
                    value if candidates["actor_action_mask"][row] else np.nan
                    for value, row in zip(cells, rows, strict=True)
                ]
            view[name].append(cells + [Q_H[name].pad] * (width - len(rows)))
        rollout, depth = int(steps["rollout_row_id"][state]), int(steps["step_index"][state])
        selected = int(steps["selected_candidate_row_id"][state])
        ids = [int(candidates["candidate_row_id"][row]) for row in rows]
        chosen = ids.index(selected) if selected in ids else ABSENT
        follower = at_depth.get((rollout, depth + 1), ABSENT) if chosen != ABSENT else ABSENT
        for name, value in (
            ("state_step_row_id", int(step)),
            ("source_row_id", owner[rollout][0]),
            ("target_row_id", owner[rollout][1]),
            ("selected_candidate_index", chosen),
            ("td_selected_candidate_row_id", selected),
            ("td_reward", candidates["target_root_gain"][rows[chosen]] if chosen != ABSENT else np.nan),
            ("td_reward_target_rri", candidates["target_rri"][rows[chosen]] if chosen != ABSENT else np.nan),
            ("td_next_step_row_id", follower),
            ("td_terminal_mask", follower == ABSENT),
            ("td_discount", 0.0 if follower == ABSENT else discount_gamma),
        ):
            view[name].append(value)
    return view


def _dense(name: str, values: NDArray[Any], states: int, width: int, cell: NDArray[np.int64] | None) -> NDArray[Any]:
    if cell is None:
        return np.array(values).reshape(states, width)
    column = Q_H[name]
    dense = np.full(states * width, column.pad, column.numpy_dtype)
    dense[cell] = values
    return dense.reshape(states, width)


def _owned(column: NDArray[Any], rows: NDArray[np.int64], has_rollout: NDArray[np.bool_]) -> NDArray[np.int64]:
    if not len(column):
        return np.full(len(rows), ABSENT, np.int64)
    return np.where(has_rollout, column[rows], ABSENT)
