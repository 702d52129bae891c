"""Sources, targets, rollouts and lineage: rows dense and linked, one split, labels admitted by the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import finite_rigid
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows, problem
from rollout_assets.rollouts.zarr_store.label_rules import VALID_BITSET, gt_label_is_valid
from rollout_assets.rollouts.zarr_store.schema import (
    LINEAGE,
    REQUIRED_LINEAGE,
    ROLLOUTS,
    SELECTED_DEPTH,
    SOURCES,
    STEPS,
    TABLES,
    TARGET_EVAL_CROPS,
    TARGET_SOURCES,
    TARGETS,
)
from rollout_assets.targets.reasons import TARGET_INVALID_REASON_CODES

_REQUIRED_SOURCE = (
    "sample_key_id",
    "scene_id",
    "snippet_id",
    "split_id",
    "source_cache_version_id",
    "source_offline_store_manifest_hash_id",
    "split_manifest_hash_id",
    "source_shard_id",
)
_TARGET_BITS = sum(1 << bit for bit in TARGET_INVALID_REASON_CODES.values())


def row_ids_dense(store: StoreUnderCheck) -> Findings:
    """Row ids count from 0 in their own table; candidates are checked block by block."""
    for table in TABLES.values():
        if table.key is not None and table.name in ("sources", "targets", "rollouts", "steps", "target_eval_crops"):
            ids = store.column(table, table.key)
            yield from bad_rows(table.path(table.key), ids != np.arange(len(ids)), "must be the row's own number", ids)
    ids = store.column(LINEAGE, "rollout_row_id")
    if len(ids) != store.rows(ROLLOUTS):
        yield problem("lineage/rollout_row_id", f"must have one row per rollout ({store.rows(ROLLOUTS)})", len(ids))
    yield from bad_rows("lineage/rollout_row_id", ids != np.arange(len(ids)), "must be the row's own number", ids)


def sources_complete(store: StoreUnderCheck) -> Findings:
    """Each source row is one VIN row, fully named; all are of one split."""
    for name in _REQUIRED_SOURCE:
        ids = store.column(SOURCES, name)
        yield from bad_rows(SOURCES.path(name), ids < 0, "is required", ids)
    for name in ("source_shard_row", "sample_index"):
        values = store.column(SOURCES, name)
        yield from bad_rows(SOURCES.path(name), values < 0, "must be >= 0", values)
    splits = store.column(SOURCES, "split_id")
    yield from bad_rows(SOURCES.path("split_id"), splits != splits[:1].sum(), "one store holds one split", splits)
    keys = list(
        zip(store.column(SOURCES, "sample_index").tolist(), store.decoded(SOURCES, "sample_key_id"), strict=True)
    )
    yield from bad_rows(SOURCES.path("sample_index"), _repeated(keys), "sample index and key must be unique")


def targets_follow_rules(store: StoreUnderCheck) -> Findings:
    """Valid exactly where the bitset says so; ground-truth labels exactly where the match admits them."""
    bitset = store.column(TARGETS, "target_invalid_reason_bitset")
    valid = store.column(TARGETS, "target_valid_mask")
    primary = store.column(TARGETS, "target_primary_invalid_reason")
    wrong = valid != (bitset == VALID_BITSET)
    yield from bad_rows(
        TARGETS.path("target_valid_mask"), wrong, "must be true exactly where the bitset is VALID", valid
    )
    broken = (
        (bitset == 0)
        | ((bitset & VALID_BITSET != 0) & (bitset != VALID_BITSET))
        | (bitset & ~np.uint32(_TARGET_BITS) != 0)
    )
    yield from bad_rows(
        TARGETS.path("target_invalid_reason_bitset"), broken, "must be VALID alone, or known reasons without it", bitset
    )
    yield from bad_rows(
        TARGETS.path("target_primary_invalid_reason"),
        (bitset >> np.minimum(primary, 31)) & 1 == 0,
        "must be one of the bitset's reasons",
        primary,
    )
    protocol = str(store.attributes.get("target_protocol_version"))
    matched = store.column(TARGETS, "matched_gt_target_row_id")
    status = store.decoded(TARGETS, "gt_match_status_id")
    expected = np.array(
        [gt_label_is_valid(name, int(row), protocol) for name, row in zip(status, matched, strict=True)], np.bool_
    )
    stored = store.column(TARGETS, "gt_label_valid_mask")
    yield from bad_rows(
        TARGETS.path("gt_label_valid_mask"),
        stored != expected,
        f"must follow match status and matched row under {protocol}",
        stored,
    )
    admitted = TARGET_SOURCES.get(protocol)
    names = store.decoded(TARGETS, "target_source_id")
    foreign = np.array([name != admitted for name in names], np.bool_)
    yield from bad_rows(
        TARGETS.path("target_source_id"), foreign, f"must be {admitted!r} under {protocol}", np.array(names)
    )
    for name in ("target_id", "target_crop_policy_id"):
        ids = store.column(TARGETS, name)
        yield from bad_rows(TARGETS.path(name), ids < 0, "is required", ids)


def targets_have_one_source(store: StoreUnderCheck) -> Findings:
    """A target row belongs to one source row: its rollouts name the same one, and its id names its snippet."""
    owner = store.column(TARGETS, "source_row_id")
    outside = (owner < 0) | (owner >= store.rows(SOURCES))
    yield from bad_rows(TARGETS.path("source_row_id"), outside, "must be a source row", owner)
    columns = ("source_row_id", "target_id", "target_selection_policy_id")
    keys = list(zip(*(store.column(TARGETS, name).tolist() for name in columns), strict=True))
    yield from bad_rows(TARGETS.path("target_id"), _repeated(keys), "source, id and policy must be unique")
    target = store.column(ROLLOUTS, "target_row_id")
    has_target = (target >= 0) & (target < len(owner))
    yield from bad_rows(ROLLOUTS.path("target_row_id"), ~has_target, "must be a target row", target)
    source = store.column(ROLLOUTS, "source_row_id")
    if len(owner):
        wrong = has_target & (source != owner[np.where(has_target, target, 0)])
        yield from bad_rows(
            ROLLOUTS.path("source_row_id"), wrong, "must be the source row of the rollout's target", source
        )
    if outside.any():
        return
    snippets = store.decoded(SOURCES, "snippet_id")
    for name in ("target_id", "matched_gt_target_id"):
        texts = store.decoded(TARGETS, name)
        foreign = np.array([bool(t) and snippets[row] not in t for t, row in zip(texts, owner.tolist(), strict=True)])
        yield from bad_rows(TARGETS.path(name), foreign.astype(np.bool_), "must name the snippet of its source row")


def rollouts_complete(store: StoreUnderCheck) -> Findings:
    """Each rollout has its own id, a rigid root pose, and its source's scene, snippet and split."""
    ids = store.column(ROLLOUTS, "rollout_id")
    yield from bad_rows(ROLLOUTS.path("rollout_id"), _repeated(ids.tolist()), "must be unique", ids)
    for name in ("rollout_id", "policy_id", "termination_reason"):
        values = store.column(ROLLOUTS, name)
        yield from bad_rows(ROLLOUTS.path(name), values < 0, "is required", values)
    poses = store.column(ROLLOUTS, "root_pose_world")
    yield from bad_rows(ROLLOUTS.path("root_pose_world"), ~finite_rigid(poses), "must be finite and rigid", poses)
    for name in ("horizon", "branch_factor"):
        values = store.column(ROLLOUTS, name)
        yield from bad_rows(ROLLOUTS.path(name), values < 1, "must be >= 1", values)
    beam = store.column(ROLLOUTS, "beam_width")
    yield from bad_rows(ROLLOUTS.path("beam_width"), (beam != -1) & (beam < 1), "must be >= 1, or -1 for none", beam)
    temperature = store.column(ROLLOUTS, "temperature")
    yield from bad_rows(ROLLOUTS.path("temperature"), ~(temperature > 0), "must be > 0", temperature)
    chain = store.column(ROLLOUTS, "chain_id")
    names = store.decoded(ROLLOUTS, "rollout_id")
    wrong = np.array([not name.endswith(f"-{number:06d}") for name, number in zip(names, chain.tolist(), strict=True)])
    yield from bad_rows(
        ROLLOUTS.path("chain_id"), wrong.astype(np.bool_), "must be the number its rollout id ends with", chain
    )
    source = store.column(ROLLOUTS, "source_row_id")
    has_source = (source >= 0) & (source < store.rows(SOURCES))
    yield from bad_rows(ROLLOUTS.path("source_row_id"), ~has_source, "must be a source row", source)
    for name in ("scene_id", "snippet_id", "split_id"):
        values, owned = store.column(ROLLOUTS, name), store.column(SOURCES, name)
        if len(owned):
            wrong = has_source & (values != owned[np.where(has_source, source, 0)])
            yield from bad_rows(ROLLOUTS.path(name), wrong, "must be that of the rollout's source row", values)


