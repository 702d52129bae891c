"""Selections against the campaign, block by block: logits from what the policy ranks by, probabilities from logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import RolloutRecipeConfig, StochasticBranching
from rollout_assets.geometry.poses import Float64
from rollout_assets.geometry.vectors import components, length
from rollout_assets.rollouts.policies import (
    LOGIT_LIMIT,
    MIN_SCORES_FOR_QUARTILES,
    ORACLE_SCORE,
    POLICY_RULES,
)
from rollout_assets.rollouts.policies import draws as draws_views
from rollout_assets.rollouts.zarr_store.checks.block import Block
from rollout_assets.rollouts.zarr_store.findings import Findings
from rollout_assets.rollouts.zarr_store.schema import ABSENT

Mask = NDArray[np.bool_]

_TOLERANCE = 1e-4
_NO_NAME = -2
"""An id that no row has."""


@dataclass(eq=False)
class _Draws:
    """The steps of a block as arrays (s, k), with what each step's recipe asks for as arrays (s, 1)."""

    block: Block
    width: int

    @cached_property
    def recipes(self) -> tuple[RolloutRecipeConfig, ...]:
        campaign = self.block.store.campaign
        return () if campaign is None else campaign.recipes

    @cached_property
    def recipe(self) -> NDArray[np.int64]:
        """(s,): place of each step's recipe; -1 for an unknown one."""
        return self.block.store.recipe_of_rollout[self.block.rollout_of_step]

    def given(self, value_of: Callable[[RolloutRecipeConfig], object]) -> NDArray[Any]:
        """(s, 1): a fact of each step's recipe."""
        return np.array([value_of(recipe) for recipe in self.recipes])[self.recipe][:, None]

    @cached_property
    def known(self) -> Mask:
        return (self.recipe >= 0)[:, None]

    def shells(self, name: str) -> NDArray[Any]:
        """(s, k): a candidate column."""
        return self.block.candidate(name).reshape(-1, self.width)

    @cached_property
    def scores(self) -> Float64:
        return self.shells(ORACLE_SCORE).astype(np.float64)

    @cached_property
    def logits(self) -> Float64:
        return self.shells("selection_logits").astype(np.float64)

    @cached_property
    def eligible(self) -> Mask:
        """(s, k): what the policy may rank: takeable rows, labelled ones where it needs a label.

        Views of a target without a label are only offered: no policy ranks them.
        """
        labelled = self.block.has_labelled_target[:, None]
        needs_label = self.given(_needs_label)
        return self.shells("actor_action_mask") & labelled & (~needs_label | np.isfinite(self.scores))

    @cached_property
    def from_history(self) -> Float64:
        """(s, k): distance to the nearest place where the actor has been, where a recipe asks for it; NaN elsewhere."""
        asked = self.given(lambda recipe: recipe.min_history_distance_m > 0 or recipe.policy == "farthest_from_history")
        return self._nearest(asked, self.block.visited_poses)

    @cached_property
    def from_reference(self) -> Float64:
        """(s, k): distance to where the actor stands, where a recipe asks for it; NaN elsewhere."""
        asked = self.given(lambda recipe: recipe.policy == "farthest_from_reference")
        return self._nearest(asked, self.block.visited_poses[:1])

    def _nearest(self, asked: Mask, places: Sequence[NDArray[np.float32]]) -> Float64:
        steps = np.flatnonzero(asked)
        centres = components(self.block.candidate("pose_world_cam").reshape(-1, self.width, 12)[steps, :, 9:])
        nearest = np.full((len(asked), self.width), np.nan)
        for poses in places:
            away = length(centres - components(poses[steps, 9:])[..., None])
            nearest[steps] = np.fmin(nearest[steps], away)
        return nearest

    @cached_property
    def allowed(self) -> Mask:
        """(s, k): eligible rows that keep their distance to history; all eligible ones where none does."""
        return np.where(self.relaxed, self.eligible, self._distant)

    @cached_property
    def _distant(self) -> Mask:
        gap = self.given(lambda recipe: recipe.min_history_distance_m)
        return self.eligible & ((gap == 0) | (self.from_history >= gap)) if gap.any() else self.eligible

    @cached_property
    def relaxed(self) -> Mask:
        """(s, 1): there are eligible rows, but none keeps its distance to history."""
        return np.asarray(self.eligible.any(axis=1, keepdims=True) & ~self._distant.any(axis=1, keepdims=True))

    @cached_property
    def draws(self) -> Mask:
        """(s, 1): whether the policy draws; otherwise it ranks."""
        return self.given(draws_views)

    @cached_property
    def spaced(self) -> Mask:
        """(s, 1): whether drawn rows must keep a distance to each other."""
        return self.given(lambda recipe: recipe.min_sibling_distance_m > 0)

    @cached_property
    def probabilities(self) -> Float64:
        """(s, k): softmax of the stored logits over the allowed rows."""
        keys = np.where(self.allowed, self.logits, -np.inf)
        weight = np.exp(keys - keys.max(axis=1, keepdims=True, initial=-1e300))
        total = weight.sum(axis=1, keepdims=True)
        return weight / np.where(total > 0, total, 1)

    @cached_property
    def drawn(self) -> Mask:
        return self.shells("drawn_mask")


