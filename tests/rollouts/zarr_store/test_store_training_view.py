"""The training view equals its slow twin, and ARIA-NBV's acceptance rules, written down here once more, are met."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.label_rules import running_sums
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, Q_H, ROLLOUTS, STEPS
from rollout_assets.rollouts.zarr_store.training_view import naive_view
from tests.rollouts.zarr_store.store_under_test import CONFIG, RECORDS

pytestmark = pytest.mark.quick

WITH_DEAD_ENDS = CONFIG.model_copy(update={"dead_ends_in_training_view": True})


@pytest.fixture(scope="module")
def store_with_dead_ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dead_ends") / "rollouts.zarr"
    write_rollout_zarr_store(path, RECORDS, WITH_DEAD_ENDS)
    return path


@pytest.mark.parametrize("dead_ends", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
def test_the_view_equals_its_naive_twin(uniform: bool, dead_ends: bool, tmp_path: Path) -> None:
    records = replace(RECORDS, shell=(6, 6)) if uniform else RECORDS
    write_rollout_zarr_store(tmp_path / "store", records, WITH_DEAD_ENDS if dead_ends else CONFIG)
    reader = RolloutZarrStoreReader(tmp_path / "store")
    tables = (reader.columns(STEPS), reader.columns(CANDIDATES), reader.columns(ROLLOUTS))
    expected = naive_view(*tables, 0.9, dead_ends)
    for view in (reader.q_h_view(), reader.q_h_view(discount_gamma=0.9)):
        for name, values in view.items():
            wanted = np.array(expected[name], Q_H[name].numpy_dtype)
            np.testing.assert_array_equal(values, wanted, err_msg=name, strict=True)
    assert reader.validate(deep=True).errors == []


def test_dead_ends_are_steps_but_no_states_by_default(good_store: Path, store_with_dead_ends: Path) -> None:
    reader = RolloutZarrStoreReader(good_store)
    steps, view = reader.columns(STEPS), reader.q_h_view()
    taken = np.flatnonzero(steps["selected_candidate_row_id"] >= 0)
    assert len(taken) < len(steps["step_row_id"])
    np.testing.assert_array_equal(view["state_step_row_id"], taken)
    assert (view["selected_candidate_index"] >= 0).all()
    labelled = view["q_train_mask"].any(axis=1)
    assert np.isfinite(view["td_reward"][labelled]).all()
    follower = view["td_next_step_row_id"]
    assert np.isin(follower[follower >= 0], taken).all(), "every next step is a state"
    before_dead = np.isin(
        taken + 1, np.flatnonzero((steps["selected_candidate_row_id"] < 0) & (steps["step_index"] > 0))
    )
    assert before_dead.any() and view["td_terminal_mask"][before_dead].all()
    assert (view["td_discount"][before_dead] == 0).all()
    for table in (STEPS, CANDIDATES):
        other = RolloutZarrStoreReader(store_with_dead_ends).columns(table)
        for name, values in reader.columns(table).items():
            np.testing.assert_array_equal(values, other[name], err_msg="the facts are the same under both settings")


def test_a_store_that_does_not_say_has_dead_ends_in_its_view(store_with_dead_ends: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(store_with_dead_ends, path)
    manifest, root = (json.loads((path / name).read_bytes()) for name in ("manifest.json", "zarr.json"))
    del manifest["root_attrs"]["dead_ends_in_training_view"], root["attributes"]["dead_ends_in_training_view"]
    written = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=True).encode()
    root["attributes"]["manifest_sha256"] = hashlib.sha256(written).hexdigest()
    (path / "manifest.json").write_bytes(written)
    (path / "zarr.json").write_text(json.dumps(root))
    assert RolloutZarrStoreReader(path).validate(deep=True).errors == []


def test_a_wrong_setting_is_found(store_with_dead_ends: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(store_with_dead_ends, path)
    root = json.loads((path / "zarr.json").read_bytes())
    root["attributes"]["dead_ends_in_training_view"] = False
    (path / "zarr.json").write_text(json.dumps(root))
    counts = RolloutZarrStoreReader(path).validate().counts()
    assert counts["states_cover_steps"] == 1 and counts["view_matches_tables"] > 0


def test_dead_end_is_a_terminal_state_of_its_predecessor(store_with_dead_ends: Path) -> None:
    reader = RolloutZarrStoreReader(store_with_dead_ends)
    steps, view = reader.columns(STEPS), reader.q_h_view()
    dead = np.flatnonzero(steps["selected_candidate_row_id"] < 0)
    assert len(dead) > 3
    for name, value in (
        ("selected_candidate_index", -1),
        ("td_selected_candidate_row_id", -1),
        ("td_next_step_row_id", -1),
        ("td_terminal_mask", True),
        ("td_discount", 0.0),
    ):
        assert (view[name][dead] == value).all(), name
    assert np.isnan(view["td_reward"][dead]).all()
    assert (steps["selected_shell_index"][dead] == -1).all()
    assert (steps["selected_compact_valid_index"][dead] == -1).all()
    later = dead[steps["step_index"][dead] > 0]
    assert len(later)
    assert (view["td_next_step_row_id"][later - 1] == later).all()
    assert not view["td_terminal_mask"][later - 1].any()
    assert np.isnan(steps["cumulative_target_root_gain"][dead[steps["step_index"][dead] == 0]]).all()
    np.testing.assert_array_equal(
        steps["cumulative_target_root_gain"][later], steps["cumulative_target_root_gain"][later - 1]
    )
    assert (reader.array("selected_depth/candidate_row_id")[dead] == -1).all()
    assert not reader.array("selected_depth/valid_mask")[dead].any()


@given(st.lists(st.lists(st.floats(-2, 2, width=32) | st.none() | st.just(float("nan")), min_size=1, max_size=5)))
@settings(max_examples=60)
def test_running_sums_follow_the_obvious_loop(chains: list[list[float | None]]) -> None:
    values = np.array([0.0 if v is None else v for chain in chains for v in chain]).reshape(-1, 1)
    taken = np.array([v is not None for chain in chains for v in chain], np.bool_)
    index = np.array([i for chain in chains for i in range(len(chain))], np.int16)
    expected: list[float] = []
    for chain in chains:
        total, seen = np.float64(0), False
        for value in chain:
            if value is not None:
                total, seen = total + np.float64(value), True
            expected.append(np.float32(total) if seen else np.float32(np.nan))
    np.testing.assert_array_equal(running_sums(values, taken, index)[:, 0], np.array(expected, np.float32))


def aria_nbv_objections(path: Path) -> list[str]:
    """What ARIA-NBV's validator of this schema version would object to: its rules as facts, not its code."""
    root = zarr.open_group(path, mode="r")
    read = {f"{g}/{n}": a[...] for g, group in root.groups() for n, a in group.arrays()}
    attrs = dict(root.attrs)
    texts = {n: json.loads(bytes(read[f"dictionaries/{n}"])) for n in ("config", "source_shard", "target_source")}
    manifest = json.loads((path / "manifest.json").read_bytes())
    canonical = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=True).encode()
    wrong: list[str] = []

    def demand(what: str, holds: object) -> None:
        if not np.all(holds):
            wrong.append(what)

    def strings(column: str, dictionary: str = "config") -> list[str]:
        return [texts[dictionary][i] if 0 <= i < len(texts[dictionary]) else "" for i in read[column]]

    demand("schema version", attrs["schema_version"] == "1.0-target-rollout-core")
    demand("manifest path", attrs["manifest_path"] == "manifest.json")
    demand("manifest hash", attrs["manifest_sha256"] == hashlib.sha256(canonical).hexdigest())
    demand("manifest version", manifest["manifest_version"] == "rollout-store-manifest-v1")
    demand("manifest schema", manifest["schema_version"] == attrs["schema_version"])
    required = """metadata dictionaries sources lineage targets rollouts steps candidates candidate_diagnostics
        selected_depth target_eval_crops q_h"""
    demand("groups", [group in root for group in required.split()])

    q = dict(root["q_h"].attrs)
    width = read["q_h/candidate_row_id"].shape[1]
    steps = read["steps/step_row_id"]
    demand("q_h attributes", (q["state_count"], q["max_candidates"]) == (len(steps), width))
    demand("q_h horizon", q["horizon"] == (int(read["rollouts/horizon"].max()) if len(read["rollouts/horizon"]) else 1))
    demand("q_h gamma", q["discount_gamma"] == attrs["discount_gamma"])
    demand("q_h semantics", (q["td_semantics"], q["reward_metric"]) == ("selected_transition_only", "target_root_gain"))
    demand("q_h return", q["return_semantics"] == attrs["return_semantics"])
    ids = read["q_h/candidate_row_id"]
    demand("q_h ids known", np.isin(ids[ids >= 0], read["candidates/candidate_row_id"]))
    train, valid = read["q_h/q_train_mask"], read["q_h/valid_action_mask"]
    demand("train within valid", ~train | valid)
    demand("train has gain", ~train | np.isfinite(read["q_h/one_step_target_root_gain"]))
    demand("train has rri", ~train | np.isfinite(read["q_h/one_step_target_rri"]))
    demand("terminal discount", ~read["q_h/td_terminal_mask"] | (read["q_h/td_discount"] == 0))
    demand("widest shell", width == np.unique(read["candidates/step_row_id"], return_counts=True)[1].max(initial=0))

    actor = read["candidates/actor_action_mask"]
    demand("selected takeable", ~read["candidates/selected_mask"] | actor)
    for name in ("position_id", "strategy_id", "mixture_id"):
        demand(name, ~actor | (read[f"candidates/{name}"] >= 0))
    demand("sampler probability", ~actor | np.isfinite(read["candidates/sampler_probability"]))
    demand("one split", len(np.unique(read["rollouts/split_id"])) <= 1)
    rows = len(read["candidates/candidate_row_id"])
    demand("candidate rows", [len(v) == rows for n, v in read.items() if n.startswith("candidates/")])
    demand("diagnostic rows", [len(v) == rows for n, v in read.items() if n.startswith("candidate_diagnostics/")])
    demand("diagnostic ids", read["candidate_diagnostics/candidate_row_id"] == read["candidates/candidate_row_id"])
    collides = read["candidate_diagnostics/path_collision_mask"]
    demand("colliding takeable", ~(collides & actor))
    demand("colliding bit", ~collides | (read["candidates/invalid_reason_bitset"] >> 6 & 1).astype(bool))

    if attrs["selected_depth_enabled"]:
        demand("depth steps", np.array_equal(read["selected_depth/step_row_id"], steps))
        selected = read["steps/selected_candidate_row_id"]
        demand("depth candidates", np.array_equal(read["selected_depth/candidate_row_id"], selected))
        size = (len(steps), attrs["selected_depth_height_px"], attrs["selected_depth_width_px"])
        for name, dtype in (("depth_m", np.float16), ("valid_mask", np.bool_)):
            found = read[f"selected_depth/{name}"]
            demand(name, found.shape == size and found.dtype == dtype)
    demand("no crops", attrs["target_eval_crops_enabled"] or len(read["target_eval_crops/crop_row_id"]) == 0)

    demand("source rows", np.isin(read["rollouts/source_row_id"], read["sources/source_row_id"]))
    demand("source unique", len(set(read["sources/source_row_id"].tolist())) == len(read["sources/source_row_id"]))
    demand("source shard", [bool(text) for text in strings("sources/source_shard_id", "source_shard")])
    demand("source shard row", read["sources/source_shard_row"] >= 0)
    targets = read["targets/target_row_id"]
    demand("target rows", np.isin(read["rollouts/target_row_id"], targets))
    demand("target unique", len(set(targets.tolist())) == len(targets))
    admitted = {"v1_observed": {"detected_obbs"}, "v0_gt_input": {"", "gt_obbs_oracle"}}
    sources = strings("targets/target_source_id", "target_source")
    demand("target source", [text in admitted[attrs["target_protocol_version"]] for text in sources])
    demand("target source ids", read["targets/target_source_id"] >= 0)
    demand("target valid", read["targets/target_valid_mask"] == (read["targets/target_invalid_reason_bitset"] == 1))
    pose = read["rollouts/root_pose_world"]
    demand("root poses", pose.shape == (len(read["rollouts/rollout_row_id"]), 12) and np.isfinite(pose).all())
    owner = dict(zip(read["rollouts/rollout_row_id"], read["rollouts/target_row_id"], strict=True))
    of_state = np.array([owner[row] for row in read["steps/rollout_row_id"]])
    demand("state targets", np.array_equal(read["q_h/target_row_id"], of_state))
    for target in targets:
        own = read["rollouts/source_row_id"][read["rollouts/target_row_id"] == target]
        demand("one source per target", len(set(own.tolist())) <= 1)
    usable = read["targets/target_valid_mask"] & read["targets/gt_label_valid_mask"]
    by_rollout = {row: bool(usable[target]) for row, target in owner.items()}
    per_step = np.array([by_rollout[row] for row in read["steps/rollout_row_id"]])
    expected = actor & read["candidates/oracle_label_mask"] & per_step[read["candidates/step_row_id"]]
    demand("candidate training mask", read["candidates/q_train_mask"] == expected)
    demand("state training mask", ~train | per_step[:, None])
    for name in ("source_offline_store_version", "split_manifest_hash", "target_protocol_version"):
        demand(name, bool(attrs[name]))
    for name in ("candidate_config", "oracle_config", "rollout_config", "target_crop_policy"):
        demand(f"lineage {name}", [bool(text) for text in strings(f"lineage/{name}_id")])
    demand("lineage rows", np.array_equal(read["lineage/rollout_row_id"], read["rollouts/rollout_row_id"]))
    for name in ("target_protocol_version", "reason_code_version"):
        demand(f"lineage {name}", [text == attrs[name] for text in strings(f"lineage/{name}_id")])
    for name in ("source_offline_store_manifest_hash_id", "split_manifest_hash_id", "source_cache_version_id"):
        demand(f"sources {name}", [bool(text) for text in strings(f"sources/{name}")])
    return wrong


def test_aria_nbv_has_nothing_to_object_to(store_with_dead_ends: Path, tmp_path: Path) -> None:
    """Its validator has every step as a state, so a store for it keeps dead ends in the view, or has none."""
    assert aria_nbv_objections(store_with_dead_ends) == []
    write_rollout_zarr_store(tmp_path / "alive", replace(RECORDS, dead_ends=False), CONFIG)
    assert aria_nbv_objections(tmp_path / "alive") == []
    config = WITH_DEAD_ENDS.model_copy(update={"target_protocol_version": "v0_gt_input"})
    write_rollout_zarr_store(tmp_path / "v0", replace(RECORDS, sources=2, protocol="v0_gt_input"), config)
    assert aria_nbv_objections(tmp_path / "v0") == []
