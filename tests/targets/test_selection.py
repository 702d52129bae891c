"""Selection: scores to the digit, every reason bit, both policies, and no way to the truth."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.config import TargetConfig
from rollout_assets.errors import ConfigError
from rollout_assets.randomness import rng_for
from rollout_assets.sources.sample import VinActor, VinSample, VinTruth
from rollout_assets.targets.reasons import TargetInvalidReason as Reason
from rollout_assets.targets.selection import (
    all_eligible,
    describe_ground_truth_targets,
    describe_targets,
    explicit_targets,
    points_inside,
    projected_area_px,
    ranked,
    reason_counts,
    select_targets,
)
from rollout_assets.targets.table import TargetTable
from tests.support.refusals import refused
from tests.targets.handmade_samples import CAMERA, IDENTITY, Box, actor, pack, points_in, truth

pytestmark = pytest.mark.quick

V1 = TargetConfig()
V0 = TargetConfig(protocol="v0_gt_input")
CENTER = (2.0, 0.0, 1.0)


def bits(*reasons: Reason) -> int:
    return sum(1 << reason for reason in reasons)


def described(*boxes: Box, n: int = 10, config: TargetConfig = V1) -> TargetTable:
    return describe_targets(actor(boxes, points_in(CENTER, n)), config)


def spread(confidences, n: int = 10) -> TargetTable:
    """Boxes beside each other with equal support."""
    boxes = [Box(center=(2.0 + 2 * i, 0.0, 1.0), confidence=c) for i, c in enumerate(confidences)]
    points = np.concatenate([points_in(box.center, n) for box in boxes])
    return describe_targets(actor(boxes, points), V1)


def test_score_is_the_product_the_design_says():
    table = described(Box(pixels=((10, 30, 20, 30),)), n=10)
    x = 200 / 8000 / 0.05
    visibility = x * x * (3 - 2 * x)
    assert table.projected_area_px.tolist() == [200.0]
    assert table.projected_area_fraction.tolist() == pytest.approx([0.025])
    assert table.visibility_score.tolist() == pytest.approx([visibility])
    assert table.support_score.tolist() == [1.0]
    assert table.deficit_score.tolist() == pytest.approx([1 - 10 / 128])
    assert table.score.tolist() == pytest.approx([0.8 * visibility * (1 - 10 / 128)])
    assert table.eligible.tolist() == [True]
    assert table.target_id == ("scene-a:snip-3:detected_obbs:sem=3:inst=11:idx=0",)


def test_support_counts_both_kinds_strictly_inside():
    corner = np.array([[2.5, 0.5, 1.5], [2.5, 0.0, 1.0], [2.49, 0.49, 1.49]], np.float32)
    points = np.concatenate([points_in(CENTER, 5), corner])
    evidence = (points_in(CENTER, 4), [1, 0, 7, 2])
    table = describe_targets(actor([Box()], points, evidence), V1)
    assert table.semidense_support_count.tolist() == [6]
    assert table.evl_support_count.tolist() == [3]
    assert table.effective_support_count.tolist() == [9.0]


def test_a_turned_box_counts_in_its_own_frame():
    points = np.array([[2.6, 0.0, 1.0], [2.4, 0.4, 1.0]] * 3, np.float32)
    straight, turned = (described_at(points, Box(yaw_deg=yaw)).effective_support_count[0] for yaw in (0.0, 45.0))
    assert (straight, turned) == (3.0, 3.0)
    assert described_at(points[:1], Box(yaw_deg=45.0)).effective_support_count[0] == 1.0


def described_at(points: np.ndarray, *boxes: Box) -> TargetTable:
    return describe_targets(actor(boxes, points), V1)


def test_fast_support_equals_turning_every_point_into_every_box():
    rng = rng_for("support")
    boxes = [
        Box(center=tuple(rng.uniform(-2, 2, 3)), extents=tuple(rng.uniform(0.1, 2, 3)), yaw_deg=rng.uniform(0, 360))
        for _ in range(30)
    ]
    oriented = pack(boxes).boxes
    points = rng.uniform(-3, 3, (20_000, 3)).astype(np.float32)
    slow = oriented.contains(points).sum(axis=1)
    assert slow.min() > 0
    assert np.array_equal(points_inside(oriented, points), slow)
    assert points_inside(oriented, points[:0]).tolist() == [0] * 30


def test_saturated_support_leaves_no_deficit_but_is_eligible():
    table = described(Box(), n=200)
    assert table.deficit_score.tolist() == [0.0]
    assert table.score.tolist() == [0.0]
    assert table.eligible.tolist() == [True]


@pytest.mark.parametrize(
    ("pixels", "area"),
    [
        ((), np.nan),
        (((0, 10, 0, 10),), 100.0),
        (((0, 10, 0, 10), (5, 25, 5, 25)), 400.0),
        (((-1, -1, -1, -1), (-1, -1, -1, -1), (0, 4, 0, 4)), 16.0),
        (((-50, 50, -10, 10),), 500.0),
        (((90, 300, 70, 300),), 100.0),
        (((200, 300, 0, 10),), 0.0),
        (((10, 5, 0, 10),), np.nan),
        (((np.nan, 5, 0, 10), (0, 2, 0, 2)), 4.0),
    ],
)
def test_the_largest_2d_box_is_clipped_to_the_image(pixels, area):
    got = projected_area_px(pack([Box(pixels=pixels)]).packed, CAMERA)
    assert got == pytest.approx([area], nan_ok=True)


def test_visibility_is_fixed_without_a_2d_box_and_saturates():
    assert described(Box()).visibility_score.tolist() == pytest.approx([0.35])
    assert described(Box(pixels=((0, 100, 0, 80),))).visibility_score.tolist() == [1.0]
    assert described(Box(pixels=((200, 300, 0, 10),))).visibility_score.tolist() == [0.0]


@pytest.mark.parametrize(
    ("box", "n", "expected"),
    [
        (Box(), 10, (Reason.VALID,)),
        (Box(confidence=0.19), 10, (Reason.CONFIDENCE_TOO_LOW,)),
        (Box(confidence=0.2), 10, (Reason.VALID,)),
        (Box(confidence=np.nan), 10, (Reason.CONFIDENCE_TOO_LOW,)),
        (Box(), 2, (Reason.TARGET_SUPPORT_TOO_LOW,)),
        (Box(), 3, (Reason.VALID,)),
        (Box(confidence=0.1), 0, (Reason.CONFIDENCE_TOO_LOW, Reason.TARGET_SUPPORT_TOO_LOW)),
        (Box(extents=(1, 0, 1)), 10, (Reason.OBB_EXTENT_INVALID, Reason.TARGET_SUPPORT_TOO_LOW)),
        (Box(extents=(1, -2, 1)), 10, (Reason.OBB_EXTENT_INVALID, Reason.TARGET_SUPPORT_TOO_LOW)),
        (Box(center=(np.nan, 0, 1)), 10, (Reason.OBB_NONFINITE, Reason.TARGET_SUPPORT_TOO_LOW)),
        (Box(extents=(np.nan, 1, 1)), 10, (Reason.OBB_NONFINITE, Reason.TARGET_SUPPORT_TOO_LOW)),
    ],
)
def test_every_reason_sets_its_bit_and_the_first_is_primary(box, n, expected):
    table = described(box, n=n)
    assert table.reason_bitset.tolist() == [bits(*expected)]
    assert table.primary_reason.tolist() == [expected[0]]
    assert table.eligible.tolist() == [expected == (Reason.VALID,)]
    assert np.isfinite(table.score).all()


def test_projection_counts_only_when_required():
    needed = TargetConfig(require_projection=True)
    small, none, enough = Box(pixels=((0, 3, 0, 5),)), Box(), Box(pixels=((0, 4, 0, 4),))
    for box, reason in ((small, Reason.PROJECTED_AREA_TOO_SMALL), (none, Reason.NO_PROJECTED_VISIBILITY)):
        assert described(box).eligible.tolist() == [True]
        assert described(box, config=needed).reason_bitset.tolist() == [bits(reason)]
    assert described(enough, config=needed).eligible.tolist() == [True]
    both = described(small, n=0, config=needed)
    assert both.primary_reason.tolist() == [Reason.TARGET_SUPPORT_TOO_LOW]


def test_padding_that_slipped_through_is_never_a_box():
    boxes = pack([Box(), Box(), Box()])
    boxes.packed[0] = -1
    boxes.packed[1] = 0
    with_padding = replace(actor([Box()], points_in(CENTER, 10)), detected=boxes)
    table = describe_targets(with_padding, V1)
    assert table.primary_reason.tolist() == [Reason.PADDED_OBB, Reason.PADDED_OBB, Reason.VALID]


def test_no_detected_box_is_a_counted_reason():
    for boxes in (None, []):
        table = describe_targets(actor(boxes), V1)
        assert len(table) == 0
        assert reason_counts(table) == {Reason.NO_ACTOR_VISIBLE_SOURCE: 1}
        assert select_targets(table, V1, rng_for("none")) == ()


def test_reasons_are_counted_by_their_primary():
    table = described(Box(), Box(confidence=0.0), Box(confidence=0.1), n=10)
    assert reason_counts(table) == {Reason.VALID: 1, Reason.CONFIDENCE_TOO_LOW: 2}


def test_ground_truth_boxes_need_a_protocol_that_takes_them():
    seen = actor(None, points_in(CENTER, 10))
    with pytest.warns(UserWarning, match="key-7: "):
        described = describe_ground_truth_targets(seen, truth(Box()), V1)
    assert reason_counts(described) == {Reason.GT_SOURCE_DISALLOWED: 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = describe_ground_truth_targets(seen, truth(Box(confidence=-1.0)), V0)
    assert table.confidence.tolist() == [1.0]
    assert table.eligible.tolist() == [True]
    assert table.target_id == ("scene-a:snip-3:gt_obbs_oracle:sem=3:inst=11:idx=0",)
    assert reason_counts(describe_ground_truth_targets(seen, truth(), V0)) == {Reason.NO_ACTOR_VISIBLE_SOURCE: 1}
    with refused(ConfigError, "targets.protocol", "v0_gt_input", "v1_observed"):
        describe_targets(seen, V0)


def test_selection_is_handed_the_actor_alone():
    hints = inspect.get_annotations(describe_targets, eval_str=True)
    assert hints["actor"] is VinActor
    reachable = {str(field.type) for field in fields(VinActor)}
    assert not any(name in kind for kind in reachable for name in (VinTruth.__name__, VinSample.__name__))
    (target,) = select_targets(described(Box()), V1, rng_for("actor"))
    assert target.identity == IDENTITY


def test_rank_is_by_score_then_source_index_then_id():
    boxes = [
        Box(index=9, confidence=0.5),
        Box(index=4, confidence=0.5),
        Box(index=6, confidence=0.9),
        Box(index=5, confidence=0.1),
        Box(index=4, confidence=0.5, inst=2),
    ]
    table = described(*boxes)
    assert ranked(table).tolist() == [2, 1, 4, 0]


def test_greedy_takes_the_best_three_and_draws_nothing():
    table = spread([0.3, 0.9, 0.5, 0.7])
    rng = rng_for("greedy")
    chosen = select_targets(table, V1, rng)
    assert [target.source_index for target in chosen] == [1, 3, 2]
    assert [target.draw.rank for target in chosen] == [0, 1, 2]
    assert all((t.draw.probability, t.draw.log_probability, t.draw.entropy) == (1.0, 0.0, 0.0) for t in chosen)
    assert chosen[0].draw.temperature is None
    assert rng.random() == rng_for("greedy").random()


def test_softmax_frequencies_are_the_recorded_probabilities():
    table = spread([0.3, 0.9, 0.5])
    config = TargetConfig(policy="temperature_softmax_top_k", top_k=2, temperature=0.05)
    logits = table.score.astype(float) / 0.05
    share = np.exp(logits) / np.exp(logits).sum()
    firsts = np.zeros(3)
    for i in range(4000):
        first, second = select_targets(table, config, rng_for("softmax", i))
        firsts[first.source_index] += 1
        assert first.source_index != second.source_index
        assert first.draw.probability == pytest.approx(share[first.source_index])
        left = 1 - share[first.source_index]
        assert second.draw.probability == pytest.approx(share[second.source_index] / left)
        assert first.draw.entropy == pytest.approx(-(share * np.log(share)).sum())
        assert second.draw.log_probability == pytest.approx(np.log(second.draw.probability))
    assert np.abs(firsts / 4000 - share).max() < 0.03


def test_softmax_is_greedy_when_cold_and_uniform_when_hot():
    table = spread([0.3, 0.9, 0.5, 0.7])
    cold = TargetConfig(policy="temperature_softmax_top_k", temperature=1e-5)
    assert [t.source_index for t in select_targets(table, cold, rng_for("cold"))] == [1, 3, 2]
    hot = TargetConfig(policy="temperature_softmax_top_k", temperature=1e9, top_k=10)
    chosen = select_targets(table, hot, rng_for("hot"))
    assert [t.draw.probability for t in chosen] == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])
    assert [t.draw.entropy for t in chosen] == pytest.approx(np.log([4, 3, 2, 1]))


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6),
    st.sampled_from(["greedy_top_k", "temperature_softmax_top_k"]),
    st.integers(1, 8),
    st.floats(1e-6, 1e6),
    st.integers(0, 1000),
)
def test_any_selection_is_eligible_unique_and_repeatable(confidences, policy, top_k, temperature, seed):
    table = spread(confidences)
    config = TargetConfig(policy=policy, top_k=top_k, temperature=temperature)
    chosen = select_targets(table, config, rng_for("any", seed))
    again = select_targets(table, config, rng_for("any", seed))
    assert [(t.target_id, t.draw) for t in chosen] == [(t.target_id, t.draw) for t in again]
    assert len({t.target_id for t in chosen}) == len(chosen) == min(top_k, int(table.eligible.sum()))
    for target in chosen:
        assert target.eligible
        assert 0 < target.draw.probability <= 1
        assert target.draw.log_probability <= 0
        assert target.draw.entropy >= 0


def test_all_eligible_and_explicit_lists_skip_the_policy():
    table = spread([0.3, 0.1, 0.9])
    assert [t.source_index for t in all_eligible(table)] == [2, 0]
    low, high = explicit_targets(table, [table.target_id[1], table.target_id[2]])
    assert (low.eligible, low.primary_reason) == (False, Reason.CONFIDENCE_TOO_LOW)
    assert (high.eligible, high.draw.policy, high.draw.rank) == (True, "explicit", 1)
    with refused(ConfigError, "key-7", "idx=9", "idx=2"):
        explicit_targets(table, ["scene-a:snip-3:detected_obbs:sem=3:inst=11:idx=9"])


def test_a_policy_without_ranks_is_not_taken_for_a_draw():
    with refused(ConfigError, "targets.policy", "all_eligible"):
        select_targets(spread([0.3, 0.9]), TargetConfig(policy="all_eligible"), rng_for("none"))


def test_a_target_knows_its_pose_relative_to_the_reference():
    (target,) = select_targets(
        described_at(points_in((2.0, 0.5, 1.0), 9), Box(center=(2.0, 0.5, 1.0))), V1, rng_for("pose")
    )
    left, up, ahead = target.pose_reference_object[9:]
    assert (left, up, ahead) == pytest.approx((0.5, -0.5, 2.0), abs=1e-6)
    assert target.center_world == pytest.approx((2.0, 0.5, 1.0))
    assert target.extents_m == pytest.approx((1.0, 1.0, 1.0))
