"""Forged stores of a campaign: every digest agrees, and still rows, lineage and manifest must follow from the campaign.

``FORGERIES`` must be found. ``BEYOND`` is what no table can tell: it passes validation, and a replay finds it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rollout_assets.config import CampaignConfig
from rollout_assets.rollouts import replay_sources
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from tests.rollouts.zarr_store.conftest import write_campaign_store
from tests.rollouts.zarr_store.forging import (
    SEALED,
    Change,
    Rows,
    at,
    bump,
    flip,
    forge,
    forge_all,
    forge_manifest,
    rules_only,
)
from tests.rollouts.zarr_store.store_under_test import Mutable


@dataclass(frozen=True)
class Forgery:
    """One value of an array changed, and the check that must find it; ``deep`` if only deep validation does."""

    path: str
    check: str
    change: Change
    deep: bool = False


def scale(row: int | str, by: float) -> Change:
    """Multiply a row."""

    def change(values: Any, rows: Rows) -> None:
        values[rows.get(row, row)] *= by

    return change


FORGERIES = (
    Forgery("rollouts/branch_factor", "rollouts_follow_recipes", bump(0)),
    Forgery("rollouts/beam_width", "rollouts_follow_recipes", at(0, 7)),
    Forgery("rollouts/temperature", "rollouts_follow_recipes", at(0, 2.0)),
    Forgery("rollouts/random_seed", "rollouts_follow_recipes", bump(0)),
    Forgery("rollouts/policy_id", "rollouts_follow_recipes", bump(0)),
    Forgery("rollouts/horizon", "rollouts_follow_recipes", bump("short")),
    Forgery("rollouts/root_time_ns", "roots_follow_sources", bump(1)),
    Forgery("rollouts/root_trajectory_index", "roots_follow_sources", bump(1)),
    Forgery("rollouts/root_frame_index", "roots_follow_sources", bump(1)),
    Forgery("rollouts/target_row_id", "rollouts_follow_recipes", at(0, 1)),
    Forgery("lineage/candidate_config_id", "lineage_follows_campaign", at(0, 0)),
    Forgery("lineage/oracle_config_id", "lineage_follows_campaign", at(0, 0)),
    Forgery("lineage/rollout_config_id", "lineage_follows_campaign", at(0, 0)),
    Forgery("lineage/model_checkpoint_id", "lineage_follows_campaign", at(0, 0)),
    Forgery("lineage/branch_schedule_id", "lineage_follows_campaign", at(0, 0)),
    Forgery("lineage/target_crop_policy_id", "lineage_follows_campaign", at(0, 0)),
    Forgery("lineage/selection_rng_state_hash_id", "lineage_follows_campaign", at(0, 0)),
    Forgery("lineage/mesh_version_id", "one_mesh_per_scene", at(0, 0)),
    Forgery("sources/sample_index", "rollouts_follow_recipes", bump(1, 9)),
    Forgery("sources/sample_key_id", "lineage_follows_campaign", lambda values, _: values.__setitem__(0, values[1])),
    Forgery("sources/source_shard_row", "sources_complete", lambda values, _: values.__setitem__(1, values[0])),
    Forgery("targets/matched_gt_target_row_id", "targets_named_by_box", bump("matched")),
    Forgery("targets/target_source_index", "targets_named_by_box", bump(0)),
    Forgery("targets/target_sem_id", "targets_named_by_box", bump(0)),
    Forgery("targets/target_inst_id", "targets_named_by_box", bump(0)),
    Forgery("targets/target_selection_rank", "targets_ranked_by_policy", at(0, 2)),
    Forgery("targets/target_selection_policy_id", "targets_ranked_by_policy", at(0, 1)),
    Forgery("targets/target_selection_probability", "targets_ranked_by_policy", at(0, 0.5)),
    Forgery("targets/target_selection_temperature", "targets_ranked_by_policy", at(0, 1.0)),
    Forgery("targets/target_selection_score", "targets_scored_by_rules", scale(0, 1.01)),
    Forgery("targets/target_confidence", "targets_scored_by_rules", scale(0, 0.99)),
    Forgery("targets/target_projected_area_pixels", "targets_scored_by_rules", scale("seen", 1.01)),
    Forgery("targets/target_projected_area_fraction", "targets_scored_by_rules", scale("seen", 1.01)),
    Forgery("targets/target_semidense_support_count", "targets_scored_by_rules", bump(0)),
    Forgery("targets/target_evl_support_count", "targets_scored_by_rules", bump(0)),
    Forgery("targets/target_effective_support_count", "targets_scored_by_rules", bump(0)),
    Forgery("targets/target_visibility_score", "targets_scored_by_rules", bump(0, -0.01)),
    Forgery("targets/target_support_score", "targets_scored_by_rules", bump(0, -0.01)),
    Forgery("targets/target_deficit_score", "targets_scored_by_rules", bump(0, -0.01)),
    Forgery("targets/target_extents", "targets_scored_by_rules", at(0, 0.0)),
    Forgery("targets/target_center_world", "targets_matched_by_rules", bump(0, 0.01)),
    Forgery("targets/target_pose_world_object", "targets_placed_from_root", bump(0, 0.01)),
    Forgery("targets/target_relative_pose_reference_object", "targets_placed_from_root", bump(0, 0.01)),
    Forgery("targets/target_reason_code_version_id", "targets_matched_by_rules", at(0, 0)),
    Forgery("targets/target_crop_policy_id", "targets_matched_by_rules", at(0, 0)),
    Forgery("targets/gt_match_iou", "targets_matched_by_rules", at("matched", 0.01)),
    Forgery("targets/gt_match_score", "targets_matched_by_rules", at("matched", 0.001)),
    Forgery("targets/gt_match_status_id", "targets_matched_by_rules", at("matched", 1)),
    Forgery("steps/selected_draw_log_probability", "inclusion_follows_draws", bump(0, -0.1)),
    Forgery("candidates/sampler_probability", "rows_as_laid_out", scale("valid", 0.5)),
    Forgery("candidates/strategy_id", "rows_as_laid_out", at("valid", 0)),
    Forgery("candidates/position_id", "rows_as_laid_out", at("valid", 5)),
    Forgery("candidates/mixture_id", "rows_as_laid_out", bump("valid")),
    Forgery("candidates/score_source_id", "logits_follow_policy", bump("valid")),
    Forgery("candidates/invalid_reason_bitset", "reasons_follow_measures", at("invalid", 1 << 11)),
    Forgery("candidates/primary_invalid_reason", "reasons_follow_measures", at("invalid", 8)),
    Forgery("candidates/target_root_gain", "labels_follow_errors", bump("valid", 0.01)),
    Forgery("candidates/target_root_gain", "same_state_same_shell", scale("shared", 1 + 1e-6)),
    Forgery("candidates/target_pm_dist_after", "same_state_same_shell", scale("shared", 1 + 1e-6)),
    Forgery("candidates/scene_rri", "scenes_labelled_if_asked", at("valid", 0.1)),
    Forgery("candidates/target_current_support", "supports_countable", bump("valid", 0.5)),
    Forgery("candidates/target_candidate_support", "supports_countable", at("valid", 16 * 16 + 1)),
    Forgery("candidates/selection_logits", "logits_follow_policy", bump("valid", 0.01)),
    Forgery("candidates/selection_probabilities", "probabilities_follow_logits", bump("valid", -0.01)),
    Forgery("candidates/selection_log_probabilities", "choices_plausible", bump("valid", -0.1)),
    Forgery("candidates/selection_inclusion_probabilities", "inclusion_follows_draws", at("selected", 0.99)),
    Forgery("candidates/drawn_mask", "draws_follow_recipe", flip("valid")),
    Forgery("candidates/pose_world_cam", "poses_as_drawn", bump("valid", 2e-5), deep=True),
    Forgery("candidate_diagnostics/motion_step_length_m", "measures_follow_poses", scale("valid", 1.01)),
    Forgery("candidate_diagnostics/motion_height_delta_m", "measures_follow_poses", bump("valid", 0.01)),
    Forgery("candidate_diagnostics/motion_backward_step_m", "measures_follow_poses", bump("valid", 0.01)),
    Forgery("candidate_diagnostics/motion_yaw_delta_deg", "measures_follow_poses", bump("valid", 0.1)),
    Forgery("candidate_diagnostics/target_distance_m", "measures_follow_poses", scale("valid", 1.01)),
    Forgery("candidate_diagnostics/target_bearing_yaw_deg", "measures_follow_poses", bump("valid", 0.1)),
    Forgery("candidate_diagnostics/path_min_clearance_m", "measures_follow_poses", at("valid", 30.0)),
    Forgery("candidate_diagnostics/mesh_distance_m", "reasons_follow_measures", at("valid", 0.01)),
    Forgery("candidate_diagnostics/free_space_margin_m", "reasons_follow_measures", at("valid", -0.1)),
    Forgery("candidate_diagnostics/mesh_distance_m", "same_state_same_shell", scale("shared", 1.01)),
    Forgery("candidate_diagnostics/free_space_margin_m", "same_state_same_shell", scale("shared", 1.01)),
    Forgery("selected_depth/focal_px", "roots_follow_sources", scale(0, 1.01)),
    Forgery("selected_depth/principal_point_px", "roots_follow_sources", bump(0, 0.5)),
    Forgery("selected_depth/depth_m", "depth_rasters", lambda values, _: np.maximum(values, 30, out=values), deep=True),
    Forgery("selected_depth/depth_m", "depth_rasters", scale("shared_view", 1.01), deep=True),
    Forgery("selected_depth/depth_m", "depth_rasters", scale(0, 0.01), deep=True),
)
"""Single values that a campaign decides."""


def set_config(*keys: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    """Change the campaign that a manifest records."""

    def change(manifest: dict[str, Any]) -> None:
        part = manifest["generation"]["writer_config"]
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value

    return change


FORGED_CAMPAIGNS: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "a recipe's branching": ("rollouts_follow_recipes", set_config("recipes", 2, "branch", value=3)),
    "a recipe's name": ("rollouts_follow_recipes", set_config("recipes", 0, "name", value="other")),
    "the seed": ("rollouts_follow_recipes", set_config("seed", value=6)),
    "a limit of motion": ("lineage_follows_campaign", set_config("candidates", "rules", "max_step_m", value=3.0)),
    "the size of a voxel": ("lineage_follows_campaign", set_config("oracle", "fusion_voxel_m", value=0.04)),
    "the discount": ("settings_follow_campaign", set_config("store", "discount_gamma", value=0.5)),
    "an unknown key": ("campaign_readable", set_config("oracle", "luck", value=1)),
}
"""What of the recorded campaign was changed -> the check that must find it, and the change."""


@pytest.fixture(scope="module")
def forged(campaign_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutable]:
    """A copy to forge; every forgery starts from the original."""
    copy = tmp_path_factory.mktemp("forged") / "rollouts.zarr"
    shutil.copytree(campaign_store, copy)
    yield Mutable(copy)
    shutil.rmtree(copy)


@pytest.fixture(scope="module")
def rows(campaign_store: Path) -> Rows:
    """Rows worth forging; ``shared`` ones lie in a root's shell, which every chain of a target repeats."""
    reader = RolloutZarrStoreReader(campaign_store)
    actor, selected = reader.array("candidates/actor_action_mask"), reader.array("candidates/selected_mask")
    second, bits = reader.array("candidates/step_index") == 1, reader.array("candidates/invalid_reason_bitset")
    views = reader.array("candidates/pose_world_cam")[reader.array("steps/selected_candidate_row_id")]
    _, first, counts = np.unique(views, axis=0, return_index=True, return_counts=True)
    return {
        "valid": int(np.flatnonzero(actor & ~selected & second)[0]),
        "invalid": int(np.flatnonzero(bits == 1 << 12)[0]),
        "shared": int(np.flatnonzero(actor & ~selected & ~second)[0]),
        "selected": int(np.flatnonzero(selected)[0]),
        "shared_view": int(first[counts > 1][0]),
        "matched": int(np.flatnonzero(reader.array("targets/gt_label_valid_mask"))[0]),
        "seen": int(np.flatnonzero(reader.array("targets/target_projected_area_fraction") > 0)[0]),
        "short": int(np.flatnonzero(reader.array("rollouts/horizon") == 2)[0]),
        "lone": int(np.flatnonzero(actor & ~selected & _alone(reader.array("candidates/pose_world_cam")))[0]),
        "lone_view": int(np.flatnonzero(_alone(views))[0]),
        "digest": int(reader.array("lineage/candidate_config_id")[0]),
    }