def lineage_required(store: StoreUnderCheck) -> Findings:
    """Every rollout names the configs behind it; protocol and reason codes are the store's."""
    for name in REQUIRED_LINEAGE:
        ids = store.column(LINEAGE, name)
        yield from bad_rows(LINEAGE.path(name), ids < 0, "is required", ids)
    for name, attribute in (
        ("target_protocol_version_id", "target_protocol_version"),
        ("reason_code_version_id", "reason_code_version"),
    ):
        expected = store.attributes.get(attribute)
        texts = store.decoded(LINEAGE, name)
        wrong = np.array([text != expected for text in texts], np.bool_)
        yield from bad_rows(LINEAGE.path(name), wrong, f"must be the store's {expected!r}", np.array(texts))


def depth_aligned(store: StoreUnderCheck) -> Findings:
    """One depth row per step when enabled, none when not; each names its step and the selected candidate."""
    steps = store.rows(STEPS) if store.attributes.get("selected_depth_enabled") else 0
    for name in SELECTED_DEPTH.names:
        rows = len(store.array(SELECTED_DEPTH.path(name)))
        if rows != steps:
            yield problem(SELECTED_DEPTH.path(name), f"must have {steps} rows, one per step", rows)
            return
    if not steps:
        return
    selected = store.column(STEPS, "selected_candidate_row_id")
    for name, expected in (("step_row_id", store.column(STEPS, "step_row_id")), ("candidate_row_id", selected)):
        values = store.column(SELECTED_DEPTH, name)
        text = "must be the step's" if name == "step_row_id" else "must be the step's selected candidate"
        yield from bad_rows(SELECTED_DEPTH.path(name), values != expected, text, values)
    size = store.column(SELECTED_DEPTH, "image_size_hw")
    expected_size = [store.attributes.get("selected_depth_height_px"), store.attributes.get("selected_depth_width_px")]
    yield from bad_rows(
        SELECTED_DEPTH.path("image_size_hw"), size != np.array(expected_size), f"must be {expected_size}", size
    )
    for name in ("focal_px", "principal_point_px"):
        values = store.column(SELECTED_DEPTH, name)
        wrong = np.isfinite(values) != (selected >= 0)[:, None]
        yield from bad_rows(
            SELECTED_DEPTH.path(name), wrong, "must be finite exactly where a view was selected", values
        )


