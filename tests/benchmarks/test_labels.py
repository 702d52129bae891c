"""The benchmark of labels finds what the old definitions do, and that the new ones do not."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from rollout_assets.benchmarks.labels import SAME_PIXELS, benchmark_labels
from rollout_assets.benchmarks.results import render, to_json


@pytest.mark.slow
def test_labels_of_one_home_on_two_tessellations() -> None:
    result = benchmark_labels(homes=1, budgets=(30_000, 60_000), turns=0)
    assert result.targets > 0
    new = [row for row in result.negatives if row.definition == "new"]
    assert [row.faces for row in new] == [30_000, 60_000] and all(row.negative == 0 for row in new)
    same = {row.definition: row for row in result.moves if row.views == SAME_PIXELS}
    assert same["new"].labels > 100 and same["new"].largest < 1e-5
    (noise,) = [row for row in result.noise if row.definition == "new"]
    assert noise.targets == result.targets and noise.largest < 1e-5
    assert result.without_root_view < 0.05 and result.least_probability >= 1e-9
    console = Console(file=io.StringIO(), width=160)
    console.print(render(result))
    shown = console.file.getvalue()
    assert "the new definitions cost" in shown and "discretisation" in shown
    json.dumps(to_json(result))
