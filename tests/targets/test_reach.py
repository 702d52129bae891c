"""Reach: the least turn that looks at a point, and the distance at which it is seen, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_assets.config import CampaignConfig, CandidateConfig, CandidateRules, MixtureComponent, TargetConfig
from rollout_assets.randomness import rng_for
from rollout_assets.targets.reach import least_turn_deg, within_sight, within_turn
from rollout_assets.targets.selection import all_eligible, describe_targets, explicit_targets, select_targets
from tests.targets.handmade_samples import CAMERA, REFERENCE, Box, actor, pack, points_in

pytestmark = pytest.mark.quick


def around(bearing_deg: float, distance_m: float) -> np.ndarray:
    angle = np.radians(bearing_deg)
    return np.array([[distance_m * np.cos(angle), distance_m * np.sin(angle), 0.3]], np.float32)


@pytest.mark.parametrize(
    ("bearing_deg", "distance_m", "turn_deg"),
    [(0, 3, 0), (90, 2, 60), (-90, 2, 60), (180, 2, 150), (20, 2, 0), (170, 0.9, 0), (120, 100, 119.427)],
)
def test_least_turn_is_the_bearing_less_a_sideways_step(bearing_deg, distance_m, turn_deg):
    assert least_turn_deg(REFERENCE, around(bearing_deg, distance_m), 1.0)[0] == pytest.approx(turn_deg, abs=1e-2)


def test_step_is_limited_by_rule_and_candidate_radius():
    point = around(90, 2)
    rules = CandidateRules(max_yaw_deg=65, max_step_m=1.0)
    assert within_turn(REFERENCE, point, CandidateConfig(rules=rules)).all()
    assert not within_turn(REFERENCE, point, CandidateConfig(radius_max_m=0.5, rules=rules)).any()
    assert not within_turn(REFERENCE, np.full((1, 3), np.nan, np.float32), CandidateConfig(rules=rules)).any()


def mixture(*gazes: str) -> tuple[MixtureComponent, ...]:
    return tuple(MixtureComponent(position="forward_local", orientation=gaze, count=4) for gaze in gazes)


def test_longer_horizon_turns_further_if_views_may_look_away():
    """Straight to the left at 4 m: 90° - asin(walk / 4 m) is 75.5° after one step and 60° after two."""
    point, rules = around(90, 4), CandidateRules(max_yaw_deg=65, max_step_m=1.0)
    gazes = {"target": mixture("target_point"), "ahead": mixture("target_point", "forward_rig")}
    configs = {name: CandidateConfig(rules=rules, mixture=parts) for name, parts in gazes.items()}
    within = {name: [bool(within_turn(REFERENCE, point, c, h)) for h in (1, 2)] for name, c in configs.items()}
    assert within == {"target": [False, False], "ahead": [False, True]}
    behind = around(180, 4)
    around_twice = CandidateConfig(rules=rules, mixture=mixture("target_point", "radial_away"))
    assert not within_turn(REFERENCE, behind, configs["ahead"], 3).any()
    assert [bool(within_turn(REFERENCE, behind, around_twice, h)) for h in (1, 2, 3)] == [False, False, True]


def test_jitter_turns_a_view_less_than_its_target_asks_for():
    config = CandidateConfig(rules=CandidateRules(max_yaw_deg=55), yaw_jitter_deg=10)
    assert within_turn(REFERENCE, around(90, 2), config).all()
    assert not within_turn(REFERENCE, around(90, 2), config.model_copy(update={"yaw_jitter_deg": 0.0})).any()


@pytest.mark.parametrize(
    ("distance_m", "side_m", "horizon", "far_m", "seen"),
    [
        (9.0, 1.0, 1, 20.0, True),
        (30.0, 1.0, 1, 20.0, False),  # 29 m are left, and depth ends at 20 m
        (30.0, 1.0, 10, 20.0, True),
        (9.0, 0.05, 1, 20.0, False),  # 48 px * 0.087 m / 8 m is half a pixel
        (9.0, 0.05, 6, 20.0, True),
    ],
)
def test_a_view_of_the_horizon_must_come_near_the_box(distance_m, side_m, horizon, far_m, seen):
    recipes = ({"name": "short", "policy": "random_valid", "horizon": 1},)
    longest = {"name": "long", "policy": "random_valid", "horizon": horizon}
    config = CampaignConfig(name="far", recipes=(*recipes, longest), oracle={"zfar_m": far_m})
    boxes = pack([Box(center=(distance_m, 0.0, 1.5), extents=(side_m, side_m, side_m))]).boxes
    assert within_sight(REFERENCE, boxes, CAMERA, config).tolist() == [seen]


@pytest.mark.parametrize("policy", ["greedy_top_k", "temperature_softmax_top_k"])
def test_what_is_passed_over_is_never_selected_but_may_be_named(policy):
    config = TargetConfig(policy=policy, top_k=9)
    boxes = [Box(center=(2.0 + 2 * i, 0.0, 1.0)) for i in range(3)]
    points = np.concatenate([points_in(box.center, n) for box, n in zip(boxes, (10, 500, 20), strict=True)])
    table = describe_targets(actor(boxes, points), config)
    assert table.eligible.all() and table.passed_over == ("", "SCORE_ZERO", "")
    table = table.passing_over(np.array([False, True, True]), "OUT_OF_REACH")
    assert table.passed_over_counts() == {"SCORE_ZERO": 1, "OUT_OF_REACH": 1}
    for chosen in (select_targets(table, config, rng_for(1)), all_eligible(table)):
        assert [target.target_id for target in chosen] == [table.target_id[0]]
    assert explicit_targets(table, table.target_id)[1].score == 0
