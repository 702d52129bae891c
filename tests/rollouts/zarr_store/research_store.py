"""A store as the research code lays it out: typed from the words of the schema, written by plain zarr-python.

Nothing here comes from the package. Values are those of a store that it wrote; names, dtypes, attributes and manifest
are typed out, arrays have zarr's default codecs and chunks of a few rows, and there are no checksums, no digests, no
consolidated metadata and no column of ours.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec

TABLES = {
    "sources": """source_row_id i8, sample_index i8, sample_key_id i4, scene_id i4, snippet_id i4, split_id i4,
        source_cache_version_id i4, source_offline_store_manifest_hash_id i4, split_manifest_hash_id i4,
        source_shard_id i4, source_shard_row i8""",
    "rollouts": """rollout_row_id i8, rollout_id i4, chain_id i4, source_row_id i8, root_pose_world f4, root_time_ns i8,
        root_trajectory_index i4, root_frame_index i4, scene_id i4, snippet_id i4, target_row_id i8, policy_id i4,
        horizon i2, branch_factor i2, beam_width i2, temperature f4, random_seed i8, termination_reason i4,
        final_cumulative_target_rri f4, final_cumulative_scene_rri f4, final_cumulative_target_root_gain f4,
        final_cumulative_scene_root_gain f4, split_id i4""",
    "lineage": """rollout_row_id i8, candidate_config_id i4, oracle_config_id i4, rollout_config_id i4,
        model_checkpoint_id i4, mesh_version_id i4, branch_schedule_id i4, target_protocol_version_id i4,
        target_crop_policy_id i4, reason_code_version_id i4, selection_rng_state_hash_id i4""",
    "steps": """step_row_id i8, rollout_row_id i8, step_index i2, selected_candidate_row_id i8, selected_shell_index i4,
        selected_compact_valid_index i4, num_candidates i4, num_valid_candidates i4, cumulative_target_rri f4,
        cumulative_scene_rri f4, cumulative_target_root_gain f4, cumulative_scene_root_gain f4""",
    "candidates": """candidate_row_id i8, step_row_id i8, rollout_row_id i8, step_index i2, shell_index i4,
        compact_valid_index i4, pose_world_cam f4, pose_relative_root f4, actor_action_mask b1, oracle_label_mask b1,
        q_train_mask b1, selected_mask b1, strategy_id i4, position_id i4, mixture_id i4, sampler_probability f4,
        score_source_id i4, invalid_reason_bitset u4, primary_invalid_reason u2, scene_rri f4, target_rri f4,
        scene_root_gain f4, target_root_gain f4, scene_log_error_gain f4, target_log_error_gain f4,
        scene_pm_dist_before f4, scene_pm_dist_after f4, target_pm_dist_before f4, target_pm_dist_after f4,
        target_current_support f4, target_candidate_support f4, selection_logits f4, selection_probabilities f4,
        selection_log_probabilities f4""",
    "candidate_diagnostics": """candidate_row_id i8, position_id i4, mesh_distance_m f4, path_min_clearance_m f4,
        path_collision_mask b1, free_space_margin_m f4, motion_step_length_m f4, motion_height_delta_m f4,
        motion_backward_step_m f4, motion_yaw_delta_deg f4, target_distance_m f4, target_bearing_yaw_deg f4""",
    "selected_depth": """step_row_id i8, candidate_row_id i8, focal_px f4, principal_point_px f4, image_size_hw i4,
        depth_m f2, valid_mask b1""",
    "targets": """target_row_id i8, target_id i4, target_selection_policy_id i4, target_selection_rank i4,
        target_selection_score f4, target_selection_probability f4, target_selection_temperature f4,
        target_source_id i4, target_source_index i4, target_sem_id i4, target_inst_id i4, target_class_name_id i4,
        target_confidence f4, target_projected_area_pixels f4, target_projected_area_fraction f4,
        target_semidense_support_count i4, target_evl_support_count i4, target_effective_support_count f4,
        target_visibility_score f4, target_support_score f4, target_deficit_score f4, target_center_world f4,
        target_extents f4, target_pose_world_object f4, target_relative_pose_reference_object f4, target_valid_mask b1,
        target_invalid_reason_bitset u4, target_primary_invalid_reason u2, target_reason_code_version_id i4,
        matched_gt_target_row_id i8, matched_gt_target_id i4, gt_match_iou f4, gt_match_score f4,
        gt_match_status_id i4, gt_label_valid_mask b1, target_crop_policy_id i4""",
    "target_eval_crops": """crop_row_id i8, step_row_id i8, candidate_row_id i8, source_role_id i4, crop_policy_id i4,
        voxel_size_m f4, max_points i4, lengths i4, points_world f4, mask b1""",
    "q_h": """state_step_row_id i8, source_row_id i8, candidate_row_id i8, valid_action_mask b1, q_train_mask b1,
        target_row_id i8, selected_candidate_index i4, position_id i4, one_step_target_rri f4,
        one_step_target_root_gain f4, invalid_reason_bitset u4, td_selected_candidate_row_id i8, td_reward f4,
        td_reward_target_rri f4, td_next_step_row_id i8, td_terminal_mask b1, td_discount f4""",
}
"""Group -> its arrays and their dtypes."""

DICTIONARIES = """scene snippet rollout target source_key source_shard target_source policy score_source split config
    class_name target_match_status termination_reason"""

TEXTS = (
    *(f"dictionaries/{name}" for name in DICTIONARIES.split()),
    "metadata/reason_code_names",
    "metadata/field_retention_policy",
    "targets/target_protocol_version",
    "target_eval_crops/source_role_names",
    "target_eval_crops/crop_policy_dictionary",
)

CROP_POINTS = 6
CROP_POLICY = "gt_obb_oriented_any_vertex_v1"
COMPONENTS = ("forward", "bearing", "bypass")


def columns() -> dict[str, np.dtype[Any]]:
    """Path of every table's array -> its dtype."""
    return {
        f"{table}/{name}": np.dtype(kind)
        for table, text in TABLES.items()
        for name, kind in (part.split() for part in text.split(","))
    }


