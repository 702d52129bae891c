"""How long a target takes, and where the time goes: `rollout-assets bench rollouts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

from rich.console import Console
from rich.table import Table

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import SourceError
from rollout_assets.geometry.devices import kernel_clock, resolve_device
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore

ARIA_NBV_SECONDS_PER_ROOT = 128.0
"""Published figure of the research code this replaces, on an RTX 3080 Ti."""


@dataclass(frozen=True)
class RolloutBenchmark:
    """One run over some rows. Stage seconds are wall time; ``cpu_s`` is what the process used on all its threads."""

    device: str
    rows: int
    targets: int
    rollouts: int
    candidates_offered: int
    views_scored: int
    wall_s: float
    cpu_s: float
    seconds_per_target: float
    views_per_second: float
    candidates_per_second: float
    kernel_s: float
    kernel_share: float
    kernel_launches: int
    seconds_per_stage: dict[str, float]
    times_faster_than_aria_nbv_per_root: float


def run_rollout_benchmark(
    config: CampaignConfig, rows: int | None = None, progress: ProgressSink = SILENT
) -> RolloutBenchmark:
    """Generate the records of the first rows of a campaign's source, after a warm-up row that is not counted."""
    store = VinOfflineStore.open(config.source.store_dir, config.source.mesh_dirs)
    chosen = store.rows()[:rows]
    if not chosen:
        raise SourceError(f"{store.root}: no rows to measure")
    _generate(config, store, chosen[:1])
    generator = RolloutGenerator(config, store)
    for row in chosen:
        generator.scenes.find(row.scene_id)  # trees are built once per scene, not per target
    with kernel_clock() as clock:
        began, cpu = perf_counter(), process_time()
        for _ in generator.records(chosen, progress):
            pass
        wall, used = perf_counter() - began, process_time() - cpu
    stats = generator.stats
    targets = max(stats.targets, 1)
    accounted = sum(stats.seconds_per_stage.values())
    return RolloutBenchmark(
        device=resolve_device(config.oracle.device),
        rows=len(chosen),
        targets=stats.targets,
        rollouts=stats.rollouts,
        candidates_offered=stats.candidates,
        views_scored=stats.views_scored,
        wall_s=wall,
        cpu_s=used,
        seconds_per_target=wall / targets,
        views_per_second=stats.views_scored / wall,
        candidates_per_second=stats.candidates / wall,
        kernel_s=clock.seconds,
        kernel_share=clock.seconds / wall,
        kernel_launches=clock.launches,
        seconds_per_stage={**stats.seconds_per_stage, "everything else": wall - accounted},
        times_faster_than_aria_nbv_per_root=ARIA_NBV_SECONDS_PER_ROOT / (wall / len(chosen)),
    )


def show_rollout_benchmark(result: RolloutBenchmark, console: Console) -> None:
    """Print the figures and the breakdown."""
    console.print(
        f"{result.targets} targets of {result.rows} rows on {result.device}: "
        f"[bold]{result.seconds_per_target:.2f} s per target[/], "
        f"{result.views_per_second:,.0f} views scored and "
        f"{result.candidates_per_second:,.0f} candidates stored per second",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"wall {result.wall_s:.1f} s, processor {result.cpu_s:.1f} s; device kernels {result.kernel_s:.1f} s = "
        f"[bold]{result.kernel_share:.0%}[/] of it in {result.kernel_launches:,} launches; "
        f"{result.times_faster_than_aria_nbv_per_root:,.0f} x ARIA-NBV's published time per root",
        highlight=False,
        soft_wrap=True,
    )
    table = Table("stage", "seconds", "per target", "share")
    for stage, seconds in sorted(result.seconds_per_stage.items(), key=lambda item: -item[1]):
        table.add_row(
            stage, f"{seconds:.2f}", f"{seconds / max(result.targets, 1):.3f}", f"{seconds / result.wall_s:.0%}"
        )
    console.print(table)


def _generate(config: CampaignConfig, store: VinOfflineStore, rows: Sequence[IndexRow]) -> None:
    for _ in RolloutGenerator(config, store).records(rows):
        pass
