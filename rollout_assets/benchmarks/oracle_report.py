"""The oracle benchmark as tables for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollout_assets.benchmarks.oracle_results import OracleBenchmark


def render_benchmark(result: OracleBenchmark) -> RenderableType:
    """Tables of one run; times are CPU seconds of one core on ``cpu`` and wall seconds on a GPU."""
    kind = "CPU seconds, one core" if result.device == "cpu" else "wall seconds"
    title = Text(f"Oracle on {result.device} ({kind}), {result.sizes}, seed {result.seed}", style="bold")
    return Group(title, _comparisons(result), _scenes(result), _growth(result), *_remarks(result))


def _comparisons(result: OracleBenchmark) -> Table:
    headings = ("faces", "P_t", "candidates", "torch", "ratio", "torch, new points", "ratio", "NumPy twin", "error")
    table = _table("Candidates on one target, against brute force", headings)
    for row in result.comparisons:
        table.add_row(
            f"{row.faces:,}",
            f"{row.state_s:.3f}",
            f"{row.candidates_s:.3f}",
            f"{row.torch_s:,.0f}",
            f"{row.ratio:,.0f}x",
            f"{row.torch_incremental_s:,.1f}",
            f"{row.incremental_ratio:,.0f}x",
            f"{row.twin_s:,.0f} ({row.twin_ratio:,.0f}x)",
            f"{row.max_relative_error:.1e}",
        )
    return table


def _scenes(result: OracleBenchmark) -> Table:
    headings = ("scene faces", "target faces", "build (wall)", "views/s", "M rays/s", "240 x 240 views/s")
    table = _table("Scoring views of 48 x 48", headings)
    for row in result.scenes:
        table.add_row(
            f"{row.scene_faces:,}",
            f"{row.target_faces:,}",
            f"{row.build_s:.2f}",
            f"{row.views_per_s:,.0f}",
            f"{row.rays_per_s / 1e6:.2f}",
            f"{row.selected_views_per_s:,.1f}",
        )
    return table


def _growth(result: OracleBenchmark) -> Table:
    table = _table("Growth of time", ("over", "exponent", "size: seconds"))
    for row in result.growth:
        steps = "  ".join(f"{size:,}: {seconds:.3f}" for size, seconds in zip(row.sizes, row.seconds, strict=True))
        table.add_row(row.what, f"{row.exponent:.2f}", steps)
    return table


def _remarks(result: OracleBenchmark) -> tuple[Text, ...]:
    started, started_cpu = result.second_process_s, result.second_process_cpu_s
    wall, cpu = result.two_process_speedup, result.two_process_cpu_speedup
    return (
        Text(f"closest points: {result.points_per_s / 1e6:.2f} M/s"),
        Text(f"a second process has scored after {started:.2f} s ({started_cpu:.2f} s CPU), imports included"),
        Text(f"two processes: {wall:.2f}x one by wall time, {cpu:.2f}x by CPU time"),
        Text(f"peak memory: {result.peak_memory_mib:,.0f} MiB"),
    )


def _table(title: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
