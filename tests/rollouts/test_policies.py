import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.rollouts.policies import PolicyView, decide, spread_logits

pytestmark = pytest.mark.quick

POLICIES = (
    "farthest_from_history",
    "farthest_from_reference",
    "random",
    "random_valid",
    "oracle_greedy",
    "temperature_softmax",
)


def drawn_view(seed: int, k: int, takeable_share: float) -> PolicyView:
    rng = np.random.default_rng(seed)
    takeable = rng.random(k) < takeable_share
    scores = np.where(takeable & (rng.random(k) < 0.9), rng.normal(size=k), np.nan)
    return PolicyView(takeable, rng.uniform(-1, 1, (k, 3)), rng.uniform(-1, 1, (3, 3)), scores)


def recipe(policy: str, **changes) -> RolloutRecipeConfig:
    return RolloutRecipeConfig(name="r", policy=policy, **changes)


VIEWS = st.builds(drawn_view, st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.0, 0.1, 0.5, 1.0]))


@pytest.mark.parametrize("policy", POLICIES)
@given(view=VIEWS, count=st.integers(1, 5), seed=st.integers(0, 100), gap_m=st.sampled_from([0.0, 0.3, 5.0]))
def test_every_decision_is_a_distribution_over_takeable_rows(policy, view, count, seed, gap_m):
    asked = recipe(policy, min_history_distance_m=gap_m, min_sibling_distance_m=gap_m)
    decision = decide(asked, view, count, np.random.default_rng(seed))
    p = decision.probabilities
    assert (p[~view.takeable] == 0).all()
    assert np.isnan(decision.logits[~view.takeable]).all()
    assert (decision.log_probabilities[~view.takeable] == -np.inf).all()
    if decision.selected:
        assert p.sum() == pytest.approx(1, abs=1e-5)
        assert decision.entropy == pytest.approx(-(p[p > 0] * np.log(p[p > 0])).sum(), abs=1e-5)
        assert p[decision.selected[0]] > 0
        assert view.takeable[list(decision.selected)].all()
        assert len(set(decision.selected)) == len(decision.selected) <= count
    else:
        assert p.sum() == 0
        needs_score = policy not in ("random_valid", "farthest_from_history", "farthest_from_reference")
        assert not (view.takeable & (np.isfinite(view.scores) if needs_score else True)).any()


@given(VIEWS)
def test_greedy_takes_the_best_in_order(view):
    decision = decide(recipe("oracle_greedy"), view, 3, np.random.default_rng(0))
    best = [
        i for i in np.argsort(-np.nan_to_num(view.scores, nan=-np.inf), kind="stable") if np.isfinite(view.scores[i])
    ]
    assert list(decision.selected) == best[:3]
    assert decision.score_source == "target_root_gain"


@given(VIEWS)
def test_farthest_takes_the_largest_distance(view):
    decision = decide(recipe("farthest_from_history"), view, 1, np.random.default_rng(0))
    gaps = [min(np.linalg.norm(c - h) for h in view.history_world) for c in view.centers_world]
    allowed = [i for i in range(len(gaps)) if view.takeable[i]]
    assert list(decision.selected) == ([max(allowed, key=lambda i: gaps[i])] if allowed else [])


def test_equal_scores_fall_to_the_lowest_shell_index():
    view = PolicyView(np.array([False, True, True]), np.zeros((3, 3)), np.zeros((1, 3)), np.array([9.0, 1.0, 1.0]))
    assert decide(recipe("oracle_greedy"), view, 2, np.random.default_rng(0)).selected == (1, 2)


@pytest.mark.ci
def test_draws_follow_the_recorded_probabilities():
    view = PolicyView(np.ones(4, bool), np.zeros((4, 3)), np.zeros((1, 3)), np.array([0.0, 1.0, 2.0, 3.0]))
    rng = np.random.default_rng(3)
    asked = recipe("temperature_softmax", temperature=0.7)
    decisions = [decide(asked, view, 2, rng) for _ in range(20_000)]
    first = np.bincount([decision.selected[0] for decision in decisions], minlength=4) / len(decisions)
    p = decisions[0].probabilities.astype(float)
    assert first == pytest.approx(p, abs=0.015)
    second = np.bincount([decision.selected[1] for decision in decisions], minlength=4) / len(decisions)
    expected = [sum(p[j] * p[i] / (1 - p[j]) for j in range(4) if j != i) for i in range(4)]
    assert second == pytest.approx(expected, abs=0.015)


def test_logits_are_scaled_by_the_interquartile_range():
    scores = np.array([0.0, 1.0, 2.0, 3.0, 10.0])
    assert spread_logits(scores, 0.8) == pytest.approx((scores - 2) / (2.0 * 0.8))
    few = np.array([1.0, 2.0, 4.0])
    assert spread_logits(few, 2.0) == pytest.approx((few - 2) / (few.std() * 2.0))
    assert spread_logits(np.array([3.0, 3.0]), 1.0).tolist() == [0, 0]


def test_guards_keep_distance_to_history_and_siblings():
    centers = np.array([[0.05, 0, 0], [1, 0, 0], [1.05, 0, 0], [2, 0, 0.0]])
    view = PolicyView(np.ones(4, bool), centers, np.zeros((1, 3)), np.array([4.0, 3.0, 2.0, 1.0]))
    asked = recipe("oracle_greedy", min_history_distance_m=0.1, min_sibling_distance_m=0.1)
    decision = decide(asked, view, 3, np.random.default_rng(0))
    assert decision.selected == (1, 3) and not decision.guards_relaxed
    assert decision.probabilities.tolist() == [0, 1, 0, 0]


def test_best_view_is_taken_when_none_keeps_its_distance():
    view = PolicyView(np.ones(3, bool), np.zeros((3, 3)), np.zeros((1, 3)), np.array([1.0, 3.0, 2.0]))
    decision = decide(recipe("oracle_greedy", min_history_distance_m=1), view, 2, np.random.default_rng(0))
    assert decision.selected == (1,) and decision.guards_relaxed


def test_random_draws_labelled_views_and_random_valid_all():
    view = PolicyView(np.ones(3, bool), np.zeros((3, 3)), np.zeros((1, 3)), np.array([np.nan, 1.0, np.nan]))
    rng = np.random.default_rng(0)
    assert {decide(recipe("random"), view, 1, rng).selected for _ in range(20)} == {(1,)}
    assert {decide(recipe("random_valid"), view, 1, rng).selected for _ in range(50)} == {(0,), (1,), (2,)}
