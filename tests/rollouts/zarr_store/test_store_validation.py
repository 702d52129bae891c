"""Rules of validation on stores whose values were forged together with all checksums and digests."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.errors import StoreError
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.findings import Finding, merge_findings
from rollout_assets.rollouts.zarr_store.schema import LABEL_COLUMNS, Q_H
from rollout_assets.rollouts.zarr_store.validation import CHECKS
from tests.rollouts.zarr_store.forging import SEALED, Change, Rows, at, bump, flip, forge, forge_all, rules_only
from tests.rollouts.zarr_store.store_under_test import Mutable
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def rows(good_store: Path) -> Rows:
    """Rows worth forging: a valid and an invalid candidate, a selected one, a trained one, a step that goes on."""
    reader = RolloutZarrStoreReader(good_store)
    actor = reader.array("candidates/actor_action_mask")
    selected = reader.array("candidates/selected_mask")
    bits = reader.array("candidates/invalid_reason_bitset")
    steps = reader.array("steps/step_index")
    return {
        "valid": int(np.flatnonzero(actor & ~selected)[5]),
        "invalid": int(np.flatnonzero(~actor)[5]),
        "collides": int(np.flatnonzero(bits >> 6 & 1)[0]),
        "selected": int(np.flatnonzero(selected)[3]),
        "trained": int(np.flatnonzero(reader.array("candidates/q_train_mask"))[4]),
        "second": int(np.flatnonzero(steps == 1)[0]),
        "invalid_target": int(np.flatnonzero(~reader.array("targets/target_valid_mask"))[0]),
    }


FORGERIES: dict[str, tuple[str, Change]] = {
    "candidates/candidate_row_id": ("rows_linked", bump("valid")),
    "candidates/step_row_id": ("rows_linked", bump("valid")),
    "candidates/rollout_row_id": ("rows_linked", bump("valid")),
    "candidates/step_index": ("rows_linked", bump("valid")),
    "candidates/shell_index": ("rows_linked", bump("valid")),
    "candidates/compact_valid_index": ("rows_linked", bump("invalid")),
    "candidates/selected_mask": ("rows_linked", flip("valid")),
    "candidates/pose_world_cam": ("poses_relative_to_root", bump("valid", 0.01)),
    "candidates/pose_relative_root": ("poses_relative_to_root", bump("valid", 0.01)),
    "candidates/actor_action_mask": ("reasons_match_masks", flip("invalid")),
    "candidates/oracle_label_mask": ("masks_nested", flip("valid")),
    "candidates/q_train_mask": ("masks_nested", flip("trained")),
    "candidates/invalid_reason_bitset": ("reasons_match_masks", at("valid", 3)),
    "candidates/primary_invalid_reason": ("reasons_match_masks", at("invalid", 23)),
    "candidates/strategy_id": ("choices_plausible", at("valid", 9)),
    "candidates/position_id": ("choices_plausible", at("valid", -1)),
    "candidates/mixture_id": ("choices_plausible", at("valid", -1)),
    "candidates/sampler_probability": ("choices_plausible", at("valid", np.nan)),
    "candidates/score_source_id": ("choices_plausible", at("valid", 77)),
    "candidates/target_rri": ("labels_follow_errors", bump("valid", 0.01)),
    "candidates/target_log_error_gain": ("labels_follow_errors", bump("valid", 0.01)),
    "candidates/target_pm_dist_before": ("labels_follow_errors", bump("valid", 0.01)),
    "candidates/scene_pm_dist_after": ("labels_follow_errors", bump("valid", 0.1)),
    "candidates/target_root_gain": ("gains_telescope", bump("selected", 0.01)),
    "candidates/target_pm_dist_after": ("gains_telescope", bump("selected", 0.001)),
    "candidates/selection_probabilities": ("labels_only_where_valid", at("invalid", 0.5)),
    "candidates/selection_log_probabilities": ("choices_plausible", at("valid", 0.5)),
    "candidates/selection_inclusion_probabilities": ("draws_consistent", at("valid", 0.0)),
    "candidates/drawn_mask": ("draws_consistent", flip("selected")),
    "steps/selected_draw_log_probability": ("draws_consistent", at(1, 0.5)),
    "candidate_diagnostics/candidate_row_id": ("diagnostics_aligned", bump(7)),
    "candidate_diagnostics/position_id": ("diagnostics_aligned", bump(7)),
    "candidate_diagnostics/path_collision_mask": ("diagnostics_aligned", flip("collides")),
    "steps/step_row_id": ("row_ids_dense", bump(2)),
    "steps/rollout_row_id": ("steps_in_order", bump("second")),
    "steps/step_index": ("steps_in_order", bump("second")),
    "steps/selected_candidate_row_id": ("steps_in_order", at("second", 10**6)),
    "steps/selected_shell_index": ("counts_match", bump(1)),
    "steps/selected_compact_valid_index": ("counts_match", bump(1)),
    "steps/num_candidates": ("shells_cover_candidates", bump(1)),
    "steps/num_valid_candidates": ("counts_match", bump(1)),
    "steps/cumulative_target_rri": ("sums_add_up", bump("second", 0.5)),
    "steps/cumulative_target_root_gain": ("gains_telescope", bump("second", 0.5)),
    "rollouts/rollout_row_id": ("row_ids_dense", bump(1)),
    "rollouts/rollout_id": ("rollouts_complete", at(1, 0)),
    "rollouts/chain_id": ("rollouts_complete", bump(0)),
    "rollouts/source_row_id": ("targets_have_one_source", bump(0)),
    "rollouts/target_row_id": ("targets_have_one_source", at(0, 99)),
    "rollouts/root_pose_world": ("rollouts_complete", at(0, np.nan)),
    "rollouts/scene_id": ("rollouts_complete", bump(0)),
    "rollouts/snippet_id": ("rollouts_complete", bump(0)),
    "rollouts/split_id": ("rollouts_complete", at(0, -1)),
    "rollouts/horizon": ("steps_in_order", at(0, 1)),
    "rollouts/beam_width": ("rollouts_complete", at(0, 0)),
    "rollouts/policy_id": ("ids_in_dictionaries", at(0, 99)),
    "rollouts/termination_reason": ("steps_in_order", at(0, 1)),
    "rollouts/final_cumulative_target_root_gain": ("sums_add_up", bump(0, 0.5)),
    "lineage/rollout_row_id": ("row_ids_dense", bump(0)),
    "lineage/oracle_config_id": ("lineage_required", at(0, -1)),
    "lineage/target_protocol_version_id": ("lineage_required", at(0, 0)),
    "lineage/mesh_version_id": ("ids_in_dictionaries", at(0, 10**6)),
    "sources/source_row_id": ("row_ids_dense", bump(0)),
    "sources/sample_index": ("sources_complete", at(0, -3)),
    "sources/split_id": ("sources_complete", at(1, -1)),
    "sources/source_shard_row": ("sources_complete", at(0, -1)),
    "targets/target_row_id": ("row_ids_dense", bump(0)),
    "targets/source_row_id": ("targets_have_one_source", bump(0)),
    "targets/target_id": ("targets_have_one_source", at(0, 4)),
    "targets/target_valid_mask": ("targets_follow_rules", flip(0)),
    "targets/target_invalid_reason_bitset": ("targets_follow_rules", at(0, 9)),
    "targets/target_primary_invalid_reason": ("targets_follow_rules", at("invalid_target", 1)),
    "targets/gt_label_valid_mask": ("targets_follow_rules", flip(0)),
    "targets/matched_gt_target_row_id": ("targets_follow_rules", at(0, -1)),
    "targets/target_source_id": ("targets_follow_rules", at(0, -1)),
    "selected_depth/step_row_id": ("depth_aligned", bump(0)),
    "selected_depth/candidate_row_id": ("depth_aligned", bump(0)),
    "selected_depth/image_size_hw": ("depth_aligned", bump(0)),
    "selected_depth/focal_px": ("depth_aligned", at(0, np.nan)),
    "selected_depth/depth_m": ("depth_rasters", at(0, 1.5)),
    "metadata/reason_code_bits": ("texts_as_schema", bump(3)),
    **{f"q_h/{name}": ("view_matches_tables", flip(2)) for name in ("valid_action_mask", "q_train_mask")},
    "q_h/td_terminal_mask": ("view_matches_tables", flip(2)),
    **{
        f"q_h/{name}": ("view_matches_tables", at(2, 5))
        for name in Q_H.names
        if not name.endswith("_mask") and name != "state_step_row_id"
    },
}
"""Array -> the check that must find the forgery, and the forgery."""


TOGETHER = ("choices_plausible", "view_matches_tables")
"""Checks that hold each column by itself and name it: their forgeries share one store."""

NAMED_ROWS = ("rows_linked", "row_ids_dense", "lineage_required", *TOGETHER)
"""Checks whose finding has the forged array and a row."""


def _forged_together(check: str) -> list[dict[str, Change]]:
    changes = {path: change for path, (named, change) in FORGERIES.items() if named == check}
    return [changes] if check in TOGETHER else [{path: change} for path, change in changes.items()]


@pytest.mark.parametrize("check", sorted({check for check, _ in FORGERIES.values()}))
def test_forged_values_are_found_though_digests_agree(check: str, mutable_store: Mutable, rows: Rows) -> None:
    """The first forgery of a check is validated in full, which shows that digests agree; the others by the rules."""
    missed, deep = [], check == "depth_rasters"
    try:
        for number, changes in enumerate(_forged_together(check)):
            forge_all(mutable_store, changes, rows)
            with nullcontext() if number == 0 else rules_only(check):
                findings = validate_rollout_zarr_store(mutable_store.path, deep=deep).findings
            for path in changes:
                found = [f for f in findings if f.check == check and (check not in NAMED_ROWS or f.where == path)]
                if not found or (check in NAMED_ROWS and (found[0].row is None or found[0].count < 1)):
                    missed.append((path, findings))
            assert not {finding.check for finding in findings} & SEALED, (list(changes), findings)
    finally:
        mutable_store.restore()
    assert not missed


def test_labels_on_invalid_rows_are_found(mutable_store: Mutable, rows: Rows) -> None:
    changes = {f"candidates/{name}": at("invalid", 0.25) for name in LABEL_COLUMNS}
    try:
        forge_all(mutable_store, changes, rows)
        result = validate_rollout_zarr_store(mutable_store.path)
    finally:
        mutable_store.restore()
    found = {f.where: (f.row, f.value) for f in result.findings if f.check == "labels_only_where_valid"}
    assert found == dict.fromkeys(changes, (rows["invalid"], "0.25"))


def test_all_findings_are_reported_grouped_and_counted(mutable_store: Mutable) -> None:
    try:
        forge(mutable_store, "steps/num_valid_candidates", lambda values, _: values.__iadd__(1), {})
        result = validate_rollout_zarr_store(mutable_store.path)
    finally:
        mutable_store.restore()
    finding = next(f for f in result.findings if f.check == "counts_match")
    assert finding.count == result.num_steps
    assert result.counts()["counts_match"] == 1
    with refused(StoreError, mutable_store.path, "num_valid_candidates row 0", f"({result.num_steps} rows)"):
        result.raise_if_wrong()


def test_equal_findings_of_several_blocks_become_one() -> None:
    parts = [Finding("c", "a/b", "must be 1", row, 2, "0") for row in (3, 90)]
    assert merge_findings([*parts, Finding("c", "a/c", "gone")]) == (
        Finding("c", "a/b", "must be 1", 3, 4, "0"),
        Finding("c", "a/c", "gone"),
    )


def test_checks_are_listed_once() -> None:
    assert len(CHECKS) == len(set(CHECKS)) >= 25


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"zarr_format": 3, "node_type": "group"}', b"\xff"])
def test_broken_root_document_is_reported_not_raised(content: bytes, mutable_store: Mutable) -> None:
    try:
        (mutable_store.path / "zarr.json").write_bytes(content)
        result = validate_rollout_zarr_store(mutable_store.path, deep=True)
    finally:
        mutable_store.restore()
    assert not result.ok
    assert any("zarr.json" in finding.where for finding in result.findings)


def test_empty_folder_is_reported_and_missing_one_refused(tmp_path: Path) -> None:
    assert not validate_rollout_zarr_store(tmp_path).ok
    with refused(StoreError, tmp_path / "nowhere"):
        validate_rollout_zarr_store(tmp_path / "nowhere")
