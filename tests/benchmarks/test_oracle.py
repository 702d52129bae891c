"""The benchmark runs from end to end at toy sizes and reports what it says it does."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from rollout_assets.benchmarks.oracle import run_oracle_benchmark
from rollout_assets.benchmarks.oracle_results import QUICK, Growth
from rollout_assets.benchmarks.results import render, to_json
from rollout_assets.progress import ProgressEvent

TOY = replace(
    QUICK,
    name="toy",
    target_faces=(200,),
    scene_faces=(2_000,),
    growth_faces=(500, 1_000),
    growth_points=(50, 100),
    growth_candidates=(2, 4),
    current_points=300,
    view_points=100,
    candidates=4,
    brute_pairs=10_000,
    exact_pairs=100_000,
    rounds=1,
)


@pytest.mark.slow
def test_a_toy_run_measures_everything() -> None:
    events: list[ProgressEvent] = []
    result = run_oracle_benchmark(TOY, device="cpu", seed=3, progress=events.append)
    assert result.comparisons[0].max_relative_error < 1e-5
    assert min(result.comparisons[0].torch_s, result.comparisons[0].torch_incremental_s) > 0
    assert result.scenes[0].views_per_s > 0
    assert [growth.what for growth in result.growth] == [
        "scene faces (rays)",
        "target faces",
        "points per view",
        "candidates",
    ]
    assert 0 < result.second_process_s < math.inf
    assert events[-1].done == events[-1].total
    plain = json.loads(json.dumps(to_json(result)))
    assert plain["comparisons"][0]["ratio"] == result.comparisons[0].ratio
    assert plain["growth"][3]["exponent"] == result.growth[3].exponent
    console = Console(width=140, record=True, quiet=True)
    console.print(render(result))


def test_the_exponent_of_a_power_law_is_its_power() -> None:
    assert math.isclose(Growth("x", (10, 100, 1000), (1e-3, 1e-1, 1e1)).exponent, 2.0)
