"""The statistics of an evaluation written out the slow way: resampled rows one by one, plain sums, sorted lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollout_assets.evaluation.bootstrap import scene_weights
from rollout_assets.evaluation.config import BootstrapConfig

Row = dict[str, float]
Statistic = Callable[[Sequence[Row]], float]


def mean(rows: Sequence[Row], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def difference(name: str, other: str) -> Statistic:
    return lambda rows: mean(rows, name) - mean(rows, other)


def share(name: str, low: str, high: str) -> Statistic:
    """What is gained over ``low``, summed, by what ``high`` gains over it, summed."""
    return lambda rows: sum(row[name] - row[low] for row in rows) / sum(row[high] - row[low] for row in rows)


def interval(
    rows: Sequence[Row], scenes: Sequence[str], statistic: Statistic, options: BootstrapConfig
) -> tuple[float, float]:
    """The statistic of every draw of scenes, each scene with all its rows as often as drawn; then its quantiles."""
    names = sorted(set(scenes))
    values = []
    for counts in scene_weights(len(names), options).astype(int).tolist():
        drawn: list[Row] = []
        for name, count in zip(names, counts, strict=True):
            own = [row for row, scene in zip(rows, scenes, strict=True) if scene == name]
            drawn += own * count
        values.append(statistic(drawn))
    tail = (1 - options.confidence) / 2
    return quantile(sorted(values), tail), quantile(sorted(values), 1 - tail)


def quantile(ordered: Sequence[float], share_below: float) -> float:
    place = share_below * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