def depth_rasters(store: StoreUnderCheck) -> Findings:
    """With ``deep``: depth is positive and finite where valid, 0 where not, and nowhere valid without a selection."""
    if not store.deep or not store.rows(SELECTED_DEPTH):
        return
    selected = store.column(STEPS, "selected_candidate_row_id")
    for start in range(0, len(selected), 256):
        depth = store.read(SELECTED_DEPTH.path("depth_m"), start, start + 256)
        valid = store.read(SELECTED_DEPTH.path("valid_mask"), start, start + 256)
        wrong = np.where(valid, ~(np.isfinite(depth) & (depth > 0)), depth != 0)
        text = "must be positive where valid and 0 where not"
        yield from bad_rows(SELECTED_DEPTH.path("depth_m"), wrong.any(axis=(1, 2)), text, first_row=start)
        unseen = valid.any(axis=(1, 2)) & (selected[start : start + 256] < 0)
        text = "must be false where nothing was selected"
        yield from bad_rows(SELECTED_DEPTH.path("valid_mask"), unseen, text, first_row=start)


def crops_linked(store: StoreUnderCheck) -> Findings:
    """Audit crops: none when disabled; otherwise each names a step, a role, and a candidate where its role has one."""
    rows = store.rows(TARGET_EVAL_CROPS)
    if not rows:
        return
    step = store.column(TARGET_EVAL_CROPS, "step_row_id")
    yield from bad_rows(
        TARGET_EVAL_CROPS.path("step_row_id"), (step < 0) | (step >= store.rows(STEPS)), "must be a step row", step
    )
    role = store.column(TARGET_EVAL_CROPS, "source_role_id")
    yield from bad_rows(TARGET_EVAL_CROPS.path("source_role_id"), (role != 0) & (role != 1), "must be 0 or 1", role)
    candidate = store.column(TARGET_EVAL_CROPS, "candidate_row_id")
    wrong = (role == 1) != (candidate >= 0)
    text = "must be -1 for the current state and a candidate row otherwise"
    yield from bad_rows(TARGET_EVAL_CROPS.path("candidate_row_id"), wrong, text, candidate)
    lengths = store.column(TARGET_EVAL_CROPS, "lengths")
    filled = store.column(TARGET_EVAL_CROPS, "mask").sum(axis=1)
    yield from bad_rows(TARGET_EVAL_CROPS.path("lengths"), lengths != filled, "must count the mask", lengths)


OWNER_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (
    row_ids_dense,
    sources_complete,
    targets_follow_rules,
    targets_have_one_source,
    rollouts_complete,
    lineage_required,
    depth_aligned,
    depth_rasters,
    crops_linked,
)
"""Checks of the tables that own steps and candidates."""


def _repeated(keys: list[Any]) -> NDArray[np.bool_]:
    first: dict[Any, int] = {}
    return np.array([first.setdefault(key, row) != row for row, key in enumerate(keys)], np.bool_)
