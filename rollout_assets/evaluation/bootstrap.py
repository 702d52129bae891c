"""Means of contestants over the same roots, with intervals from scenes that are drawn anew.

Roots of a scene resemble each other, and so do the seeds of a root, so whole scenes are drawn with replacement. Every
contestant is judged on the same draws: of two policies that do well on the same scenes, the difference is known more
closely than either mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.evaluation.config import BootstrapConfig
from rollout_assets.randomness import rng_for

Floats = NDArray[np.float64]

LEAST_SCENES = 5
"""Scenes below which there are no intervals: draws of fewer are too few different ones to stand for other scenes."""

NO_HEADROOM = 1e-12
"""A difference between two references that is not larger is none: no share of it can be taken."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval; None where there is none. ``chance`` is the share of the draws in which it is > 0."""

    value: float | None
    low: float | None = None
    high: float | None = None
    chance: float | None = None

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.low is not None and self.low > 0

    @property
    def below_zero(self) -> bool:
        """Whether the whole interval is below zero."""
        return self.high is not None and self.high < 0


class PairedMeans:
    """Means, differences and shares over the same roots. values: name -> (roots,); scenes: the scene of each root."""

    def __init__(self, values: Mapping[str, Floats], scenes: Sequence[str], options: BootstrapConfig) -> None:
        self._tail = (1.0 - options.confidence) / 2
        self._means = {name: float(np.mean(column)) for name, column in values.items()}
        names, owner = np.unique(np.asarray(scenes, dtype=str), return_inverse=True)
        self.roots, self.scenes = len(owner), len(names)
        weights = scene_weights(self.scenes, options)
        roots = weights @ np.bincount(owner, minlength=self.scenes).astype(np.float64)
        self._drawn = {
            name: (weights @ np.bincount(owner, column, minlength=self.scenes)) / roots
            for name, column in values.items()
        }

    def mean(self, name: str) -> Estimate:
        """The mean over all roots."""
        return self._estimate(self._means[name], self._drawn[name])

    def difference(self, name: str, other: str) -> Estimate:
        """How much more a contestant gains than another, on the same roots."""
        return self._estimate(self._means[name] - self._means[other], self._drawn[name] - self._drawn[other])

    def share(self, name: str, low: str, high: str) -> Estimate:
        """The share of the way from ``low`` to ``high`` that a contestant goes: a ratio of sums over all roots.

        None where there is no way to go; without an interval where there is none in one of the draws.
        """
        way = self._means[high] - self._means[low]
        if way <= NO_HEADROOM:
            return Estimate(None)
        value = (self._means[name] - self._means[low]) / way
        ways = self._drawn[high] - self._drawn[low]
        if not (ways > NO_HEADROOM).all():
            return Estimate(value)
        return self._estimate(value, (self._drawn[name] - self._drawn[low]) / ways)

    def _estimate(self, value: float, drawn: Floats) -> Estimate:
        if self.scenes < LEAST_SCENES:
            return Estimate(value)
        low, high = np.quantile(drawn, (self._tail, 1.0 - self._tail)).tolist()
        return Estimate(value, low, high, float((drawn > 0).mean()))


def scene_weights(scenes: int, options: BootstrapConfig) -> Floats:
    """(samples, scenes) how often each scene is drawn when as many are drawn as there are, with replacement."""
    rng = rng_for(options.seed, "evaluation scenes", scenes)
    return rng.multinomial(scenes, np.full(scenes, 1.0 / scenes), size=options.samples).astype(np.float64)
