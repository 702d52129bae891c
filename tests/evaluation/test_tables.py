"""Tables of hand-made outcomes hold the figures that were put in, and leave nothing out."""

import polars as pl
import pytest

from rollout_assets.evaluation.failures import BEHIND_GREEDY, BELOW_RANDOM, failure_table
from rollout_assets.evaluation.tables import comparison_table, group_table, policy_table, spread_texts, view_table
from tests.evaluation.handmade_outcomes import ROLES, handmade_outcomes, paired

MINE = (22 * 0.4 + sum(0.01 * scene for scene in range(6) for _ in range(4)) + 0.0 - 0.1) / 24
"""Mine's mean over 24 roots and seeds: 22 of 0.4 plus the scene's share, one dead end, one loss."""

SCENE = 0.025
"""Mean of what scenes add to everyone."""


def row_of(frame: pl.DataFrame, **values: object) -> dict[str, object]:
    return frame.row(by_predicate=pl.all_horizontal(pl.col(key) == value for key, value in values.items()), named=True)


@pytest.fixture(scope="module")
def policies() -> pl.DataFrame:
    return policy_table(paired(), ROLES)


def test_gains_are_means_over_roots_and_draws(policies):
    expected = {"random_valid": 0.2, "oracle_greedy": 0.6, "oracle_lookahead": 0.7}
    for name, gain in expected.items():
        assert row_of(policies, policy=name)["gain"] == pytest.approx(gain + SCENE)
    assert row_of(policies, policy="mine")["gain"] == pytest.approx(MINE)


def test_shares_run_from_random_to_the_oracles(policies):
    random, greedy, mine = (row_of(policies, policy=name) for name in ("random_valid", "oracle_greedy", "mine"))
    assert (random["headroom"], greedy["headroom"]) == (0.0, 1.0)
    assert greedy["headroom_lookahead"] == pytest.approx(0.8)
    assert mine["headroom"] == pytest.approx((MINE - 0.2 - SCENE) / 0.4)
    assert mine["headroom_low"] < mine["headroom"] < mine["headroom_high"]
    assert mine["regret"] == pytest.approx(0.6 + SCENE - MINE)
    assert (greedy["regret"], greedy["regret_low"], greedy["regret_high"]) == (0.0, 0.0, 0.0)


def test_dead_ends_and_losses_are_counted_and_kept(policies):
    mine = row_of(policies, policy="mine")
    assert (mine["rollouts"], mine["ended_early"], mine["without_view"], mine["lost_ground"]) == (24, 2, 1, 1)
    assert mine["views"] == 22 * 2 + 1
    assert mine["gain_per_view"] == pytest.approx(24 * MINE / 45)
    assert mine["below_random"] == pytest.approx(2 / 24)
    assert row_of(policies, policy="random_valid")["rollouts"] == 48


def test_gain_per_view_is_cumulative(policies):
    views = view_table(paired())
    greedy = views.filter(pl.col("policy") == "oracle_greedy").sort("view")
    assert greedy["gain"].to_list() == pytest.approx([0.6 + SCENE, 0.6 + SCENE])
    assert greedy["added"].to_list() == pytest.approx([0.6 + SCENE, 0.0])
    last = views.filter(pl.col("view") == 2)
    assert dict(last.select("policy", "gain").iter_rows()) == pytest.approx(
        dict(policies.select("policy", "gain").iter_rows())
    )


def test_comparisons_are_paired_and_have_a_verdict():
    comparisons = comparison_table(paired(), ["mine"])
    verdicts = dict(comparisons.select("against", "verdict").iter_rows())
    assert verdicts == {"random_valid": "better", "oracle_greedy": "worse", "oracle_lookahead": "worse"}
    against = row_of(comparisons, against="oracle_greedy")
    assert against["difference"] == pytest.approx(MINE - 0.6 - SCENE) and against["chance_better"] == 0.0


def test_groups_divide_all_roots_and_add_up():
    groups = group_table(paired()).filter(pl.col("policy") == "mine")
    for by, count in (("class", 2), ("scene", 6), ("root error", 3), ("valid views at the root", 3)):
        part = groups.filter(pl.col("by") == by)
        assert (part.height, part["roots"].sum()) == (count, 24), by
        assert (part["gain"] * part["roots"]).sum() == pytest.approx(24 * MINE)
    assert groups.filter(pl.col("by") == "scene")["gain_low"].null_count() == 6
    assert groups.filter(pl.col("by") == "headroom at the root")["group"].to_list() == ["low, up to 0.1"]


def test_failures_are_the_worst_paired_losses():
    failures = failure_table(paired(), ["mine"], 3)
    behind = failures.filter(pl.col("kind") == BEHIND_GREEDY)
    assert behind["loss"].to_list() == pytest.approx([0.7, 0.6, 0.2])
    assert behind["rollout_row_id"].to_list()[:2] == [13, 3]
    assert behind["greedy_rollout_row_id"].to_list()[:2] == [11, 1]
    below = failures.filter(pl.col("kind") == BELOW_RANDOM)
    assert below["loss"].to_list() == pytest.approx([0.3, 0.2])


def test_the_order_of_outcomes_does_not_matter():
    mixed = paired(handmade_outcomes().sample(fraction=1.0, shuffle=True, seed=3))
    assert policy_table(mixed, ROLES).equals(policy_table(paired(), ROLES))
    assert group_table(mixed).equals(group_table(paired()))


def test_figures_are_written_with_their_interval():
    assert spread_texts({"x": -0.5, "x_low": -1.0, "x_high": 0.25}, "x", percent=True) == ("−50 %", "−100 % to 25 %")
    assert spread_texts({"x": 0.5, "x_low": None, "x_high": None}, "x") == ("0.5000", "")
    assert spread_texts({"x": None, "x_low": None, "x_high": None}, "x") == ("–", "")
