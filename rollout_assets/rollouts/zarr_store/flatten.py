"""Records as columns: every kept chain, every step, every candidate row, ready to be appended to the tables.

Strings get their ids record by record, and poses are composed record by record; the rest is elementwise. So a stored
byte depends on its record alone, not on how records are batched or where chunks end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import RecordRefused
from rollout_assets.geometry import poses
from rollout_assets.rollouts.trace import NOT_SELECTED, RolloutZarrRecord, SelectedDepth
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.dictionaries import Dictionaries
from rollout_assets.rollouts.zarr_store.label_rules import oracle_label_mask, q_train_mask, running_sums
from rollout_assets.rollouts.zarr_store.schema import (
    ABSENT,
    CANDIDATE_DIAGNOSTICS,
    CANDIDATES,
    CUMULATIVE_OF,
    DIAGNOSTIC_COLUMNS,
    LABEL_COLUMNS,
    LINEAGE_HASHES,
    ROLLOUTS,
)

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class RowCounts:
    """Rows so far in the tables that records append to; also the next free row ids."""

    rollouts: int = 0
    steps: int = 0
    candidates: int = 0


@dataclass(frozen=True)
class Owner:
    """The rows a record belongs to, and whether its target's labels may be trained on."""

    source_row_id: int
    target_row_id: int
    target_trainable: bool


@dataclass(frozen=True, eq=False)
class EncodedRecord:
    """A record with an id for each of its strings.

    ``shared`` holds the rollout columns that all chains of the record share, ``per_chain`` those that differ between
    them; lists run over chains, or over steps.
    """

    record: RolloutZarrRecord
    owner: Owner
    num_candidates: int
    shared: dict[str, Any]
    per_chain: dict[str, list[int]]
    lineage_ids: list[list[int]]
    score_source_ids: list[int]


def encode_record(record: RolloutZarrRecord, owner: Owner, dictionaries: Dictionaries) -> EncodedRecord:
    """Give ids to a record's strings, in an order that depends on the record alone."""
    lineage, root, chains = record.lineage, record.root, record.chains
    config, scores = dictionaries["config"], dictionaries["score_source"]
    steps = [step for chain in chains for step in chain.steps]
    hashes = {name: config.intern(getattr(lineage, field)) for name, field in SHARED_HASHES.items()}
    rng_hashes = [config.intern(chain.selection_rng_state_hash) for chain in chains]
    return EncodedRecord(
        record=record,
        owner=owner,
        num_candidates=sum(len(step.shell) for step in steps),
        shared={
            "source_row_id": owner.source_row_id,
            "root_pose_world": root.pose_world_camera,
            "root_time_ns": root.time_ns,
            "root_trajectory_index": root.trajectory_index,
            "root_frame_index": root.frame_index,
            "scene_id": dictionaries["scene"].intern(lineage.scene_id),
            "snippet_id": dictionaries["snippet"].intern(lineage.snippet_id),
            "target_row_id": owner.target_row_id,
            "policy_id": dictionaries["policy"].intern(lineage.rollout_policy),
            "horizon": record.horizon,
            "branch_factor": record.branch_factor,
            "beam_width": ABSENT if record.beam_width is None else record.beam_width,
            "temperature": record.temperature,
            "random_seed": ABSENT if lineage.random_seed is None else lineage.random_seed,
            "split_id": dictionaries["split"].intern(lineage.split),
        },
        per_chain={
            "chain_id": [chain.chain_id for chain in chains],
            "rollout_id": [dictionaries["rollout"].intern(record.rollout_id(chain)) for chain in chains],
            "termination_reason": [dictionaries["termination_reason"].intern(c.termination_reason) for c in chains],
        },
        lineage_ids=[[hashes.get(name, own) for name in LINEAGE_HASHES] for own in rng_hashes],
        score_source_ids=[scores.intern(step.selection.score_source) for step in steps],
    )


