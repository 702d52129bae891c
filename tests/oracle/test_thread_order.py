"""No label depends on the order in which threads run: Warp's loop over threads on the CPU is shuffled to show it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHUFFLED = """
import sys
from warp._src import codegen  # private: the loop over threads of a CPU launch is written there and nowhere else

loop = "for (size_t task_index = 0; task_index < dim->size; ++task_index)\\n    {{"
shuffled = (
    "for (size_t step = 0; step < dim->size; ++step)\\n    {{\\n"
    "        const size_t task_index = dim->size - 1 - (step * 2654435761ull) % dim->size;"
)
if sys.argv[1] == "shuffled":
    assert codegen.cpu_module_template_forward.count(loop) == 1
    codegen.cpu_module_template_forward = codegen.cpu_module_template_forward.replace(loop, shuffled)

import numpy as np
from rollout_assets.config import OracleConfig
from rollout_assets.oracle.scorer import ScoreRequest
from tests.oracle.rooms import begin, views
from tests.oracle.test_lanes import one_at_a_time
from tests.rollouts.record_digest import digest

with one_at_a_time():
    scorer, state = begin(OracleConfig(device="cpu", width_px=24, height_px=20))
    poses = views(6)
    after = scorer.advance(state, poses[1])
    print(digest(scorer.score([ScoreRequest(each, poses, np.ones(6, bool)) for each in (state, after)])))
"""


def labels(order: str, cache: Path) -> str:
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "WARP_CACHE_PATH": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", SHUFFLED, order], capture_output=True, text=True, check=True, env=env, cwd=root
    )
    return done.stdout


def test_the_order_of_threads_changes_no_bit(tmp_path: Path) -> None:
    straight = labels("straight", Path(os.environ.get("WARP_CACHE_PATH", tmp_path / "straight")))
    assert len(straight.strip()) == 64
    assert labels("shuffled", tmp_path / "shuffled") == straight
