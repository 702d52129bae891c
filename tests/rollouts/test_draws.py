"""Behaviour probabilities: exact against enumeration, and good enough to estimate known values by weighting."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.rollouts import draws, policies
from rollout_assets.rollouts.draws import (
    MAX_ORDERED_DRAWS,
    draw_log_probabilities,
    inclusion_probabilities,
    spaced_inclusion_probabilities,
)
from rollout_assets.rollouts.engine import EvaluatedState
from rollout_assets.rollouts.keys import RolloutKey
from rollout_assets.rollouts.policies import LOGIT_LIMIT, Decision, PolicyView, decide, spread_logits
from rollout_assets.rollouts.trace import NOT_SELECTED
from tests.rollouts.shells import DrawnStates
from tests.rollouts.test_engine import run


def ordered_draws(p, near, count):
    """The obvious twin: every order in which rows can be drawn, with its probability."""
    found = {}
    for order in permutations(range(len(p))):
        drawn, chance, left = [], 1.0, set(range(len(p)))
        for row in order:
            if len(drawn) < count and row in left:
                chance *= p[row] / sum(p[other] for other in left)
                drawn.append(row)
                left -= {other for other in left if near[row][other]}
        found[tuple(drawn)] = chance
    return found


def distribution(seed: int, k: int, reach: float):
    rng = np.random.default_rng(seed)
    weights = np.exp(rng.uniform(-reach, reach, k))
    centers = rng.uniform(0, 1, k)
    return weights / weights.sum(), np.abs(centers[:, None] - centers) < 0.2


DISTRIBUTIONS = st.builds(distribution, st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([0.0, 1.0, 7.0]))


@given(DISTRIBUTIONS, st.integers(1, 6))
def test_inclusion_is_the_sum_over_all_ordered_draws(drawn_from, count):
    p, near = drawn_from
    alone = np.eye(len(p), dtype=bool)
    for shut_out, found in (
        (alone, inclusion_probabilities(p, count)),
        (alone, spaced_inclusion_probabilities(p, alone, count)),
        (near, spaced_inclusion_probabilities(p, near, count)),
    ):
        draws = ordered_draws(p, shut_out, count)
        assert sum(draws.values()) == pytest.approx(1)
        expected = [sum(chance for drawn, chance in draws.items() if row in drawn) for row in range(len(p))]
        assert found == pytest.approx(expected, rel=1e-8)
        for drawn, chance in draws.items():
            assert draw_log_probabilities(p, shut_out, drawn).sum() == pytest.approx(np.log(chance), abs=1e-9)


@pytest.mark.parametrize("k", [7, 60, 300])
@pytest.mark.parametrize("count", [2, 3, 6])
def test_inclusion_adds_up_to_the_number_of_draws(k, count):
    p, _ = distribution(k, k, LOGIT_LIMIT)
    assert inclusion_probabilities(p, count).sum() == pytest.approx(count, abs=1e-8)
    assert inclusion_probabilities(np.full(k, 1 / k), count) == pytest.approx(np.full(k, count / k), rel=1e-8)


def rung_counts(silent, rung, count):
    """The obvious twin: one order of the rows, one row after another."""
    exactly = np.zeros((len(rung) + 1, count, rung.shape[1]))
    exactly[0, 0] = 1.0
    for row in range(len(rung)):
        exactly[row + 1] = exactly[row] * silent[row]
        exactly[row + 1, 1:] += exactly[row, :-1] * rung[row]
    return exactly


@pytest.mark.parametrize(("rows", "count"), [(2, 2), (9, 3), (60, 2), (61, 8)])
def test_both_orders_at_once_equal_one_after_the_other(rows, count):
    rung = np.random.default_rng(rows).random((rows, 17))
    silent = 1.0 - rung
    before = rung_counts(silent, rung, count)[:-1]
    after = rung_counts(silent[::-1], rung[::-1], count)[-2::-1]
    twin = (before * np.cumsum(after, axis=1)[:, ::-1]).sum(axis=1)
    assert draws._fewer_others(silent, rung, count).tobytes() == twin.tobytes()


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=70), st.sampled_from([0.25, 0.75]))
def test_quartiles_have_the_bits_of_numpys(scores, share):
    assert policies._quantile(sorted(scores), share) == np.quantile(scores, share)


def test_too_many_ordered_draws_are_not_guessed():
    p = np.full(40, 1 / 40)
    assert MAX_ORDERED_DRAWS < 40**3
    assert np.isnan(spaced_inclusion_probabilities(p, np.eye(40, dtype=bool), 4)).all()


ADVERSARIAL = {
    "one huge outlier": np.r_[np.linspace(0, 1, 30), 1e9],
    "one deep outlier": np.r_[np.linspace(0, 1, 30), -1e9],
    "spread of rounding": np.r_[np.zeros(20), np.arange(20) * 1e-17, 0.3, 0.2],
    "smallest spread there is": np.r_[np.zeros(10), np.full(30, 5e-324), 1.0],
    "two apart": np.array([0.0, 1e100]),
    "huge range": np.linspace(-1e308, 7e307, 9),
}


@pytest.mark.parametrize("scores", ADVERSARIAL.values(), ids=ADVERSARIAL)
@pytest.mark.parametrize("temperature", [1e-6, 0.1, 1.0])
def test_logits_are_bounded_and_no_view_is_impossible(scores, temperature):
    logits = spread_logits(scores, temperature)
    assert (np.abs(logits) <= LOGIT_LIMIT).all()
    assert (np.diff(logits[np.argsort(scores)]) >= 0).all()
    k = len(scores)
    view = PolicyView(np.ones(k, bool), np.zeros((k, 3)), np.zeros((1, 3)), scores)
    recipe = RolloutRecipeConfig(name="r", policy="temperature_softmax", temperature=temperature)
    for seed in range(50):
        decision = decide(recipe, view, 3, np.random.default_rng(seed))
        assert decision.probabilities.min() > 1e-9
        assert (decision.inclusion_probabilities >= decision.probabilities).all()
        assert np.isfinite(decision.draw_log_probabilities).all()


def test_a_low_temperature_still_tells_the_best_views_apart():
    logits = spread_logits(np.arange(10.0), 0.01)
    assert logits[-1] == LOGIT_LIMIT and logits[-2] < LOGIT_LIMIT
    assert spread_logits(np.arange(10.0), 0.5) == pytest.approx((np.arange(10) - 4.5) / 4.5 / 0.5)


DRAWN_BRANCH = {"counts": [1, 3], "probabilities": [0.25, 0.75]}


class SameStates(DrawnStates):
    """The same states whatever the seed, so that only what a policy does in them is drawn anew."""

    def __init__(self, key: RolloutKey, states: dict[tuple[int, ...], EvaluatedState]):
        super().__init__(key)
        self.states = states

    def __call__(self, path: tuple[int, ...]) -> EvaluatedState:
        return self.states[path]


def state_view(k: int = 9) -> PolicyView:
    rng = np.random.default_rng(11)
    takeable = np.arange(k) != 2
    return PolicyView(
        takeable, rng.uniform(-1, 1, (k, 3)), np.zeros((1, 3)), np.where(takeable, rng.normal(size=k), np.nan)
    )


def decisions(recipe: RolloutRecipeConfig, view: PolicyView, count: int, draws: int) -> list[Decision]:
    rng = np.random.default_rng(5)
    return [decide(recipe, view, count, rng) for _ in range(draws)]


def assert_meets(estimates: list[float], truth: float) -> None:
    """The truth lies within 4 standard errors of the estimates' mean, and these are small enough to tell."""
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth) <= 4 * error + 1e-6
    assert error < 0.05


