"""Shared by the tests of evaluations: one tiny campaign and one finished evaluation of it per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_assets.evaluation import EvaluationConfig, PolicyEvaluation, evaluate_policies
from rollout_assets.testing.tiny_campaign import write_tiny_campaign


@pytest.fixture(scope="session")
def evaluated_campaign(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny campaign's file."""
    return write_tiny_campaign(tmp_path_factory.mktemp("evaluated"), small_store)


@pytest.fixture(scope="session")
def tiny_config(evaluated_campaign: Path, tmp_path_factory: pytest.TempPathFactory) -> EvaluationConfig:
    """Two policies on the two snippets of the one scene of the split."""
    return EvaluationConfig(
        campaign=str(evaluated_campaign),
        policies=["farthest_from_history", "soft=temperature_softmax"],
        output_dir=tmp_path_factory.mktemp("evaluation"),
        split="train",
        horizon=2,
        seeds=2,
        random_repeats=2,
        rows_per_shard=1,
        failures=2,
        max_pages=1,
    )


@pytest.fixture(scope="session")
def tiny_evaluation(tiny_config: EvaluationConfig) -> PolicyEvaluation:
    """The evaluation, run once."""
    return evaluate_policies(tiny_config)
