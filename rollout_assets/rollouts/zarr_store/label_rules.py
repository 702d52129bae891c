"""Which labels may be trained on, and how gains add up along a chain: derived here and nowhere else.

The writer fills columns with these functions, the validator compares stored columns with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float32, Float64

Mask = NDArray[np.bool_]

MATCHED = "matched"
"""Status of a target that matched exactly one ground-truth box."""

V0_GT_INPUT = "v0_gt_input"
"""Protocol, and match status under it, in which the target is the ground truth itself."""

TELESCOPE_TOLERANCE = 1e-5
"""Relative tolerance of root gains against errors."""

SMALLEST_ERROR = 1e-12
"""Smaller errors count as this one when something is divided by them."""

VALID_BITSET = 1
"""Bitset of a valid candidate or target: bit 0 and no other."""


def gt_label_is_valid(match_status: str | None, matched_gt_target_row_id: int, protocol: str) -> bool:
    """Whether a target's ground truth may label candidates."""
    admitted = match_status == MATCHED or (match_status == V0_GT_INPUT and protocol == V0_GT_INPUT)
    return admitted and matched_gt_target_row_id >= 0


def oracle_label_mask(actor_action_mask: Mask, target_root_gain: Float32) -> Mask:
    """(n,): takeable and with a finite target root gain."""
    return actor_action_mask & np.isfinite(target_root_gain)


def q_train_mask(actor_action_mask: Mask, oracle_labels: Mask, target_trainable: Mask | bool) -> Mask:
    """(n,): takeable, labelled, and of a target that is valid and has a valid ground-truth label."""
    return actor_action_mask & oracle_labels & target_trainable


def labels_apart(stored: NDArray[np.floating[Any]], expected: NDArray[np.floating[Any]]) -> Mask:
    """Where labels differ by more than the tolerance; NaN on either side is another rule's matter."""
    return np.abs(stored - expected) > TELESCOPE_TOLERANCE * np.maximum(np.abs(expected), 1)


def running_sums(values: Float64, has_selection: Mask, step_index: NDArray[Any]) -> Float32:
    """values: (s, m) selected labels in chain order; has_selection: (s,); step_index: (s,), 0 starts a chain -> (s, m).

    Sums run in float64 and are rounded once. A NaN label makes the rest of its chain NaN; a step without a selection
    adds nothing; a chain that has selected nothing yet has no sum (NaN).
    """
    sums = np.where(has_selection[:, None], values.astype(np.float64), 0.0)
    count = has_selection.astype(np.int64)
    for depth in range(1, int(step_index.max(initial=0)) + 1):
        at = np.flatnonzero(step_index == depth)
        at = at[at > 0]
        sums[at] += sums[at - 1]
        count[at] += count[at - 1]
    with np.errstate(over="ignore"):
        return np.where(count[:, None] > 0, sums, np.nan).astype(np.float32)
