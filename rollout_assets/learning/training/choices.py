"""How good choices are: what the chosen views gain, beside the mean and the best of what each state offered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float64


@dataclass(frozen=True)
class ChoiceQuality:
    """Means over states; gains are root gains.

    ``share_of_headroom`` is what the choices gain beyond the mean view, divided by what the best views do: sums over
    all states, so that states where much can be won count accordingly. ``first_share`` is the same over first steps.
    """

    states: int
    gain: float
    regret: float
    share_of_headroom: float
    first_share: float
    rank_correlation: float


@dataclass
class Choices:
    """Collects scores and labels batch by batch."""

    _rows: list[Float64] = field(default_factory=list)

    def add(self, scores: NDArray[Any], gain: NDArray[Any], mask: NDArray[np.bool_], first: NDArray[np.bool_]) -> None:
        """scores, gain and mask: (b, k), labels where the mask is set; first: (b,) states that are first steps.

        States without a label tell nothing and are left out.
        """
        labelled = mask.any(axis=1)
        scores, gain, mask = scores[labelled], gain[labelled].astype(np.float64), mask[labelled]
        chosen = np.where(mask, scores, -np.inf).argmax(axis=1)
        columns = (
            gain[np.arange(len(gain)), chosen],
            np.where(mask, gain, 0.0).sum(axis=1) / mask.sum(axis=1),
            np.where(mask, gain, -np.inf).max(axis=1, initial=-np.inf),
            rank_correlations(scores, gain, mask),
            first[labelled].astype(np.float64),
        )
        self._rows.append(np.stack(columns, axis=1))

    def quality(self) -> ChoiceQuality:
        """The figures of everything that was added."""
        rows = np.concatenate(self._rows) if self._rows else np.zeros((0, 5))
        chosen, mean, best, correlation, first = rows.T
        return ChoiceQuality(
            states=len(rows),
            gain=_mean(chosen),
            regret=_mean(best - chosen),
            share_of_headroom=_share(chosen, mean, best),
            first_share=_share(*(column[first > 0] for column in (chosen, mean, best))),
            rank_correlation=_mean(correlation[np.isfinite(correlation)]),
        )


def rank_correlations(scores: NDArray[Any], gain: NDArray[Any], mask: NDArray[np.bool_]) -> Float64:
    """(b,) Spearman's coefficient over each state's labelled views; NaN where all scores or all gains are equal."""
    result = np.full(len(mask), np.nan)
    for row, shown in enumerate(mask):
        left, right = mean_ranks(scores[row, shown]), mean_ranks(gain[row, shown])
        left, right = left - left.mean(), right - right.mean()
        norm = np.sqrt((left @ left) * (right @ right))
        if norm > 0:
            result[row] = (left @ right) / norm
    return result


def mean_ranks(values: NDArray[Any]) -> Float64:
    """Ranks from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2.0)[inverse]


def _share(chosen: Float64, mean: Float64, best: Float64) -> float:
    headroom = float((best - mean).sum())
    return float((chosen - mean).sum()) / headroom if headroom > 0 else 0.0


def _mean(values: Float64) -> float:
    return float(values.mean()) if len(values) else 0.0
