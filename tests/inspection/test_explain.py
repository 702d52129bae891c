"""One candidate explained, and a store judged for training."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.errors import StoreError
from rollout_assets.rollouts import ReadinessConfig, explain, training_readiness
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from tests.inspection import handmade_stores as made
from tests.support.refusals import refused

pytestmark = pytest.mark.quick


def first(reader: RolloutZarrStoreReader, bit: int) -> int:
    bits = reader.array("candidates/invalid_reason_bitset")
    return int(np.flatnonzero((bits >> np.uint32(bit)) & 1)[0])


def test_a_refused_view_names_rule_measure_and_limit(real: RolloutZarrStoreReader) -> None:
    row = first(real, 5)
    found = explain(real, row)
    failed = {rule.rule: rule for rule in found.rules if not rule.passed}
    rule = failed["distance to mesh"]
    measured = float(real.array("candidate_diagnostics/mesh_distance_m")[row])
    assert (rule.limit, rule.reason) == ("> 0.2 m", "CLEARANCE_TOO_SMALL") and rule.measured == f"{measured:.4f} m"
    assert any("Refused by CLEARANCE_TOO_SMALL: distance to mesh is" in line for line in found.story)
    assert found.errors.root_gain is None and not found.row["q_train_mask"]


def test_of_the_motion_rules_only_those_that_failed_are_named(real: RolloutZarrStoreReader) -> None:
    found = explain(real, first(real, 12))
    motion = [rule for rule in found.rules if rule.reason == "SAMPLER_RULE_REJECTED"]
    assert len(motion) == 4 and 1 <= sum(not rule.passed for rule in motion) < 4


def test_a_taken_view_leads_back_to_source_mesh_config_and_commit(real: RolloutZarrStoreReader, campaign) -> None:
    row = int(real.array("steps/selected_candidate_row_id")[0])
    found = explain(real, row)
    assert found.row["selected_mask"] and all(rule.passed for rule in found.rules)
    assert found.errors.root_gain == pytest.approx(
        (found.errors.before_m2 - found.errors.after_m2) / found.errors.root_m2, abs=1e-5
    )
    assert found.hashes["oracle_config"] == campaign.oracle_config_hash and len(found.hashes["mesh"]) == 64
    assert found.config_confirmed and found.config["oracle"]["oracle"]["width_px"] == 48
    assert found.source["sample_key"] and found.made_by["packages"]["polars"]
    assert json.dumps(asdict(found), allow_nan=False)


def test_without_a_recorded_campaign_only_limits_are_unknown(tmp_path: Path) -> None:
    reader = made.write(tmp_path / "plain.zarr", made.clean_records())
    found = explain(reader, 3)
    assert found.config_confirmed is None and found.config == {}
    assert {rule.limit for rule in found.rules[:7]} == {None}


def test_a_row_that_is_not_there_is_refused(real: RolloutZarrStoreReader) -> None:
    with refused(StoreError, "candidates", 10**9):
        explain(real, 10**9)


def test_readiness_agrees_with_plain_python(real: RolloutZarrStoreReader) -> None:
    found = {measure.name: measure.value for measure in training_readiness(real).measures}
    rows = real.table("candidates").to_dicts()
    gains = [row["target_root_gain"] for row in rows if row["q_train_mask"]]
    assert found["label deviation"] == pytest.approx(float(np.std(gains)), rel=1e-5)
    assert found["trainable share of views"] == pytest.approx(len(gains) / len(rows))
    assert found["trainable states"] == len({row["step_row_id"] for row in rows if row["q_train_mask"]})
    weights, drawn = drawn_weights(real)
    assert found["effective sample size"] == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights) / drawn)


def drawn_weights(reader: RolloutZarrStoreReader) -> tuple[list[float], int]:
    """1 / (views * π) of every view that a drawing policy drew at a state, and how many views any policy drew."""
    weights, drawn, visited = [], 0, set()
    for row in range(reader.num_rows("rollouts")):
        stored, path = reader.rollout(row), ()
        for step in stored.chain.steps:
            state = (stored.target_row_id, stored.lineage.rollout_policy, path)
            selection, path = step.selection, (*path, step.selection.selected_shell_index)
            if state not in visited:
                visited.add(state)
                drawn += int(selection.drawn_mask.sum())
                inclusion = selection.inclusion_probabilities.astype(float)
                if stored.lineage.rollout_policy != "oracle_greedy":
                    weights += (1 / ((inclusion > 0).sum() * inclusion[selection.drawn_mask])).tolist()
    return weights, drawn


def test_draws_are_weighted_by_inclusion_and_ranks_are_not(real: RolloutZarrStoreReader) -> None:
    fractions = dict(training_readiness(real).by_policy.select("recipe", "effective_sample_fraction").rows())
    assert fractions["random_valid"] == pytest.approx(1.0, rel=1e-5)
    assert fractions["lookahead"] == 0.0
    assert 0.0 < fractions["softmax"] < 1.0


def test_a_store_of_ranked_choices_needs_care(tmp_path: Path) -> None:
    ready = training_readiness(made.write(tmp_path / "ranked.zarr", made.clean_records()))
    (measure,) = [measure for measure in ready.measures if measure.name == "effective sample size"]
    assert (measure.value, measure.status) == (0.0, "careful")


def test_the_verdict_follows_from_the_worst_measure(real: RolloutZarrStoreReader, tmp_path: Path) -> None:
    careful = training_readiness(real)
    assert careful.verdict == "ready with care" and any("trainable states" in reason for reason in careful.reasons)
    easy = ReadinessConfig(
        min_states=(1, 1), min_targets=(1, 1), min_effective_sample_fraction=(0.0, 0.0), min_shell_std=(0.0, 0.0)
    )
    assert training_readiness(real, easy).verdict == "ready"
    flat = [made.with_step(record, made.equal_labels_in_step) for record in made.clean_records()]
    bad = training_readiness(made.write(tmp_path / "flat.zarr", flat))
    assert bad.verdict == "not ready" and any("label deviation" in reason for reason in bad.reasons)


def test_support_is_counted_by_recipe(real: RolloutZarrStoreReader) -> None:
    by_policy = training_readiness(real).by_policy
    assert by_policy["recipe"].to_list() == ["lookahead", "random_valid", "softmax"]
    assert by_policy["states"].sum() == real.num_rows("steps")
    uniform = by_policy.row(1, named=True)
    assert uniform["effective_sample_fraction"] == pytest.approx(1.0, rel=1e-5)
