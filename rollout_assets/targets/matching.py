"""Which ground-truth box each selected target is: decided after selection, used for labels only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import TargetConfig
from rollout_assets.errors import ConfigError
from rollout_assets.geometry.boxes import OrientedBoxes, oriented_iou
from rollout_assets.geometry.poses import Float64
from rollout_assets.sources.sample import BoxSet, VinTruth
from rollout_assets.targets.reasons import TARGET_INVALID_REASON_VERSION, TargetInvalidReason
from rollout_assets.targets.table import GROUND_TRUTH_SOURCE, SelectedTarget, target_id, usable_boxes

MatchStatus = Literal["matched", "ambiguous_gt", "unmatched_gt", "ambiguous_pred_to_gt", "v0_gt_input"]

LABELLED: tuple[MatchStatus, ...] = ("matched", "v0_gt_input")
"""Statuses under which a target has a ground-truth box, and so may have labels."""


_SCORES = ("confidence", "projected_area_fraction", "visibility_score", "support_score", "deficit_score")
_COUNTS = ("semidense_support_count", "evl_support_count", "effective_support_count")
_SAME_NAME = ("source", "source_index", "sem_id", "inst_id", "center_world", "pose_world_object", *_SCORES, *_COUNTS)
"""Fields of a selected target that a lineage has too, with ``target_`` before the name."""


@dataclass(frozen=True, eq=False)
class TargetMatch:
    """What the truth says of one selected target.

    ``iou`` is that of the best ground-truth box of the same class, ``score`` its lead over the second best (equal to
    ``iou`` when there is none); both 0 without a candidate and 1 under ``v0_gt_input``. ``best_row`` is that box's row
    in ``truth.gt_boxes``, whatever the status. ``matched_gt_row_id`` (its source index) and ``matched_gt_target_id``
    are given only when the status is labelled. ``reason_bitset`` adds the match's reason to the target's own.
    """

    target: SelectedTarget
    status: MatchStatus
    iou: float
    score: float
    best_row: int | None
    matched_gt_row_id: int | None
    matched_gt_target_id: str | None
    reason_bitset: int
    primary_reason: TargetInvalidReason

    @property
    def labelled(self) -> bool:
        """Whether the target's labels mean anything: one ground-truth box is surely it."""
        return self.status in LABELLED and self.matched_gt_row_id is not None

    def lineage_fields(self) -> dict[str, Any]:
        """Every ``target_*``, ``matched_gt_*`` and ``gt_match_*`` field of a rollout's lineage that is known here."""
        target, draw = self.target, self.target.draw
        same_name = {f"target_{name}": getattr(target, name) for name in _SAME_NAME}
        return same_name | {
            "scene_id": target.identity.scene_id,
            "snippet_id": target.identity.snippet_id,
            "target_id": target.target_id,
            "target_protocol_version": "v0_gt_input" if target.source == GROUND_TRUTH_SOURCE else "v1_observed",
            "target_selection_policy": draw.policy,
            "target_selection_rank": draw.rank,
            "target_selection_score": target.score,
            "target_selection_probability": draw.probability,
            "target_selection_temperature": draw.temperature,
            "target_class_name": target.class_name or None,
            "target_projected_area_pixels": target.projected_area_px,
            "target_extents": target.extents_m,
            "target_relative_pose_reference_object": target.pose_reference_object,
            "target_invalid_reason_bitset": self.reason_bitset,
            "target_primary_invalid_reason": int(self.primary_reason),
            "target_reason_code_version": TARGET_INVALID_REASON_VERSION,
            "matched_gt_target_row_id": self.matched_gt_row_id,
            "matched_gt_target_id": self.matched_gt_target_id,
            "gt_match_iou": self.iou,
            "gt_match_score": self.score,
            "gt_match_status": self.status,
        }


def match_targets(selected: Sequence[SelectedTarget], truth: VinTruth, config: TargetConfig) -> tuple[TargetMatch, ...]:
    """One match per selected target, in order.

    The same class and an exact oriented IoU of at least ``min_match_iou`` make a candidate. A lead over the second best
    box of the class of at most ``ambiguous_iou_margin`` is ``ambiguous_gt``. Targets that would all match one box are
    all ``ambiguous_pred_to_gt``.
    """
    if config.protocol == "v0_gt_input":
        return tuple(_given(target, truth.gt_boxes) for target in selected)
    overlaps = _same_class_iou(selected, truth.gt_boxes)
    matches = [_best(target, row, truth.gt_boxes, config) for target, row in zip(selected, overlaps, strict=True)]
    claims = Counter(match.matched_gt_row_id for match in matches if match.status == "matched")
    return tuple(
        _finish(match, "ambiguous_pred_to_gt") if claims[match.matched_gt_row_id] > 1 else match for match in matches
    )


