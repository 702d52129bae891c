"""``bench campaign``: a campaign of very many shards: planning, status and sensors, each in a process of its own.

The source and the finished shards are real as far as anything here reads them; ``testing.many_shards`` says how they
are made. The instance is a real one on disk with one partition per shard.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from rollout_assets.benchmarks.measure import Steps, peak_memory_mib, timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.columns.marker_columns import SETTLED_NS
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import open_source, read_rollout_shard_manifest
from rollout_assets.config import load_campaign
from rollout_assets.defs.headless import HeadlessRunner
from rollout_assets.defs.keys import PLAN
from rollout_assets.defs.ticking import record_validated, sensor_tick
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.testing.many_shards import build_large_source, finish_shards, write_large_campaign
from rollout_assets.workers import run_in_new_process


@dataclass(frozen=True)
class Measured:
    """What one process took: wall and processor seconds, and the most memory."""

    what: Annotated[str, Figure("what")]
    wall_s: Annotated[float, Figure("wall", "{:.2f} s")]
    cpu_s: Annotated[float, Figure("processor", "{:.2f} s")]
    peak_mib: Annotated[float, Figure("memory", "{:.0f} MiB")]


@dataclass(frozen=True)
class ManyShards:
    """Commands are whole processes, start included; ticks are within a process that has loaded the definitions."""

    shards: Annotated[int, Figure("planned shards", "{:,}")]
    built: Annotated[int, Figure("finished shards", "{:,}")]
    rows: Annotated[int, Figure("source rows", "{:,}")]
    measured: Annotated[tuple[Measured, ...], Figure("campaign of very many shards")]

    def __str__(self) -> str:
        return "plan under 60 s, status under 5 s, a tick with nothing new under 2 s, memory under 1 GB"


def benchmark_many_shards(
    shards: int = 100_000, rows_per_shard: int = 1, built: int | None = None, progress: ProgressSink = SILENT
) -> ManyShards:
    """Measure a campaign of ``shards`` shards, of which ``built`` are finished at the end; None means all."""
    with TemporaryDirectory(prefix="many-shards-benchmark-") as folder:
        return _measure(Path(folder), shards, rows_per_shard, shards if built is None else built, progress)


def _measure(folder: Path, shards: int, rows_per_shard: int, built: int, progress: ProgressSink) -> ManyShards:
    step = Steps(progress, "many shards", 9)
    step("make a source")
    source = build_large_source(folder / "source", shards * rows_per_shard)
    campaign = write_large_campaign(folder, source, rows_per_shard=rows_per_shard)
    measured = []

    def command(what: str, *arguments: str) -> None:
        step(what)
        measured.append(_command(what, *arguments, "--campaign", str(campaign)))

    command("campaign plan", "campaign", "plan")
    command("campaign plan, nothing new", "campaign", "plan")
    command("campaign status, none built", "campaign", "status")
    home = folder / "home"
    step("ticks, none built")
    measured += run_in_new_process(_ticks, campaign, home, "new_snippets", "none built", ("asks for planning",))
    measured.append(run_in_new_process(_plan_run, campaign, home))
    measured += run_in_new_process(_ticks, campaign, home, "new_snippets", "none built", ("asks for shards",))
    step("finish shards")
    run_in_new_process(_finish, campaign, built)
    time.sleep(SETTLED_NS / 1e9)
    command(f"campaign status, {built:,} built, first look", "campaign", "status")
    command(f"campaign status, {built:,} built", "campaign", "status")
    step("ticks, finished shards validated")
    state, turns = f"{built:,} built", ("looks at all", "nothing new")
    run_in_new_process(record_validated, campaign, home, 0, built - 1)
    measured += run_in_new_process(_ticks, campaign, home, "promotion", state, turns)
    run_in_new_process(record_validated, campaign, home, built - 1, built)
    measured += run_in_new_process(_ticks, campaign, home, "new_snippets", state, turns)
    step()
    return ManyShards(shards, built, shards * rows_per_shard, tuple(measured))


def _command(what: str, *arguments: str) -> Measured:
    """Run a command of this package as somebody would type it; an exit code of 2 only says what is not finished."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "rollout_assets", *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 2):
        raise subprocess.CalledProcessError(process.returncode, arguments)
    return Measured(what, time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10)


def _finish(campaign: Path, built: int) -> None:
    config = load_campaign(campaign)
    finish_shards(CampaignLayout.of(config), read_rollout_shard_manifest(config)[:built], open_source(config))


def _plan_run(campaign: Path, home: Path) -> Measured:
    """The run that a tick asks for: the source is observed, everything is planned, and every shard has a partition."""
    runner = HeadlessRunner(str(campaign), str(home))

    def plan() -> None:
        with runner.instance:
            outcome = runner.run(PLAN)
        if not outcome.ok:
            raise RuntimeError(f"the planning of the benchmark failed: {outcome.error}")

    return Measured("run of the plan", *timed(plan), peak_memory_mib())


def _ticks(campaign: Path, home: Path, sensor: str, state: str, turns: Sequence[str]) -> list[Measured]:
    """Evaluations of a sensor one after another, each with the cursor that the last one left."""
    cursor: str | None = None

    def evaluate() -> None:
        nonlocal cursor
        cursor = sensor_tick(campaign, home, sensor, cursor)

    measured = []
    for turn in turns:
        seconds = timed(evaluate)
        measured.append(Measured(f"tick of {sensor}, {state}: {turn}", *seconds, peak_memory_mib()))
    return measured
