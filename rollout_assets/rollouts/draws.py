"""Probabilities of drawing several rows without replacement, as a policy's Gumbel top-k does.

The draw is a race: row i rings after an exponential time of rate p_i, and the first ``count`` rows that ring are drawn.
Given the rows drawn so far, the next one is therefore distributed as p over the rows that are left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float64

LOG_TIME_STEP = 0.2
"""Step of the trapezoid rule over the logarithm of time; the integrand is smooth there, so its error is below 1e-9."""

EARLIEST_TIME = 1e-10
"""Where the integral starts; the part before it is at most this share of a row's probability."""

MAX_ORDERED_DRAWS = 50_000
"""Most ordered draws that are enumerated when drawn rows must keep a distance to each other."""


def inclusion_probabilities(p: Float64, count: int) -> Float64:
    """(n,) probability that each row is among ``count`` rows drawn without replacement; p: (n,) positive, sums to 1.

    Row i is drawn exactly if fewer than ``count`` other rows ring before it, so this is the integral over time of the
    density of i's ring times the probability that fewer than ``count`` others have rung.
    """
    if count >= len(p):
        return np.ones_like(p)
    if count == 1:
        return p
    latest = 50.0 / p.min()
    time = np.exp(np.arange(np.log(EARLIEST_TIME), np.log(latest) + LOG_TIME_STEP, LOG_TIME_STEP))
    mean_rings = p[:, None] * time
    silent = np.exp(-mean_rings)
    integrand = mean_rings * silent * _fewer_others(silent, -np.expm1(-mean_rings), count)
    return np.clip(LOG_TIME_STEP * integrand.sum(axis=1), p, 1.0)


def _fewer_others(silent: Float64, rung: Float64, count: int) -> Float64:
    """(n, times) probability that fewer than ``count`` of the other rows have rung; both arguments: (n, times)."""
    both_ways = _rung_counts(np.stack([silent, silent[::-1]], 1), np.stack([rung, rung[::-1]], 1), count)
    before, after = both_ways[:-1, 0], both_ways[-2::-1, 1]
    return (before * np.cumsum(after, axis=1)[:, ::-1]).sum(axis=1)


def _rung_counts(silent: Float64, rung: Float64, count: int) -> Float64:
    """(n + 1, w, count, times): [i, :, c] is the probability that exactly c of the first i rows have rung.

    silent, rung: (n, w, times) for w orders of the rows.
    """
    rows, ways, times = rung.shape
    exactly = np.zeros((rows + 1, ways, count, times))
    exactly[0, :, 0] = 1.0
    silent, rung = silent[:, :, None], rung[:, :, None]
    fewer = np.empty((ways, count - 1, times))
    for row in range(rows):
        here, after = exactly[row], exactly[row + 1]
        np.multiply(here, silent[row], out=after)
        np.multiply(here[:, :-1], rung[row], out=fewer)
        after[:, 1:] += fewer
    return exactly


def spaced_inclusion_probabilities(p: Float64, near: NDArray[np.bool_], count: int) -> Float64:
    """Like ``inclusion_probabilities``, but a drawn row shuts out all rows near it; near: (n, n), true on its diagonal.

    Exact, by going through all ordered draws; all NaN where these are more than ``MAX_ORDERED_DRAWS``.
    """
    if float(len(p)) ** (count - 1) > MAX_ORDERED_DRAWS:
        return np.full_like(p, np.nan)
    inclusion = np.zeros_like(p)
    reached, free = np.ones(1), np.ones((1, len(p)), np.bool_)
    for _ in range(count):
        weight = free * p
        chance = reached[:, None] * weight / weight.sum(axis=1, keepdims=True)
        inclusion += chance.sum(axis=0)
        draw, row = np.nonzero(free)
        reached, free = chance[draw, row], free[draw] & ~near[row]
        reached, free = reached[free.any(axis=1)], free[free.any(axis=1)]
    return np.clip(inclusion, p, 1.0)


def draw_log_probabilities(p: Float64, near: NDArray[np.bool_], drawn: tuple[int, ...]) -> Float64:
    """Log-probability of each drawn row given the rows drawn before it; their sum is that of the ordered draw.

    p: (n,), 0 where a row cannot be drawn; near: (n, n) as above.
    """
    free = np.ones(len(p), np.bool_)
    result = np.zeros(len(drawn))
    for at, row in enumerate(drawn):
        result[at] = min(np.log(p[row]) - np.log(p[free].sum()), 0.0)
        free &= ~near[row]
    return result
