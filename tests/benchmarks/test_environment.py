"""The benchmark of the environment plays the same roots on both sides and compares their pace."""

from rollout_assets.benchmarks.environment import TURNS, benchmark_environment
from rollout_assets.benchmarks.results import to_json
from rollout_assets.config import load_campaign
from rollout_assets.testing.tiny_campaign import write_tiny_campaign


def test_engine_and_environment_are_compared_over_the_same_roots(small_store, tmp_path):
    config = load_campaign(write_tiny_campaign(tmp_path, small_store))
    measured = benchmark_environment(config, rows=1, members=2)
    figures = to_json(measured)
    assert len(measured.turns) == 2 * TURNS and measured.horizon == 2
    assert measured.environment.episodes >= measured.engine.episodes > 0
    paces = [figures[side]["views_per_second"] for side in ("environment", "engine")]
    assert figures["kept"] == paces[0] / paces[1] > 0
