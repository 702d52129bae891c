"""The one place for a mean, a sample standard deviation, a median, percentiles and a histogram.

``summarize`` works on many groups at once: ``values`` are laid out group after group and ``starts`` holds the first
position of each, so that every figure is a few array operations. ``summary`` is one list of numbers under flat metric
names such as ``total_reward/mean``. Sums run in the order of the values: equal input gives equal output to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MetricValue: TypeAlias = float | int | list[float] | dict[str, int] | dict[str, list[float]] | None
Metrics: TypeAlias = dict[str, MetricValue]

HISTOGRAM_BINS = 10
"""Equal bins between the smallest and the largest value."""

ONE_GROUP: Ints = np.zeros(1, np.int64)
"""The ``starts`` of values that are all one group."""


@dataclass(frozen=True, eq=False)
class Summaries:
    """One entry per group, each of them (groups,). ``std`` is the sample's, NaN for a single value."""

    count: Ints
    mean: Floats
    max: Floats
    min: Floats
    median: Floats
    std: Floats


def summarize(values: Floats, starts: Ints = ONE_GROUP) -> Summaries:
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


def group_sizes(length: int, starts: Ints) -> Ints:
    """Values in each group."""
    return np.diff(starts, append=length)


def summary(name: str, values: Iterable[float], percentiles: tuple[int, ...] = ()) -> Metrics:
    """``name/{mean,max,min,median,stddev,histogram}`` and ``name/pNN`` of the finite values.

    A mean divides by the values present. A single value has no standard deviation. No values at all give None
    throughout, never zero.
    """
    present = np.array([value for value in values if np.isfinite(value)], np.float64)
    if not len(present):
        kinds = ("mean", "max", "min", "median", "stddev", "histogram", *(f"p{p}" for p in percentiles))
        return {f"{name}/{kind}": None for kind in kinds}
    figures = vars(summarize(present))
    counts, edges = np.histogram(present, bins=HISTOGRAM_BINS)
    return {
        **{f"{name}/{kind}": float(figures[kind][0]) for kind in ("mean", "max", "min", "median")},
        f"{name}/stddev": float(figures["std"][0]) if len(present) > 1 else None,
        f"{name}/histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
        **{f"{name}/p{p}": float(np.percentile(present, p)) for p in percentiles},
    }


def rate(hits: Iterable[bool]) -> float | None:
    """Share of true values; None when there are none at all."""
    flags = list(hits)
    return sum(flags) / len(flags) if flags else None
