"""A new policy is compared with the accepted one root by root, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from rollout_assets.errors import EvaluationError
from rollout_assets.evaluation import BootstrapConfig, EvaluationFacts, PolicyEvaluation, compare_to_accepted
from rollout_assets.evaluation.failures import failure_table
from rollout_assets.evaluation.result import PolicyFacts
from rollout_assets.evaluation.tables import comparison_table, group_table, policy_table, view_table
from tests.evaluation.handmade_outcomes import POLICIES, ROLES, handmade_outcomes, paired
from tests.support.refusals import refused


def evaluation(better_by: float = 0.0, **facts: object) -> PolicyEvaluation:
    """The hand-made evaluation, in which mine gains so much more at every root, by a little more in later scenes."""
    own = pl.col("policy") == "mine"
    more = pl.lit(better_by) * (1 + 0.1 * pl.col("scene").str.tail(1).cast(pl.Float64))
    outcomes = handmade_outcomes().with_columns(
        pl.when(own).then(pl.col(name) + more).otherwise(name).alias(name) for name in ("gain", "gain_1", "gain_2")
    )
    values = paired(outcomes)
    about = {
        "package_version": "0",
        "campaign": "handmade",
        "split": "val",
        "horizon": 2,
        "scenes": tuple(f"scene-{scene}" for scene in range(6)),
        "candidate_config_hash": "c",
        "oracle_config_hash": "o",
        "target_config_hash": "t",
        "source_manifest_hash": "s",
        "bootstrap": BootstrapConfig(samples=400),
        "policies": [
            PolicyFacts(name=name, role=role, policy=name, draws=1) for name, role in zip(POLICIES, ROLES, strict=True)
        ],
        "seeds": (),
    }
    return PolicyEvaluation(
        folder=Path(f"evaluation-{better_by}"),
        facts=EvaluationFacts(**(about | facts)),
        outcomes=outcomes,
        policies=policy_table(values, ROLES),
        views=view_table(values),
        comparisons=comparison_table(values, ["mine"]),
        groups=group_table(values),
        failures=failure_table(values, ["mine"], 2),
    )


def test_the_same_policy_is_neither_better_nor_worse():
    same = compare_to_accepted(evaluation(), evaluation())
    assert (same.difference.value, same.difference.low, same.difference.high) == (0.0, 0.0, 0.0)
    assert same.not_worse and not same.better and not same.worse
    assert (same.policy, same.accepted, same.roots, same.scenes) == ("mine", "mine", 24, 6)


def test_paired_roots_show_a_small_difference():
    better = compare_to_accepted(evaluation(0.001), evaluation())
    assert better.better and better.not_worse and better.difference.value == pytest.approx(0.00125)
    worse = compare_to_accepted(evaluation(), evaluation(0.001))
    assert worse.worse and not worse.not_worse


def test_only_common_roots_are_compared():
    earlier = evaluation()
    fewer = replace(earlier, outcomes=earlier.outcomes.filter(pl.col("scene") < "scene-3"))
    compared = compare_to_accepted(evaluation(0.01), fewer)
    assert (compared.roots, compared.scenes) == (12, 3)
    assert compared.difference.low is None and compared.not_worse, "three scenes decide by their mean"
    assert not compare_to_accepted(fewer, evaluation(0.01)).not_worse


@pytest.mark.parametrize(
    ("facts", "names"),
    [({"horizon": 3}, ("horizon", 2, 3)), ({"oracle_config_hash": "p"}, ("oracle_config_hash", " o", " p"))],
)
def test_other_ground_is_refused(facts, names):
    with refused(EvaluationError, *names):
        compare_to_accepted(evaluation(), evaluation(**facts))


def test_other_roots_or_other_gains_on_them_are_refused():
    earlier = evaluation()
    elsewhere = replace(earlier, outcomes=earlier.outcomes.with_columns(pl.col("seed") + 100))
    with refused(EvaluationError, "mine"):
        compare_to_accepted(earlier, elsewhere)
    greedy = pl.when(pl.col("policy") == "oracle_greedy").then(pl.col("gain") + 0.01).otherwise("gain").alias("gain")
    changed = replace(earlier, outcomes=earlier.outcomes.with_columns(greedy))
    with refused(EvaluationError, "oracle_greedy"):
        compare_to_accepted(earlier, changed)


def test_the_verdict_in_one_sentence():
    verdict = evaluation().verdict()
    assert verdict.beats == ("random_valid",) and verdict.loses_to == ("oracle_greedy", "oracle_lookahead")
    assert verdict.beats_random and verdict.sentence.startswith("mine beats random_valid (+0.1625 root gain, +")
    assert verdict.sentence.endswith("of the headroom to oracle_greedy; on 24 roots of 6 scenes.")
    worst = evaluation(-0.5).verdict()
    assert worst.sentence.startswith("mine loses to random_valid (−") and not worst.beats_random
