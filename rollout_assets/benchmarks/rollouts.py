"""``bench rollouts``: how long a target takes, and where the time goes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated

from rollout_assets.benchmarks.measure import timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.plan import open_source
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import SourceError
from rollout_assets.geometry.devices import kernel_clock, resolve_device
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.generator import RolloutGenerator

ARIA_NBV_SECONDS_PER_ROOT = 128.0
"""Published figure of the research code this replaces, on an RTX 3080 Ti."""


@dataclass(frozen=True)
class Stage:
    """Wall seconds of one stage of generating."""

    stage: Annotated[str, Figure("stage")]
    seconds: Annotated[float, Figure("seconds", "{:.2f}")]
    per_target: Annotated[float, Figure("per target", "{:.3f}")]
    share: Annotated[float, Figure("share", "{:.0%}")]


@dataclass(frozen=True)
class RolloutBenchmark:
    """One run over some rows. Stage seconds are wall time; ``cpu_s`` is what the process used on all its threads.

    Kernels on a GPU run beside the host and are not waited for, so their seconds are not known here: NaN.
    """

    device: str
    rows: int
    targets: int
    rollouts: int
    candidates_offered: int
    views_scored: int
    wall_s: Annotated[float, Figure("wall time", "{:.1f} s")]
    cpu_s: Annotated[float, Figure("processor time", "{:.1f} s")]
    seconds_per_target: Annotated[float, Figure("wall time per target", "{:.2f} s")]
    views_per_second: Annotated[float, Figure("views scored", "{:,.0f} /s")]
    candidates_per_second: Annotated[float, Figure("candidates stored", "{:,.0f} /s")]
    views_per_cpu_second: Annotated[float, Figure("views scored per second of one core", "{:,.0f} /s")]
    kernel_s: Annotated[float, Figure("device kernels", "{:.1f} s")]
    kernel_share: Annotated[float, Figure("device kernels, of wall time", "{:.0%}")]
    host_cpu_s: Annotated[float, Figure("processor time outside kernels", "{:.2f} s")]
    host_code_s: Annotated[float, Figure("  of which compiled code of the host: crops and trees", "{:.2f} s")]
    kernel_launches: Annotated[int, Figure("kernel launches", "{:,}")]
    single_thread_launches: Annotated[int, Figure("launches of one thread", "{:,}")]
    copies_to_device: Annotated[int, Figure("copies to the device", "{:,}")]
    copies_to_host: Annotated[int, Figure("copies from the device", "{:,}")]
    times_faster_than_aria_nbv_per_root: Annotated[
        float, Figure("ARIA-NBV's published time per root", "{:,.0f} x ours")
    ]
    stages: Annotated[tuple[Stage, ...], Figure("where the time goes")]
    """Longest first."""

    def __str__(self) -> str:
        return f"{self.targets} targets of {self.rows} rows on {self.device}"


def benchmark_rollouts(
    config: CampaignConfig, rows: int | None = None, progress: ProgressSink = SILENT
) -> RolloutBenchmark:
    """Generate the records of the first rows of a campaign's source, after a warm-up row that is not counted."""
    store = open_source(config)
    chosen = store.rows()[:rows]
    if not chosen:
        raise SourceError(f"{store.root}: no rows to measure")
    deque(RolloutGenerator(config, store).records(chosen[:1]), maxlen=0)
    generator = RolloutGenerator(config, store)
    for row in chosen:
        generator.scenes.find(row.scene_id)  # trees are built once per scene, not per target
    with kernel_clock() as clock:
        wall, cpu = timed(lambda: deque(generator.records(chosen, progress), maxlen=0))
    stats, targets = generator.stats, max(generator.stats.targets, 1)
    stages = stats.seconds_per_stage | {"everything else": wall - sum(stats.seconds_per_stage.values())}
    device = resolve_device(config.oracle.device)
    on_cpu = device == "cpu"
    return RolloutBenchmark(
        device=device,
        rows=len(chosen),
        targets=stats.targets,
        rollouts=stats.rollouts,
        candidates_offered=stats.candidates,
        views_scored=stats.views_scored,
        wall_s=wall,
        cpu_s=cpu,
        seconds_per_target=wall / targets,
        views_per_second=stats.views_scored / wall,
        candidates_per_second=stats.candidates / wall,
        views_per_cpu_second=stats.views_scored / cpu,
        kernel_s=clock.seconds if on_cpu else float("nan"),
        kernel_share=clock.seconds / wall if on_cpu else float("nan"),
        host_cpu_s=cpu - clock.cpu_seconds,
        host_code_s=clock.host_code_seconds,
        kernel_launches=clock.launches,
        single_thread_launches=clock.single_thread_launches,
        copies_to_device=clock.copies_to_device,
        copies_to_host=clock.copies_to_host,
        times_faster_than_aria_nbv_per_root=ARIA_NBV_SECONDS_PER_ROOT / (wall / len(chosen)),
        stages=tuple(
            Stage(name, seconds, seconds / targets, seconds / wall)
            for name, seconds in sorted(stages.items(), key=lambda item: -item[1])
        ),
    )
