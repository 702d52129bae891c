"""What aggregating many result files costs, in seconds and in memory, on made-up results of a real size."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout_assets.config import canonical_json
from rollout_assets.files import tree_sizes
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.randomness import rng_for

AGENTS = ("oracle_greedy", "oracle_lookahead", "random_valid", "temperature_softmax")
ROLLOUTS_PER_TASK = 5

_AGGREGATE = """
import json, resource, sys
from pathlib import Path
from rollout_assets.collection.aggregation import aggregate_rollouts
from rollout_assets.collection.configs import RolloutAggregationConfig
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
folder = Path(sys.argv[1])
config = RolloutAggregationConfig(input_glob=f"{folder}/**/*.jsonl", output_jsonl_fpath=folder / "merged.jsonl")
report = aggregate_rollouts(config)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": report.seconds, "lines": report.lines, "grown_kib": peak - before}))
"""
"""In a process of its own, so that its memory is its own."""


@dataclass(frozen=True)
class AggregationBenchmark:
    """Seconds to aggregate and merge, what was read, and by how much the process grew while it did."""

    shards: int
    lines: int
    megabytes: float
    seconds: float
    grown_mb: float

    @property
    def lines_per_second(self) -> float:
        """Lines read, counted and merged per second."""
        return self.lines / self.seconds


def benchmark_aggregation(
    shards: int = 200, lines_per_shard: int = 500, progress: ProgressSink = SILENT
) -> AggregationBenchmark:
    """Write shards of made-up results, then aggregate and merge them in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="aggregation-") as name:
        folder = Path(name)
        for shard in range(shards):
            write_made_up_results(folder / f"part-{shard % 10}" / f"shard-{shard:04d}.jsonl", shard, lines_per_shard)
            progress(ProgressEvent("writing shards", shard + 1, shards, unit="shards"))
        size = sum(tree_sizes(folder).values())
        command = [sys.executable, "-c", _AGGREGATE, str(folder)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return AggregationBenchmark(
        shards=shards,
        lines=found["lines"],
        megabytes=size / 1e6,
        seconds=found["seconds"],
        grown_mb=found["grown_kib"] / 1e3,
    )


def write_made_up_results(path: Path, shard: int, lines: int) -> None:
    """Result lines with every field that a real one has, and keys that no other shard has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = rng_for(shard, "made-up results")
    rewards = rng.normal(0.2, 0.2, (lines, 2))
    with path.open("wb") as stream:
        for number in range(lines):
            stream.write(canonical_json(_made_up(shard * lines + number, rewards[number])) + b"\n")


def _made_up(number: int, gains: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, object]:
    """One result; agents take turns within a task, and so do rollouts within an agent."""
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
        "truncated": True,
        "truncation_reason": "horizon",
        "steps": steps,
        "content_sha256": f"{number:064x}",
        "timings_s": {"total": 0.01, "score": 0.008},
        "_task_index": task,
        "_rollout_index": place,
        "_attempt": 1,
    }
