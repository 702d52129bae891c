"""Rules: each one alone, all together, order and bits, and what must not break the others."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_assets.candidates.mixture import generate_candidates
from rollout_assets.candidates.reasons import VALID_BITSET, InvalidReason, bitset_is_consistent
from rollout_assets.candidates.rules import RULES, CandidateStates, Verdicts, duplicates, judge_views, with_no_hit
from rollout_assets.config import CandidateConfig, CandidateRules
from rollout_assets.errors import GeometryError
from rollout_assets.geometry.poses import look_along
from tests.candidates.collision_worlds import (
    EXTENT,
    FAR_EXTENT,
    AnalyticRoom,
    FixedAnswers,
    mesh_room,
    request,
    scattered_requests,
)
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

REFERENCE = look_along((0.0, 0.0, 1.5), (1.0, 0.0, 0.0))
RULES_CONFIG = CandidateRules()


def states(n: int = 1, extent=EXTENT, target=(1.6, 0.0, 1.0)) -> CandidateStates:
    return CandidateStates(
        reference_world_camera=np.repeat(REFERENCE[None].astype(np.float64), n, axis=0),
        target_center_world=np.repeat(np.array([target], np.float64), n, axis=0),
        extent_low_world=np.repeat(extent[0][None].astype(np.float64), n, axis=0),
        extent_high_world=np.repeat(extent[1][None].astype(np.float64), n, axis=0),
    )


def judge(*views: np.ndarray, world=None, extent=FAR_EXTENT, target=(1.6, 0.0, 1.0)) -> Verdicts:
    world = FixedAnswers() if world is None else world
    return judge_views(np.stack(views)[None], states(extent=extent, target=target), RULES_CONFIG, world)


def view(x=0.3, y=0.0, z=1.5, forward=(1.0, 0.0, 0.0)) -> np.ndarray:
    return look_along((x, y, z), forward)


def bits(*reasons: InvalidReason) -> int:
    return sum(1 << reason for reason in reasons)


def test_a_good_view_is_exactly_valid():
    verdicts = judge(view(), world=AnalyticRoom(), extent=EXTENT)
    assert verdicts.bitset.tolist() == [VALID_BITSET]
    assert verdicts.primary.tolist() == [0]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (view(x=3.5), InvalidReason.POSE_OUT_OF_EXTENT),
        (view(x=1.01), InvalidReason.SAMPLER_RULE_REJECTED),
        (view(z=1.76), InvalidReason.SAMPLER_RULE_REJECTED),
        (view(z=1.24), InvalidReason.SAMPLER_RULE_REJECTED),
        (view(x=-0.26), InvalidReason.SAMPLER_RULE_REJECTED),
        (view(forward=(np.cos(1.23), np.sin(1.23), 0.0)), InvalidReason.SAMPLER_RULE_REJECTED),
        (view(x=1.01), InvalidReason.CLEARANCE_TOO_SMALL),
        (view(x=1.15), InvalidReason.PATH_SEGMENT_COLLISION),
        (np.full(12, np.nan, np.float32), InvalidReason.POSE_NONFINITE),
    ],
)
def test_each_rule_refuses_alone(bad, reason):
    """A twin of the view that just passes is judged beside it."""
    verdicts = judge(bad, view(), world=AnalyticRoom(), extent=EXTENT)
    assert verdicts.bitset[0] & (1 << reason)
    assert verdicts.bitset[1] == VALID_BITSET


def test_motion_limits_are_inclusive_and_mesh_limits_exclusive():
    assert judge(view(x=1.0)).bitset[0] == VALID_BITSET
    assert judge(view(z=1.75)).bitset[0] == VALID_BITSET
    assert judge(view(x=-0.25)).bitset[0] == VALID_BITSET
    assert judge(view(), world=FixedAnswers(0.2, 9.0)).bitset[0] == bits(InvalidReason.CLEARANCE_TOO_SMALL)
    assert judge(view(), world=FixedAnswers(9.0, 0.1)).bitset[0] == VALID_BITSET
    assert judge(view(), world=FixedAnswers(9.0, np.nextafter(np.float32(0.1), np.float32(0)))).bitset[0] == bits(
        InvalidReason.PATH_SEGMENT_COLLISION
    )
    edge = (np.full(3, -9, np.float32), np.array([0.5, 9.0, 9.0], np.float32))
    assert judge(view(x=0.5), extent=edge).bitset[0] == VALID_BITSET


def test_failing_rules_set_their_bits_and_the_first_is_primary():
    inside_the_block = view(x=1.15, forward=(-1.0, 0.0, 0.0))
    tight = (np.full(3, -1, np.float32), np.ones(3, np.float32) * 2)
    tight[1][0] = 1.1
    verdicts = judge(inside_the_block, world=AnalyticRoom(), extent=tight)
    reasons = [reason for reason, _ in RULES]
    assert verdicts.bitset[0] == bits(*reasons)
    assert verdicts.primary[0] == InvalidReason.POSE_OUT_OF_EXTENT
    wide = judge(inside_the_block, world=AnalyticRoom(), extent=EXTENT)
    assert wide.bitset[0] == bits(*reasons[1:])
    assert wide.primary[0] == InvalidReason.SAMPLER_RULE_REJECTED


def test_nonfinite_pose_has_one_reason_and_is_not_measured():
    broken = view()
    broken[10] = np.inf
    verdicts = judge(broken, view(), np.full(12, np.nan, np.float32), world=AnalyticRoom(), extent=EXTENT)
    assert verdicts.bitset.tolist() == [
        bits(InvalidReason.POSE_NONFINITE),
        VALID_BITSET,
        bits(InvalidReason.POSE_NONFINITE),
    ]
    assert verdicts.primary.tolist() == [1, 0, 1]
    measured = verdicts.diagnostics
    for name in vars(measured):
        column = getattr(measured, name)
        assert not column[0] if name == "path_collision_mask" else np.isnan(column[0]), name
        assert np.isfinite(column[1]), name


def test_a_shell_without_any_finite_pose_asks_nothing():
    world = AnalyticRoom()
    verdicts = judge(np.full(12, np.nan, np.float32), world=world)
    assert world.queries == []
    assert verdicts.primary.tolist() == [InvalidReason.POSE_NONFINITE]


def test_an_answer_that_is_nan_refuses_the_view():
    verdicts = judge(view(), world=FixedAnswers(np.nan, np.nan))
    assert verdicts.bitset[0] == bits(InvalidReason.CLEARANCE_TOO_SMALL, InvalidReason.PATH_SEGMENT_COLLISION)
    assert verdicts.diagnostics.path_collision_mask.tolist() == [True]


def test_a_world_that_answers_for_too_few_points_is_refused():
    class Short(FixedAnswers):
        def distance_m(self, points):
            return super().distance_m(points[:1])

    with refused(GeometryError, "distance_m", "(2,)", "(1,)"):
        judge(view(), view(x=0.4), world=Short())


def test_only_the_later_of_two_equal_poses_is_a_duplicate():
    nothing = np.full(12, np.nan, np.float32)
    verdicts = judge(view(), view(x=0.4), view(), nothing, nothing, view(forward=(1.0, 0.1, 0.0)), view())
    expected = [False, False, True, False, False, False, True]
    assert [(int(b) >> InvalidReason.CANDIDATE_DUPLICATE) & 1 == 1 for b in verdicts.bitset] == expected
    two_states = np.stack([np.stack([view(), view(x=0.4)]), np.stack([view(), view()])])
    assert duplicates(two_states).tolist() == [[False, False], [False, True]]


def test_measures_have_the_documented_signs():
    lower_behind = view(x=-0.2, y=0.1, z=1.4, forward=(0.0, 1.0, 0.0))
    measured = judge(lower_behind, extent=EXTENT, target=(-0.2, 2.1, 1.4)).diagnostics
    assert measured.motion_height_delta_m[0] == pytest.approx(-0.1, abs=1e-6)
    assert measured.motion_backward_step_m[0] == pytest.approx(0.2, abs=1e-6)
    assert measured.motion_yaw_delta_deg[0] == pytest.approx(90.0)
    assert measured.motion_step_length_m[0] == pytest.approx(np.sqrt(0.06), abs=1e-6)
    assert measured.target_distance_m[0] == pytest.approx(2.0)
    assert measured.target_bearing_yaw_deg[0] == pytest.approx(90.0)
    assert measured.free_space_margin_m[0] == pytest.approx(1.2)
    ahead = judge(view(), extent=EXTENT).diagnostics
    assert ahead.motion_backward_step_m[0] == 0.0
    outside = judge(view(x=3.5, z=2.8), extent=EXTENT).diagnostics
    assert outside.free_space_margin_m[0] == pytest.approx(-0.5)


def test_bearing_is_horizontal_and_undefined_straight_above():
    high = judge(view(), target=(0.3, 5.0, 2.4)).diagnostics.target_bearing_yaw_deg[0]
    low = judge(view(), target=(0.3, 5.0, 0.1)).diagnostics.target_bearing_yaw_deg[0]
    assert high == low == pytest.approx(90.0)
    above = view()
    overhead = judge(above, target=(float(above[9]), 0.0, 2.4)).diagnostics
    assert np.isnan(overhead.target_bearing_yaw_deg[0])
    assert overhead.target_distance_m[0] == pytest.approx(0.9)


def test_the_oracles_scene_and_the_analytic_room_agree():
    config = CandidateConfig()
    ours = generate_candidates(scattered_requests(12, 5), config, mesh_room())
    theirs = generate_candidates(scattered_requests(12, 5), config, AnalyticRoom())
    for a, b in zip(ours, theirs, strict=True):
        assert np.allclose(a.diagnostics.mesh_distance_m, b.diagnostics.mesh_distance_m, atol=2e-6)
        assert np.allclose(a.diagnostics.path_min_clearance_m, b.diagnostics.path_min_clearance_m, atol=2e-6)
        assert np.array_equal(a.invalid_reason_bitset, b.invalid_reason_bitset)


def test_views_that_hit_nothing_stop_being_takeable():
    (shell,) = generate_candidates([request()], CandidateConfig(), AnalyticRoom())
    hits = np.where(np.arange(60) % 2 == 0, 0, 100)
    after = with_no_hit(shell, hits)
    blind = shell.actor_action_mask & (hits == 0)
    assert blind.any()
    assert (shell.actor_action_mask & ~blind).any()
    assert np.array_equal(after.actor_action_mask, shell.actor_action_mask & ~blind)
    assert (after.invalid_reason_bitset[blind] == bits(InvalidReason.DEPTH_NO_HIT)).all()
    assert (after.primary_invalid_reason[blind] == InvalidReason.DEPTH_NO_HIT).all()
    assert np.array_equal(after.invalid_reason_bitset[~blind], shell.invalid_reason_bitset[~blind])
    assert bitset_is_consistent(after.invalid_reason_bitset, after.actor_action_mask).all()
    assert (after.invalid_reason_bitset.dtype, after.primary_invalid_reason.dtype) == (np.uint32, np.uint16)
    with refused(GeometryError, "(60,)", "(3,)"):
        with_no_hit(shell, [1, 2, 3])


def test_bad_states_are_refused_with_the_value():
    with refused(GeometryError, "extent", "[[-3.0, -3.0, 0.0]]"):
        states(extent=(EXTENT[1], EXTENT[0]))
    with refused(GeometryError, "target_center_world", "(1, 3)", "(1, 2)"):
        states(target=(1.0, 2.0))
