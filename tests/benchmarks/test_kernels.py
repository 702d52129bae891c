"""The benchmark of kernels runs from end to end at a toy size."""

from __future__ import annotations

import pytest

from rollout_assets.benchmarks.kernels import benchmark_kernels
from rollout_assets.geometry.devices import kernel_clock
from rollout_assets.geometry.triangle_bvh import build_tree
from tests.geometry.test_tree_building import soup


@pytest.mark.slow
def test_a_toy_run_measures_everything() -> None:
    result = benchmark_kernels(tree_faces=2_000, rounds=1)
    assert result.small_rays_per_s > 0 and result.large_rays_per_s > 0
    assert result.tree_cpu_s > 0 and result.tree_file_wall_s > 0
    assert result.two_process_cpu_speedup > 0


def test_compiled_code_of_the_host_is_timed_and_is_no_launch() -> None:
    with kernel_clock() as clock:
        build_tree(*soup(1, 3_000, 0.02, rounded=False))
    assert clock.host_code_seconds > 0
    assert clock.launches == 0 and clock.cpu_seconds == 0
