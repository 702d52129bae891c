"""Estimators over groups of values, all groups at once: best of k, success within k, bootstrap intervals.

Values and ``starts`` are laid out as in ``summaries``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollout_assets.metrics.summaries import Floats, Ints, group_sizes

_DRAWS_AT_ONCE = 1 << 20
"""Bootstrap draws held in memory together."""


def best_of_first(values: Floats, starts: Ints, k: int) -> Floats:
    """Largest of the first k values of each group that has k; (groups with k,)."""
    sizes = group_sizes(len(values), starts)
    first = starts[sizes >= k]
    return values[first[:, None] + np.arange(k)].max(axis=1)


def success_within(values: Floats, starts: Ints, k: int, threshold: float) -> Floats:
    """Chance that one of k values drawn from a group reaches the threshold; (groups with k,).

    The unbiased estimator ``1 - C(n - c, k) / C(n, k)`` for c successes among n, as a product that does not overflow.
    """
    sizes = group_sizes(len(values), starts)
    enough = sizes >= k
    n = sizes[enough][:, None].astype(np.float64)
    failures = n - np.add.reduceat((values >= threshold).astype(np.int64), starts)[enough][:, None]
    drawn = np.arange(k)
    return 1.0 - np.prod(np.maximum(failures - drawn, 0.0) / (n - drawn), axis=1)


def bootstrap_intervals(
    columns: Mapping[str, Floats], samples: int, confidence: float, rng: np.random.Generator
) -> dict[str, tuple[float, float] | None]:
    """Percentile interval of each column's mean when its groups are drawn anew, with replacement; None below two.

    Columns are of equal length and share the draws, so that their intervals can be compared.
    """
    count = len(next(iter(columns.values())))
    if count < 2:
        return dict.fromkeys(columns)
    means = {name: np.empty(samples) for name in columns}
    block = max(_DRAWS_AT_ONCE // count, 1)
    for first in range(0, samples, block):
        rows = min(block, samples - first)
        drawn = rng.integers(0, count, (rows, count), np.int32)
        for name, values in columns.items():
            means[name][first : first + rows] = values[drawn].mean(axis=1)
    tail = (1.0 - confidence) / 2
    bounds = {name: np.quantile(drawn_means, (tail, 1.0 - tail)) for name, drawn_means in means.items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}
