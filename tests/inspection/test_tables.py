"""Tables over a whole store against plain Python, and what a reader may rely on."""

from __future__ import annotations

import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.errors import ConfigError, StoreError
from rollout_assets.inspection.mixtures import mixture_names, mixture_series
from rollout_assets.inspection.summary import GroupBy
from rollout_assets.rollouts import (
    candidate_audit_rows,
    candidate_group_summary_rows,
    candidate_result_diagnostic_counts,
    rollout_step_objective_rows,
    rollout_tree_summary_rows,
    selected_depth_summary_rows,
    suspicious_rollout_rows,
    target_audit_rows,
    validity_waterfall_rows,
)
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    write_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.rollouts.zarr_store.open_store import decoded_series
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.inspection import plain_twins as plain
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

NO_DEPTH = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=False), chunk_rows=64)

campaigns = st.builds(
    SyntheticRecords,
    sources=st.integers(1, 3),
    targets=st.integers(1, 2),
    recipes=st.sampled_from([("oracle_greedy",), ("random_valid", "oracle_greedy")]),
    chains=st.integers(1, 2),
    horizon=st.integers(1, 3),
    shell=st.sampled_from([(1, 4), (6, 6), (3, 9)]),
    valid_fraction=st.sampled_from([0.1, 0.6, 1.0]),
    scene_labels=st.booleans(),
    dead_ends=st.booleans(),
    seed=st.integers(0, 99),
)


def opened(folder: str, campaign: SyntheticRecords) -> RolloutZarrStoreReader:
    write_rollout_zarr_store(Path(folder) / "s.zarr", campaign, NO_DEPTH)
    return RolloutZarrStoreReader(Path(folder) / "s.zarr")


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and found is not None:
        return math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-6)
    return bool(found == expected)


@settings(max_examples=8)
@given(campaign=campaigns)
@pytest.mark.ci
def test_tables_equal_plain_python(campaign: SyntheticRecords) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reader = opened(folder, campaign)
        store = plain.PlainStore(reader)
        if not store.candidates:
            return
        assert [
            tuple(row) for row in validity_waterfall_rows(reader).select("stage", "count").rows()
        ] == plain.waterfall(store)
        for group_by in get_args(GroupBy):
            expected = plain.groups(store, group_by)
            frame = candidate_group_summary_rows(reader, group_by)
            assert frame["count"].is_sorted(descending=True)
            for row in frame.to_dicts():
                assert all(same(row[name], value) for name, value in expected.pop(row[group_by]).items()), (
                    group_by,
                    row,
                )
            assert not expected
        for row, line in zip(rollout_step_objective_rows(reader).to_dicts(), plain.objectives(store), strict=True):
            for name, value in line.items():
                assert same(row[name], value), (name, row[name], value)
        found = {tuple(r[name] for name in plain.TREE_KEY): r for r in rollout_tree_summary_rows(reader).to_dicts()}
        expected = plain.tree(store)
        assert found.keys() == expected.keys()
        for key, line in expected.items():
            assert all(same(found[key][name], value) for name, value in line.items()), key
        kinds = {kind for kind, _, _ in plain.suspicious(store)} | {"greedy_choice_not_best", "selected_motion_outlier"}
        rows = suspicious_rollout_rows(reader).filter(pl.col("kind").is_in(kinds))
        assert sorted(rows.select("kind", "step_row_id", "candidate_row_id").rows(), key=str) == plain.suspicious(store)


@settings(max_examples=4)
@given(campaign=campaigns)
def test_audit_rows_equal_the_stored_ones(campaign: SyntheticRecords) -> None:
    with tempfile.TemporaryDirectory() as folder:
        reader = opened(folder, campaign)
        store = plain.PlainStore(reader)
        rows = candidate_audit_rows(reader).to_dicts()
        assert len(rows) == len(store.candidates)
        for row, stored, measured in zip(rows, store.candidates, store.diagnostics, strict=True):
            rollout = store.rollouts[stored["rollout_row_id"]]
            target = store.targets[rollout["target_row_id"]]
            assert (row["scene"], row["policy"], row["target_id"]) == (
                rollout["scene_id"],
                rollout["policy_id"],
                target["target_id"],
            )
            assert [row["camera_x_m"], row["camera_y_m"], row["camera_z_m"]] == list(stored["pose_world_cam"][9:])
            for name, value in {**stored, **measured}.items():
                if name in row:
                    assert row[name] == (None if value == -1 or value != value else value), name
            assert row["all_reasons"].count("+") == bin(stored["invalid_reason_bitset"]).count("1") - 1


