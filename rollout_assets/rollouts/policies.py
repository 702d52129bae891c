"""Selection policies: from what may be seen of a shell to the views that are taken.

A policy gets a ``PolicyView`` and nothing else: which rows are takeable, where they stand, where the actor has been,
and a score per row. Whether that score is an oracle's label is the engine's affair; no policy can reach the truth. A
policy that a package brings has scored the rows already, from observations: its proposal is in the view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import PolicyRefused
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.rollouts.draws import (
    draw_log_probabilities,
    inclusion_probabilities,
    spaced_inclusion_probabilities,
)

ORACLE_SCORE = "target_root_gain"
"""Label that oracle policies rank by; within one state it orders views as the relative improvement does."""

MIN_SCORES_FOR_QUARTILES = 4
"""Below this many scores their spread is the standard deviation, not the interquartile range."""

LOGIT_LIMIT = 7.0
"""Logits of a softmax stay within ± this, so each of k rows has a probability of at least exp(-14) / k."""


@dataclass(frozen=True, eq=False)
class PolicyProposal:
    """What a policy that a package brings says of a state: scores (k,), finite where a view is takeable, else NaN."""

    scores: Float64
    score_source: str


@dataclass(frozen=True, eq=False)
class PolicyView:
    """What a policy may look at: k candidates of one state.

    takeable: (k,) bool; centers_world: (k, 3); history_world: (h, 3) root first, last row is where the actor stands;
    scores: (k,) with NaN where there is none. ``proposal`` is there for recipes that bring their policy.
    """

    takeable: NDArray[np.bool_]
    centers_world: Float64
    history_world: Float64
    scores: Float64
    proposal: PolicyProposal | None = None


@dataclass(frozen=True, eq=False)
class Decision:
    """What a policy made of a view.

    logits: (k,) float32, NaN where not takeable; probabilities and log_probabilities: (k,) float32, the distribution of
    the first pick, 0 and -inf where not takeable or too close to history. ``inclusion_probabilities``: (k,) float32,
    the probability that a row is among the selected ones, 0 where it cannot be; for a policy that ranks, 1 where it is
    selected. NaN only where siblings must keep a distance and ordered draws are too many to enumerate.
    ``selected`` are shell indices in the order of picking, ``draw_log_probabilities`` the log-probability of each given
    the earlier ones. ``scores`` (k,) is what the policy ranked by. ``guards_relaxed``: no candidate kept its distance
    to history, so the best was taken all the same.
    """

    logits: Float32
    probabilities: Float32
    log_probabilities: Float32
    inclusion_probabilities: Float32
    selected: tuple[int, ...]
    draw_log_probabilities: tuple[float, ...]
    scores: Float64
    score_source: str
    guards_relaxed: bool

    @property
    def drawn_mask(self) -> NDArray[np.bool_]:
        """(k,): every row the policy selected, whether or not a beam keeps it."""
        return _marked(self.selected, len(self.logits))

    @property
    def entropy(self) -> float:
        """Entropy of the first pick's distribution in nats; NaN when there was nothing to pick."""
        p = self.probabilities[self.probabilities > 0].astype(np.float64)
        return float(-(p * np.log(p)).sum()) if len(p) else float("nan")


