"""Each kind of finding, planted once: found, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import dagster as dg
import numpy as np
import polars as pl
import pytest

from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.config import CampaignConfig, OracleConfig, SuspiciousKind
from rollout_assets.defs.checks.shards import suspicious_verdict
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import IDENTITY_POSE
from rollout_assets.inspection.near_duplicates import near_duplicate_pairs
from rollout_assets.inspection.surface_weights import half_weight, surface_weights, weight_spread
from rollout_assets.inspection.suspicious import KINDS
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.rollouts import RolloutSuspiciousQueryConfig, suspicious_rollout_rows
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.inspection import handmade_stores as made

pytestmark = pytest.mark.quick

STEP, ROLLOUT, TARGET = made.CHANGED, made.CHANGED, made.CHANGED


def test_nothing_is_suspicious_in_a_clean_store(tmp_path: Path) -> None:
    reader = made.write(tmp_path / "clean.zarr", made.clean_records())
    assert reader.validate(deep=True).ok
    assert suspicious_rollout_rows(reader).rows() == []


@pytest.mark.parametrize("kind", made.STEP_CHANGES)
def test_a_planted_step_is_found_once_and_nothing_else(kind: str, tmp_path: Path) -> None:
    reader = made.write(tmp_path / "planted.zarr", made.changed(made.STEP_CHANGES[kind]))
    (found,) = suspicious_rollout_rows(reader).to_dicts()
    assert (found["kind"], found["severity"]) == (kind, KINDS[kind][0])
    assert (found["rollout_row_id"], found["target_row_id"]) == (ROLLOUT, TARGET)
    if kind != "chain_loses_ground":
        assert found["step_row_id"] == STEP
    if found["candidate_row_id"] is not None:
        assert found["candidate_row_id"] // made.SHELL == STEP
    assert found["message"]


def test_a_high_scoring_target_without_label_is_found(tmp_path: Path) -> None:
    reader = made.write(tmp_path / "planted.zarr", made.with_unlabelled_target(made.clean_records()))
    (found,) = suspicious_rollout_rows(reader).to_dicts()
    assert (found["kind"], found["target_row_id"]) == ("high_score_invalid_gt_target", TARGET)
    assert found["rollout_row_id"] is None and "ambiguous_gt" in found["message"]


def test_a_feature_that_never_varies_is_found(tmp_path: Path) -> None:
    reader = made.write(tmp_path / "planted.zarr", made.with_constant_feature(made.clean_records()))
    (found,) = suspicious_rollout_rows(reader).to_dicts()
    assert found["kind"] == "zero_variance_feature" and "mesh_distance_m is 0.75" in found["message"]


def test_a_reason_that_refuses_most_of_a_shell_also_dominates_its_refused_views(tmp_path: Path) -> None:
    reader = made.write(tmp_path / "planted.zarr", made.changed(made.dominant_reason_of_shell))
    found = suspicious_rollout_rows(reader)
    assert found.select("kind", "severity", "step_row_id", "message").rows() == [
        ("dominant_reason_of_shell", "warning", STEP, "CLEARANCE_TOO_SMALL refuses 16 of 20 views"),
        ("dominant_invalid_reason", "info", STEP, "CLEARANCE_TOO_SMALL refuses 16 of the 16 refused views"),
    ]
    lenient = RolloutSuspiciousQueryConfig(dominant_shell_fraction=0.81)
    assert suspicious_rollout_rows(reader, lenient)["kind"].to_list() == ["dominant_invalid_reason"]


def test_of_two_reasons_that_refuse_half_each_one_is_named(tmp_path: Path) -> None:
    turns = [InvalidReason.DEPTH_NO_HIT, InvalidReason.CLEARANCE_TOO_SMALL]
    records = made.changed(lambda step: made.refused(step, made.others(step)[:10], turns))
    reader = made.write(tmp_path / "planted.zarr", records)
    assert suspicious_rollout_rows(reader).is_empty()
    half = suspicious_rollout_rows(reader, RolloutSuspiciousQueryConfig(dominant_invalid_fraction=0.5))
    assert half["message"].to_list() == ["CLEARANCE_TOO_SMALL refuses 5 of the 10 refused views"]


def test_every_kind_is_planted_somewhere() -> None:
    elsewhere = {
        "dominant_reason_of_shell",
        "high_score_invalid_gt_target",
        "zero_variance_feature",
        "weight_concentrated",
    }
    assert {*made.STEP_CHANGES, *elsewhere} == set(KINDS) == set(get_args(SuspiciousKind))


def test_messages_name_the_values(tmp_path: Path) -> None:
    said = {
        "selected_motion_outlier": "step 2.0 m > 1.25 m",
        "dominant_invalid_reason": "CLEARANCE_TOO_SMALL refuses 9 of the 10 refused views",
        "low_valid_fanout": "2 of 20 views can be taken; expected at least 3",
        "gain_out_of_range": "target_root_gain 1.5, target_rri 1.5 beyond ±1",
        "accuracy_worsens": "the error grows by 3.0 %: although its points are exact",
        "label_unstable_under_noise": "gain 0.04 rests on 2 pixel(s) of the target",
    }
    for kind, words in said.items():
        reader = made.write(tmp_path / kind, made.changed(made.STEP_CHANGES[kind]))
        assert suspicious_rollout_rows(reader)["message"].to_list() == [words]


def test_thresholds_decide(tmp_path: Path) -> None:
    reader = made.write(tmp_path / "planted.zarr", made.changed(made.selected_motion_outlier))
    assert suspicious_rollout_rows(reader, RolloutSuspiciousQueryConfig(max_step_distance_m=2.5)).is_empty()
    strict = suspicious_rollout_rows(reader, RolloutSuspiciousQueryConfig(min_valid_candidates=21))
    assert strict["kind"].to_list().count("low_valid_fanout") == 3


def test_the_second_branch_of_a_greedy_tree_is_greedy(tmp_path: Path) -> None:
    records = made.changed(made.greedy_choice_not_best)
    records[made.CHANGED] = replace(records[made.CHANGED], branch_factor=2)
    assert suspicious_rollout_rows(made.write(tmp_path / "tree.zarr", records)).is_empty()


def test_a_worse_error_is_a_warning_under_the_former_crop_policy(tmp_path: Path) -> None:
    records = made.changed(made.accuracy_worsens)
    former = OracleConfig(crop_policy="vertex_in_box").crop_policy_name
    lineage = replace(records[made.CHANGED].lineage, target_crop_policy=former)
    records[made.CHANGED] = replace(records[made.CHANGED], lineage=lineage)
    (found,) = suspicious_rollout_rows(made.write(tmp_path / "former.zarr", records)).to_dicts()
    assert (found["kind"], found["severity"]) == ("accuracy_worsens", "warning")
    assert former in found["message"]


def test_an_error_that_more_than_doubles_is_found_as_both_kinds(tmp_path: Path) -> None:
    gains = np.linspace(0.1, 0.3, made.SHELL)
    gains[3] = -1.5
    reader = made.write(tmp_path / "wild.zarr", made.changed(lambda step: made.relabelled(step, gains)))
    assert suspicious_rollout_rows(reader)["kind"].to_list() == ["accuracy_worsens", "gain_out_of_range"]


@pytest.mark.parametrize(
    ("kind", "lenient"),
    [
        ("accuracy_worsens", {"worsening_tolerance": 0.05}),
        ("label_unstable_under_noise", {"unstable_gain": 0.05}),
        ("label_unstable_under_noise", {"unstable_support_px": 1}),
        ("chosen_with_probability_near_zero", {"min_selection_probability": 1e-13}),
    ],
)
def test_thresholds_of_labels_and_choices_decide(kind: str, lenient: dict[str, float], tmp_path: Path) -> None:
    reader = made.write(tmp_path / "planted.zarr", made.changed(made.STEP_CHANGES[kind]))
    assert suspicious_rollout_rows(reader, RolloutSuspiciousQueryConfig(**lenient)).is_empty()


def test_a_later_branch_of_a_ranking_policy_is_certain(tmp_path: Path) -> None:
    records = made.changed(made.chosen_with_probability_near_zero)
    records[made.CHANGED] = replace(records[made.CHANGED], branch_factor=2)
    assert suspicious_rollout_rows(made.write(tmp_path / "tree.zarr", records)).is_empty()


def test_half_of_the_weight_on_few_pieces_or_little_area() -> None:
    assert half_weight(np.ones(10), np.ones(10)) == (5, 0.5)
    assert half_weight(np.array([6.0, 1, 1, 1, 1]), np.array([6.0, 1, 1, 1, 1])) == (1, pytest.approx(0.5))
    knobs, doors = np.full(80, 0.001), np.full(20, 0.2)
    pieces, area = half_weight(np.ones(100), np.concatenate([knobs, doors]))
    assert pieces == 50 and area == pytest.approx(50 * 0.001 / 4.08)


def test_uniform_weight_lies_on_the_knob_of_a_cabinet() -> None:
    """A side of 1 m x 1 m in 128 triangles, and on it a knob of 4 cm in 512."""
    (panel, sides), (knob, small) = _grid(8, 1.0), _grid(16, 0.04)
    knob[:, 2] = 0.02
    scene = OracleScene(np.concatenate([panel, knob]), np.concatenate([sides, small + 81]), "cpu")
    box = OrientedBoxes(IDENTITY_POSE[None], np.array([[1.2, 1.2, 0.2]], np.float32))
    uniform, area = (
        weight_spread(scene, box, OracleConfig(crop_policy="vertex_in_box", face_weighting=weighting))
        for weighting in ("uniform", "area")
    )
    assert uniform[2] < 0.01 and area[2] == pytest.approx(0.5)
    assert min(uniform[1], area[1]) >= 8


def test_a_surface_of_few_whole_faces_has_few_pieces() -> None:
    """Two triangles are two pieces for ``vertex_in_box``, and many samples for ``clipped_surface``."""
    scene = OracleScene(*_grid(1, 1.0), "cpu")
    box = OrientedBoxes(IDENTITY_POSE[None], np.array([[1.2, 1.2, 0.2]], np.float32))
    assert weight_spread(scene, box, OracleConfig(crop_policy="vertex_in_box")) == (2, 1, pytest.approx(0.5))
    assert weight_spread(scene, box, OracleConfig())[1] > 100


def _grid(cells: int, size_m: float) -> tuple[np.ndarray, np.ndarray]:
    """A square around the origin, two triangles a cell."""
    ticks = np.linspace(-size_m / 2, size_m / 2, cells + 1)
    points = np.stack([*np.meshgrid(ticks, ticks, indexing="ij"), np.zeros((cells + 1,) * 2)], axis=-1).reshape(-1, 3)
    corner = (np.arange(cells)[:, None] * (cells + 1) + np.arange(cells)).ravel()
    a, b, c, d = corner, corner + 1, corner + cells + 1, corner + cells + 2
    return points.astype(np.float32), np.concatenate([np.stack([a, c, b], 1), np.stack([b, c, d], 1)]).astype(np.int32)


def test_concentrated_weight_is_found_with_weights_and_nothing_else(tmp_path: Path) -> None:
    reader = made.write(tmp_path / "clean.zarr", made.clean_records())
    weights = pl.DataFrame(
        {"target_row_id": [0, TARGET, 2], "pieces": [900] * 3, "half_weight_pieces": [400, 400, 3]}
    ).with_columns(half_weight_area=pl.Series([0.5, 0.012, 0.5]))
    found = suspicious_rollout_rows(reader, weights=weights)
    assert found["kind"].to_list() == ["weight_concentrated"] * 2 and found["target_row_id"].to_list() == [TARGET, 2]
    assert found["message"].to_list() == [
        "half of the surface's weight lies on 1.2 % of its area",
        "half of the surface's weight lies on 3 of 900 pieces",
    ]
    lenient = RolloutSuspiciousQueryConfig(min_half_weight_pieces=3, min_half_weight_area=0.01)
    assert suspicious_rollout_rows(reader, lenient, weights).is_empty()


def test_weights_of_a_real_store_follow_the_area(real: RolloutZarrStoreReader, campaign: CampaignConfig) -> None:
    weights = surface_weights(real, campaign)
    assert weights["target_row_id"].to_list() == sorted(set(real.array("rollouts/target_row_id").tolist()))
    assert weights["half_weight_area"].to_list() == pytest.approx([0.5] * weights.height)
    found = suspicious_rollout_rows(real, weights=weights)
    assert "weight_concentrated" not in found["kind"]


def test_a_kind_can_be_raised_to_an_error_and_the_check_fails_as_one(tmp_path: Path) -> None:
    reader = made.write(tmp_path / "planted.zarr", made.changed(made.near_duplicate_views))
    quiet = suspicious_verdict(suspicious_rollout_rows(reader))
    assert quiet.passed
    raised = suspicious_verdict(
        suspicious_rollout_rows(reader, RolloutSuspiciousQueryConfig(errors=("near_duplicate_views",)))
    )
    assert not raised.passed and raised.severity == dg.AssetCheckSeverity.ERROR


@pytest.mark.parametrize(("kind", "level"), [("accuracy_worsens", "ERROR"), ("low_valid_fanout", "WARN")])
def test_the_check_keeps_the_severity(kind: str, level: str, tmp_path: Path) -> None:
    reader = made.write(tmp_path / "planted.zarr", made.changed(made.STEP_CHANGES[kind]))
    result = suspicious_verdict(suspicious_rollout_rows(reader), "the source is gone")
    assert not result.passed and result.severity.value == level
    assert result.metadata["weight_concentrated_skipped"].value == "the source is gone"


def test_errors_come_first(tmp_path: Path) -> None:
    records = made.changed(made.valid_candidate_missing_label)
    records[0] = made.with_step(made.clean_records()[0], made.near_duplicate_views)
    found = suspicious_rollout_rows(made.write(tmp_path / "two.zarr", records))
    assert found["severity"].to_list() == ["error", "info"]


def test_a_real_store_has_no_error_level_finding(real: RolloutZarrStoreReader) -> None:
    found = suspicious_rollout_rows(real)
    assert not (found["severity"] == "error").any()
    assert found.filter(pl.col("kind") == "greedy_choice_not_best").is_empty()


@pytest.mark.parametrize("limits", [(0.15, 25.0), (0.4, 60.0), (0.0, 0.0)])
def test_near_duplicates_equal_brute_force(real: RolloutZarrStoreReader, limits: tuple[float, float]) -> None:
    max_m, max_deg = limits
    frame = real.table("candidates", columns=("step_row_id", "actor_action_mask", "pose_world_cam")).head(600)
    poses, steps = frame["pose_world_cam"].to_numpy().astype(np.float64), frame["step_row_id"].to_list()
    valid = frame["actor_action_mask"].to_list()
    expected = {}
    for later in range(len(poses)):
        for earlier in range(later):
            if steps[later] != steps[earlier] or not (valid[later] and valid[earlier]):
                continue
            turn = poses[later, :9].reshape(3, 3).T @ poses[earlier, :9].reshape(3, 3)
            angle = np.degrees(np.arccos(np.clip((np.trace(turn) - 1) / 2, -1, 1)))
            if np.linalg.norm(poses[later, 9:] - poses[earlier, 9:]) <= max_m and angle <= max_deg:
                expected.setdefault(later, earlier)
    found = near_duplicate_pairs(real, max_m, max_deg).filter(pl.col("candidate_row_id") < 600)
    assert dict(found.select("candidate_row_id", "other_candidate_row_id").rows()) == expected
    assert bool(expected) == (max_m > 0)
