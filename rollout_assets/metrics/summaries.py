"""Summaries of lists of numbers, under flat metric names such as ``total_reward/mean``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

MetricValue: TypeAlias = float | int | list[float] | dict[str, int] | dict[str, list[float]] | None
Metrics: TypeAlias = dict[str, MetricValue]

HISTOGRAM_BINS = 10
"""Equal bins between the smallest and the largest value."""


def summary(name: str, values: Iterable[float], percentiles: tuple[int, ...] = ()) -> Metrics:
    """``name/{mean,max,min,median,stddev,histogram}`` and ``name/pNN`` of the finite values.

    A mean divides by the values present. The standard deviation is the sample's; a single value has none. No values at
    all give None throughout, never zero.
    """
    present = np.array([value for value in values if np.isfinite(value)], np.float64)
    if not len(present):
        kinds = ("mean", "max", "min", "median", "stddev", "histogram", *(f"p{p}" for p in percentiles))
        return {f"{name}/{kind}": None for kind in kinds}
    counts, edges = np.histogram(present, bins=HISTOGRAM_BINS)
    return {
        f"{name}/mean": float(present.mean()),
        f"{name}/max": float(present.max()),
        f"{name}/min": float(present.min()),
        f"{name}/median": float(np.median(present)),
        f"{name}/stddev": float(present.std(ddof=1)) if len(present) > 1 else None,
        f"{name}/histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
        **{f"{name}/p{p}": float(np.percentile(present, p)) for p in percentiles},
    }


def rate(hits: Iterable[bool]) -> float | None:
    """Share of true values; None when there are none at all."""
    flags = list(hits)
    return sum(flags) / len(flags) if flags else None


def prefixed(prefix: str, metrics: Mapping[str, MetricValue]) -> Metrics:
    """The same metrics under ``prefix/``."""
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