def _alone(poses: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(n, 12) -> (n,): no other row has the same pose."""
    _, inverse, counts = np.unique(poses, axis=0, return_inverse=True, return_counts=True)
    return counts[inverse.reshape(-1)] == 1


def checks_of(forged: Mutable, deep: bool) -> set[str]:
    result = validate_rollout_zarr_store(forged.path, deep=deep)
    assert not any("could not be checked" in error for error in result.errors), result.errors
    return {finding.check for finding in result.findings}


def test_store_of_a_campaign_passes(campaign_store: Path) -> None:
    assert validate_rollout_zarr_store(campaign_store, deep=True).errors == []


def test_targets_without_a_rollout_pass_too(
    campaign: CampaignConfig, campaign_records: list[RolloutZarrRecord], tmp_path: Path
) -> None:
    records = [replace(record, chains=()) for record in campaign_records]
    path = write_campaign_store(tmp_path / "rollouts.zarr", campaign, records)
    assert validate_rollout_zarr_store(path, deep=True).errors == []


@pytest.mark.parametrize("check", sorted({forgery.check for forgery in FORGERIES}))
def test_forged_campaign_values_are_found(check: str, forged: Mutable, rows: Rows) -> None:
    """The first forgery of a check is validated in full, which shows that digests agree; the others by the rules."""
    missed = []
    for number, forgery in enumerate(forgery for forgery in FORGERIES if forgery.check == check):
        forge(forged, forgery.path, forgery.change, rows)
        with nullcontext() if number == 0 else rules_only(check):
            checks = checks_of(forged, forgery.deep)
        if check not in checks or checks & SEALED:
            missed.append((forgery.path, checks))
    assert not missed


def test_extended_store_is_deeply_checked_from_its_new_steps(forged: Mutable, rows: Rows) -> None:
    (forgery, *_) = (forgery for forgery in FORGERIES if forgery.check == "poses_as_drawn")
    forge(forged, forgery.path, forgery.change, rows)
    reader = RolloutZarrStoreReader(forged.path)
    steps = len(reader.array("steps/step_index"))
    step = rows["valid"] * steps // len(reader.array("candidates/step_index"))

    def found(first_new: int) -> bool:
        result = validate_rollout_zarr_store(forged.path, deep=True, deep_from_step=first_new)
        return "poses_as_drawn" in {finding.check for finding in result.findings}

    assert found(0) and found(step) and not found(steps)


@pytest.mark.parametrize("what", FORGED_CAMPAIGNS)
def test_forged_recorded_campaign_is_found(what: str, forged: Mutable) -> None:
    check, change = FORGED_CAMPAIGNS[what]
    forge_manifest(forged, change)
    assert check in checks_of(forged, deep=False)


def test_store_without_a_campaign_is_held_to_the_schema(forged: Mutable, rows: Rows) -> None:
    forge_manifest(forged, lambda manifest: manifest["generation"].update(writer_config=None))
    assert checks_of(forged, deep=True) == set()
    forge_manifest(forged, lambda manifest: manifest["generation"].update(writer_config={"writer": "another"}))
    assert checks_of(forged, deep=True) == set()


def forge_shard(forged: Mutable, entry: dict[str, Any]) -> None:
    """Make a store the one of a planned shard."""
    forge_manifest(forged, lambda manifest: manifest["generation"].update(shard=entry))


def test_source_rows_of_a_shard_are_those_of_its_plan(campaign_store: Path, forged: Mutable) -> None:
    table = RolloutZarrStoreReader(campaign_store).table("sources", decode=True)
    planned = [
        {
            "sample_key": row["sample_key_id"],
            "sample_index": row["sample_index"],
            **{name: row[name] for name in ("scene_id", "snippet_id", "source_shard_id", "source_shard_row")},
            "split": row["split_id"],
        }
        for row in table.to_dicts()
    ]
    names = ("source_cache_version", "source_offline_store_manifest_hash", "split_manifest_hash", "split")
    entry: dict[str, Any] = {name: table[f"{name}_id"][0] for name in names} | {"rows": planned}
    entry["source_manifest_hash"] = entry.pop("source_offline_store_manifest_hash")
    forge_shard(forged, entry)
    assert checks_of(forged, deep=False) == set()
    for name in ("source_cache_version", "source_manifest_hash", "split_manifest_hash"):
        forge_shard(forged, entry | {name: "x"})
        assert checks_of(forged, deep=False) == {"sources_as_planned"}
    for name in ("sample_key", "source_shard_row", "source_shard_id"):
        other = [row | {name: 77 if name == "source_shard_row" else "other"} for row in planned]
        forge_manifest(
            forged, lambda manifest, other=other: manifest["generation"].update(shard=entry | {"rows": other})
        )
        assert checks_of(forged, deep=False) == {"sources_as_planned"}


BEYOND: dict[str, dict[str, Change]] = {
    "depth of a view that no other chain took": {"selected_depth/depth_m": scale("lone_view", 1.01)},
    "distance to the surface at a state of one chain": {"candidate_diagnostics/mesh_distance_m": scale("lone", 1.01)},
    "size of a target's box": {"targets/target_extents": scale(0, 1.01)},
    "mesh of all rollouts of a scene": {
        "lineage/mesh_version_id": lambda values, rows: values.__setitem__(slice(None), rows["digest"])
    },
}
"""Forgeries that only the source can tell, because no table repeats the value."""


def test_values_that_no_table_repeats_are_found_by_a_replay(
    forged: Mutable, rows: Rows, campaign: CampaignConfig
) -> None:
    changes = {path: change for forgery in BEYOND.values() for path, change in forgery.items()}
    forge_all(forged, changes, rows)
    assert checks_of(forged, deep=True) == set()
    replays = replay_sources(RolloutZarrStoreReader(forged.path), campaign)
    found = {f"{line['table']}/{line['column']}" for replay in replays for line in replay.differences.to_dicts()}
    assert found == set(changes)
