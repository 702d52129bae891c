"""``bench dagster --backfill``: the same shards headless and by a backfill through a real daemon, in one run.

Both ways build the shards from one source into empty folders, check and validate them. Headless is one process with a
run for each shard; the backfill has a daemon, a server of definitions and run processes, whose processor seconds all
count. Planning is not measured, nor is the start of the daemon, which is there before somebody asks for a backfill, nor
a Postgres server, which serves a cluster from elsewhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rollout_assets.benchmarks.measure import ProcessorMeter, Seconds, Steps
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.defs.backfills import backfill_is_running, runs_of_backfill
from rollout_assets.defs.headless import HeadlessRunner
from rollout_assets.defs.home import open_instance
from rollout_assets.defs.keys import (
    OBSERVE,
    PLAN,
    ROLLOUT_SHARDS,
    SHARD,
    VALIDATED_SHARDS,
    VIN_SOURCE_ROWS,
    CampaignKeys,
)
from rollout_assets.defs.records import validated_versions
from rollout_assets.errors import CampaignError
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.testing.local_daemon import LocalDaemon, local_daemon, wait_until
from rollout_assets.testing.postgres import URL_VARIABLE, daemon_on_postgres, database_bytes
from rollout_assets.testing.tiny_campaign import build_tiny_source, write_tiny_campaign
from rollout_assets.workers import run_in_new_process

LONGEST_S = 6 * 3600.0
"""How long a backfill may take."""

SETTINGS = """\
telemetry: {enabled: false}
nux: {enabled: false}
concurrency:
  pools: {default_limit: 2, granularity: op}
  runs: {max_concurrent_runs: 4}
