"""``bench aggregation``: what aggregating many result files costs, in seconds and in memory, on fake results."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from rollout_assets.benchmarks.measure import peak_memory_mib
from rollout_assets.benchmarks.results import Figure
from rollout_assets.collection.aggregation import aggregate_rollouts
from rollout_assets.collection.configs import RolloutAggregationConfig
from rollout_assets.config import canonical_json
from rollout_assets.files import tree_sizes
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.randomness import rng_for
from rollout_assets.workers import run_in_new_process

AGENTS = ("oracle_greedy", "oracle_lookahead", "random_valid", "temperature_softmax")
ROLLOUTS_PER_TASK = 5


@dataclass(frozen=True)
class AggregationBenchmark:
    """Seconds to aggregate and merge, what was read, and by how much the process grew meanwhile."""

    shards: Annotated[int, Figure("files", "{:,}")]
    lines: Annotated[int, Figure("results", "{:,}")]
    megabytes: Annotated[float, Figure("size of all files", "{:,.0f} MB")]
    seconds: Annotated[float, Figure("aggregating and merging", "{:.1f} s")]
    grown_mb: Annotated[float, Figure("growth of memory", "{:.0f} MB")]

    def __str__(self) -> str:
        return "aggregation of result files"

    @property
    def lines_per_second(self) -> Annotated[float, Figure("results read, counted and merged", "{:,.0f} /s")]:
        """Lines read, counted and merged per second."""
        return self.lines / self.seconds


def benchmark_aggregation(
    shards: int = 200, lines_per_shard: int = 500, progress: ProgressSink = SILENT
) -> AggregationBenchmark:
    """Write shards of fake results, then aggregate and merge them in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="aggregation-") as name:
        folder = Path(name)
        for shard in range(shards):
            write_fake_results(folder / f"part-{shard % 10}" / f"shard-{shard:04d}.jsonl", shard, lines_per_shard)
            progress(ProgressEvent("writing shards", shard + 1, shards, unit="shards"))
        megabytes = sum(tree_sizes(folder).values()) / 1e6
        lines, seconds, grown_mb = run_in_new_process(_aggregate, folder)
    return AggregationBenchmark(shards, lines, megabytes, seconds, grown_mb)


def _aggregate(folder: Path) -> tuple[int, float, float]:
    """Lines, seconds and growth of memory of one aggregation."""
    before = peak_memory_mib()
    config = RolloutAggregationConfig(input_glob=f"{folder}/**/*.jsonl", output_jsonl_fpath=folder / "merged.jsonl")
    report = aggregate_rollouts(config)
    return report.lines, report.seconds, peak_memory_mib() - before


def write_fake_results(path: Path, shard: int, lines: int) -> None:
    """Result lines with every field that a real one has, and keys that no other shard has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rewards = rng_for(shard, "made-up results").normal(0.2, 0.2, (lines, 2))
    with path.open("wb") as stream:
        for number in range(lines):
            stream.write(canonical_json(_fake_result(shard * lines + number, rewards[number])) + b"\n")


def _fake_result(number: int, gains: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, object]:
    """One result; agents alternate within a task, and so do rollouts within an agent."""
    task, place = divmod(number, len(AGENTS) * ROLLOUTS_PER_TASK)
    pose = [0.125] * 12
    steps = [{"step": step, "root_gain": gain, "rri": gain, "pose": pose} for step, gain in enumerate(gains.tolist())]
    return {
        "sample_key": f"scene-{task:06d}__snippet-0000",
        "source_row": task,
        "split": "train",
        "target_id": f"scene-{task:06d}:snippet-0000:detected_obbs:sem=6:inst=1:idx=1",
        "target_rank": 0,
        "agent_ref": {"name": AGENTS[place % len(AGENTS)]},
        "seed": number,
        "status": "completed",
        "refused_reason": None,
        "reward": float(gains.sum()),
        "num_steps": len(steps),
        "views_scored": 120,
        "mean_valid_fanout": 31.5,
        "root_error_m2": 0.06,
        "final_error_m2": 0.05,
        "truncated": False,
        "truncation_reason": None,
        "end_reason": "horizon",
        "steps": steps,
        "content_sha256": f"{number:064x}",
        "timings_s": {"total": 0.01, "score": 0.008},
        "_task_index": task,
        "_rollout_index": place,
        "_attempt": 1,
    }
