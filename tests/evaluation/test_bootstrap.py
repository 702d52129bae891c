"""Means, differences and shares have the values that one can write down by hand, and intervals cover the truth."""

import numpy as np
import pytest

from rollout_assets.evaluation.bootstrap import LEAST_SCENES, PairedMeans, scene_weights
from rollout_assets.evaluation.config import BootstrapConfig
from tests.evaluation import naive_evaluation as naive

FEW = BootstrapConfig(samples=300)


def scene_names(scenes: int, roots: int = 1) -> list[str]:
    return [f"scene-{scene:03d}" for scene in range(scenes) for _ in range(roots)]


def handmade(scenes: int = 7, roots: int = 3, seed: int = 0) -> tuple[dict[str, np.ndarray], list[str]]:
    """Roots in scenes that differ much, policies that differ little, and never without headroom."""
    rng = np.random.default_rng(seed)
    ground = np.repeat(rng.normal(0.4, 0.2, scenes), roots) + rng.normal(0, 0.02, scenes * roots)
    gaps = {"random": 0.0, "mine": 0.06, "other": 0.05, "greedy": 0.1}
    noise = {name: rng.normal(0, 0.01, len(ground)) for name in gaps}
    return {name: ground + gap + noise[name] for name, gap in gaps.items()}, scene_names(scenes, roots)


def test_a_policy_a_quarter_of_the_way_everywhere_has_recovered_a_quarter_of_the_headroom():
    low, high = np.linspace(0, 0.3, 12), np.linspace(0.2, 0.9, 12)
    values = {"low": low, "high": high, "mine": low + 0.25 * (high - low)}
    share = PairedMeans(values, scene_names(6, 2), FEW).share("mine", "low", "high")
    assert (share.value, share.low, share.high) == pytest.approx((0.25, 0.25, 0.25))
    assert share.chance == 1.0


def test_the_share_is_a_ratio_of_sums_so_roots_without_headroom_weigh_nothing():
    values = {"low": np.zeros(6), "high": np.array([1, 1, 1, 1, 1, 0.0]), "mine": np.array([0.5] * 5 + [0.0])}
    assert PairedMeans(values, scene_names(6), FEW).share("mine", "low", "high").value == pytest.approx(0.5)
    values["mine"] = np.array([1, 0, 0, 0, 0, -0.5])
    assert PairedMeans(values, scene_names(6), FEW).share("mine", "low", "high").value == pytest.approx(0.1)


@pytest.mark.parametrize("seed", range(4))
def test_intervals_equal_those_of_the_slow_twin(seed):
    values, scenes = handmade(seed=seed)
    options = BootstrapConfig(samples=200, seed=seed, confidence=0.9)
    means = PairedMeans(values, scenes, options)
    rows = [{name: float(column[at]) for name, column in values.items()} for at in range(len(scenes))]
    cases = {
        "mean": (means.mean("mine"), lambda drawn: naive.mean(drawn, "mine")),
        "difference": (means.difference("mine", "random"), naive.difference("mine", "random")),
        "share": (means.share("mine", "random", "greedy"), naive.share("mine", "random", "greedy")),
    }
    for name, (estimate, statistic) in cases.items():
        slow = naive.interval(rows, scenes, statistic, options)
        assert estimate.value == pytest.approx(statistic(rows)), name
        assert (estimate.low, estimate.high) == pytest.approx(slow), name


def test_scenes_of_different_size_count_by_their_roots():
    values = {"mine": np.array([1.0] * 9 + [0.0] * 6)}
    scenes = ["large"] * 9 + [f"small-{number}" for number in range(6)]
    means = PairedMeans(values, scenes, FEW)
    assert means.mean("mine").value == pytest.approx(0.6)
    weights = scene_weights(7, FEW)
    largest = (weights[:, 0] * 9) / (weights @ np.array([9, 1, 1, 1, 1, 1, 1]))
    assert means.mean("mine").high == pytest.approx(np.quantile(largest, 0.975))


def test_intervals_cover_the_truth_as_often_as_they_say():
    covered = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        ground = np.repeat(rng.normal(0.3, 0.1, 40), 3)
        values = {"a": ground + rng.normal(0.05, 0.03, 120), "b": ground + rng.normal(0.0, 0.03, 120)}
        means = PairedMeans(values, scene_names(40, 3), BootstrapConfig(samples=400, seed=seed))
        difference, mean = means.difference("a", "b"), means.mean("b")
        covered.append((difference.low <= 0.05 <= difference.high, mean.low <= 0.3 <= mean.high))
    assert (np.mean(covered, axis=0) >= 0.90).all() and (np.mean(covered, axis=0) <= 0.99).all()


def test_pairing_knows_a_difference_more_closely_than_the_means():
    values, scenes = handmade(scenes=30)
    means = PairedMeans(values, scenes, FEW)
    difference, mean = means.difference("mine", "random"), means.mean("mine")
    assert difference.high - difference.low < 0.1 * (mean.high - mean.low)
    assert difference.above_zero and not difference.below_zero


def test_more_roots_of_the_same_scenes_do_not_make_an_interval_narrower():
    values, scenes = handmade()
    once = PairedMeans(values, scenes, FEW).mean("mine")
    many = PairedMeans({name: np.tile(v, 5) for name, v in values.items()}, scenes * 5, FEW).mean("mine")
    assert (many.value, many.low, many.high) == pytest.approx((once.value, once.low, once.high))


def test_every_policy_is_judged_on_the_same_draws_whatever_else_is_evaluated():
    values, scenes = handmade()
    alone = PairedMeans({"mine": values["mine"], "random": values["random"]}, scenes, FEW)
    beside = PairedMeans(dict(reversed(values.items())), scenes, FEW)
    assert alone.difference("mine", "random") == beside.difference("mine", "random")
    same = beside.difference("mine", "mine")
    assert (same.value, same.low, same.high, same.chance) == (0.0, 0.0, 0.0, 0.0)


def test_the_order_of_roots_does_not_matter():
    values, scenes = handmade()
    order = np.random.default_rng(1).permutation(len(scenes))
    mixed = PairedMeans({n: v[order] for n, v in values.items()}, [scenes[at] for at in order], FEW)
    straight = PairedMeans(values, scenes, FEW)
    for left, right in ((mixed.mean("mine"), straight.mean("mine")),):
        assert (left.value, left.low, left.high) == pytest.approx((right.value, right.low, right.high))


def test_too_few_scenes_have_no_interval():
    means = PairedMeans({"a": np.ones(8), "b": np.zeros(8)}, scene_names(LEAST_SCENES - 1, 2), FEW)
    difference = means.difference("a", "b")
    assert (difference.value, difference.low, difference.chance) == (1.0, None, None)
    assert not difference.above_zero and not difference.below_zero


def test_without_headroom_there_is_no_share_of_it():
    values = {"low": np.ones(6), "high": np.ones(6), "mine": np.zeros(6)}
    assert PairedMeans(values, scene_names(6), FEW).share("mine", "low", "high").value is None
    values["high"] = np.array([2, 1, 1, 1, 1, 1.0])  # some draws leave the one scene with headroom out
    share = PairedMeans(values, scene_names(6), FEW).share("mine", "low", "high")
    assert share.value == pytest.approx(-6.0) and share.low is None
