"""Scoring in worker processes, without a GPU and without torch."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from rollout_assets.config import OracleConfig
from rollout_assets.errors import DeviceError
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import ScoreRequest
from tests.oracle.rooms import begin, room_mesh, views
from tests.support.refusals import refused

ROOT = Path(__file__).parents[2]


def after_of_views(seed: int) -> np.ndarray:
    scorer, state = begin(OracleConfig(device="cpu", width_px=16, height_px=16))
    return scorer.score([ScoreRequest(state, views(4, seed), np.ones(4, bool))])[0].target.after_m2


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.ci
def test_worker_processes_give_the_same_bits(method: str) -> None:
    expected = [after_of_views(seed) for seed in range(2)]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert np.array_equal(list(pool.map(after_of_views, range(2))), expected)


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd=ROOT)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA driver")
def test_cuda_without_a_driver_is_one_clear_error() -> None:
    mesh = room_mesh()
    with refused(DeviceError, "CUDA", '"cpu"', '"auto"'):
        OracleScene(mesh.vertices, mesh.faces, "cuda:0")


def test_scoring_does_not_import_torch() -> None:
    """Torch takes longer to import than everything else a worker does before its first label."""
    code = (
        "import sys, numpy as np\n"
        "from rollout_assets.config import OracleConfig\n"
        "from rollout_assets.benchmarks import oracle_workloads as workloads\n"
        "rng = np.random.default_rng(0)\n"
        "room = workloads.furnished_room(2000, 900, rng)\n"
        "case = workloads.scoring_case(room, OracleConfig(device='cpu'), 2, rng)\n"
        "labels = case.scorer.score([case.request])[0]\n"
        "case.scorer.advance(case.state, case.request.poses_world_camera[0])\n"
        "case.state.scene.distance_m(np.zeros((1, 3)))\n"
        "assert np.isfinite(labels.target.rri).all()\n"
        "assert 'torch' not in sys.modules"
    )
    _run(code)
