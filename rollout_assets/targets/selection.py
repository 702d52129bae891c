"""Which objects rollouts are about: every box described and scored, then a few selected by policy.

``describe_targets`` takes the actor's half of a sample and cannot reach the truth. Only the protocol ``v0_gt_input``
starts from ground-truth boxes, through its own entrance, ``describe_ground_truth_targets``.
"""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import TargetConfig
from rollout_assets.errors import ConfigError
from rollout_assets.geometry.boxes import BB2, BB3, POSE, OrientedBoxes, is_padding
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64, compose, inverse
from rollout_assets.sources.sample import BoxSet, VinActor, VinSample, VinTruth
from rollout_assets.targets.reasons import TargetInvalidReason
from rollout_assets.targets.table import (
    DETECTED_SOURCE,
    GROUND_TRUTH_SOURCE,
    Draw,
    SelectedTarget,
    TargetSource,
    TargetTable,
    row_prefix,
    target_id,
    usable_boxes,
)

ALL_ELIGIBLE = "all_eligible"
EXPLICIT = "explicit"
"""Names recorded as the selection policy where no configured policy chose."""

_SLACK_M = 1e-3
"""Added to the radius of a bounding sphere, far above the rounding of its coarse test."""


def describe_targets(actor: VinActor, config: TargetConfig) -> TargetTable:
    """Every detected box with scores and reasons (protocol ``v1_observed``).

    Without any detected box the table is empty and carries NO_ACTOR_VISIBLE_SOURCE.
    """
    if config.protocol != "v1_observed":
        raise ConfigError(
            f"targets.protocol {config.protocol} starts from ground-truth boxes; "
            "call describe_ground_truth_targets, or set the protocol to v1_observed"
        )
    if actor.detected is None or len(actor.detected) == 0:
        return _describe(actor, None, DETECTED_SOURCE, config, (TargetInvalidReason.NO_ACTOR_VISIBLE_SOURCE,))
    return _describe(actor, actor.detected, DETECTED_SOURCE, config)


def describe_ground_truth_targets(actor: VinActor, truth: VinTruth, config: TargetConfig) -> TargetTable:
    """Every ground-truth box with scores and reasons (protocol ``v0_gt_input``); their confidence is 1.

    Any other protocol refuses ground truth: with a warning, an empty table and GT_SOURCE_DISALLOWED.
    """
    if config.protocol != "v0_gt_input":
        warnings.warn(
            f"{actor.identity.sample_key}: ground-truth boxes are refused as targets under protocol {config.protocol}",
            stacklevel=2,
        )
        return _describe(actor, None, GROUND_TRUTH_SOURCE, config, (TargetInvalidReason.GT_SOURCE_DISALLOWED,))
    if len(truth.gt_boxes) == 0:
        return _describe(actor, None, GROUND_TRUTH_SOURCE, config, (TargetInvalidReason.NO_ACTOR_VISIBLE_SOURCE,))
    return _describe(actor, truth.gt_boxes, GROUND_TRUTH_SOURCE, config)


def describe_sample(sample: VinSample, config: TargetConfig) -> TargetTable:
    """Every box of a row that the configured protocol starts from."""
    if config.protocol == "v0_gt_input":
        return describe_ground_truth_targets(sample.actor, sample.truth, config)
    return describe_targets(sample.actor, config)


def select_targets(table: TargetTable, config: TargetConfig, rng: np.random.Generator) -> tuple[SelectedTarget, ...]:
    """At most ``top_k`` selectable targets by the configured policy, in the order they were chosen.

    ``greedy_top_k`` takes the first of ``ranked`` (probability 1, entropy 0) and leaves ``rng`` alone.
    ``temperature_softmax_top_k`` draws without replacement with weights exp(score / temperature); probability and
    entropy (in nats) are those of the draw among the targets still there, so their product is that of the sequence.
    """
    order = ranked(table)
    if config.policy not in ("greedy_top_k", "temperature_softmax_top_k"):
        raise ConfigError(f"targets.policy {config.policy} selects nothing by rank; target_source_of(config) chooses")
    if config.policy == "greedy_top_k":
        return _certain(table, order[: config.top_k], config.policy)
    chosen: list[SelectedTarget] = []
    while len(order) and len(chosen) < config.top_k:
        logits = table.score[order].astype(np.float64) / config.temperature
        probability = _softmax(logits)
        pick = _inverse_cdf(probability, rng.random())
        draw = Draw(
            policy=config.policy,
            rank=len(chosen),
            probability=float(probability[pick]),
            log_probability=float(np.log(probability[pick])),
            entropy=_entropy(probability),
            temperature=config.temperature,
        )
        chosen.append(table.selected(int(order[pick]), draw))
        order = np.delete(order, pick)
    return tuple(chosen)


