"""The benchmark runs, measures everything it promises, and leaves nothing behind; memory stays flat."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rollout_assets.benchmarks.results import render, to_json
from rollout_assets.benchmarks.store import SMALL_ROWS, benchmark_store
from tests.support.refusals import assert_names


@pytest.mark.ci
def test_a_small_benchmark_measures_everything(tmp_path: Path) -> None:
    result = benchmark_store(SMALL_ROWS, depth_steps=16, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    plain = json.loads(json.dumps(to_json(result)))
    assert all(value > 0 for value in plain.values() if isinstance(value, (int, float)))
    workers = {"0 workers", "0 workers, nothing verified", "1 workers", "2 workers"}
    assert set(plain["loader_samples_s"]) == {"plain NumPy", *workers, "map-style, random"}
    console = Console(file=io.StringIO(), width=120)
    console.print(render(result))
    shown = console.file.getvalue()
    assert_names(shown, "240 x 240", "validate deep", "np.load", "exponent", "peak memory")


@pytest.mark.slow
def test_a_million_rows_take_few_files_and_flat_memory(tmp_path: Path) -> None:
    result = benchmark_store(1_000_000, depth_steps=64, folder=tmp_path)
    assert result.rows >= 1_000_000
    assert result.files < 1_500
    assert result.peak_memory_mb - result.peak_memory_small_mb < 300
