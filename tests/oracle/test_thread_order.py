"""Labels with Warp's loop over CPU threads in shuffled order, and the cache of the kernels compiled for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
from tests.support.digests import content_digest

with one_at_a_time():
    scorer, state = begin(OracleConfig(device="cpu", width_px=24, height_px=20))
    poses = views(6)
    after = scorer.advance(state, poses[1])
    print(content_digest(scorer.score([ScoreRequest(each, poses, np.ones(6, bool)) for each in (state, after)])))
"""


def labels(order: str, cache: Path) -> str:
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root), "WARP_CACHE_PATH": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", SHUFFLED, order], capture_output=True, text=True, check=True, env=env, cwd=root
    )
    return done.stdout


@pytest.mark.ci
def test_thread_order_changes_no_bit_and_kernels_are_cached(tmp_path: Path) -> None:
    """The digest is all of stdout, so neither compiling kernels nor loading compiled ones prints anything there."""
    cache = tmp_path / "shuffled"
    straight = labels("straight", Path(os.environ.get("WARP_CACHE_PATH", tmp_path / "straight")))
    assert re.fullmatch(r"[0-9a-f]{64}\n", straight)
    assert labels("shuffled", cache) == straight
    compiled = {path: path.stat().st_mtime_ns for path in cache.rglob("*.o")}
    assert compiled
    assert labels("shuffled", cache) == straight
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.o")} == compiled
