"""Targets against the campaign: named after their box, scored, ranked and matched by its rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import TargetConfig
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows, differs
from rollout_assets.rollouts.zarr_store.schema import SOURCES, TARGETS
from rollout_assets.targets.reasons import TARGET_INVALID_REASON_VERSION, TargetInvalidReason
from rollout_assets.targets.selection import ALL_ELIGIBLE, EXPLICIT, visibility_score
from rollout_assets.targets.table import GROUND_TRUTH_SOURCE

_BOX_NAME = re.compile(r"^(.+):([a-z_]+):sem=(-?\d+):inst=(-?\d+):idx=(-?\d+)$")
_TOLERANCE = 1e-5


def targets_named_by_box(store: StoreUnderCheck) -> Findings:
    """Ids name scene, snippet, source and box: the target's own, and the ground-truth box that it matched."""
    if store.campaign is None or not store.rows(TARGETS):
        return
    source = np.clip(store.column(TARGETS, "source_row_id"), 0, max(store.rows(SOURCES) - 1, 0)).tolist()
    scenes, snippets = store.decoded(SOURCES, "scene_id"), store.decoded(SOURCES, "snippet_id")
    places = [f"{scenes[row]}:{snippets[row]}" for row in source]
    boxes = ["target_sem_id", "target_inst_id", "target_source_index"]
    columns = [store.column(TARGETS, name).tolist() for name in boxes]
    kinds = store.decoded(TARGETS, "target_source_id")
    names = [
        f"{place}:{kind}:sem={sem}:inst={inst}:idx={index}"
        for place, kind, sem, inst, index in zip(places, kinds, *columns, strict=True)
    ]
    stored = np.array(store.decoded(TARGETS, "target_id"))
    text = "must be made of its scene, snippet, source and the ids of its box"
    yield from bad_rows(TARGETS.path("target_id"), stored != np.array(names), text, stored)
    matched = store.decoded(TARGETS, "matched_gt_target_id")
    rows = store.column(TARGETS, "matched_gt_target_row_id")
    expected = np.array([_matched_row(text, place) for text, place in zip(matched, places, strict=True)])
    text = "must be the index that matched_gt_target_id ends with, -1 without one"
    yield from store.bad_rows(TARGETS, "matched_gt_target_row_id", rows != expected, text)
    claims = np.stack([np.array(source), rows], axis=1)
    _, first, inverse = np.unique(claims, axis=0, return_index=True, return_inverse=True)
    twice = (rows >= 0) & (first[inverse.reshape(-1)] != np.arange(len(rows))) & _chosen_by_policy(store)
    text = "must be matched by one target of its source row only"
    yield from store.bad_rows(TARGETS, "matched_gt_target_row_id", twice, text)


def targets_scored_by_rules(store: StoreUnderCheck) -> Findings:
    """Supports add up; scores follow from support, area and confidence; a valid target passes every threshold."""
    if store.campaign is None:
        return
    rules = store.campaign.targets
    support = _float(store, "target_semidense_support_count") + _float(store, "target_evl_support_count")
    confidence = _float(store, "target_confidence")
    with np.errstate(invalid="ignore"):
        visible = visibility_score(_float(store, "target_projected_area_fraction"), rules)
    parts: Mapping[str, NDArray[np.float64]] = {
        "target_effective_support_count": support,
        "target_visibility_score": visible,
        "target_support_score": np.clip(support / rules.min_support, 0.0, 1.0),
        "target_deficit_score": 1.0 - np.clip(support / rules.saturated_support, 0.0, 1.0),
    }
    score = np.where(np.isfinite(confidence), confidence, 0.0)
    for name, expected in parts.items():
        yield from _apart(store, name, expected, "must follow from the target's support and area")
        if name != "target_effective_support_count":
            score = score * expected
    yield from _apart(store, "target_selection_score", score, "must be confidence x visibility x support x deficit")
    valid = store.column(TARGETS, "target_valid_mask")
    for name, wrong, text in (
        ("target_confidence", ~(confidence >= np.float32(rules.min_confidence)), f">= {rules.min_confidence}"),
        ("target_effective_support_count", support < rules.min_support, f">= {rules.min_support}"),
        ("target_extents", ~(store.column(TARGETS, "target_extents") > 0).all(axis=1), "> 0"),
    ):
        yield from store.bad_rows(TARGETS, name, valid & wrong, f"must be {text} on a valid target")
    pixels, fraction = _float(store, "target_projected_area_pixels"), _float(store, "target_projected_area_fraction")
    wrong = (np.isnan(pixels) != np.isnan(fraction)) | (fraction < 0) | (fraction > 1)
    yield from store.bad_rows(TARGETS, "target_projected_area_fraction", wrong, "must be 0 to 1 where there is an area")
    yield from _same_image_size(store, pixels, fraction)