def logits_follow_policy(block: Block) -> Findings:
    """Logits are what the recipe's policy makes of labels and distances, on exactly the rows that it may rank."""
    draws = _draws(block)
    if draws is None:
        return
    expected = np.where(draws.eligible, _expected_logits(draws), np.nan)
    wrong = (np.abs(draws.logits - expected) > _TOLERANCE * np.maximum(np.abs(expected), 1)) | (
        np.isnan(draws.logits) != np.isnan(expected)
    )
    text = "must be what the recipe's policy makes of its scores"
    yield from block.bad_candidates("selection_logits", (wrong & draws.known).reshape(-1), text)
    wrong = (draws.shells("score_source_id") != _score_sources(draws)[draws.recipe][:, None]) & draws.known
    yield from block.bad_candidates("score_source_id", wrong.reshape(-1), "must be what the recipe's policy ranks by")


def probabilities_follow_logits(block: Block) -> Findings:
    """A drawing policy's probabilities are the softmax of its logits; a ranking one is certain of its best row."""
    draws = _draws(block)
    if draws is None:
        return
    stored = draws.shells("selection_probabilities").astype(np.float64)
    keys = np.where(draws.allowed, draws.logits, -np.inf)
    certain = stored == (stored.cumsum(axis=1) == 1) * (stored == 1)
    best = (stored == 0) | (keys == keys.max(axis=1, keepdims=True, initial=-np.inf))
    decided = (stored.sum(axis=1) == draws.allowed.any(axis=1))[:, None]
    wrong = np.where(draws.draws, np.abs(stored - draws.probabilities) > _TOLERANCE, ~(certain & best & decided))
    text = "must be the softmax of the logits, or 1 at the best row of a ranking policy"
    yield from block.bad_candidates("selection_probabilities", (wrong & draws.known).reshape(-1), text)


def draws_follow_recipe(block: Block) -> Findings:
    """As many rows are drawn as the recipe branches, the best ones by a ranking policy."""
    draws = _draws(block)
    if draws is None:
        return
    count, most = draws.drawn.sum(axis=1), draws.allowed.sum(axis=1)
    low, high = _branch_counts(draws)
    low, high = (np.minimum(np.where(draws.relaxed[:, 0], 1, limit), most) for limit in (low, high))
    low = np.where(draws.spaced[:, 0], np.minimum(low, 1), low)
    wrong = (count < low) | (count > high) | (draws.drawn & ~draws.allowed).any(axis=1)
    keys = np.where(draws.allowed, draws.logits, -np.inf)
    worst = np.where(draws.drawn, keys, np.inf).min(axis=1, initial=np.inf)
    passed_over = np.where(draws.drawn, -np.inf, keys).max(axis=1, initial=-np.inf)
    ranks = ~(draws.draws | draws.spaced)[:, 0]
    wrong |= ranks & (passed_over > worst)
    wrong &= draws.known[:, 0]
    text = "must hold as many rows as the recipe takes at this step, the best ones of a ranking policy"
    yield from block.bad_candidates("drawn_mask", np.repeat(wrong, draws.width) & draws.drawn.reshape(-1), text)
    none = wrong & (count == 0)
    yield from block.bad_candidates("drawn_mask", np.repeat(none, draws.width) & draws.allowed.reshape(-1), text)


