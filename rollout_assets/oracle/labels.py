"""What the oracle says about a candidate: the labels of a region, computed from errors and counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float64

ERROR_FLOOR_M2 = 1e-12
"""Errors below this count as this much when something is divided by them or their logarithm is taken."""


@dataclass(frozen=True, eq=False)
class RegionLabels:
    """Labels of k candidates for one region, (k,) float64 each; NaN in invalid rows.

    current_support counts P_t's points in the region, candidate_support the view's pixels in it, and new_support those
    of them that P_t does not have yet.
    """

    before_m2: Float64
    after_m2: Float64
    rri: Float64
    root_gain: Float64
    log_error_gain: Float64
    current_support: Float64
    candidate_support: Float64
    new_support: Float64


@dataclass(frozen=True, eq=False)
class CandidateLabels:
    """Labels of k candidates. hit_pixels: (k,) int32, pixels with depth; 0 says the view hits nothing, -1 invalid."""

    target: RegionLabels
    scene: RegionLabels | None
    hit_pixels: NDArray[np.int32]


def region_labels(
    before: float,
    root_error_m2: float,
    point_count: int,
    count: int,
    rows: NDArray[np.int64],
    after: Float64,
    seen: NDArray[np.int32],
    new: NDArray[np.int32],
) -> RegionLabels:
    """Labels of ``count`` candidates of a state with error ``before`` and ``point_count`` points; ``rows`` (n,)
    are valid; after, seen, new: (n,) error with each view, its pixels in the region, and the new ones among them.
    """

    def spread(values: Float64 | NDArray[np.int32] | float) -> Float64:
        column = np.full(count, np.nan)
        column[rows] = values
        return column

    gain = before - after
    log_gain = np.log(max(before, ERROR_FLOOR_M2)) - np.log(np.maximum(after, ERROR_FLOOR_M2))
    return RegionLabels(
        before_m2=spread(before),
        after_m2=spread(after),
        rri=spread(gain / max(before, ERROR_FLOOR_M2)),
        root_gain=spread(gain / max(root_error_m2, ERROR_FLOOR_M2)),
        log_error_gain=spread(log_gain),
        current_support=spread(float(point_count)),
        candidate_support=spread(seen),
        new_support=spread(new),
    )