def _best(target: SelectedTarget, overlaps: Float64, truth: BoxSet, config: TargetConfig) -> TargetMatch:
    """overlaps: (m,) IoU with every ground-truth box, NaN where the class is another."""
    rows = np.flatnonzero(~np.isnan(overlaps))
    order = rows[np.argsort(-overlaps[rows], kind="stable")]
    iou = float(overlaps[order[0]]) if len(order) else 0.0
    lead = iou - float(overlaps[order[1]]) if len(order) > 1 else iou
    best = int(order[0]) if iou > 0 else None
    match = _unfinished(target, truth, best, iou, lead)
    if best is None or iou < config.min_match_iou:
        return _finish(match, "unmatched_gt")
    if len(order) > 1 and lead <= config.ambiguous_iou_margin:
        return _finish(match, "ambiguous_gt")
    return match


def _given(target: SelectedTarget, truth: BoxSet) -> TargetMatch:
    """A target that is a ground-truth box already."""
    rows = np.flatnonzero(truth.source_index == target.source_index)
    if target.source != GROUND_TRUTH_SOURCE or len(rows) != 1:
        raise ConfigError(f"{target.target_id} is no ground-truth box of this sample, as v0_gt_input asks for")
    return replace(_unfinished(target, truth, int(rows[0]), 1.0, 1.0), status="v0_gt_input")


def _unfinished(target: SelectedTarget, truth: BoxSet, best: int | None, iou: float, lead: float) -> TargetMatch:
    """A match with ``best``, unless there is a reason against it."""
    name = None
    if best is not None:
        ids = int(truth.sem_id[best]), int(truth.inst_id[best]), int(truth.source_index[best])
        name = target_id(target.identity, GROUND_TRUTH_SOURCE, *ids)
    return TargetMatch(
        target=target,
        status="matched",
        iou=iou,
        score=lead,
        best_row=best,
        matched_gt_row_id=None if best is None else int(truth.source_index[best]),
        matched_gt_target_id=name,
        reason_bitset=target.reason_bitset,
        primary_reason=target.primary_reason,
    )


def _finish(match: TargetMatch, status: MatchStatus) -> TargetMatch:
    """Take the ground-truth box away and say why; a target's own reason stays the primary one."""
    unmatched = status == "unmatched_gt"
    reason = TargetInvalidReason.TARGET_GT_UNMATCHED if unmatched else TargetInvalidReason.TARGET_GT_AMBIGUOUS
    own = match.primary_reason
    return replace(
        match,
        status=status,
        matched_gt_row_id=None,
        matched_gt_target_id=None,
        reason_bitset=(match.reason_bitset & ~(1 << TargetInvalidReason.VALID)) | (1 << reason),
        primary_reason=reason if own == TargetInvalidReason.VALID else own,
    )


def _same_class_iou(selected: Sequence[SelectedTarget], truth: BoxSet) -> Float64:
    """(n, m) exact IoU; NaN where the classes differ or one of the boxes is none."""
    result = np.full((len(selected), len(truth)), np.nan)
    if not selected or not len(truth):
        return result
    ours = OrientedBoxes(
        np.concatenate([target.box.pose_world_object for target in selected]),
        np.concatenate([target.box.extents_m for target in selected]),
    )
    usable = usable_boxes(ours)[:, None] & usable_boxes(truth.boxes)[None, :]
    rows, cols = np.nonzero(usable & _same_class(selected, truth))
    result[rows, cols] = oriented_iou(ours[rows], truth.boxes[cols])
    return result


def _same_class(selected: Sequence[SelectedTarget], truth: BoxSet) -> NDArray[np.bool_]:
    """(n, m): equal names, whatever their case, where both have one; otherwise equal class ids."""
    theirs = [_class_key(name, int(sem)) for name, sem in zip(truth.class_names, truth.sem_id, strict=True)]
    same = np.zeros((len(selected), len(truth)), bool)
    for row, target in enumerate(selected):
        ours = _class_key(target.class_name, target.sem_id)
        for col, name in enumerate(theirs):
            same[row, col] = ours == name if ours and name else target.sem_id == truth.sem_id[col]
    return same


def _class_key(name: str, sem_id: int) -> str:
    """The name to compare; empty for the ``class_<id>`` that stands in for a missing one."""
    key = name.strip().casefold()
    return "" if key == f"class_{sem_id}" else key