def inclusion_follows_draws(block: Block) -> Findings:
    """Inclusion probabilities are those of drawing as many rows without replacement; 1 for what a policy ranks."""
    draws = _draws(block)
    if draws is None:
        return
    stored = draws.shells("selection_inclusion_probabilities").astype(np.float64)
    count, most = draws.drawn.sum(axis=1, keepdims=True), draws.allowed.sum(axis=1, keepdims=True)
    expected = np.where(count == 2, _two_drawn(draws.probabilities), draws.probabilities)
    expected = np.where(count >= most, draws.allowed, expected)
    expected = np.where(draws.draws, expected, draws.drawn)
    exact = ~draws.draws | (~draws.spaced & ((count <= 2) | (count >= most)))
    wrong = exact & (count > 0) & (np.abs(stored - expected) > _TOLERANCE)
    summed = np.abs(stored.sum(axis=1, keepdims=True) - count) > _TOLERANCE * draws.width
    wrong |= ~exact & ~draws.spaced & summed & draws.drawn
    text = "must be the probability of being among the rows that are drawn"
    yield from block.bad_candidates("selection_inclusion_probabilities", (wrong & draws.known).reshape(-1), text)
    yield from _draw_log_probabilities(block, draws, count[:, 0])


DRAW_CHECKS: tuple[Callable[[Block], Findings], ...] = (
    logits_follow_policy,
    probabilities_follow_logits,
    draws_follow_recipe,
    inclusion_follows_draws,
)
"""Checks of a block's selections against the campaign."""


def _draws(block: Block) -> _Draws | None:
    """The block's selections; None without a campaign, or where shells are not those that it offers."""
    if block.store.campaign is None or block.width is None:
        return None
    if "draws" not in block.kept:
        block.kept["draws"] = _Draws(block, block.width)
    kept = block.kept["draws"]
    assert isinstance(kept, _Draws)
    return kept


def _needs_label(recipe: RolloutRecipeConfig) -> bool:
    if recipe.brings_policy:
        return False
    rule = POLICY_RULES[recipe.policy]
    return rule.needs_label or rule.score_source == ORACLE_SCORE


def _score_sources(draws: _Draws) -> NDArray[np.int64]:
    """(recipes,): the id of what each recipe ranks by.

    What a policy that a package brought calls its scores is not known here; it must be as at the recipe's first
    step in the block.
    """
    names, stored = draws.block.store.strings("score_source"), draws.shells("score_source_id")
    ids = np.full(len(draws.recipes), ABSENT, np.int64)
    for index, recipe in enumerate(draws.recipes):
        steps = np.flatnonzero(draws.recipe == index)
        if not recipe.brings_policy:
            name = POLICY_RULES[recipe.policy].score_source
            ids[index] = names.index(name) if name in names else ABSENT
        elif len(steps) and 0 <= stored[steps[0], 0] < len(names):
            ids[index] = stored[steps[0], 0]
        else:
            ids[index] = _NO_NAME
    return ids


def _expected_logits(draws: _Draws) -> Float64:
    """Logits of a policy that a package brought are what it said: any finite number, within limits where it draws."""
    policy = draws.given(lambda recipe: recipe.policy)
    brought = draws.given(lambda recipe: recipe.brings_policy)
    limit = np.where(draws.draws, LOGIT_LIMIT, np.finfo(np.float32).max)
    expected = np.where(brought, np.clip(np.nan_to_num(draws.logits), -limit, limit), 0.0)
    for name, logits_of in _LOGITS.items():
        steps = np.flatnonzero(policy == name)
        if len(steps):
            expected[steps] = logits_of(draws, steps)
    return expected


