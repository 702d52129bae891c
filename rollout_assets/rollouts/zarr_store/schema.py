"""The one description of a rollout store: tables, columns, dictionaries and attributes of schema 1.0.

Writer, reader, validator, exporter and ``rollout-assets store schema`` all work from ``TABLES`` and the constants here;
no array name is typed twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

import numpy as np

from rollout_assets.candidates.reasons import INVALID_REASON_CODES
from rollout_assets.candidates.shell import CandidateDiagnostics
from rollout_assets.rollouts.trace import StepLabels
from rollout_assets.rollouts.zarr_store.chunks.tables import Column, Table

ROLLOUT_ZARR_SCHEMA_ID = "aria_nbv.rollout_zarr_q_invalidity"
"""Schema id stored as a root attribute on rollout replay stores."""

ROLLOUT_ZARR_SCHEMA_VERSION = "1.0-target-rollout-core"
"""Target-first rollout schema with hot candidate provenance and core parent-depth history."""

DEFAULT_RETURN_SEMANTICS: Final = "cumulative_target_root_gain"
"""Default return target family for root-normalized Q_H replay views."""

Q_H_REWARD_METRIC = "target_root_gain"
"""The candidate column that is the reward of the training view."""

Q_H_TD_SEMANTICS = "selected_transition_only"
"""What a transition of the training view is."""

TARGET_SOURCES: Mapping[str, str] = {"v1_observed": "detected_obbs", "v0_gt_input": "gt_obbs_oracle"}
"""Target protocol -> the only source of boxes it admits."""

SOURCE_ROLES = ("current_eval", "candidate_eval")
"""Names behind ``target_eval_crops/source_role_id``."""

ABSENT = -1
"""Row id, dictionary id or index that is not given."""


def _columns(*rows: tuple[str, str] | tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(row[0], row[1], dictionary=row[2] if len(row) == 3 else None) for row in rows)


def _floats(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "float32") for name in names)


POSE = (12,)

LABEL_COLUMNS = tuple(field.name for field in fields(StepLabels))
"""Candidate columns that the oracle fills; NaN on every invalid row."""

DIAGNOSTIC_COLUMNS = tuple(field.name for field in fields(CandidateDiagnostics))
"""Columns of ``candidate_diagnostics`` beyond row id and position."""

CUMULATIVE_OF: Mapping[str, str] = {
    "cumulative_target_rri": "target_rri",
    "cumulative_scene_rri": "scene_rri",
    "cumulative_target_root_gain": "target_root_gain",
    "cumulative_scene_root_gain": "scene_root_gain",
}
"""Step column -> the candidate label it is the running sum of; ``rollouts/final_<step column>`` is its last value."""

SOURCES = Table(
    "sources",
    _columns(
        ("source_row_id", "int64"),
        ("sample_index", "int64"),
        ("sample_key_id", "int32", "source_key"),
        ("scene_id", "int32", "scene"),
        ("snippet_id", "int32", "snippet"),
        ("split_id", "int32", "split"),
        ("source_cache_version_id", "int32", "config"),
        ("source_offline_store_manifest_hash_id", "int32", "config"),
        ("split_manifest_hash_id", "int32", "config"),
        ("source_shard_id", "int32", "source_shard"),
        ("source_shard_row", "int64"),
    ),
    key="source_row_id",
    doc="One row per VIN source row that a rollout or a target came from.",
)

ROLLOUTS = Table(
    "rollouts",
    (
        *_columns(
            ("rollout_row_id", "int64"),
            ("rollout_id", "int32", "rollout"),
            ("chain_id", "int32"),
            ("source_row_id", "int64"),
        ),
        Column("root_pose_world", "float32", POSE),
        *_columns(
            ("root_time_ns", "int64"),
            ("root_trajectory_index", "int32"),
            ("root_frame_index", "int32"),
            ("scene_id", "int32", "scene"),
            ("snippet_id", "int32", "snippet"),
            ("target_row_id", "int64"),
            ("policy_id", "int32", "policy"),
            ("horizon", "int16"),
            ("branch_factor", "int16"),
            ("beam_width", "int16"),
            ("temperature", "float32"),
            ("random_seed", "int64"),
            ("termination_reason", "int32", "termination_reason"),
        ),
        *_floats(*(f"final_{name}" for name in CUMULATIVE_OF)),
        Column("split_id", "int32", dictionary="split"),
    ),
    key="rollout_row_id",
    doc=(
        "One row per kept chain. `termination_reason`: `fixed_horizon` where a view was taken at every step, "
        "`terminated_early` at a dead end, `incomplete_rollout` where a chain was cut short after a view that it took "
        "(campaigns write none; a store of other origin may)."
    ),
)

LINEAGE_HASHES: Mapping[str, str] = {
    "candidate_config_id": "candidate_config_hash",
    "oracle_config_id": "oracle_config_hash",
    "rollout_config_id": "rollout_config_hash",
    "model_checkpoint_id": "model_checkpoint_hash",
    "mesh_version_id": "mesh_version",
    "branch_schedule_id": "branch_schedule_id",
    "target_protocol_version_id": "target_protocol_version",
    "target_crop_policy_id": "target_crop_policy",
    "reason_code_version_id": "reason_code_version",
    "selection_rng_state_hash_id": "selection_rng_state_hash",
}
"""Lineage column -> the ``RolloutLineage`` field it encodes."""

REQUIRED_LINEAGE = (
    "candidate_config_id",
    "oracle_config_id",
    "rollout_config_id",
    "target_protocol_version_id",
    "target_crop_policy_id",
    "reason_code_version_id",
)
"""Lineage columns that every rollout must have."""

LINEAGE = Table(
    "lineage",
    (
        Column("rollout_row_id", "int64"),
        *(Column(name, "int32", dictionary="config") for name in LINEAGE_HASHES),
    ),
    key=None,
    doc="Config hashes behind each rollout; row-aligned with rollouts.",
)

STEPS = Table(
    "steps",
    (
        *_columns(
            ("step_row_id", "int64"),
            ("rollout_row_id", "int64"),
            ("step_index", "int16"),
            ("selected_candidate_row_id", "int64"),
            ("selected_shell_index", "int32"),
            ("selected_compact_valid_index", "int32"),
            ("num_candidates", "int32"),
            ("num_valid_candidates", "int32"),
        ),
        *_floats(*CUMULATIVE_OF),
        Column("selected_draw_log_probability", "float32", added=True),
    ),
    key="step_row_id",
    doc="One row per decision; the last of a chain may have selected nothing (-1).",
)

CANDIDATES = Table(
    "candidates",
    (
        *_columns(
            ("candidate_row_id", "int64"),
            ("step_row_id", "int64"),
            ("rollout_row_id", "int64"),
            ("step_index", "int16"),
            ("shell_index", "int32"),
            ("compact_valid_index", "int32"),
        ),
        Column("pose_world_cam", "float32", POSE),
        Column("pose_relative_root", "float32", POSE),
        *_columns(
            ("actor_action_mask", "bool"),
            ("oracle_label_mask", "bool"),
            ("q_train_mask", "bool"),
            ("selected_mask", "bool"),
            ("strategy_id", "int32"),
            ("position_id", "int32"),
            ("mixture_id", "int32"),
            ("sampler_probability", "float32"),
            ("score_source_id", "int32", "score_source"),
            ("invalid_reason_bitset", "uint32"),
            ("primary_invalid_reason", "uint16"),
        ),
        *_floats(*LABEL_COLUMNS),
        *_floats("selection_logits", "selection_probabilities", "selection_log_probabilities"),
        Column("selection_inclusion_probabilities", "float32", added=True),
        Column("drawn_mask", "bool", added=True),
    ),
    key="candidate_row_id",
    doc="The full sampled shell of every step, invalid rows kept.",
)

CANDIDATE_DIAGNOSTICS = Table(
    "candidate_diagnostics",
    (
        Column("candidate_row_id", "int64"),
        Column("position_id", "int32"),
        *(Column(name, "bool" if name.endswith("_mask") else "float32") for name in DIAGNOSTIC_COLUMNS),
    ),
    key="candidate_row_id",
    doc="What the rules measured; row-aligned with candidates. NaN / false where unavailable.",
)

SELECTED_DEPTH = Table(
    "selected_depth",
    (
        Column("step_row_id", "int64"),
        Column("candidate_row_id", "int64"),
        Column("focal_px", "float32", (2,)),
        Column("principal_point_px", "float32", (2,)),
        Column("image_size_hw", "int32", (2,)),
        Column("depth_m", "float16", ("H", "W")),
        Column("valid_mask", "bool", ("H", "W")),
    ),
    key=None,
    rasters=("depth_m", "valid_mask"),
    doc="What the selected view of each step sees; row-aligned with steps when enabled.",
)

TARGETS = Table(
    "targets",
    (
        *_columns(
            ("target_row_id", "int64"),
            ("target_id", "int32", "target"),
            ("target_selection_policy_id", "int32", "policy"),
            ("target_selection_rank", "int32"),
        ),
        *_floats("target_selection_score", "target_selection_probability", "target_selection_temperature"),
        *_columns(
            ("target_source_id", "int32", "target_source"),
            ("target_source_index", "int32"),
            ("target_sem_id", "int32"),
            ("target_inst_id", "int32"),
            ("target_class_name_id", "int32", "class_name"),
        ),
        *_floats("target_confidence", "target_projected_area_pixels", "target_projected_area_fraction"),
        *_columns(("target_semidense_support_count", "int32"), ("target_evl_support_count", "int32")),
        *_floats(
            "target_effective_support_count",
            "target_visibility_score",
            "target_support_score",
            "target_deficit_score",
        ),
        Column("target_center_world", "float32", (3,)),
        Column("target_extents", "float32", (3,)),
        Column("target_pose_world_object", "float32", POSE),
        Column("target_relative_pose_reference_object", "float32", POSE),
        *_columns(
            ("target_valid_mask", "bool"),
            ("target_invalid_reason_bitset", "uint32"),
            ("target_primary_invalid_reason", "uint16"),
            ("target_reason_code_version_id", "int32", "config"),
            ("matched_gt_target_row_id", "int64"),
            ("matched_gt_target_id", "int32", "target"),
            ("gt_match_iou", "float32"),
            ("gt_match_score", "float32"),
            ("gt_match_status_id", "int32", "target_match_status"),
            ("gt_label_valid_mask", "bool"),
            ("target_crop_policy_id", "int32", "config"),
        ),
        Column("source_row_id", "int64", added=True),
    ),
    key="target_row_id",
    doc="What the actor saw of each target, and which ground truth it matched; source_row_id is this package's own.",
)

TARGET_EVAL_CROPS = Table(
    "target_eval_crops",
    (
        *_columns(
            ("crop_row_id", "int64"),
            ("step_row_id", "int64"),
            ("candidate_row_id", "int64"),
            ("source_role_id", "int32"),
            ("crop_policy_id", "int32", "config"),
            ("voxel_size_m", "float32"),
            ("max_points", "int32"),
            ("lengths", "int32"),
        ),
        Column("points_world", "float32", ("P", 3)),
        Column("mask", "bool", ("P",)),
    ),
    key="crop_row_id",
    rasters=("points_world", "mask"),
    doc="Points behind labels, in stores of other writers. Always empty in stores of this package.",
)

SHELL = ("A",)

Q_H = Table(
    "q_h",
    (
        Column("state_step_row_id", "int64"),
        Column("source_row_id", "int64"),
        Column("candidate_row_id", "int64", SHELL, pad=ABSENT),
        Column("valid_action_mask", "bool", SHELL, pad=False),
        Column("q_train_mask", "bool", SHELL, pad=False),
        Column("target_row_id", "int64"),
        Column("selected_candidate_index", "int32"),
        Column("position_id", "int32", SHELL, pad=ABSENT),
        Column("one_step_target_rri", "float32", SHELL, pad=np.nan),
        Column("one_step_target_root_gain", "float32", SHELL, pad=np.nan),
        Column("invalid_reason_bitset", "uint32", SHELL, pad=0),
        Column("td_selected_candidate_row_id", "int64"),
        Column("td_reward", "float32"),
        Column("td_reward_target_rri", "float32"),
        Column("td_next_step_row_id", "int64"),
        Column("td_terminal_mask", "bool"),
        Column("td_discount", "float32"),
    ),
    key=None,
    codec="view",
    doc=(
        "The dense training view, derived from steps, candidates, rollouts and targets. A state is a step that took a "
        "view; the step before a dead end is terminal. ARIA-NBV's rules want every step here: a campaign with "
        "`store.dead_ends_in_training_view = true` keeps dead ends as states without a reward, and the store's "
        "attribute of that name says which of the two holds."
    ),
)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        SOURCES,
        LINEAGE,
        TARGETS,
        ROLLOUTS,
        STEPS,
        CANDIDATES,
        CANDIDATE_DIAGNOSTICS,
        SELECTED_DEPTH,
        TARGET_EVAL_CROPS,
        Q_H,
    )
}
"""Every table by name."""

DICTIONARIES = (
    "scene",
    "snippet",
    "rollout",
    "target",
    "source_key",
    "source_shard",
    "target_source",
    "policy",
    "score_source",
    "split",
    "config",
    "class_name",
    "target_match_status",
    "termination_reason",
)
"""Names under ``dictionaries/``."""

GROUPS = ("metadata", "dictionaries", *TABLES)
"""Every group; all are required, even when empty."""

REASON_BITS_PATH = "metadata/reason_code_bits"
REASON_NAMES_PATH = "metadata/reason_code_names"
RETENTION_PATH = "metadata/field_retention_policy"
PROTOCOL_PATH = "targets/target_protocol_version"
ROLE_NAMES_PATH = "target_eval_crops/source_role_names"
CROP_POLICIES_PATH = "target_eval_crops/crop_policy_dictionary"

TEXT_PATHS = (
    *(f"dictionaries/{name}" for name in DICTIONARIES),
    REASON_NAMES_PATH,
    RETENTION_PATH,
    PROTOCOL_PATH,
    ROLE_NAMES_PATH,
    CROP_POLICIES_PATH,
)
"""Arrays that hold a JSON list of strings as UTF-8 bytes (uint8)."""

TEXT_ARRAYS = (*TEXT_PATHS, REASON_BITS_PATH)
"""Arrays that belong to no table."""

REASONS_BY_BIT = tuple(sorted(INVALID_REASON_CODES.items(), key=lambda item: item[1]))
"""(name, bit) in bit order, as ``metadata/`` stores them."""


def array_paths() -> tuple[str, ...]:
    """Every array of a store."""
    columns = tuple(table.path(column) for table in TABLES.values() for column in table.names)
    return (*columns, *TEXT_ARRAYS)


def added_paths() -> tuple[str, ...]:
    """Arrays that this package adds to the schema; stores of other writers lack them."""
    tables = TABLES.values()
    return tuple(table.path(column.name) for table in tables for column in table.columns if column.added)
