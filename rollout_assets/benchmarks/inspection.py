"""``bench inspect``: how long every look into a store takes, how that grows with its rows, and the memory it needs.

Each store is measured in a process of its own, so that peak memory is that of looking and of nothing else.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rollout_assets.benchmarks.store import bench_records
from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.inspection.audit import candidate_audit_rows, target_audit_rows
from rollout_assets.inspection.depth import selected_depth_extremes, selected_depth_summary_rows
from rollout_assets.inspection.diff import diff_stores
from rollout_assets.inspection.explain import explain
from rollout_assets.inspection.objectives import rollout_step_objective_rows
from rollout_assets.inspection.readiness import training_readiness
from rollout_assets.inspection.summary import (
    candidate_group_summary_rows,
    rollout_tree_summary_rows,
    validity_waterfall_rows,
)
from rollout_assets.inspection.suspicious import suspicious_rollout_rows
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.testing.fake_records import SyntheticRecords

DEFAULT_ROWS = 1_000_000
SHRINK = 10
"""The smaller store, for the growth of time, has this many times fewer rows."""

DEPTH_STEPS = 320
DEPTH_HW = (240, 240)
REPORT = "report"

Look = Callable[[RolloutZarrStoreReader], Any]

LOOKS: dict[str, Look] = {
    "candidate_audit_rows": candidate_audit_rows,
    "target_audit_rows": target_audit_rows,
    "validity_waterfall_rows": validity_waterfall_rows,
    "candidate_group_summary_rows": candidate_group_summary_rows,
    "candidate_group_summary_rows, by target": lambda reader: candidate_group_summary_rows(reader, "target_id"),
    "rollout_step_objective_rows": rollout_step_objective_rows,
    "rollout_tree_summary_rows": rollout_tree_summary_rows,
    "selected_depth_summary_rows": selected_depth_summary_rows,
    "suspicious_rollout_rows": suspicious_rollout_rows,
    "training_readiness": training_readiness,
    "explain": lambda reader: explain(reader, reader.num_rows("candidates") // 2),
    "diff_stores, with itself": lambda reader: diff_stores(reader, reader),
}
"""What is measured, by name."""

WANTED_S = {name: 3.0 for name in LOOKS if not name.startswith("diff")} | {REPORT: 20.0}
WANTED_MB = 2_000.0


@dataclass(frozen=True)
class InspectionBenchmark:
    """Wall and processor seconds per look, best of three; exponents of processor time over rows; peak memory in MB."""

    rows: int
    small_rows: int
    wall_s: dict[str, float]
    cpu_s: dict[str, float]
    exponents: dict[str, float]
    peak_mb: float
    depth_images_s: float


def benchmark_inspection(
    rows: int = DEFAULT_ROWS, *, depth: bool = False, folder: Path | None = None, progress: ProgressSink = SILENT
) -> InspectionBenchmark:
    """Measure a store of about ``rows`` candidates and one ten times smaller; ``folder`` is left as it was.

    With ``depth`` the stores also hold the 240 x 240 image of every step.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-inspect-") as name:
        base = Path(name)
        found = []
        for part, count in enumerate((max(rows // SHRINK, 1), rows)):
            progress(ProgressEvent("bench inspect", part, 3, f"{count:,} candidates", "stores"))
            store = base / f"{part}.zarr"
            config = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=depth))
            write_rollout_zarr_store(store, bench_records(count, DEPTH_HW if depth else None), config)
            found.append(_measured_apart(store))
        progress(ProgressEvent("bench inspect", 2, 3, "depth", "stores"))
        images = _depth_rate(base / "depth.zarr")
        progress(ProgressEvent("bench inspect", 3, 3, "", "stores"))
    small, large = found
    growth = math.log(large["rows"] / small["rows"])
    return InspectionBenchmark(
        rows=large["rows"],
        small_rows=small["rows"],
        wall_s=large["wall_s"],
        cpu_s=large["cpu_s"],
        exponents={
            name: math.log(large["cpu_s"][name] / max(small["cpu_s"][name], 1e-4)) / growth if growth else 1.0
            for name in large["cpu_s"]
        },
        peak_mb=large["peak_mb"],
        depth_images_s=images,
    )


def render(result: InspectionBenchmark, console: Console) -> None:
    """The figures as a table, with what they are held against."""
    table = Table(title=f"inspection of {result.rows:,} candidates", title_justify="left")
    for column in ("what", "wall", "processor", "growth with rows", "wanted"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for line in _lines(result):
        table.add_row(*line)
    console.print(table)


def _lines(result: InspectionBenchmark) -> Iterator[tuple[str, ...]]:
    for name, seconds in result.wall_s.items():
        wanted = f"< {WANTED_S[name]:.0f} s" if name in WANTED_S else ""
        yield (
            name,
            f"{seconds:.2f} s",
            f"{result.cpu_s[name]:.2f} s",
            f"rows^{result.exponents[name]:.2f}",
            wanted,
        )
    yield "peak memory", f"{result.peak_mb:,.0f} MB", "", "", f"< {WANTED_MB:,.0f} MB"
    yield "depth images looked at, 240 x 240", f"{result.depth_images_s:,.0f} /s", "", "", ""


def measure(store: Path, report: Callable[[RolloutZarrStoreReader, Path], Any]) -> dict[str, Any]:
    """Every look at one store, and the report as ``report`` writes it; called in a process of its own."""
    reader = RolloutZarrStoreReader(store)
    wall, cpu = {}, {}
    for name, look in LOOKS.items():
        wall[name], cpu[name] = _best(lambda look=look: look(reader))  # type: ignore[misc]
    page = store.with_suffix(".html")
    wall[REPORT], cpu[REPORT] = _best(lambda: report(reader, page), turns=1)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return {"rows": reader.num_rows("candidates"), "wall_s": wall, "cpu_s": cpu, "peak_mb": int(peak_kb) / 1024}


_PROGRAM = """
import json, sys
from pathlib import Path
from rollout_assets.reports.store_report import write_store_report
from rollout_assets.benchmarks.inspection import measure
print(json.dumps(measure(Path(sys.argv[1]), write_store_report)))
"""


def _measured_apart(store: Path) -> dict[str, Any]:
    package_root = str(Path(__file__).resolve().parents[3])
    paths = os.pathsep.join([package_root, *sys.path])
    done = subprocess.run(
        (sys.executable, "-c", _PROGRAM, str(store)),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def _depth_rate(store: Path) -> float:
    sources = DEPTH_STEPS // 16
    records = SyntheticRecords(
        sources=sources,
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
    wall, _ = _best(lambda: selected_depth_extremes(reader))
    return reader.num_rows("steps") / wall


def _best(work: Callable[[], Any], turns: int = 3) -> tuple[float, float]:
    """Wall and processor seconds of the turn that was least disturbed."""
    times = []
    for _ in range(turns):
        began, used = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - began, time.process_time() - used))
    return min(wall for wall, _ in times), min(cpu for _, cpu in times)