def flatten_records(records: Sequence[EncodedRecord], at: RowCounts) -> dict[str, Columns]:
    """Columns of some records, per table; each record has chains, each chain steps, each step candidates."""
    chains = [chain for encoded in records for chain in encoded.record.chains]
    steps = [step for chain in chains for step in chain.steps]
    chain_lengths = np.array([len(chain.steps) for chain in chains])
    shell_sizes = np.array([len(step.shell) for step in steps], np.int32)
    chain_of_step = np.repeat(np.arange(len(chains)), chain_lengths)
    chain_starts = np.cumsum(chain_lengths) - chain_lengths
    step_index = (np.arange(len(steps)) - chain_starts[chain_of_step]).astype(np.int16)
    step_of_row = np.repeat(np.arange(len(steps)), shell_sizes)
    total = len(step_of_row)
    shell_starts = np.cumsum(shell_sizes) - shell_sizes

    candidates = _gather(SHELL_COLUMNS, [step.shell for step in steps], CANDIDATES, total)
    candidates |= _gather({name: name for name in LABEL_COLUMNS}, [step.labels for step in steps], CANDIDATES, total)
    candidates |= _gather(SELECTION_COLUMNS, [step.selection for step in steps], CANDIDATES, total)
    candidates["pose_relative_root"] = _relative_poses(records, candidates["pose_world_cam"])
    candidates["candidate_row_id"] = at.candidates + np.arange(total)
    candidates["step_row_id"] = at.steps + step_of_row
    candidates["rollout_row_id"] = at.rollouts + chain_of_step[step_of_row]
    candidates["step_index"] = step_index[step_of_row]
    candidates["shell_index"] = np.arange(total) - shell_starts[step_of_row]
    score_ids = np.array([score for encoded in records for score in encoded.score_source_ids], np.int32)
    candidates["score_source_id"] = score_ids[step_of_row]

    actor = candidates["actor_action_mask"]
    valid_before = np.cumsum(actor) - actor
    candidates["compact_valid_index"] = np.where(actor, valid_before - valid_before[shell_starts][step_of_row], ABSENT)
    candidates["oracle_label_mask"] = oracle_label_mask(actor, candidates["target_root_gain"])
    sizes = [encoded.num_candidates for encoded in records]
    trainable = np.repeat(np.array([encoded.owner.target_trainable for encoded in records]), sizes)
    candidates["q_train_mask"] = q_train_mask(actor, candidates["oracle_label_mask"], trainable)

    selected = np.array([step.selection.selected_shell_index for step in steps], np.int32)
    has_selection = selected != NOT_SELECTED
    selected_row = np.where(has_selection, shell_starts + selected, 0)
    candidates["selected_mask"] = np.zeros(total, np.bool_)
    candidates["selected_mask"][selected_row[has_selection]] = True

    labels = np.stack([candidates[label][selected_row] for label in CUMULATIVE_OF.values()], axis=1)
    sums = running_sums(labels, has_selection, step_index)
    step_columns: Columns = {
        "step_row_id": at.steps + np.arange(len(steps)),
        "rollout_row_id": at.rollouts + chain_of_step,
        "step_index": step_index,
        "selected_candidate_row_id": np.where(has_selection, at.candidates + selected_row, ABSENT),
        "selected_shell_index": selected,
        "selected_compact_valid_index": np.where(
            has_selection, candidates["compact_valid_index"][selected_row], ABSENT
        ),
        "num_candidates": shell_sizes,
        "num_valid_candidates": np.add.reduceat(actor.astype(np.int32), shell_starts),
        **{name: sums[:, column] for column, name in enumerate(CUMULATIVE_OF)},
        "selected_draw_log_probability": np.array([step.selection.draw_log_probability for step in steps], np.float32),
    }
    last = chain_starts + chain_lengths - 1
    finals: Columns = {f"final_{name}": sums[last, column] for column, name in enumerate(CUMULATIVE_OF)}
    measured = [step.shell.diagnostics for step in steps]
    diagnostics = _gather({name: name for name in DIAGNOSTIC_COLUMNS}, measured, CANDIDATE_DIAGNOSTICS, total)
    diagnostics["candidate_row_id"] = candidates["candidate_row_id"]
    diagnostics["position_id"] = candidates["position_id"]
    lineage_ids = np.array([ids for encoded in records for ids in encoded.lineage_ids], np.int32)
    rollout_rows = at.rollouts + np.arange(len(chains))
    return {
        "rollouts": {"rollout_row_id": rollout_rows, **_rollout_columns(records), **finals},
        "lineage": {"rollout_row_id": rollout_rows} | {n: lineage_ids[:, i] for i, n in enumerate(LINEAGE_HASHES)},
        "steps": step_columns,
        "candidates": candidates,
        "candidate_diagnostics": diagnostics,
    }


