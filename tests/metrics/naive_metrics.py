"""The slow, obvious twin of the metrics: plain loops over plain lists."""

from __future__ import annotations

import statistics
from itertools import combinations
from typing import Any


def naive_summary(values: list[float]) -> dict[str, float | None]:
    return {
        "mean": statistics.fmean(values),
        "max": max(values),
        "min": min(values),
        "median": statistics.median(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "count": len(values),
    }


def naive_best(values: list[float], k: int) -> float:
    return max(values[:k])


def naive_success(values: list[float], k: int, threshold: float) -> float:
    """Every choice of k values, counted."""
    choices = list(combinations(values, k))
    return sum(any(value >= threshold for value in choice) for choice in choices) / len(choices)


def tasks_of(results: list[dict[str, Any]], agent: str, field: str) -> dict[int, list[float]]:
    """Task -> values in rollout order, those without a value left out."""
    found: dict[int, list[float]] = {}
    for result in sorted(results, key=lambda r: (r["_task_index"], r["_rollout_index"])):
        if result["agent_ref"]["name"] == agent and result.get(field) is not None:
            found.setdefault(result["_task_index"], []).append(result[field])
    return found