def decide(recipe: RolloutRecipeConfig, view: PolicyView, count: int, rng: np.random.Generator) -> Decision:
    """Pick up to ``count`` views without replacement; none when no takeable view has a finite score."""
    policy = _rule(recipe, view)
    scores = policy.scores(view, rng)
    eligible = view.takeable & np.isfinite(scores)
    if policy.needs_label:
        eligible &= np.isfinite(view.scores)
    allowed = eligible & (_nearest(view.centers_world, view.history_world) >= recipe.min_history_distance_m)
    relaxed = bool(eligible.any() and not allowed.any())
    if relaxed:
        allowed, count = eligible, 1
    logits = np.full(len(scores), np.nan)
    logits[eligible] = policy.logits(scores[eligible], recipe.temperature)
    keys = np.where(allowed, logits, -np.inf)
    log_p = _log_softmax(keys) if policy.draws else _log_one_hot(keys)
    if policy.draws:
        keys = keys + rng.gumbel(size=len(keys))
    order = np.argsort(-keys, kind="stable")[: int(allowed.sum())]
    near = _near(view.centers_world, recipe.min_sibling_distance_m)
    selected = _apart(near, order, count)
    p = np.exp(log_p)
    if policy.draws:
        inclusion = _drawn_inclusion(p, near, count, spaced=recipe.min_sibling_distance_m > 0)
        log_draws = draw_log_probabilities(p, near, selected)
    else:
        inclusion = _marked(selected, len(p)).astype(np.float64)
        log_draws = np.zeros(len(selected))
    return Decision(
        logits=logits.astype(np.float32),
        probabilities=p.astype(np.float32),
        log_probabilities=log_p.astype(np.float32),
        inclusion_probabilities=inclusion.astype(np.float32),
        selected=selected,
        draw_log_probabilities=tuple(log_draws.astype(np.float32).tolist()),
        scores=scores,
        score_source=policy.score_source,
        guards_relaxed=relaxed,
    )


@dataclass(frozen=True)
class PolicyRule:
    """How one policy scores and whether it draws (Gumbel top-k, that is without replacement) or ranks."""

    score_source: str
    scores: Callable[[PolicyView, np.random.Generator], Float64]
    draws: bool
    logits: Callable[[Float64, float], Float64]
    needs_label: bool = False


def spread_logits(scores: Float64, temperature: float) -> Float64:
    """(s - median) / (IQR * temperature); the standard deviation stands in below four scores. No spread: all zero.

    If the best exceeds ``LOGIT_LIMIT``, all are shifted down (which changes no probability) until it does not, so that
    the best rows stay apart; what is then below ``-LOGIT_LIMIT`` is raised to it.
    """
    if len(scores) < 2:
        return np.zeros_like(scores)
    if len(scores) < MIN_SCORES_FOR_QUARTILES:
        spread = float(np.std(scores))
    else:
        ascending = np.sort(scores).tolist()
        spread = _quantile(ascending, 0.75) - _quantile(ascending, 0.25)
    if not spread > 0:
        return np.zeros_like(scores)
    with np.errstate(over="ignore"):
        below_best = (scores - scores.max()) / spread / temperature
        best = min((scores.max() - np.median(scores)) / spread / temperature, LOGIT_LIMIT)
    return np.maximum(best + below_best, -LOGIT_LIMIT)


def _quantile(ascending: Sequence[float], share: float) -> float:
    """``np.quantile`` of sorted numbers, to the bit, without what it spends on a general array."""
    place = (len(ascending) - 1) * share
    below = int(place)
    rest = place - below
    low, high = ascending[below], ascending[min(below + 1, len(ascending) - 1)]
    gap = high - low
    return low + gap * rest if rest < 0.5 else high - gap * (1 - rest)


def _as_they_are(scores: Float64, _temperature: float) -> Float64:
    return scores


def _all_alike(scores: Float64, _temperature: float) -> Float64:
    return np.zeros_like(scores)


def _oracle(view: PolicyView, _rng: np.random.Generator) -> Float64:
    return view.scores


def _from_history(view: PolicyView, _rng: np.random.Generator) -> Float64:
    return _nearest(view.centers_world, view.history_world)


def _from_reference(view: PolicyView, _rng: np.random.Generator) -> Float64:
    return _nearest(view.centers_world, view.history_world[-1:])


def _by_lot(view: PolicyView, rng: np.random.Generator) -> Float64:
    return rng.random(len(view.takeable))