def write_research_store(path: Path, ours: Path, crops: int = 0, chunk_rows: int = 1_000) -> Path:
    """Write the rows of a store of ours, whose training view holds every step, as the research code would."""
    given = zarr.open_group(ours, mode="r")
    root = zarr.create_group(path, zarr_format=3)
    for group in ("metadata", "dictionaries", *TABLES):
        root.create_group(group)
    values = {name: given[name][...].astype(dtype) for name, dtype in columns().items()}
    values |= _crops(crops, given)
    values |= {name: given[name][...] for name in TEXTS}
    values["metadata/reason_code_bits"] = np.arange(24, dtype="u2")
    values["target_eval_crops/crop_policy_dictionary"] = _text([CROP_POLICY] if crops else [])
    for name, array in values.items():
        _write(root, name, array, chunk_rows)
    _write_attributes(root, values, dict(given.attrs))
    _write_manifest(path, root, dict(given.attrs))
    return path


def change(path: Path, array: str, row: int | tuple[int, ...], value: object) -> None:
    """Plant a fault: set one value of an array."""
    zarr.open_array(path / array, mode="r+")[row] = value


def _write(root: zarr.Group, name: str, values: np.ndarray, chunk_rows: int) -> None:
    table, column = name.split("/")
    chunk = (
        16
        if table == "selected_depth" and values.ndim == 3
        else chunk_rows
        if values.ndim == 1
        else chunk_rows // 5 * 2
    )
    is_depth = name in ("selected_depth/depth_m", "selected_depth/valid_mask")
    codec = {"compressors": BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle")} if is_depth else {}
    chunks = (max(min(chunk, len(values)), 1), *(max(size, 1) for size in values.shape[1:]))
    array = root[table].create_array(column, shape=values.shape, dtype=values.dtype, chunks=chunks, **codec)
    if values.size:
        array[...] = values


def _crops(rows: int, given: zarr.Group) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    role = np.arange(rows, dtype="i4") % 2
    length = rng.integers(1, CROP_POINTS + 1, rows).astype("i4")
    return {
        "target_eval_crops/crop_row_id": np.arange(rows, dtype="i8"),
        "target_eval_crops/step_row_id": np.arange(rows, dtype="i8") // 2,
        "target_eval_crops/candidate_row_id": np.where(role == 1, np.arange(rows), -1).astype("i8"),
        "target_eval_crops/source_role_id": role,
        "target_eval_crops/crop_policy_id": np.zeros(rows, "i4"),
        "target_eval_crops/voxel_size_m": np.full(rows, 0.02, "f4"),
        "target_eval_crops/max_points": np.full(rows, CROP_POINTS, "i4"),
        "target_eval_crops/lengths": length,
        "target_eval_crops/points_world": rng.normal(size=(rows, CROP_POINTS, 3)).astype("f4"),
        "target_eval_crops/mask": np.arange(CROP_POINTS) < length[:, None],
    }


def _text(strings: list[str]) -> np.ndarray:
    return np.frombuffer(json.dumps(strings).encode(), "u1")


def _write_attributes(root: zarr.Group, values: dict[str, np.ndarray], given: dict[str, Any]) -> None:
    """Attributes of root and groups; those that only the rows know are taken over."""
    states, width = values["q_h/candidate_row_id"].shape
    crops = len(values["target_eval_crops/crop_row_id"])
    depth = {
        "width_px": values["selected_depth/depth_m"].shape[2],
        "height_px": values["selected_depth/depth_m"].shape[1],
        "units": "m",
        "invalid_fill_value": 0.0,
        "codec": "blosc:zstd:clevel=5:bitshuffle",
        "chunk_steps": 16,
        "role": "selected_successor_state_history",
        "renderer": "pytorch3d",
        "znear_m": 0.001,
        "zfar_m": 20.0,
        "source_resolution": "exact_output_size",
        "enabled": len(values["selected_depth/step_row_id"]) > 0,
        "valid_mask_dtype": "bool",
    }
    view = {
        "reward_metric": "target_root_gain",
        "return_semantics": "cumulative_target_root_gain",
        "horizon": int(values["rollouts/horizon"].max()),
        "chunk_states": 256,
        "state_count": states,
        "max_candidates": width,
    }
    view_role = {"view_role": "training_core_derived_cache", "source_tables": "steps,candidates,rollouts,targets"}
    eval_crops = {"enabled": crops > 0, "role": "oracle_eval_only", "coordinate_frame": "world"}
    eval_crops["max_points"] = CROP_POINTS
    diagnostics = {"role": "audit_rerun_only", "unavailable_float": "NaN", "unavailable_bool": "false", "enabled": True}
    rows = {name: len(values[f"{table}/{column}"]) for name, table, column in _COUNTED}
    root["selected_depth"].attrs.update({**depth, "depth_dtype": "float16"})
    root["q_h"].attrs.update(
        {
            **view,
            **view_role,
            "td_semantics": "selected_transition_only",
            "td_reward_target_rri_role": "diagnostic_state_relative_rri",
            "discount_gamma": given["discount_gamma"],
        }
    )
    root["target_eval_crops"].attrs.update(
        {**eval_crops, "source_roles": "current_eval,candidate_eval", "retention": "sampled_audit"}
    )
    root.attrs.update(
        {
            "schema_id": "aria_nbv.rollout_zarr_q_invalidity",
            "schema_version": "1.0-target-rollout-core",
            "zarr_format": 3,
            "created_at_utc": "2025-11-02T10:11:12+00:00",
            "manifest_path": "manifest.json",
            "manifest_version": "rollout-store-manifest-v1",
            "source_offline_store_version": given["source_offline_store_version"],
            "split_manifest_hash": given["split_manifest_hash"],
            "source_split": given["source_split"],
            "reason_code_version": "rollout-invalidity-v1",
            "target_protocol_version": "v1_observed",
            "return_semantics": "cumulative_target_root_gain",
            "discount_gamma": given["discount_gamma"],
            "field_retention_policy": given["field_retention_policy"],
            **{f"selected_depth_{name}": value for name, value in depth.items()},
            "selected_depth_dtype": "float16",
            "q_h_view_persisted": True,
            "q_h_view_role": view_role["view_role"],
            "q_h_source_tables": view_role["source_tables"],
            **{f"q_h_{name}": value for name, value in view.items()},
            **{f"num_{name}": count for name, count in rows.items()},
            **{f"candidate_diagnostics_{name}": value for name, value in diagnostics.items()},
            **{f"target_eval_crops_{name}": value for name, value in eval_crops.items()},
            "target_eval_crops_num_rows": crops,
            "rollout_experiment": "ablation-7",
        }
    )


_COUNTED = (
    ("sources", "sources", "source_row_id"),
    ("targets", "targets", "target_row_id"),
    ("rollouts", "rollouts", "rollout_row_id"),
    ("steps", "steps", "step_row_id"),
    ("candidates", "candidates", "candidate_row_id"),
    ("candidate_diagnostics", "candidate_diagnostics", "candidate_row_id"),
    ("selected_depths", "selected_depth", "step_row_id"),
    ("q_h_states", "q_h", "state_step_row_id"),
)


def _write_manifest(path: Path, root: zarr.Group, given: dict[str, Any]) -> None:
    attributes = dict(root.attrs)
    counts = {name: attributes[f"num_{name}"] for name, _, _ in _COUNTED}
    manifest = {
        "manifest_version": "rollout-store-manifest-v1",
        "schema_id": attributes["schema_id"],
        "schema_version": attributes["schema_version"],
        "created_at_utc": attributes["created_at_utc"],
        "store_kind": "standalone_rollout_zarr_shard",
        "root_attrs": attributes,
        "counts": counts,
        "source_coverage": {"num_source_rows": counts["sources"]},
        "config_hashes": {"candidate": ["c" * 64], "oracle": ["0" * 64], "rollout": ["1" * 64]},
        "dictionary_sizes": {},
        "generation": {
            "writer_config": {
                "rollout": {"candidate_mixture": {"components": [{"name": name, "count": 4} for name in COMPONENTS]}}
            },
            "invocation": {"mode": "cli", "argv": ["nbv-rollouts", "--config", "a.toml"], "host": "cluster-3"},
            "runtime": {"python": "3.11.9", "platform": "Linux", "packages": {"aria_nbv": "0.4.0", "zarr": "3.0.8"}},
            "shard": None,
        },
        "notes": "written before the move",
    }
    data = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=True).encode("ascii")
    (path / "manifest.json").write_bytes(data)
    root.attrs["manifest_sha256"] = hashlib.sha256(data).hexdigest()