def all_eligible(table: TargetTable) -> tuple[SelectedTarget, ...]:
    """Every eligible target that is not passed over, best first."""
    return _certain(table, ranked(table), ALL_ELIGIBLE)


def explicit_targets(table: TargetTable, target_ids: Sequence[str]) -> tuple[SelectedTarget, ...]:
    """The named targets in the order given. An ineligible one comes with its reasons; an unknown id is refused."""
    rows = {name: row for row, name in enumerate(table.target_id)}
    for name in target_ids:
        if name not in rows:
            close = difflib.get_close_matches(name, table.target_id, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {len(table)} targets"
            raise ConfigError(f"{table.identity.sample_key}: no target {name}; {hint}")
    return _certain(table, np.array([rows[name] for name in target_ids], np.int64), EXPLICIT)


def absent_targets(table: TargetTable, target_ids: Sequence[str]) -> tuple[str, ...]:
    """Those of some ids that name a target of this row which the row does not have."""
    prefix, present = row_prefix(table.identity), set(table.target_id)
    return tuple(name for name in target_ids if name.startswith(prefix) and name not in present)


def ranked(table: TargetTable) -> NDArray[np.int64]:
    """Rows of the selectable targets by (-score, source index, id)."""
    rows = np.flatnonzero(table.selectable)
    keys = [(-float(table.score[row]), int(table.source_index[row]), table.target_id[row]) for row in rows]
    return rows[sorted(range(len(rows)), key=keys.__getitem__)]


def reason_counts(table: TargetTable) -> Counter[TargetInvalidReason]:
    """How many boxes ended with which primary reason, and why a source as a whole gave none."""
    counts = Counter(TargetInvalidReason(int(code)) for code in table.primary_reason)
    counts.update(table.source_reasons)
    return counts


def projected_area_px(packed: Float32, camera: PinholeCamera) -> Float64:
    """packed: (n, 34) -> (n,) area of the largest 2-D box clipped to the image; NaN where there is none."""
    slots = packed[:, BB2].reshape(-1, 3, 4).astype(np.float64)
    left, right, top, bottom = np.moveaxis(slots, -1, 0)
    absent = (slots == -1).all(axis=-1)
    with np.errstate(invalid="ignore"):
        present = ~absent & np.isfinite(slots).all(axis=-1) & (right > left) & (bottom > top)
    slots = np.where(present[..., None], slots, 0.0)
    sizes = np.array([camera.width_px, camera.width_px, camera.height_px, camera.height_px], np.float64)
    left, right, top, bottom = np.moveaxis(np.clip(slots, 0.0, sizes), -1, 0)
    area = np.where(present, (right - left) * (bottom - top), -1.0).max(axis=1)
    return np.where(present.any(axis=1), area, np.nan)


def visibility_score(area_fraction: Float64, config: TargetConfig) -> Float64:
    """Smoothstep of the image share over its saturation; a fixed value where there is no 2-D box (NaN)."""
    x = np.clip(area_fraction / config.saturated_area_fraction, 0.0, 1.0)
    return np.where(np.isnan(area_fraction), config.visibility_without_projection, x * x * (3.0 - 2.0 * x))


def _describe(
    actor: VinActor,
    given: BoxSet | None,
    source: TargetSource,
    config: TargetConfig,
    source_reasons: tuple[TargetInvalidReason, ...] = (),
) -> TargetTable:
    boxes = given if given is not None else BoxSet.empty()
    finite = _finite(boxes)
    semidense = points_inside(boxes.boxes, actor.points_world)
    evidence = points_inside(boxes.boxes, _evidence_points(actor))
    support = semidense + evidence
    area = projected_area_px(boxes.packed, actor.camera)
    fraction = area / (actor.camera.height_px * actor.camera.width_px)
    confidence = boxes.confidence if source == DETECTED_SOURCE else np.ones(len(boxes), np.float32)
    visibility = visibility_score(fraction, config)
    support_score = np.clip(support / config.min_support, 0.0, 1.0)
    deficit = 1.0 - np.clip(support / config.saturated_support, 0.0, 1.0)
    score = np.where(np.isfinite(confidence), confidence, 0.0) * visibility * support_score * deficit
    with np.errstate(invalid="ignore"):
        relative = compose(inverse(actor.reference_pose_world_camera), boxes.boxes.pose_world_object)
        failures = (
            (TargetInvalidReason.PADDED_OBB, is_padding(boxes.packed)),
            (TargetInvalidReason.OBB_NONFINITE, ~finite),
            (TargetInvalidReason.OBB_EXTENT_INVALID, np.asarray((boxes.boxes.extents_m <= 0).any(axis=1))),
            (TargetInvalidReason.CONFIDENCE_TOO_LOW, ~(confidence >= np.float32(config.min_confidence))),
            (TargetInvalidReason.TARGET_SUPPORT_TOO_LOW, support < config.min_support),
            (TargetInvalidReason.NO_PROJECTED_VISIBILITY, config.require_projection & np.isnan(area)),
            (
                TargetInvalidReason.PROJECTED_AREA_TOO_SMALL,
                config.require_projection & (area < config.min_projected_area_px),
            ),
        )
    bitset, primary = _verdict(failures, len(boxes))
    without_score = (bitset == 1 << TargetInvalidReason.VALID) & (score.astype(np.float32) == 0)
    ids = zip(boxes.sem_id, boxes.inst_id, boxes.source_index, strict=True)
    return TargetTable(
        identity=actor.identity,
        source=source,
        source_reasons=source_reasons,
        target_id=tuple(target_id(actor.identity, source, int(s), int(i), int(k)) for s, i, k in ids),
        source_index=boxes.source_index,
        sem_id=boxes.sem_id,
        inst_id=boxes.inst_id,
        class_name=boxes.class_names,
        confidence=confidence,
        projected_area_px=area.astype(np.float32),
        projected_area_fraction=fraction.astype(np.float32),
        semidense_support_count=semidense,
        evl_support_count=evidence,
        effective_support_count=support.astype(np.float32),
        visibility_score=visibility.astype(np.float32),
        support_score=support_score.astype(np.float32),
        deficit_score=deficit.astype(np.float32),
        score=score.astype(np.float32),
        boxes=boxes.boxes,
        pose_reference_object=relative,
        reason_bitset=bitset,
        primary_reason=primary,
        passed_over=tuple("SCORE_ZERO" if zero else "" for zero in without_score.tolist()),
    )


def _verdict(
    failures: Sequence[tuple[TargetInvalidReason, NDArray[np.bool_]]], n: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    """Bits of every failure, and the first failure of each row in the order given."""
    bitset = np.zeros(n, np.uint32)
    primary = np.full(n, TargetInvalidReason.VALID, np.uint16)
    for reason, fails in reversed(failures):
        bitset[fails] |= np.uint32(1 << reason)
        primary[fails] = reason
    bitset[bitset == 0] = 1 << TargetInvalidReason.VALID
    return bitset, primary


def points_inside(boxes: OrientedBoxes, points_world: Float32) -> NDArray[np.int32]:
    """(n,) points strictly inside each box; 0 for a box that is not finite or has no extent.

    Only the points in the cube around a box's bounding sphere are turned into its frame.
    """
    counts = np.zeros(len(boxes), np.int32)
    reach_m = (0.5 * np.linalg.norm(boxes.extents_m.astype(np.float64), axis=1) + _SLACK_M).tolist()
    centres = boxes.centers_world
    x, y, z = np.ascontiguousarray(points_world.T)
    for row in np.flatnonzero(usable_boxes(boxes)):
        near = np.flatnonzero(np.abs(x - centres[row, 0]) <= reach_m[row])
        near = near[np.abs(y[near] - centres[row, 1]) <= reach_m[row]]
        near = near[np.abs(z[near] - centres[row, 2]) <= reach_m[row]]
        counts[row] = boxes[np.array([row])].contains(points_world[near]).sum()
    return counts


def _evidence_points(actor: VinActor) -> Float32:
    if actor.evidence is None:
        return np.zeros((0, 3), np.float32)
    return actor.evidence.points_world[actor.evidence.counts > 0]


def _finite(boxes: BoxSet) -> NDArray[np.bool_]:
    """(n,): the stored geometry and what became of it in the world are finite."""
    stored = np.isfinite(boxes.packed[:, BB3]).all(axis=1) & np.isfinite(boxes.packed[:, POSE]).all(axis=1)
    world = np.isfinite(boxes.boxes.pose_world_object).all(axis=1) & np.isfinite(boxes.boxes.extents_m).all(axis=1)
    return np.asarray(stored & world)


def _certain(table: TargetTable, rows: NDArray[np.int64], policy: str) -> tuple[SelectedTarget, ...]:
    draws = (Draw(policy=policy, rank=rank) for rank in range(len(rows)))
    return tuple(table.selected(int(row), draw) for row, draw in zip(rows, draws, strict=True))


def _softmax(logits: Float64) -> Float64:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def _inverse_cdf(probability: Float64, uniform: float) -> int:
    """The first index at which the cumulated probability exceeds ``uniform`` in [0, 1)."""
    cumulated = np.cumsum(probability)
    pick = int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right"))
    return min(pick, int(np.flatnonzero(probability)[-1]))


def _entropy(probability: Float64) -> float:
    some = probability[probability > 0]
    return float(-(some * np.log(some)).sum()) + 0.0