POLICY_RULES: Mapping[str, PolicyRule] = {
    "farthest_from_history": PolicyRule("distance_to_history_m", _from_history, draws=False, logits=_as_they_are),
    "farthest_from_reference": PolicyRule("distance_to_reference_m", _from_reference, draws=False, logits=_as_they_are),
    "random": PolicyRule("uniform_draw", _by_lot, draws=True, logits=_all_alike, needs_label=True),
    "random_valid": PolicyRule("uniform_draw", _by_lot, draws=True, logits=_all_alike),
    "oracle_greedy": PolicyRule(ORACLE_SCORE, _oracle, draws=False, logits=_as_they_are),
    "temperature_softmax": PolicyRule(ORACLE_SCORE, _oracle, draws=True, logits=spread_logits),
}
"""``random`` draws among labelled views, ``random_valid`` among all that can be taken."""


def draws(recipe: RolloutRecipeConfig) -> bool:
    """Whether a recipe draws views; otherwise it takes the best ones."""
    return recipe.draw if recipe.brings_policy else POLICY_RULES[recipe.policy].draws


def _rule(recipe: RolloutRecipeConfig, view: PolicyView) -> PolicyRule:
    if not recipe.brings_policy:
        return POLICY_RULES[recipe.policy]
    proposal = view.proposal
    if proposal is None:
        raise PolicyRefused(f"recipe {recipe.name}: nobody asked policy {recipe.policy} for its scores")
    logits = spread_logits if recipe.draw else _as_they_are
    return PolicyRule(proposal.score_source, lambda _view, _rng: proposal.scores, recipe.draw, logits)


def _near(centers_world: Float64, gap_m: float) -> NDArray[np.bool_]:
    """(k, k): which rows a picked row shuts out, itself among them: all that are nearer to it than ``gap_m``."""
    itself = np.eye(len(centers_world), dtype=np.bool_)
    if gap_m == 0:
        return itself
    return itself | (np.linalg.norm(centers_world[:, None] - centers_world[None], axis=-1) < gap_m)


def _apart(near: NDArray[np.bool_], order: NDArray[np.int64], count: int) -> tuple[int, ...]:
    """The first ``count`` rows of ``order`` of which none is near one before it."""
    picked: list[int] = []
    free = np.ones(len(near), np.bool_)
    for row in order.tolist():
        if len(picked) == count:
            break
        if free[row]:
            picked.append(row)
            free &= ~near[row]
    return tuple(picked)


def _marked(rows: Sequence[int], count: int) -> NDArray[np.bool_]:
    """(count,): true at ``rows``."""
    mask = np.zeros(count, np.bool_)
    mask[list(rows)] = True
    return mask


def _drawn_inclusion(p: Float64, near: NDArray[np.bool_], count: int, spaced: bool) -> Float64:
    """(k,) inclusion probabilities of a draw of ``count`` rows; p is 0 where a row cannot be drawn."""
    rows = np.flatnonzero(p)
    result = np.zeros_like(p)
    if not len(rows):
        return result
    if spaced and count > 1:
        result[rows] = spaced_inclusion_probabilities(p[rows], near[np.ix_(rows, rows)], count)
    else:
        result[rows] = inclusion_probabilities(p[rows], count)
    return result


def _nearest(points: Float64, others: Float64) -> Float64:
    """points: (n, 3), others: (m, 3) -> (n,) distance to the nearest of the others."""
    return np.linalg.norm(points[:, None] - others[None], axis=-1).min(axis=1)


def _log_softmax(keys: Float64) -> Float64:
    """(k,) with -inf for rows that cannot be drawn -> log-probabilities."""
    drawable = np.isfinite(keys)
    result = np.full(len(keys), -np.inf)
    if drawable.any():
        shifted = keys[drawable] - keys[drawable].max()
        result[drawable] = shifted - np.log(np.exp(shifted).sum())
    return result


def _log_one_hot(keys: Float64) -> Float64:
    """A ranking policy takes its best row with certainty."""
    result = np.full(len(keys), -np.inf)
    if np.isfinite(keys).any():
        result[int(np.argmax(keys))] = 0.0
    return result
