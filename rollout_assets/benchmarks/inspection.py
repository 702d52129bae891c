"""``bench inspect``: how long every look into a store takes, how that grows with its rows, and the memory it needs.

Each store is measured in a process of its own, so that peak memory is that of looking and of nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from rollout_assets import rollouts
from rollout_assets.benchmarks.measure import Seconds, Steps, exponent, least, peak_memory_mib
from rollout_assets.benchmarks.results import Figure
from rollout_assets.benchmarks.store_workloads import bench_records
from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.inspection.depth import selected_depth_extremes
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.reports.store_report import write_store_report
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.testing.fake_records import SyntheticRecords
from rollout_assets.workers import run_in_new_process

SHRINK = 10
"""The smaller store, with which the growth of time is measured, has this many times fewer rows."""

DEPTH_STEPS = 320
DEPTH_HW = (240, 240)
REPORT = "report"

LOOKS: dict[str, Callable[[RolloutZarrStoreReader], Any]] = {
    "candidate_audit_rows": rollouts.candidate_audit_rows,
    "target_audit_rows": rollouts.target_audit_rows,
    "validity_waterfall_rows": rollouts.validity_waterfall_rows,
    "candidate_group_summary_rows": rollouts.candidate_group_summary_rows,
    "candidate_group_summary_rows, by target": lambda reader: rollouts.candidate_group_summary_rows(
        reader, "target_id"
    ),
    "rollout_step_objective_rows": rollouts.rollout_step_objective_rows,
    "rollout_tree_summary_rows": rollouts.rollout_tree_summary_rows,
    "selected_depth_summary_rows": rollouts.selected_depth_summary_rows,
    "suspicious_rollout_rows": rollouts.suspicious_rollout_rows,
    "training_readiness": rollouts.training_readiness,
    "explain": lambda reader: rollouts.explain(reader, reader.num_rows("candidates") // 2),
    "diff_stores, with itself": lambda reader: rollouts.diff_stores(reader, reader),
}
"""What is measured, by name."""

GOALS = {name: "< 3 s" for name in LOOKS if not name.startswith("diff")} | {REPORT: "< 20 s"}


@dataclass(frozen=True)
class Look:
    """Times of one look."""

    look: Annotated[str, Figure("look")]
    wall_s: Annotated[float, Figure("wall", "{:.2f} s")]
    cpu_s: Annotated[float, Figure("processor", "{:.2f} s")]
    exponent: Annotated[float, Figure("growth with rows", "rows^{:.2f}")]
    goal: Annotated[str, Figure("goal for wall")]


@dataclass(frozen=True)
class InspectionBenchmark:
    """Looks, best of three each, with the growth of processor time over rows; peak memory in MB."""

    rows: int
    small_rows: int
    peak_mb: Annotated[float, Figure("peak memory", "{:,.0f} MB", "< 2,000 MB")]
    depth_images_s: Annotated[float, Figure("depth images looked at, 240 x 240", "{:,.0f} /s")]
    looks: Annotated[tuple[Look, ...], Figure("time of each look")]

    def __str__(self) -> str:
        return f"inspection of {self.rows:,} candidates"


def benchmark_inspection(
    rows: int = 1_000_000, *, depth: bool = False, folder: Path | None = None, progress: ProgressSink = SILENT
) -> InspectionBenchmark:
    """Measure a store of about ``rows`` candidates and one ten times smaller; ``folder`` is left as it was.

    With ``depth`` the stores also hold the 240 x 240 image of every step.
    """
    step = Steps(progress, "bench inspect", 3, "stores")
    config = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=depth))
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-inspect-") as name:
        measured = []
        for count in (max(rows // SHRINK, 1), rows):
            step(f"{count:,} candidates")
            store = Path(name) / f"{count}.zarr"
            write_rollout_zarr_store(store, bench_records(count, DEPTH_HW if depth else None), config)
            measured.append(run_in_new_process(_look_at, store))
        step("depth")
        images = _depth_rate(Path(name) / "depth.zarr")
        step()
    small, large = measured
    growth = {
        name: exponent((small.rows, large.rows), (max(small.seconds[name].cpu, 1e-4), spent.cpu))
        for name, spent in large.seconds.items()
    }
    looks = tuple(Look(name, *spent, growth[name], GOALS.get(name, "")) for name, spent in large.seconds.items())
    return InspectionBenchmark(large.rows, small.rows, large.peak_mb, images, looks)


class _Measured(NamedTuple):
    rows: int
    seconds: dict[str, Seconds]
    peak_mb: float


def _look_at(store: Path) -> _Measured:
    """Every look at one store, and its report; called in a process of its own."""
    reader = RolloutZarrStoreReader(store)
    seconds = {name: least(lambda look=look: look(reader)) for name, look in LOOKS.items()}  # type: ignore[misc]
    seconds[REPORT] = least(lambda: write_store_report(reader, store.with_suffix(".html")), turns=1)
    return _Measured(reader.num_rows("candidates"), seconds, peak_memory_mib())


def _depth_rate(store: Path) -> float:
    records = SyntheticRecords(
        sources=DEPTH_STEPS // 16,
        targets=1,
        recipes=("a",),
        chains=8,
        horizon=2,
        shell=(4, 4),
        depth_hw=DEPTH_HW,
        dead_ends=False,
    )
    write_rollout_zarr_store(store, records)
    reader = RolloutZarrStoreReader(store)
    return reader.num_rows("steps") / least(lambda: selected_depth_extremes(reader)).wall