def test_audit_rows_of_one_rollout_and_one_step(real: RolloutZarrStoreReader) -> None:
    every = candidate_audit_rows(real)
    for rollout in (0, 3, real.num_rows("rollouts") - 1):
        assert candidate_audit_rows(real, rollout).equals(every.filter(pl.col("rollout_row_id") == rollout))
    step = real.num_rows("steps") - 1
    assert candidate_audit_rows(real, step_row_id=step).equals(every.filter(pl.col("step_row_id") == step))
    assert candidate_audit_rows(real, limit=7).equals(every.head(7))
    assert candidate_audit_rows(real, limit=0).is_empty()


def test_steps_and_depths_of_one_rollout_and_one_step(real: RolloutZarrStoreReader) -> None:
    step = int((real.array("steps/selected_candidate_row_id") >= 0).nonzero()[0][-1])
    owner = int(real.array("steps/rollout_row_id")[step])
    for table in (rollout_step_objective_rows, partial(selected_depth_summary_rows, limit=None)):
        every = table(real)
        for rollout in (0, owner, real.num_rows("rollouts") - 1):
            assert table(real, rollout_row_id=rollout).equals(every.filter(pl.col("rollout_row_id") == rollout))
        one = every.filter(pl.col("step_row_id") == step)
        assert one.height == 1
        assert table(real, step_row_id=step).equals(one) and table(real, rollout_row_id=owner, step_row_id=step).equals(
            one
        )
        with refused(StoreError, f"step {step}", f"rollout {owner}"):
            table(real, rollout_row_id=0, step_row_id=step)
        with refused(StoreError, "rollouts", 9999):
            table(real, rollout_row_id=9999)
    few = selected_depth_summary_rows(real, 1, rollout_row_id=owner)
    assert few["rollout_row_id"].to_list() == [owner]


def test_components_of_a_mixture_have_the_names_of_the_campaign(real: RolloutZarrStoreReader) -> None:
    assert mixture_names(real) == dict(enumerate(["forward_local", "target_bearing_local", "lateral_target_bypass"]))
    views = candidate_audit_rows(real)
    assert views["mixture"].to_list() == views["position"].to_list()
    groups = candidate_group_summary_rows(real, "mixture")
    assert groups.drop("mixture").equals(candidate_group_summary_rows(real, "mixture_id").drop("mixture_id"))


def test_components_are_found_where_aria_nbv_writes_them(tmp_path: Path) -> None:
    components = [{"family": "local"}, {"name": "wide", "family": "local"}, {"position_mode": "local"}, "?", {}]
    context = RolloutStoreManifestContext({"candidate_mixture": {"components": components}, "candidates": "?"})
    write_rollout_zarr_store(tmp_path / "s.zarr", SyntheticRecords(sources=1), NO_DEPTH, context=context)
    reader = RolloutZarrStoreReader(tmp_path / "s.zarr")
    assert mixture_names(reader) == {0: "local_0", 1: "wide", 2: "local_2"}
    named = mixture_series(reader, pl.Series([1, 0, -1, 3, 9])).to_list()
    assert named == ["wide", "local_0", "unknown", "component_3", "component_9"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"rollout_row_id": 9999}, ("rollouts", 9999)),
        ({"step_row_id": -1}, ("steps", -1)),
        ({"limit": -3}, ("limit", -3)),
        ({"rollout_row_id": 0, "step_row_id": 9}, ("step 9", "rollout")),
    ],
)
def test_rows_that_are_not_there_are_refused(
    real: RolloutZarrStoreReader, arguments: dict[str, int], names: tuple[object, ...]
) -> None:
    with refused(StoreError, *names):
        candidate_audit_rows(real, **arguments)


def test_an_unknown_group_is_refused(real: RolloutZarrStoreReader) -> None:
    with refused(ConfigError, "group_by", "position", "'colour'"):
        candidate_group_summary_rows(real, "colour")


