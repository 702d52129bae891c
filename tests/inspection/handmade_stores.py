"""A store in which nothing is suspicious, and one change per kind of finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from rollout_assets.candidates.reasons import VALID_BITSET, InvalidReason
from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.rollouts.trace import CandidateSelection, RolloutStep, RolloutZarrRecord, SelectedDepth, StepLabels
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.testing.fake_records import SyntheticRecords

SIZE = 8
SHELL = 20
CHANGED = 1
"""The record that a change is made to; it has one chain of one step."""

Change = Callable[[RolloutStep], RolloutStep]


def clean_records() -> list[RolloutZarrRecord]:
    """Three greedy chains of one step; every view valid, labelled, apart from the others and moved to with care."""
    campaign = SyntheticRecords(
        sources=3,
        targets=1,
        recipes=("oracle_greedy",),
        chains=1,
        horizon=1,
        shell=(SHELL, SHELL),
        valid_fraction=1.0,
        depth_hw=(SIZE, SIZE),
        dead_ends=False,
    )
    return [_clean(record) for record in campaign]


def changed(change: Change) -> list[RolloutZarrRecord]:
    """The clean records with one step changed."""
    records = clean_records()
    records[CHANGED] = with_step(records[CHANGED], change)
    return records


def write(path: Path, records: list[RolloutZarrRecord]) -> RolloutZarrStoreReader:
    depth = SelectedDepthRetentionConfig(width_px=SIZE, height_px=SIZE)
    write_rollout_zarr_store(path, records, RolloutZarrStoreConfig(selected_depth=depth))
    return RolloutZarrStoreReader(path)


def _clean(record: RolloutZarrRecord) -> RolloutZarrRecord:
    lineage = replace(
        record.lineage,
        gt_match_status="matched",
        matched_gt_target_row_id=0,
        matched_gt_target_id=f"{record.lineage.scene_id}:{record.lineage.snippet_id}:gt:0",
        target_invalid_reason_bitset=VALID_BITSET,
        target_primary_invalid_reason=0,
    )
    record = replace(record, lineage=lineage, branch_factor=1, beam_width=None)

    def tidy(step: RolloutStep) -> RolloutStep:
        measured = step.shell.diagnostics
        calm = {name: getattr(measured, name) * np.float32(0.3) for name in MOTION}
        shell = replace(step.shell, diagnostics=replace(measured, **calm))
        return relabelled(replace(step, shell=shell), np.abs(step.labels.target_root_gain.astype(np.float64)))

    return with_step(record, tidy)


MOTION = ("motion_step_length_m", "motion_height_delta_m", "motion_backward_step_m", "motion_yaw_delta_deg")


def with_step(record: RolloutZarrRecord, change: Change) -> RolloutZarrRecord:
    (chain,) = record.chains
    (step,) = chain.steps
    return replace(record, chains=(replace(chain, steps=(change(step),)),))


def greedy(step: RolloutStep, rank: int = 0) -> RolloutStep:
    """The step with its ``rank``-th best view taken for sure."""
    gains = np.where(step.shell.actor_action_mask, np.nan_to_num(step.labels.target_root_gain, nan=-9), -9)
    chosen = int(np.argsort(-gains, kind="stable")[rank])
    probability = np.zeros(len(gains), np.float32)
    probability[chosen] = 1.0
    with np.errstate(divide="ignore"):
        log_probability = np.log(probability)
    logits = np.where(step.shell.actor_action_mask, gains, np.nan).astype(np.float32)
    return replace(
        step,
        selection=CandidateSelection(
            logits=logits,
            probabilities=probability,
            log_probabilities=log_probability,
            inclusion_probabilities=probability,
            drawn_mask=probability > 0,
            selected_shell_index=chosen,
            draw_log_probability=0.0,
            score_source="target_root_gain",
        ),
    )


def refused(step: RolloutStep, rows: np.ndarray, reasons: list[InvalidReason]) -> RolloutStep:
    """The step with some views refused, for the given reasons in turn."""
    valid, bits, primary = (
        getattr(step.shell, name).copy()
        for name in ("actor_action_mask", "invalid_reason_bitset", "primary_invalid_reason")
    )
    collides = step.shell.diagnostics.path_collision_mask.copy()
    for index, row in enumerate(rows.tolist()):
        reason = reasons[index % len(reasons)]
        valid[row], bits[row], primary[row] = False, 1 << reason, reason
        collides[row] = reason == InvalidReason.PATH_SEGMENT_COLLISION
    shell = replace(
        step.shell,
        actor_action_mask=valid,
        invalid_reason_bitset=bits,
        primary_invalid_reason=primary,
        diagnostics=replace(step.shell.diagnostics, path_collision_mask=collides),
    )
    labels = {
        field.name: np.where(valid, getattr(step.labels, field.name), np.float32(np.nan))
        for field in fields(StepLabels)
    }
    return greedy(replace(step, shell=shell, labels=StepLabels(**labels)))


def relabelled(step: RolloutStep, gains: np.ndarray) -> RolloutStep:
    """The step with other root gains, everything that follows from them included."""
    before = step.labels.target_pm_dist_before.astype(np.float64)
    after = (before * (1 - gains)).astype(np.float32)
    exact = (before - after) / before
    labels = replace(
        step.labels,
        target_rri=exact.astype(np.float32),
        target_root_gain=exact.astype(np.float32),
        target_log_error_gain=(np.log(before) - np.log(np.maximum(after, 1e-12, dtype=np.float64))).astype(np.float32),
        target_pm_dist_after=after,
    )
    return greedy(replace(step, labels=labels))


def others(step: RolloutStep) -> np.ndarray:
    """Views that were not taken."""
    return np.flatnonzero(np.arange(SHELL) != step.selection.selected_shell_index)


def low_valid_fanout(step: RolloutStep) -> RolloutStep:
    turns = [InvalidReason.DEPTH_NO_HIT, InvalidReason.CLEARANCE_TOO_SMALL]
    return refused(step, others(step)[: SHELL - 2], turns)


def dominant_invalid_reason(step: RolloutStep) -> RolloutStep:
    """Nine of ten refused views have one reason, and these are less than half of the shell."""
    return refused(step, others(step)[:10], [InvalidReason.CLEARANCE_TOO_SMALL] * 9 + [InvalidReason.DEPTH_NO_HIT])


def dominant_reason_of_shell(step: RolloutStep) -> RolloutStep:
    """One reason refuses 16 of 20 views, and so all that are refused: the other kind is found as well."""
    return refused(step, others(step)[:16], [InvalidReason.CLEARANCE_TOO_SMALL])


def valid_candidate_missing_label(step: RolloutStep) -> RolloutStep:
    row = others(step)[3]
    bare = {}
    for field in fields(StepLabels):
        values = getattr(step.labels, field.name).copy()
        values[row] = np.nan
        bare[field.name] = values
    return replace(step, labels=StepLabels(**bare))


def selected_motion_outlier(step: RolloutStep) -> RolloutStep:
    values = step.shell.diagnostics.motion_step_length_m.copy()
    values[step.selection.selected_shell_index] = 2.0
    return replace(
        step, shell=replace(step.shell, diagnostics=replace(step.shell.diagnostics, motion_step_length_m=values))
    )


def equal_labels_in_step(step: RolloutStep) -> RolloutStep:
    return relabelled(step, np.full(SHELL, 0.125))


def gain_out_of_range(step: RolloutStep) -> RolloutStep:
    gains = step.labels.target_root_gain.astype(np.float64)
    gains[others(step)[5]] = 1.5
    return relabelled(step, gains)


def greedy_choice_not_best(step: RolloutStep) -> RolloutStep:
    return greedy(step, rank=1)


def chain_loses_ground(step: RolloutStep) -> RolloutStep:
    """By less than a view may worsen an error before that is a finding of its own."""
    return relabelled(step, np.linspace(-8e-6, -2e-6, SHELL))


def accuracy_worsens(step: RolloutStep) -> RolloutStep:
    gains = step.labels.target_root_gain.astype(np.float64)
    gains[others(step)[5]] = -0.03
    return relabelled(step, gains)


def label_unstable_under_noise(step: RolloutStep) -> RolloutStep:
    """One view of some gain sees the target with two pixels, one without gain with none."""
    row, idle = others(step)[[4, 7]]
    gains = step.labels.target_root_gain.astype(np.float64)
    gains[row], gains[idle] = 0.04, 0.0
    seen = step.labels.target_candidate_support.copy()
    seen[row], seen[idle] = 2.0, 0.0
    return relabelled(replace(step, labels=replace(step.labels, target_candidate_support=seen)), gains)


def chosen_with_probability_near_zero(step: RolloutStep) -> RolloutStep:
    """The best view is taken, though another one was certain."""
    chosen = step.selection.selected_shell_index
    probability = np.zeros(SHELL, np.float32)
    probability[chosen], probability[others(step)[0]] = 1e-12, 1.0
    with np.errstate(divide="ignore"):
        log_probability = np.log(probability)
    selection = replace(step.selection, probabilities=probability, log_probabilities=log_probability)
    return replace(step, selection=selection)


def near_duplicate_views(step: RolloutStep) -> RolloutStep:
    poses = step.shell.pose_world_camera.copy()
    first, second = others(step)[[2, 9]]
    poses[second] = poses[first]
    poses[second, 9:] += np.float32(0.0005)
    return replace(step, shell=replace(step.shell, pose_world_camera=poses))


def empty_depth(step: RolloutStep) -> RolloutStep:
    return _seeing(step, 0.0)


def saturated_depth(step: RolloutStep) -> RolloutStep:
    return _seeing(step, 19.5)


def _seeing(step: RolloutStep, depth_m: float) -> RolloutStep:
    image = np.full((SIZE, SIZE), depth_m, np.float32)
    return replace(step, selected_depth=SelectedDepth(image, image > 0, (8.0, 8.0), (4.0, 4.0)))


STEP_CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        low_valid_fanout,
        dominant_invalid_reason,
        valid_candidate_missing_label,
        selected_motion_outlier,
        equal_labels_in_step,
        gain_out_of_range,
        greedy_choice_not_best,
        chain_loses_ground,
        accuracy_worsens,
        label_unstable_under_noise,
        chosen_with_probability_near_zero,
        near_duplicate_views,
        empty_depth,
        saturated_depth,
    )
}
"""Kind of finding -> the change to one step that plants it."""


def with_unlabelled_target(records: list[RolloutZarrRecord]) -> list[RolloutZarrRecord]:
    """A high-scoring target whose ground truth is no label."""
    lineage = replace(
        records[CHANGED].lineage,
        target_selection_score=0.9,
        gt_match_status="ambiguous_gt",
        matched_gt_target_row_id=None,
        matched_gt_target_id=None,
    )
    records[CHANGED] = replace(records[CHANGED], lineage=lineage)
    return records


def with_constant_feature(records: list[RolloutZarrRecord]) -> list[RolloutZarrRecord]:
    """A measure that is the same in every row of the store."""

    def flat(step: RolloutStep) -> RolloutStep:
        values = np.full(SHELL, 0.75, np.float32)
        return replace(
            step, shell=replace(step.shell, diagnostics=replace(step.shell.diagnostics, mesh_distance_m=values))
        )

    return [with_step(record, flat) for record in records]