def targets_ranked_by_policy(store: StoreUnderCheck) -> Findings:
    """Ranks count within a source row; the policy is the campaign's, with its probability and temperature."""
    if store.campaign is None:
        return
    rules, policy = store.campaign.targets, np.array(store.decoded(TARGETS, "target_selection_policy_id"))
    known = (rules.policy, ALL_ELIGIBLE, EXPLICIT)
    text = f"must be {', '.join(known[:-1])} or {known[-1]}"
    yield from bad_rows(TARGETS.path("target_selection_policy_id"), ~np.isin(policy, known), text, policy)
    drawn = policy == "temperature_softmax_top_k"
    probability = store.column(TARGETS, "target_selection_probability")
    wrong = np.where(drawn, ~((probability > 0) & (probability <= 1)), probability != 1)
    yield from store.bad_rows(TARGETS, "target_selection_probability", wrong, "must be 1, or in (0, 1] where drawn")
    temperature = np.where(drawn, np.float32(rules.temperature), np.float32(np.nan))
    wrong = differs(store.column(TARGETS, "target_selection_temperature"), temperature)
    yield from store.bad_rows(TARGETS, "target_selection_temperature", wrong, "must be the campaign's where drawn")
    source, rank = store.column(TARGETS, "source_row_id"), store.column(TARGETS, "target_selection_rank")
    order = np.lexsort((rank, source))
    start = np.concatenate([[True], source[order][1:] != source[order][:-1]])[: len(order)]
    position = np.arange(len(order)) - np.maximum.accumulate(np.where(start, np.arange(len(order)), 0))
    wrong = np.zeros(len(rank), np.bool_)
    wrong[order] = rank[order] != position
    wrong |= np.char.endswith(policy.astype(str), "_top_k") & (rank >= rules.top_k)
    text = f"must count from 0 in each source row, below the campaign's top_k {rules.top_k}"
    yield from store.bad_rows(TARGETS, "target_selection_rank", wrong, text)
    score = store.column(TARGETS, "target_selection_score")
    falls = np.zeros(len(rank), np.bool_)
    falls[order[1:]] = ~start[1:] & (score[order][1:] > score[order][:-1])
    falls &= np.isin(policy, ("greedy_top_k", ALL_ELIGIBLE))
    yield from store.bad_rows(TARGETS, "target_selection_score", falls, "must not rise with the rank")


