"""The schema is exactly the one ARIA-NBV reads: names, dtypes and row shapes, typed out here once more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollout_assets.rollouts.zarr_store.schema import DICTIONARIES, GROUPS, TABLES, TEXT_PATHS, array_paths

pytestmark = pytest.mark.quick

EXPECTED = {
    "sources": """source_row_id i64, sample_index i64, sample_key_id i32, scene_id i32, snippet_id i32, split_id i32,
        source_cache_version_id i32, source_offline_store_manifest_hash_id i32, split_manifest_hash_id i32,
        source_shard_id i32, source_shard_row i64""",
    "rollouts": """rollout_row_id i64, rollout_id i32, chain_id i32, source_row_id i64, root_pose_world f32[12],
        root_time_ns i64, root_trajectory_index i32, root_frame_index i32, scene_id i32, snippet_id i32,
        target_row_id i64, policy_id i32, horizon i16, branch_factor i16, beam_width i16, temperature f32,
        random_seed i64, termination_reason i32, final_cumulative_target_rri f32, final_cumulative_scene_rri f32,
        final_cumulative_target_root_gain f32, final_cumulative_scene_root_gain f32, split_id i32""",
    "lineage": """rollout_row_id i64, candidate_config_id i32, oracle_config_id i32, rollout_config_id i32,
        model_checkpoint_id i32, mesh_version_id i32, branch_schedule_id i32, target_protocol_version_id i32,
        target_crop_policy_id i32, reason_code_version_id i32, selection_rng_state_hash_id i32""",
    "steps": """step_row_id i64, rollout_row_id i64, step_index i16, selected_candidate_row_id i64,
        selected_shell_index i32, selected_compact_valid_index i32, num_candidates i32, num_valid_candidates i32,
        cumulative_target_rri f32, cumulative_scene_rri f32, cumulative_target_root_gain f32,
        cumulative_scene_root_gain f32, selected_draw_log_probability f32""",
    "candidates": """candidate_row_id i64, step_row_id i64, rollout_row_id i64, step_index i16, shell_index i32,
        compact_valid_index i32, pose_world_cam f32[12], pose_relative_root f32[12], actor_action_mask bool,
        oracle_label_mask bool, q_train_mask bool, selected_mask bool, strategy_id i32, position_id i32, mixture_id i32,
        sampler_probability f32, score_source_id i32, invalid_reason_bitset u32, primary_invalid_reason u16,
        scene_rri f32, target_rri f32, scene_root_gain f32, target_root_gain f32, scene_log_error_gain f32,
        target_log_error_gain f32, scene_pm_dist_before f32, scene_pm_dist_after f32, target_pm_dist_before f32,
        target_pm_dist_after f32, target_current_support f32, target_candidate_support f32, selection_logits f32,
        selection_probabilities f32, selection_log_probabilities f32, selection_inclusion_probabilities f32,
        drawn_mask bool""",
    "candidate_diagnostics": """candidate_row_id i64, position_id i32, mesh_distance_m f32, path_min_clearance_m f32,
        path_collision_mask bool, free_space_margin_m f32, motion_step_length_m f32, motion_height_delta_m f32,
        motion_backward_step_m f32, motion_yaw_delta_deg f32, target_distance_m f32, target_bearing_yaw_deg f32""",
    "selected_depth": """step_row_id i64, candidate_row_id i64, focal_px f32[2], principal_point_px f32[2],
        image_size_hw i32[2], depth_m f16[H;W], valid_mask bool[H;W]""",
    "targets": """target_row_id i64, target_id i32, target_selection_policy_id i32, target_selection_rank i32,
        target_selection_score f32, target_selection_probability f32, target_selection_temperature f32,
        target_source_id i32, target_source_index i32, target_sem_id i32, target_inst_id i32, target_class_name_id i32,
        target_confidence f32, target_projected_area_pixels f32, target_projected_area_fraction f32,
        target_semidense_support_count i32, target_evl_support_count i32, target_effective_support_count f32,
        target_visibility_score f32, target_support_score f32, target_deficit_score f32, target_center_world f32[3],
        target_extents f32[3], target_pose_world_object f32[12], target_relative_pose_reference_object f32[12],
        target_valid_mask bool, target_invalid_reason_bitset u32, target_primary_invalid_reason u16,
        target_reason_code_version_id i32, matched_gt_target_row_id i64, matched_gt_target_id i32, gt_match_iou f32,
        gt_match_score f32, gt_match_status_id i32, gt_label_valid_mask bool, target_crop_policy_id i32,
        source_row_id i64""",
    "target_eval_crops": """crop_row_id i64, step_row_id i64, candidate_row_id i64, source_role_id i32,
        crop_policy_id i32, voxel_size_m f32, max_points i32, lengths i32, points_world f32[P;3], mask bool[P]""",
    "q_h": """state_step_row_id i64, source_row_id i64, candidate_row_id i64[A], valid_action_mask bool[A],
        q_train_mask bool[A], target_row_id i64, selected_candidate_index i32, position_id i32[A],
        one_step_target_rri f32[A], one_step_target_root_gain f32[A], invalid_reason_bitset u32[A],
        td_selected_candidate_row_id i64, td_reward f32, td_reward_target_rri f32, td_next_step_row_id i64,
        td_terminal_mask bool, td_discount f32""",
}
"""Columns in order; this package adds ``targets/source_row_id`` and the last columns of steps and candidates."""

SHORT = {"int64": "i64", "int32": "i32", "int16": "i16", "float32": "f32", "float16": "f16", "uint32": "u32"}


@pytest.mark.parametrize("table", EXPECTED)
def test_tables_have_exactly_these_columns(table: str) -> None:
    found = []
    for column in TABLES[table].columns:
        shape = f"[{';'.join(str(part) for part in column.row_shape)}]" if column.row_shape else ""
        short = {"uint16": "u16", "bool": "bool", **SHORT}[column.dtype]
        found.append(f"{column.name} {short}{shape}")
    assert found == [part.strip() for part in EXPECTED[table].replace("\n", " ").split(",")]


def test_groups_and_dictionaries_are_complete() -> None:
    assert set(GROUPS) == {"metadata", "dictionaries", *EXPECTED}
    assert set(TABLES) == set(EXPECTED)
    words = """scene snippet rollout target source_key source_shard target_source policy score_source split config
        class_name target_match_status termination_reason"""
    assert set(DICTIONARIES) == set(words.split())
    assert len(set(array_paths())) == len(array_paths())
    assert set(TEXT_PATHS) < set(array_paths())


def test_a_store_has_every_array_and_attribute(good_store: Path) -> None:
    document = json.loads((good_store / "zarr.json").read_text())
    nodes = document["consolidated_metadata"]["metadata"]
    assert set(nodes) == {*GROUPS, *array_paths()}
    depth = """enabled width_px height_px dtype valid_mask_dtype units invalid_fill_value codec chunk_steps role
        renderer znear_m zfar_m source_resolution"""
    rows = "sources targets rollouts steps candidates candidate_diagnostics selected_depths q_h_states"
    words = """schema_id schema_version zarr_format created_at_utc manifest_path manifest_sha256 manifest_version
        source_offline_store_version split_manifest_hash source_split reason_code_version target_protocol_version
        return_semantics discount_gamma field_retention_policy q_h_view_persisted q_h_view_role q_h_source_tables
        q_h_reward_metric q_h_return_semantics q_h_horizon q_h_chunk_states q_h_state_count q_h_max_candidates
        candidate_diagnostics_enabled candidate_diagnostics_role candidate_diagnostics_unavailable_float
        candidate_diagnostics_unavailable_bool target_eval_crops_enabled target_eval_crops_role
        target_eval_crops_coordinate_frame target_eval_crops_max_points target_eval_crops_num_rows
        dead_ends_in_training_view"""
    expected = {*words.split(), *(f"selected_depth_{name}" for name in depth.split())}
    expected |= {f"num_{name}" for name in rows.split()}
    assert set(document["attributes"]) == expected
    groups = {
        "selected_depth": f"{depth} depth_dtype",
        "target_eval_crops": "role coordinate_frame enabled max_points source_roles retention",
        "q_h": """view_role source_tables td_semantics reward_metric return_semantics td_reward_target_rri_role
            state_count max_candidates horizon discount_gamma chunk_states""",
    }
    for group, names in groups.items():
        assert set(nodes[group]["attributes"]) == set(names.split()) - (
            {"dtype"} if group == "selected_depth" else set()
        )


def test_every_array_carries_a_checksum_codec(good_store: Path) -> None:
    nodes = json.loads((good_store / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    for path in array_paths():
        codecs = nodes[path]["codecs"]
        inner = codecs[0]["configuration"]["codecs"] if codecs[0]["name"] == "sharding_indexed" else codecs
        assert inner[-1]["name"] == "crc32c", path
    codec = nodes["selected_depth/depth_m"]["codecs"][0]["configuration"]["codecs"][1]
    assert codec["name"] == "blosc"
    wanted = {"cname": "zstd", "clevel": 5, "shuffle": "bitshuffle"}
    assert wanted.items() <= codec["configuration"].items()