@pytest.mark.parametrize(
    ("policy", "count", "gap_m"),
    [
        *(("temperature_softmax", count, gap) for count, gap in ((1, 0.0), (2, 0.0), (3, 0.0), (20, 0.0), (3, 0.8))),
        *(("random", 2, 0.0), ("random_valid", 3, 0.0), ("random_valid", 2, 0.8)),
    ],
)
def test_weighting_by_inclusion_estimates_a_known_value(policy, count, gap_m):
    """Horvitz-Thompson: what a uniform choice among takeable views would gain, from views that were drawn otherwise."""
    view = state_view()
    recipe = RolloutRecipeConfig(name="r", policy=policy, min_sibling_distance_m=gap_m)
    gains, valid = view.scores, int(view.takeable.sum())
    estimates = [
        sum(gains[row] / valid / float(decision.inclusion_probabilities[row]) for row in decision.selected)
        for decision in decisions(recipe, view, count, 2000)
    ]
    assert_meets(estimates, float(np.nanmean(gains)))


def test_weighting_by_the_first_pick_misses_the_value():
    """What was stored before: the first pick's distribution does not weight two draws rightly."""
    view = state_view()
    recipe = RolloutRecipeConfig(name="r", policy="temperature_softmax")
    estimates = [
        sum(view.scores[row] / 8 / float(decision.probabilities[row]) for row in decision.selected) / 2
        for decision in decisions(recipe, view, 2, 4000)
    ]
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - np.nanmean(view.scores)) > 4 * error


@pytest.mark.parametrize("policy", ["oracle_greedy", "farthest_from_history"])
def test_a_policy_that_ranks_includes_what_it_picks(policy):
    decision = decide(RolloutRecipeConfig(name="r", policy=policy), state_view(), 3, np.random.default_rng(0))
    assert np.flatnonzero(decision.drawn_mask).tolist() == sorted(decision.selected)
    assert decision.inclusion_probabilities.tolist() == decision.drawn_mask.astype(float).tolist()
    assert decision.draw_log_probabilities == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("policy", "branch"),
    [
        *(("temperature_softmax", branch) for branch in (1, 2, (3, 1), DRAWN_BRANCH)),
        *(("random_valid", branch) for branch in (3, DRAWN_BRANCH)),
    ],
)
def test_weighted_trees_estimate_the_return_of_another_policy(policy, branch):
    """Chains of a tree without a beam, each weighted by the product over its steps of q / inclusion."""
    world = DrawnStates(RolloutKey(1, "s", "t"), k=5)
    states = {(): world(())} | {(row,): world((row,)) for row in range(5)}
    truth = float(np.nanmean(states[()].scores))
    takeable = np.flatnonzero(states[()].shell.actor_action_mask)
    truth += float(np.mean([np.nan_to_num(np.nanmean(states[int(row),].scores)) for row in takeable]))
    recipe = RolloutRecipeConfig(name="r", policy=policy, horizon=2, branch=branch)
    estimates = []
    for seed in range(800):
        total = 0.0
        for chain in run(recipe, SameStates(RolloutKey(seed, "s", "t"), states)):
            weight, gained = 1.0, 0.0
            for step in chain.steps:
                if step.selected_shell_index == NOT_SELECTED:
                    continue
                chosen = step.selected_shell_index
                weight /= step.state.shell.actor_action_mask.sum() * float(
                    step.decision.inclusion_probabilities[chosen]
                )
                gained += float(step.state.scores[chosen])
            total += weight * gained
        estimates.append(total)
    assert_meets(estimates, truth)