def targets_matched_by_rules(store: StoreUnderCheck) -> Findings:
    """IoU and lead put each target into its match status; the box's centre is that of its pose."""
    if store.campaign is None:
        return
    rules, status = store.campaign.targets, np.array(store.decoded(TARGETS, "gt_match_status_id"))
    iou, lead = _float(store, "gt_match_iou"), _float(store, "gt_match_score")
    wrong = ~((lead >= 0) & (lead <= iou) & (iou <= 1)) | ~_iou_admits(status, iou, rules)
    yield from store.bad_rows(TARGETS, "gt_match_iou", wrong, "must be an IoU that its match status admits")
    close, alone = lead <= rules.ambiguous_iou_margin + _TOLERANCE, lead == iou
    wrong = np.where(status == "ambiguous_gt", ~close, (status == "matched") & close & ~alone)
    wrong |= (status == "v0_gt_input") & (lead != 1)
    yield from store.bad_rows(TARGETS, "gt_match_score", wrong, "must be a lead that its match status admits")
    bits = store.column(TARGETS, "target_invalid_reason_bitset")
    for name, reason in (
        ("unmatched_gt", TargetInvalidReason.TARGET_GT_UNMATCHED),
        ("ambiguous_gt", TargetInvalidReason.TARGET_GT_AMBIGUOUS),
        ("ambiguous_pred_to_gt", TargetInvalidReason.TARGET_GT_AMBIGUOUS),
    ):
        wrong = (status == name) & (bits >> int(reason) & 1 == 0)
        text = "must be the one whose reason the target's bitset names"
        yield from bad_rows(TARGETS.path("gt_match_status_id"), wrong, text, status)
    centre, pose = store.column(TARGETS, "target_center_world"), store.column(TARGETS, "target_pose_world_object")
    wrong = differs(centre, pose[:, 9:])
    yield from store.bad_rows(TARGETS, "target_center_world", wrong, "must be the translation of the target's pose")
    for name, expected in (
        ("target_crop_policy_id", store.campaign.oracle.crop_policy_name),
        ("target_reason_code_version_id", TARGET_INVALID_REASON_VERSION),
    ):
        stored = np.array(store.decoded(TARGETS, name))
        yield from bad_rows(TARGETS.path(name), stored != expected, f"must be {expected!r}", stored)


TARGET_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (
    targets_named_by_box,
    targets_scored_by_rules,
    targets_ranked_by_policy,
    targets_matched_by_rules,
)
"""Checks of targets against the campaign."""


def _matched_row(text: str, place: str) -> int:
    """The index in a matched box's id; -1 without an id, -2 for one that is not a ground-truth box of the snippet."""
    if not text:
        return -1
    match = _BOX_NAME.match(text)
    return int(match[5]) if match and (match[1], match[2]) == (place, GROUND_TRUTH_SOURCE) else -2


def _chosen_by_policy(store: StoreUnderCheck) -> NDArray[np.bool_]:
    return np.array([name != EXPLICIT for name in store.decoded(TARGETS, "target_selection_policy_id")], np.bool_)


def _iou_admits(status: NDArray[np.str_], iou: NDArray[np.float64], rules: TargetConfig) -> NDArray[np.bool_]:
    enough = iou >= rules.min_match_iou - _TOLERANCE
    admitted = np.where(status == "unmatched_gt", iou < rules.min_match_iou + _TOLERANCE, enough)
    return np.where(status == "v0_gt_input", iou == 1, admitted)


def _same_image_size(store: StoreUnderCheck, pixels: NDArray[np.float64], fraction: NDArray[np.float64]) -> Findings:
    """Pixels over fraction is the size of the actor's image, the same for all targets of a source row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(fraction > 0, pixels / fraction, np.nan)
    given = np.flatnonzero(np.isfinite(size))
    _, first, inverse = np.unique(store.column(TARGETS, "source_row_id")[given], return_index=True, return_inverse=True)
    wrong = np.zeros(len(size), np.bool_)
    expected = size[given][first[inverse]]
    wrong[given] = np.abs(size[given] - expected) > _TOLERANCE * expected
    text = "must be target_projected_area_fraction of the same image for all targets of a source row"
    yield from store.bad_rows(TARGETS, "target_projected_area_pixels", wrong, text)


def _float(store: StoreUnderCheck, name: str) -> NDArray[np.float64]:
    return store.column(TARGETS, name).astype(np.float64)


def _apart(store: StoreUnderCheck, name: str, expected: NDArray[np.float64], text: str) -> Findings:
    stored = _float(store, name)
    wrong = (np.abs(stored - expected) > _TOLERANCE * np.maximum(np.abs(expected), 1)) | (
        np.isnan(stored) != np.isnan(expected)
    )
    return store.bad_rows(TARGETS, name, wrong, text)