run_queue: {dequeue_interval_seconds: 1}
run_monitoring: {enabled: true, poll_interval_seconds: 10}
"""
"""What the instance that comes with the project has, for both ways."""


@dataclass(frozen=True)
class HomeSize:
    """What an instance keeps on disk."""

    files: int
    bytes: int

    @classmethod
    def of(cls, home: Path) -> HomeSize:
        """All files below a home, and its Postgres database if it has one.

        Files of a write-ahead log are gone when the database is closed.
        """
        sizes = [path.stat().st_size for path in home.rglob("*") if path.is_file()]
        url = os.environ.get(URL_VARIABLE) if "postgres" in (home / "dagster.yaml").read_text() else None
        return cls(len(sizes), sum(sizes) + (0 if url is None else database_bytes(url)))

    def __sub__(self, before: HomeSize) -> HomeSize:
        return HomeSize(self.files - before.files, self.bytes - before.bytes)


@dataclass(frozen=True)
class WayMeasured:
    """What some shards took one way."""

    seconds: Seconds
    kept: HomeSize
    runs: int


@dataclass(frozen=True)
class BackfillCost:
    """A shard headless and in a backfill."""

    shards: Annotated[int, Figure("shards")]
    headless_s: Annotated[float, Figure("a shard headless", "{:.2f} s")]
    backfill_s: Annotated[float, Figure("a shard in a backfill", "{:.2f} s")]
    headless_cpu_s: Annotated[float, Figure("a shard headless, processor", "{:.2f} s")]
    backfill_cpu_s: Annotated[float, Figure("a shard in a backfill, processor", "{:.2f} s")]
    headless_runs: Annotated[int, Figure("runs headless")]
    backfill_runs: Annotated[int, Figure("runs of the backfill")]
    headless_files: Annotated[float, Figure("files a shard in the home, headless", "{:.2f}")]
    backfill_files: Annotated[float, Figure("files a shard in the home, backfill", "{:.2f}")]
    headless_kib: Annotated[float, Figure("history a shard, headless", "{:.0f} KiB")]
    backfill_kib: Annotated[float, Figure("history a shard, backfill", "{:.0f} KiB")]

    def __str__(self) -> str:
        return "a backfill through the daemon, beside a headless run"

    @property
    def wall_ratio(self) -> Annotated[float, Figure("backfill over headless, wall", "{:.2f} x", "<= 2 x")]:
        """Wall seconds of the backfill over those of the headless run."""
        return self.backfill_s / self.headless_s

    @property
    def cpu_ratio(self) -> Annotated[float, Figure("backfill over headless, processor", "{:.2f} x", "<= 2 x")]:
        """Processor seconds of the backfill over those of the headless run."""
        return self.backfill_cpu_s / self.headless_cpu_s


def measure_backfill(shards: int = 320, postgres: bool = False, progress: ProgressSink = SILENT) -> BackfillCost:
    """Build ``shards`` one-row shards headless, and again by a backfill, with SQLite or Postgres both times."""
    instance = daemon_on_postgres if postgres else local_daemon
    step = Steps(progress, "bench dagster", 3, "ways")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("a source")
        source = build_tiny_source(folder, shards)
        headless, backfill = (write_tiny_campaign(folder, source, way) for way in ("headless", "backfill"))
        shard_ids = [shard_id_of(number) for number in range(shards)]
        with instance(folder / "daemon", [backfill], SETTINGS) as daemon:
            step("headless")
            alone = _headless(headless, folder / "alone", daemon, shard_ids)
            step("by a backfill")
            through = _backfill(backfill, daemon, shard_ids)
        step()
    return BackfillCost(
        shards=shards,
        headless_s=alone.seconds.wall / shards,
        backfill_s=through.seconds.wall / shards,
        headless_cpu_s=alone.seconds.cpu / shards,
        backfill_cpu_s=through.seconds.cpu / shards,
        headless_runs=alone.runs,
        backfill_runs=through.runs,
        headless_files=alone.kept.files / shards,
        backfill_files=through.kept.files / shards,
        headless_kib=alone.kept.bytes / shards / 2**10,
        backfill_kib=through.kept.bytes / shards / 2**10,
    )


def _headless(campaign: Path, home: Path, daemon: LocalDaemon, shard_ids: Sequence[str]) -> WayMeasured:
    """One process, its start and its imports included, as of somebody who types the command."""
    home.mkdir(parents=True)
    shutil.copy(daemon.home / "dagster.yaml", home)
    run_in_new_process(_plan, campaign, home)
    before = HomeSize.of(home)
    with ProcessorMeter(os.getpid()) as meter:
        began = time.perf_counter()
        run_in_new_process(_run_shards, campaign, home, tuple(shard_ids))
        wall = time.perf_counter() - began
    return WayMeasured(Seconds(wall, meter.seconds), HomeSize.of(home) - before, len(shard_ids))


def _plan(campaign: Path, home: Path) -> None:
    runner = HeadlessRunner(str(campaign), str(home))
    with runner.session():
        _succeed(all(runner.run(job).ok for job in (OBSERVE, PLAN)))


def _run_shards(campaign: Path, home: Path, shard_ids: Sequence[str]) -> None:
    runner = HeadlessRunner(str(campaign), str(home))
    with runner.session():
        _succeed(all(runner.run(SHARD, shard_id).ok for shard_id in shard_ids))


def _backfill(campaign: Path, daemon: LocalDaemon, shard_ids: Sequence[str]) -> WayMeasured:
    keys = CampaignKeys.of(campaign)
    run_in_new_process(_plan, campaign, daemon.home)
    before = HomeSize.of(daemon.home)
    daemon.start_daemon()
    chain = [keys.key(asset).path for asset in (VIN_SOURCE_ROWS, ROLLOUT_SHARDS, VALIDATED_SHARDS)]
    with ProcessorMeter(os.getpid()) as meter:
        backfill = daemon.backfill(chain, shard_ids)
        began = time.perf_counter()
        with open_instance(daemon.home) as instance:
            wait_until("the backfill", lambda: not backfill_is_running(instance, backfill), LONGEST_S, every_s=0.5)
            wall = time.perf_counter() - began
            _succeed(len(validated_versions(instance, keys)) == len(shard_ids))
            runs = runs_of_backfill(instance, backfill)
    daemon.stop_daemon()
    return WayMeasured(Seconds(wall, meter.seconds), HomeSize.of(daemon.home) - before, runs)


def _succeed(ok: bool) -> None:
    if not ok:
        raise CampaignError("a measured run failed, so its time means nothing; look at the machine's disk and memory")
