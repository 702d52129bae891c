"""Matching: every status with its reason bits, and lineage that a rollout can carry."""

from __future__ import annotations

import warnings
from dataclasses import fields

import numpy as np
import pytest

from rollout_assets.config import TargetConfig
from rollout_assets.errors import ConfigError
from rollout_assets.randomness import rng_for
from rollout_assets.rollouts.trace import RolloutLineage
from rollout_assets.targets.matching import TargetMatch, match_targets
from rollout_assets.targets.reasons import TargetInvalidReason as Reason
from rollout_assets.targets.selection import (
    describe_ground_truth_targets,
    describe_targets,
    explicit_targets,
    select_targets,
)
from rollout_assets.targets.table import SelectedTarget
from tests.support.refusals import refused
from tests.targets.handmade_samples import Box, actor, points_in, truth

pytestmark = pytest.mark.quick

V1 = TargetConfig()
V0 = TargetConfig(protocol="v0_gt_input")
HERE = (2.0, 0.0, 1.0)


def selected(*boxes: Box) -> tuple[SelectedTarget, ...]:
    points = np.concatenate([points_in(box.center, 10) for box in boxes])
    table = describe_targets(actor(boxes, points), V1)
    return explicit_targets(table, table.target_id)


def match(detected: Box, *gt: Box, config: TargetConfig = V1) -> TargetMatch:
    (found,) = match_targets(selected(detected), truth(*gt), config)
    return found


def shifted(x: float, **changes) -> Box:
    """The IoU of a unit cube moved by x along one side is (1 - x) / (1 + x)."""
    return Box(center=(HERE[0] + x, 0.0, 1.0), **changes)


def test_one_clear_box_is_matched_by_its_source_index():
    found = match(Box(), shifted(3.0, index=4), shifted(0.5, index=17, sem=3, inst=5))
    assert (found.status, found.labelled, found.matched_gt_row_id, found.best_row) == ("matched", True, 17, 1)
    assert found.matched_gt_target_id == "scene-a:snip-3:gt_obbs_oracle:sem=3:inst=5:idx=17"
    assert found.iou == pytest.approx(1 / 3)
    assert found.score == pytest.approx(1 / 3)
    assert (found.reason_bitset, found.primary_reason) == (1 << Reason.VALID, Reason.VALID)


@pytest.mark.parametrize(
    "gt",
    [(), (shifted(3.0),), (shifted(0.85),), (Box(sem=4, name="table"),), (Box(center=(np.nan, 0, 0)),)],
    ids=["no truth", "far", "too little overlap", "another class", "not finite"],
)
def test_no_box_is_unmatched(gt):
    found = match(Box(), *gt)
    assert (found.status, found.labelled, found.matched_gt_row_id) == ("unmatched_gt", False, None)
    assert found.matched_gt_target_id is None
    assert found.reason_bitset == 1 << Reason.TARGET_GT_UNMATCHED
    assert found.primary_reason == Reason.TARGET_GT_UNMATCHED


def test_the_iou_limit_is_inclusive():
    x = 0.75
    limit = (1 - x) / (1 + x)
    assert match(Box(), shifted(x), config=TargetConfig(min_match_iou=limit - 1e-6)).status == "matched"
    assert match(Box(), shifted(x), config=TargetConfig(min_match_iou=limit + 1e-6)).status == "unmatched_gt"


def test_a_close_second_is_ambiguous():
    close = match(Box(), shifted(0.50), shifted(-0.51))
    assert close.status == "ambiguous_gt"
    assert close.reason_bitset == 1 << Reason.TARGET_GT_AMBIGUOUS
    assert (close.matched_gt_row_id, close.best_row) == (None, 0)
    assert close.score == pytest.approx(1 / 3 - 0.49 / 1.51, abs=1e-5)
    assert match(Box(), shifted(0.50), shifted(-0.54)).status == "matched"
    other_class = shifted(-0.50, sem=8, name="lamp")
    assert match(Box(), shifted(0.50), other_class).status == "matched"


def test_two_selections_on_one_box_are_both_ambiguous():
    first, second, third = match_targets(
        selected(Box(), shifted(0.1), shifted(5.0)), truth(shifted(0.05), shifted(5.0)), V1
    )
    assert (first.status, second.status, third.status) == ("ambiguous_pred_to_gt", "ambiguous_pred_to_gt", "matched")
    assert first.reason_bitset == second.reason_bitset == 1 << Reason.TARGET_GT_AMBIGUOUS
    assert (first.matched_gt_row_id, third.matched_gt_row_id) == (None, 1)


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (Box(name="Chair", sem=1), Box(name="chair", sem=2), True),
        (Box(name="chair", sem=1), Box(name="table", sem=1), False),
        (Box(name="", sem=1), Box(name="chair", sem=1), True),
        (Box(name="", sem=1), Box(name="", sem=2), False),
        (Box(name="class_1", sem=1), Box(name="chair", sem=1), True),
        (Box(name="class_1", sem=1), Box(name="chair", sem=2), False),
    ],
)
def test_classes_are_compared_by_name_then_by_id(ours, theirs, same):
    assert (match(ours, theirs).status == "matched") == same


def test_an_ineligible_target_keeps_its_own_reason_first():
    found = match(Box(confidence=0.1))
    assert found.reason_bitset == (1 << Reason.CONFIDENCE_TOO_LOW) | (1 << Reason.TARGET_GT_UNMATCHED)
    assert found.primary_reason == Reason.CONFIDENCE_TOO_LOW


def test_ground_truth_input_is_its_own_match():
    gt = truth(Box(index=5), shifted(2.0, index=8))
    seen = actor(None, np.concatenate([points_in(HERE, 10), points_in((4.0, 0.0, 1.0), 20)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = select_targets(describe_ground_truth_targets(seen, gt, V0), V0, rng_for("v0"))
    found = match_targets(chosen, gt, V0)
    assert [m.status for m in found] == ["v0_gt_input"] * 2
    assert [m.matched_gt_row_id for m in found] == [5, 8]
    assert all(m.matched_gt_target_id == m.target.target_id and m.labelled for m in found)
    assert all((m.iou, m.score) == (1.0, 1.0) for m in found)
    with refused(ConfigError, "scene-a:snip-3:detected_obbs:sem=3:inst=11:idx=0", "v0_gt_input"):
        match_targets(selected(Box()), gt, V0)


def test_nothing_selected_matches_nothing():
    assert match_targets((), truth(Box()), V1) == ()


def test_lineage_takes_every_field():
    known = {field.name for field in fields(RolloutLineage)}
    chosen = select_targets(
        describe_targets(actor([Box(pixels=((0, 10, 0, 10),))], points_in(HERE, 9)), V1), V1, rng_for("lineage")
    )
    (found,) = match_targets(chosen, truth(shifted(0.2)), V1)
    values = found.lineage_fields()
    assert set(values) <= known
    about_target = {name for name in known if name.startswith(("target_", "matched_gt_", "gt_match_"))}
    assert about_target - set(values) == {"target_row_id", "target_crop_policy"}
    lineage = RolloutLineage(**values)
    assert (lineage.target_class_name, lineage.gt_match_status) == ("chair", "matched")
    assert lineage.target_projected_area_pixels == 100.0
    assert len(lineage.target_pose_world_object) == 12
