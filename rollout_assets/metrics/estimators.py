"""Statistics of grouped values, all groups at once: summaries, best of k, success within k, bootstrap intervals.

``values`` are laid out group after group and ``starts`` holds the first position of each, so that every figure is a few
array operations. Sums run in the order of the values: equal input gives equal output to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_DRAWS_AT_ONCE = 1 << 20
"""Bootstrap draws held in memory together."""


@dataclass(frozen=True, eq=False)
class Summaries:
    """One entry per group, each of them (groups,). ``std`` is the sample's, NaN for a single value."""

    count: Ints
    mean: Floats
    max: Floats
    min: Floats
    median: Floats
    std: Floats


def summarize(values: Floats, starts: Ints) -> Summaries:
    """Summaries of groups that all have at least one finite value."""
    sizes = group_sizes(len(values), starts)
    mean = np.add.reduceat(values, starts) / sizes
    spread = np.add.reduceat((values - np.repeat(mean, sizes)) ** 2, starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        std = np.sqrt(np.where(sizes > 1, spread / (sizes - 1), np.nan))
    ordered = values[np.lexsort((values, np.repeat(np.arange(len(starts)), sizes)))]
    median = (ordered[starts + (sizes - 1) // 2] + ordered[starts + sizes // 2]) / 2
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return Summaries(sizes, np.clip(mean, low, high), high, low, median, std)


def best_of_first(values: Floats, starts: Ints, k: int) -> Floats:
    """Largest of the first k values of each group that has k; (groups with k,)."""
    sizes = group_sizes(len(values), starts)
    first = starts[sizes >= k]
    if not len(first):
        return np.empty(0)
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
    bounds = {name: np.quantile(found, (tail, 1.0 - tail)) for name, found in means.items()}
    return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}


def group_sizes(length: int, starts: Ints) -> Ints:
    """Values in each group."""
    return np.diff(starts, append=length)