def depth_columns(records: Sequence[EncodedRecord], step_columns: Columns, height: int, width: int) -> Columns:
    """What each step's selected view sees; an all-invalid row for a step that selected nothing."""
    empty = SelectedDepth(
        np.zeros((height, width), np.float32), np.zeros((height, width), np.bool_), (np.nan,) * 2, (np.nan,) * 2
    )
    steps = [step for encoded in records for chain in encoded.record.chains for step in chain.steps]
    views = [step.selected_depth or empty for step in steps]
    valid = np.stack([view.valid_mask for view in views])
    depth = np.stack([view.depth_m for view in views])
    depth[~valid] = 0.0
    return {
        "step_row_id": step_columns["step_row_id"],
        "candidate_row_id": step_columns["selected_candidate_row_id"],
        "focal_px": np.array([view.focal_px for view in views], np.float32),
        "principal_point_px": np.array([view.principal_point_px for view in views], np.float32),
        "image_size_hw": np.tile(np.array([height, width], np.int32), (len(views), 1)),
        "depth_m": depth,
        "valid_mask": valid,
    }


SHELL_COLUMNS = {
    "pose_world_cam": "pose_world_camera",
    "actor_action_mask": "actor_action_mask",
    "strategy_id": "strategy_id",
    "position_id": "position_id",
    "mixture_id": "mixture_id",
    "sampler_probability": "sampler_probability",
    "invalid_reason_bitset": "invalid_reason_bitset",
    "primary_invalid_reason": "primary_invalid_reason",
}
"""Candidate column -> the ``CandidateShell`` field it is."""

SELECTION_COLUMNS = {
    "selection_logits": "logits",
    "selection_probabilities": "probabilities",
    "selection_log_probabilities": "log_probabilities",
    "selection_inclusion_probabilities": "inclusion_probabilities",
    "drawn_mask": "drawn_mask",
}
"""Candidate column -> the ``CandidateSelection`` field it is."""


RNG_HASH = "selection_rng_state_hash_id"
"""The one lineage column whose value differs between the chains of a record."""

SHARED_HASHES = {name: field for name, field in LINEAGE_HASHES.items() if name != RNG_HASH}
"""Lineage columns that all chains of a record share."""


def _relative_poses(records: Sequence[EncodedRecord], pose_world_cam: poses.Float32) -> poses.Float32:
    relative = np.empty_like(pose_world_cam)
    start = 0
    for encoded in records:
        stop = start + encoded.num_candidates
        to_root = poses.inverse(encoded.record.root.pose_world_camera)
        relative[start:stop] = poses.compose(to_root, pose_world_cam[start:stop])
        start = stop
    return relative


def _gather(fields_of: dict[str, str], parts: Sequence[Any], table: Table, rows: int) -> Columns:
    columns = {
        column: np.concatenate(
            [getattr(part, field) for part in parts], dtype=table[column].numpy_dtype, casting="same_kind"
        )
        for column, field in fields_of.items()
    }
    for column, values in columns.items():
        if len(values) != rows:
            raise RecordRefused(f"{column} has {len(values)} rows where the shells have {rows}")
    return columns


def _rollout_columns(records: Sequence[EncodedRecord]) -> Columns:
    chain_counts = [len(encoded.record.chains) for encoded in records]
    columns: Columns = {}
    for name in records[0].shared:
        values = np.array([encoded.shared[name] for encoded in records], ROLLOUTS[name].numpy_dtype)
        columns[name] = np.repeat(values, chain_counts, axis=0)
    for name in records[0].per_chain:
        columns[name] = np.array([value for encoded in records for value in encoded.per_chain[name]], np.int32)
    return columns
