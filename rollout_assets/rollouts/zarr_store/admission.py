"""What a record must be before it is stored; every problem of a record is named at once, with the value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.reasons import bitset_is_consistent
from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.errors import RecordRefused
from rollout_assets.geometry.poses import finite_rigid
from rollout_assets.rollouts.trace import NOT_SELECTED, RolloutLineage, RolloutStep, RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.flatten import EncodedRecord
from rollout_assets.rollouts.zarr_store.identities import SOURCE_FIELDS

REQUIRED_FIELDS = (
    *SOURCE_FIELDS.values(),
    *(schema.LINEAGE_HASHES[column] for column in schema.REQUIRED_LINEAGE),
    "target_id",
    "target_source",
)
"""Lineage that every record must bring."""

_INT16_MAX = 32_767


def refuse_unfit(record: RolloutZarrRecord, config: RolloutZarrStoreConfig) -> None:
    """Raise ``RecordRefused`` with every problem of a record; return if there is none."""
    problems = [
        *_lineage_problems(record.lineage, config),
        *_root_problems(record),
        *(
            f"chain {chain.chain_id} step {index}: {problem}"
            for chain in record.chains
            for index, step in enumerate(chain.steps)
            for problem in _step_problems(step, config.selected_depth, index + 1 == len(chain.steps))
        ),
        *(f"chain {chain.chain_id} has no steps" for chain in record.chains if not chain.steps),
    ]
    if problems:
        raise RecordRefused(f"record {record.rollout_id_prefix!r}: {'; '.join(problems)}")


def refuse_unfit_rows(records: Sequence[EncodedRecord], candidates: Mapping[str, NDArray[Any]]) -> None:
    """Raise ``RecordRefused`` for the first root pose or candidate row that does not fit, given as columns."""
    actor = candidates["actor_action_mask"]
    bits_wrong = ~bitset_is_consistent(candidates["invalid_reason_bitset"], actor)
    roots = np.stack([encoded.record.root.pose_world_camera for encoded in records])
    for encoded, fits in zip(records, finite_rigid(roots), strict=True):
        if not fits:
            shown = np.asarray(encoded.record.root.pose_world_camera).tolist()
            raise RecordRefused(
                f"record {encoded.record.rollout_id_prefix!r}: root pose must be finite and rigid, got {shown}"
            )
    labelled = np.zeros(len(actor), np.bool_)
    for name in schema.LABEL_COLUMNS:
        labelled |= ~np.isnan(candidates[name])
    for wrong, problem in (
        (bits_wrong, "invalid_reason_bitset disagrees with actor_action_mask"),
        (labelled & ~actor, "an invalid candidate carries a label"),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            ends = np.cumsum([encoded.num_candidates for encoded in records])
            prefix = records[int(np.searchsorted(ends, row, side="right"))].record.rollout_id_prefix
            where = f"step {candidates['step_index'][row]} candidate {candidates['shell_index'][row]}"
            raise RecordRefused(f"record {prefix!r}: {where}: {problem} ({int(wrong.sum())} row(s) in all)")


def _lineage_problems(lineage: RolloutLineage, config: RolloutZarrStoreConfig) -> Iterator[str]:
    protocol, source = config.target_protocol_version, schema.TARGET_SOURCES[config.target_protocol_version]
    missing = [name for name in REQUIRED_FIELDS if getattr(lineage, name) in (None, "")]
    if missing:
        yield f"lineage is missing {', '.join(missing)}"
        return
    if lineage.target_protocol_version != protocol:
        yield f"target protocol must be {protocol!r} in this store, got {lineage.target_protocol_version!r}"
    if lineage.reason_code_version != config.reason_code_version:
        yield f"reason code version must be {config.reason_code_version!r}, got {lineage.reason_code_version!r}"
    if lineage.target_source != source:
        yield f"target source must be {source!r} under {protocol}, got {lineage.target_source!r}"
    if lineage.source_shard_row is not None and lineage.source_shard_row < 0:
        yield f"source_shard_row must be >= 0, got {lineage.source_shard_row}"
    for column in schema.TARGETS.columns:
        value = getattr(lineage, column.name) if column.row_shape else None
        if value is not None and (len(value),) != column.row_shape:
            yield f"{column.name} must have {column.row_shape[0]} values, got {len(value)}"


def _root_problems(record: RolloutZarrRecord) -> Iterator[str]:
    pose = np.asarray(record.root.pose_world_camera)
    if pose.shape != (12,):
        yield f"root pose must have shape (12,), got {pose.shape}"
    for name in ("horizon", "branch_factor", "beam_width"):
        value = getattr(record, name)
        if value is not None and not 1 <= value <= _INT16_MAX:
            yield f"{name} must be between 1 and {_INT16_MAX}, got {value}"


def _step_problems(step: RolloutStep, depth: SelectedDepthRetentionConfig, is_last: bool) -> Iterator[str]:
    shell, selected = step.shell, step.selection.selected_shell_index
    size = len(shell)
    if size == 0:
        yield "the shell is empty"
        return
    if selected == NOT_SELECTED:
        if not is_last:
            yield "nothing was selected, yet the chain goes on"
    elif not 0 <= selected < size:
        yield f"selected_shell_index must lie in the shell of {size}, got {selected}"
    elif not shell.actor_action_mask[selected]:
        yield f"the selected candidate {selected} is not takeable"
    yield from _depth_problems(step, depth)


def _depth_problems(step: RolloutStep, depth: SelectedDepthRetentionConfig) -> Iterator[str]:
    view = step.selected_depth
    has_selection = step.selection.selected_shell_index != NOT_SELECTED
    if not depth.enabled:
        return
    if view is None:
        if has_selection:
            yield "selected depth is kept in this store, but the step brings none"
        return
    if not has_selection:
        yield "nothing was selected, yet there is a selected depth"
    size = (depth.height_px, depth.width_px)
    if view.depth_m.shape != size or view.valid_mask.shape != size:
        yield f"selected depth must be {size[0]} x {size[1]} px, got {view.depth_m.shape} and {view.valid_mask.shape}"
    elif not np.isfinite(view.depth_m[view.valid_mask]).all():
        yield "selected depth has valid pixels that are not finite"
