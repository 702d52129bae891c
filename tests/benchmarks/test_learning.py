"""The benchmark of training data measures everything it promises, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout_assets.benchmarks.observations import WORKERS, benchmark_learning
from rollout_assets.benchmarks.results import render, to_json
from rollout_assets.config.observation import ObservationConfig


@pytest.mark.slow
def test_a_small_benchmark_measures_everything(tmp_path: Path) -> None:
    result = benchmark_learning(states=600, config=ObservationConfig(points=64), folder=tmp_path)
    assert result.states > 300 and result.width == 60 and result.points == 64
    names = [f"{workers} workers" for workers in WORKERS]
    assert list(result.cold_states_s) == list(result.warm_states_s) == names
    rates = (*result.cold_states_s.values(), *result.warm_states_s.values(), result.plain_states_s)
    assert all(rate > 0 for rate in rates)
    assert to_json(result)["of_plain"] == result.of_plain > 0
    render(result)
    assert list(tmp_path.iterdir()) == []