def _spread_logits(draws: _Draws, steps: NDArray[np.int64]) -> Float64:
    """``policies.spread_logits`` of m steps at once: (m, k)."""
    eligible = draws.eligible[steps]
    scores = np.where(eligible, draws.scores[steps], np.nan)
    count = eligible.sum(axis=1, keepdims=True)
    ordered = np.sort(scores, axis=1)
    spread = _quantile(ordered, count, 0.75) - _quantile(ordered, count, 0.25)
    few = (count < MIN_SCORES_FOR_QUARTILES)[:, 0]
    if few.any():
        mean = np.nansum(scores[few], axis=1, keepdims=True) / np.maximum(count[few], 1)
        spread[few] = np.sqrt(np.nansum((scores[few] - mean) ** 2, axis=1, keepdims=True) / np.maximum(count[few], 1))
    temperature = draws.given(lambda recipe: recipe.temperature)[steps].astype(np.float64)
    top = np.take_along_axis(ordered, np.maximum(count - 1, 0), axis=1)
    best = np.minimum((top - _quantile(ordered, count, 0.5)) / spread / temperature, LOGIT_LIMIT)
    logits = np.maximum(best + (scores - top) / spread / temperature, -LOGIT_LIMIT)
    return np.where((count < 2) | ~(spread > 0), 0.0, logits)


_LOGITS: Mapping[str, Callable[[_Draws, NDArray[np.int64]], Float64]] = {
    "oracle_greedy": lambda draws, steps: draws.scores[steps],
    "temperature_softmax": _spread_logits,
    "farthest_from_history": lambda draws, steps: draws.from_history[steps],
    "farthest_from_reference": lambda draws, steps: draws.from_reference[steps],
}
"""Policy of the engine -> logits (m, k) of m steps; those of its others are 0."""


def _quantile(ordered: Float64, count: NDArray[np.int64], share: float) -> Float64:
    """(s, 1): a quantile of the first ``count`` (s, 1) values of each sorted row, interpolated as NumPy does."""
    place = share * (np.maximum(count, 1) - 1)
    low = np.floor(place).astype(np.int64)
    first = np.take_along_axis(ordered, low, axis=1)
    second = np.take_along_axis(ordered, np.minimum(low + 1, np.maximum(count, 1) - 1), axis=1)
    return first + (second - first) * (place - low)


def _two_drawn(p: Float64) -> Float64:
    """(s, k): being first, or second after any other row: p_i + sum over j of p_j p_i / (1 - p_j)."""
    odds = p / np.maximum(1 - p, 1e-300)
    return p * (1 + odds.sum(axis=1, keepdims=True) - odds)


def _branch_counts(draws: _Draws) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(s,), (s,): the fewest and the most rows that each step's recipe takes."""
    depth = draws.block.step("step_index").astype(np.int64)
    low, high = np.ones(len(depth), np.int64), np.ones(len(depth), np.int64)
    for index, recipe in enumerate(draws.recipes):
        own = draws.recipe == index
        match recipe.branch:
            case int(count):
                low[own] = high[own] = count
            case StochasticBranching(counts=counts):
                low[own], high[own] = min(counts), max(counts)
            case schedule:
                low[own] = high[own] = np.array(schedule)[np.minimum(depth[own], len(schedule) - 1)]
    return low, high


def _draw_log_probabilities(block: Block, draws: _Draws, count: NDArray[np.int64]) -> Findings:
    """Given the rows drawn before it, a row is at least as likely as first, at most as last of those drawn."""
    has_selection, at = block.selection
    stored = block.step("selected_draw_log_probability").astype(np.float64)
    p = draws.probabilities.reshape(-1)[at]
    others = (draws.probabilities * draws.drawn).sum(axis=1) - p
    low = np.log(p)
    high = np.where(draws.spaced[:, 0] & (count > 1), 0.0, low - np.log(np.maximum(1 - others, 1e-300)))
    wrong = (stored < low - _TOLERANCE) | (stored > np.minimum(high, 0.0) + _TOLERANCE)
    wrong = np.where(draws.draws[:, 0], wrong, stored != 0)
    wrong &= has_selection & draws.known[:, 0]
    text = "must be the selected row's, given the rows drawn before it; 0 for a ranking policy"
    yield from block.bad_steps("selected_draw_log_probability", wrong, text)
