"""Sources, targets, rollouts and lineage: rows dense and linked, one split, labels admitted by the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import finite_rigid
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows, problem
from rollout_assets.rollouts.zarr_store.identities import TARGET_KEY
from rollout_assets.rollouts.zarr_store.label_rules import VALID_BITSET, gt_label_is_valid
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME, SOURCE_SPLITS
from rollout_assets.rollouts.zarr_store.schema import (
    ABSENT,
    LINEAGE,
    REQUIRED_LINEAGE,
    ROLLOUTS,
    SELECTED_DEPTH,
    SOURCES,
    STEPS,
    TARGET_EVAL_CROPS,
    TARGET_SOURCES,
    TARGETS,
)
from rollout_assets.targets.reasons import TARGET_INVALID_REASON_CODES

_TARGET_BITS = sum(1 << bit for bit in TARGET_INVALID_REASON_CODES.values())


def _repeated(keys: Iterable[Any]) -> NDArray[np.bool_]:
    first: dict[Any, int] = {}
    return np.array([first.setdefault(key, row) != row for row, key in enumerate(keys)], np.bool_)


_ROLLOUT_RULES: tuple[tuple[str, Callable[[NDArray[Any]], NDArray[np.bool_]], str], ...] = (
    ("rollout_id", lambda ids: _repeated(ids.tolist()), "must be unique"),
    ("root_pose_world", lambda poses: ~finite_rigid(poses), "must be finite and rigid"),
    ("horizon", lambda steps: steps < 1, "must be >= 1"),
    ("branch_factor", lambda views: views < 1, "must be >= 1"),
    ("beam_width", lambda chains: (chains != -1) & (chains < 1), "must be >= 1, or -1 for none"),
    ("temperature", lambda temperature: ~(temperature > 0), "must be > 0"),
)
"""Column of a rollout, which of its values are wrong, and what they must be."""


def row_ids_dense(store: StoreUnderCheck) -> Findings:
    """Row ids count from 0 in their own table; candidates are checked block by block."""
    for table in (SOURCES, TARGETS, ROLLOUTS, STEPS, TARGET_EVAL_CROPS, LINEAGE):
        key = table.key or "rollout_row_id"
        ids = store.column(table, key)
        yield from store.bad_rows(table, key, ids != np.arange(len(ids)), "must be the row's own number")
    rollouts, lineage = store.rows(ROLLOUTS), store.rows(LINEAGE)
    if lineage != rollouts:
        yield problem("lineage/rollout_row_id", f"must have one row per rollout ({rollouts})", lineage)


def sources_complete(store: StoreUnderCheck) -> Findings:
    """Each source row is one VIN row, fully named; all are of one split."""
    yield from _given(store, SOURCES, [column.name for column in SOURCES.columns if column.dictionary is not None])
    for name in ("source_shard_row", "sample_index"):
        yield from store.bad_rows(SOURCES, name, store.column(SOURCES, name) < 0, "must be >= 0")
    splits = store.column(SOURCES, "split_id")
    yield from store.bad_rows(SOURCES, "split_id", splits != splits[:1].sum(), "one store holds one split")
    keys = zip(store.column(SOURCES, "sample_index").tolist(), store.decoded(SOURCES, "sample_key_id"), strict=True)
    yield from bad_rows(SOURCES.path("sample_index"), _repeated(keys), "sample index and key must be unique")
    places = zip(
        *(store.column(SOURCES, name).tolist() for name in ("source_shard_id", "source_shard_row")), strict=True
    )
    yield from bad_rows(SOURCES.path("source_shard_row"), _repeated(places), "a row of a source shard must be unique")


def source_splits_named(store: StoreUnderCheck) -> Findings:
    """A manifest that says which rows the source has in other splits names rows of this store, in other splits."""
    splits = store.manifest.get(SOURCE_SPLITS)
    if splits is None:
        return
    where, own = f"{ROLLOUT_MANIFEST_FILENAME} {SOURCE_SPLITS}", store.attributes.get("source_split")
    if not isinstance(splits, dict) or not splits:
        yield problem(where, "must be an object with at least one sample key", type(splits).__name__)
        return
    keys = set(store.decoded(SOURCES, "sample_key_id"))
    for key, split in splits.items():
        if key not in keys:
            yield problem(f"{where} {key}", "is no source row of this store")
        if not isinstance(split, str) or split in ("", own):
            yield problem(f"{where} {key}", f"must be another split than {own!r}", repr(split))


def targets_follow_rules(store: StoreUnderCheck) -> Findings:
    """Valid exactly where the bitset says so; ground-truth labels exactly where the match admits them."""
    bitset = store.column(TARGETS, "target_invalid_reason_bitset")
    wrong = store.column(TARGETS, "target_valid_mask") != (bitset == VALID_BITSET)
    yield from store.bad_rows(TARGETS, "target_valid_mask", wrong, "must be true exactly where the bitset is VALID")
    not_alone = (bitset & VALID_BITSET != 0) & (bitset != VALID_BITSET)
    wrong = (bitset == 0) | not_alone | (bitset & ~np.uint32(_TARGET_BITS) != 0)
    text = "must be VALID alone, or known reasons without it"
    yield from store.bad_rows(TARGETS, "target_invalid_reason_bitset", wrong, text)
    wrong = (bitset >> np.minimum(store.column(TARGETS, "target_primary_invalid_reason"), 31)) & 1 == 0
    text = "must be one of the bitset's reasons"
    yield from store.bad_rows(TARGETS, "target_primary_invalid_reason", wrong, text)
    protocol = str(store.attributes.get("target_protocol_version"))
    matched = store.column(TARGETS, "matched_gt_target_row_id").tolist()
    status = store.decoded(TARGETS, "gt_match_status_id")
    labelled = [gt_label_is_valid(name, row, protocol) for name, row in zip(status, matched, strict=True)]
    wrong = store.column(TARGETS, "gt_label_valid_mask") != np.array(labelled, np.bool_)
    text = f"must follow match status and matched row under {protocol}"
    yield from store.bad_rows(TARGETS, "gt_label_valid_mask", wrong, text)
    admitted = TARGET_SOURCES.get(protocol)
    yield from _other_strings(store, TARGETS, "target_source_id", admitted, f"must be {admitted!r} under {protocol}")
    yield from _given(store, TARGETS, ("target_id", "target_crop_policy_id"))


def targets_have_one_source(store: StoreUnderCheck) -> Findings:
    """A target row belongs to one source row: its rollouts name the same one, and its id names its snippet.

    Of another writer's target without rollouts nothing may tell which one that is.
    """
    owner = store.column(TARGETS, "source_row_id")
    unknown = (owner == ABSENT) & store.of_other_writer
    outside = ((owner < 0) | (owner >= store.rows(SOURCES))) & ~unknown
    yield from store.bad_rows(TARGETS, "source_row_id", outside, "must be a source row")
    keys = zip(*(store.column(TARGETS, name).tolist() for name in TARGET_KEY), strict=True)
    yield from bad_rows(TARGETS.path("target_id"), _repeated(keys), "source, id and policy must be unique")
    target = store.column(ROLLOUTS, "target_row_id")
    has_target = (target >= 0) & (target < len(owner))
    yield from store.bad_rows(ROLLOUTS, "target_row_id", ~has_target, "must be a target row")
    if len(owner):
        wrong = has_target & (store.column(ROLLOUTS, "source_row_id") != owner[np.where(has_target, target, 0)])
        text = "must be the source row of the rollout's target"
        yield from store.bad_rows(ROLLOUTS, "source_row_id", wrong, text)
    if outside.any():
        return
    snippets = store.decoded(SOURCES, "snippet_id")
    for name in ("target_id", "matched_gt_target_id"):
        texts = store.decoded(TARGETS, name)
        pairs = zip(texts, owner.tolist(), strict=True)
        foreign = [bool(t) and row != ABSENT and snippets[row] not in t for t, row in pairs]
        text = "must name the snippet of its source row"
        yield from bad_rows(TARGETS.path(name), np.array(foreign, np.bool_), text)


def rollouts_complete(store: StoreUnderCheck) -> Findings:
    """Each rollout has its own id, a rigid root pose, and its source's scene, snippet and split."""
    yield from _given(store, ROLLOUTS, ("rollout_id", "policy_id", "termination_reason"))
    for name, is_wrong, text in _ROLLOUT_RULES:
        yield from store.bad_rows(ROLLOUTS, name, is_wrong(store.column(ROLLOUTS, name)), text)
    chains = zip(store.decoded(ROLLOUTS, "rollout_id"), store.column(ROLLOUTS, "chain_id").tolist(), strict=True)
    wrong = np.array([not name.endswith(f"-{number:06d}") for name, number in chains], np.bool_)
    yield from store.bad_rows(ROLLOUTS, "chain_id", wrong, "must be the number its rollout id ends with")
    source = store.column(ROLLOUTS, "source_row_id")
    has_source = (source >= 0) & (source < store.rows(SOURCES))
    yield from store.bad_rows(ROLLOUTS, "source_row_id", ~has_source, "must be a source row")
    for name in ("scene_id", "snippet_id", "split_id"):
        values, owned = store.column(ROLLOUTS, name), store.column(SOURCES, name)
        if len(owned):
            wrong = has_source & (values != owned[np.where(has_source, source, 0)])
            yield from store.bad_rows(ROLLOUTS, name, wrong, "must be that of the rollout's source row")