def test_targets_show_what_the_actor_saw_and_what_it_matched(real: RolloutZarrStoreReader) -> None:
    targets = target_audit_rows(real)
    assert targets.height == real.num_rows("targets")
    assert set(targets["gt_match_status"]) <= {"matched", "unmatched_gt", "ambiguous_gt", "ambiguous_pred_to_gt"}
    assert targets["num_rollouts"].sum() == real.num_rows("rollouts")
    assert (targets["num_rollouts"] > 0).to_list() == (
        targets["gt_label_valid_mask"] & targets["target_valid_mask"]
    ).to_list()


def test_branches_of_a_tree_share_their_first_state(real: RolloutZarrStoreReader) -> None:
    steps = rollout_step_objective_rows(real)
    first = steps.filter(
        (pl.col("recipe") == "lookahead") & (pl.col("step_index") == 0) & (pl.col("num_valid_candidates") > 1)
    )
    assert first["chains_here"].to_list() == [2] * first.height and first.height
    greedy = steps.filter((pl.col("policy") == "oracle_greedy") & pl.col("regret").is_not_null())
    assert (greedy["regret"] >= 0).all()


def test_what_is_not_given_is_null_in_every_table(tmp_path: Path) -> None:
    records = SyntheticRecords(sources=6, targets=3, horizon=3, shell=(1, 4), valid_fraction=0.4, seed=1)
    reader = opened(str(tmp_path), records)
    tables = {
        table.__name__: table(reader)
        for table in (rollout_step_objective_rows, candidate_audit_rows, target_audit_rows)
    }
    for name, frame in tables.items():
        assert frame.select(cs.float().is_nan().any()).row(0).count(True) == 0, name
        assert frame.select((cs.signed_integer() == -1).any()).row(0).count(True) == 0, name
    steps, candidates, targets = tables.values()
    took_nothing = steps.filter(pl.Series(reader.array("steps/selected_candidate_row_id") == -1))
    assert took_nothing.height > 3
    names = [name for name in steps.columns if name.startswith(("selected_", "marginal_"))]
    assert took_nothing.select(*names, "fanout", "regret").null_count().row(0) == (took_nothing.height,) * (
        len(names) + 2
    )
    assert steps["chains_here"].null_count() == 0 and steps["fanout"].drop_nulls().min() == 1
    invalid = candidates.filter(~pl.col("actor_action_mask"))
    assert invalid["target_root_gain"].null_count() == invalid["compact_valid_index"].null_count() == invalid.height > 0
    unmatched = targets.filter(pl.col("matched_gt_target_id").is_null())
    assert unmatched["matched_gt_target_row_id"].null_count() == unmatched.height > 0


def test_decoded_columns_are_strings_to_join_and_match_by() -> None:
    decoded = decoded_series("scene", np.array([1, -1, 0, 7]), ["a", "b"])
    assert decoded.dtype == pl.String and decoded.to_list() == ["b", None, "a", None]
    assert decoded_series("scene", np.array([0, -1]), []).dtype == pl.String


def test_a_live_shell_is_counted_by_position_and_reason(real: RolloutZarrStoreReader) -> None:
    shell = real.step(0).step.shell
    counts = candidate_result_diagnostic_counts(shell)
    assert counts["count"].sum() == len(shell)
    valid = counts.filter(pl.col("reason") == "VALID")["count"].sum()
    assert valid == int(np.sum(shell.actor_action_mask))
    assert counts.group_by("position").agg(pl.col("fraction_of_position").sum())[
        "fraction_of_position"
    ].to_list() == pytest.approx([1.0] * counts["position"].n_unique())


def test_a_store_without_rollouts_gives_empty_tables(tmp_path: Path) -> None:
    records = [record for record in SyntheticRecords(sources=3, targets=1) if not record.chains][:1]
    write_rollout_zarr_store(tmp_path / "empty.zarr", records, NO_DEPTH)
    reader = RolloutZarrStoreReader(tmp_path / "empty.zarr")
    for table in (
        candidate_audit_rows,
        candidate_group_summary_rows,
        rollout_step_objective_rows,
        rollout_tree_summary_rows,
    ):
        assert table(reader).is_empty()
    assert validity_waterfall_rows(reader)["count"].to_list() == [0] * 5
    assert set(suspicious_rollout_rows(reader)["kind"]) <= {"high_score_invalid_gt_target"}