def lineage_required(store: StoreUnderCheck) -> Findings:
    """Every rollout names the configs behind it; protocol and reason codes are the store's."""
    yield from _given(store, LINEAGE, REQUIRED_LINEAGE)
    for attribute in ("target_protocol_version", "reason_code_version"):
        expected = store.attributes.get(attribute)
        yield from _other_strings(store, LINEAGE, f"{attribute}_id", expected, f"must be the store's {expected!r}")


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
    size = [store.attributes.get("selected_depth_height_px"), store.attributes.get("selected_depth_width_px")]
    for name, expected, text in (
        ("step_row_id", store.column(STEPS, "step_row_id"), "must be the step's"),
        ("candidate_row_id", selected, "must be the step's selected candidate"),
        ("image_size_hw", np.array(size), f"must be {size}"),
    ):
        yield from store.bad_rows(SELECTED_DEPTH, name, store.column(SELECTED_DEPTH, name) != expected, text)
    for name in ("focal_px", "principal_point_px"):
        wrong = np.isfinite(store.column(SELECTED_DEPTH, name)) != (selected >= 0)[:, None]
        yield from store.bad_rows(SELECTED_DEPTH, name, wrong, "must be finite exactly where a view was selected")


def crops_linked(store: StoreUnderCheck) -> Findings:
    """Crops, which other writers keep: each names a step, a role, and a candidate where its role has one.

    A store that a campaign of this package made has none.
    """
    crops = TARGET_EVAL_CROPS
    if not store.rows(crops):
        return
    if store.campaign is not None:
        yield problem(crops.path("crop_row_id"), "must be empty: campaigns keep no crops", store.rows(crops))
    step = store.column(crops, "step_row_id")
    yield from store.bad_rows(crops, "step_row_id", (step < 0) | (step >= store.rows(STEPS)), "must be a step row")
    role = store.column(crops, "source_role_id")
    yield from store.bad_rows(crops, "source_role_id", (role != 0) & (role != 1), "must be 0 or 1")
    wrong = (role == 1) != (store.column(crops, "candidate_row_id") >= 0)
    text = "must be -1 for the current state and a candidate row otherwise"
    yield from store.bad_rows(crops, "candidate_row_id", wrong, text)
    wrong = store.column(crops, "lengths") != store.column(crops, "mask").sum(axis=1)
    yield from store.bad_rows(crops, "lengths", wrong, "must count the mask")


OWNER_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (
    row_ids_dense,
    sources_complete,
    source_splits_named,
    targets_follow_rules,
    targets_have_one_source,
    rollouts_complete,
    lineage_required,
    depth_aligned,
    crops_linked,
)
"""Checks of the tables that own steps and candidates."""


def _given(store: StoreUnderCheck, table: Table, names: Iterable[str]) -> Findings:
    for name in names:
        yield from store.bad_rows(table, name, store.column(table, name) < 0, "is required")


def _other_strings(store: StoreUnderCheck, table: Table, name: str, admitted: str | None, expectation: str) -> Findings:
    texts = store.decoded(table, name)
    wrong = np.array([text != admitted for text in texts], np.bool_)
    yield from bad_rows(table.path(name), wrong, expectation, np.array(texts))
