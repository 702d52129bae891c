"""``bench cluster``: shards a minute through Dagster on one and on two slots of a Ray cluster on this machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rollout_assets.benchmarks.measure import Steps
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.config import load_campaign
from rollout_assets.defs.backfills import ShardThroughput, backfill_is_running, shard_throughput
from rollout_assets.defs.home import open_instance
from rollout_assets.defs.keys import GPU_POOL, PLAN, ROLLOUT_SHARDS, VALIDATED_SHARDS, VIN_SOURCE_ROWS, CampaignKeys
from rollout_assets.errors import CampaignError, ConfigError
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.testing.local_cluster import LocalCluster, local_cluster
from rollout_assets.testing.local_daemon import wait_until
from rollout_assets.testing.tiny_campaign import build_tiny_source, write_tiny_campaign

ROWS_PER_SHARD = 24
HEAVIER = """
extends = "tiny.toml"
name = "{name}"
automation.shards_per_run = 1
targets.top_k = 4
oracle = {{ width_px = 160, height_px = 160 }}
shards = {{ rows_per_shard = {rows}, output_dir = "{name}" }}
candidates.mixture = [{{position = "forward_local", count = 24}}, {{position = "target_bearing_local", count = 24}}]

[[recipes]]
name = "greedy"
policy = "oracle_greedy"
horizon = 2
"""
"""A campaign whose shards take about half a minute of one core, as real ones take minutes."""

SLOTS_LINE = "max_concurrent_runs: &slots 2"
"""The line of the template with the number of slots."""

LONGEST_S = 3_600.0


@dataclass(frozen=True)
class ClusterThroughput:
    """Shards a minute without an engine and on one and two slots, and where the seconds of a slot go."""

    shards: Annotated[int, Figure("shards a turn")]
    plain_s: Annotated[float, Figure("a shard in one plain process", "{:.1f} s")]
    one_per_minute: Annotated[float, Figure("shards a minute, one slot", "{:.2f}")]
    two_per_minute: Annotated[float, Figure("shards a minute, two slots", "{:.2f}")]
    slot_s: Annotated[float, Figure("a shard on the only slot", "{:.1f} s")]
    engine_s: Annotated[float, Figure("of it outside of steps: Ray and Dagster", "{:.1f} s")]
    starting_s: Annotated[float, Figure("of that from the launch to the run's beginning", "{:.1f} s")]
    steps_s: Annotated[float, Figure("of it in steps: build, checks, validation", "{:.1f} s")]
    engine_of_two_s: Annotated[float, Figure("outside of steps, with two slots", "{:.1f} s")]
    steps_of_two_s: Annotated[float, Figure("in steps, with two slots", "{:.1f} s")]
    load: Annotated[float, Figure("load of the machine before", "{:.1f}")]
    cores: Annotated[int, Figure("cores")]

    def __str__(self) -> str:
        return "a campaign through Dagster on Ray"

    @property
    def speedup(self) -> Annotated[float, Figure("two slots over one", "{:.2f} x", ">= 1.80 x")]:
        """Shards a minute of two slots over those of one."""
        return self.two_per_minute / self.one_per_minute

    @property
    def overhead_s(self) -> Annotated[float, Figure("a shard takes longer than in a plain process by", "{:.1f} s")]:
        """What a slot takes for a shard besides what a plain, warm process takes."""
        return self.slot_s - self.plain_s

    @property
    def engine_share(self) -> Annotated[float, Figure("the engine's share of that", "{:.0%}")]:
        """Ray's and Dagster's part of the overhead; the rest is the cold process, the checks and the validation."""
        return self.engine_s / self.overhead_s


def benchmark_cluster(template: Path, shards: int = 8, progress: ProgressSink = SILENT) -> ClusterThroughput:
    """Run the same shards plainly, on one slot and on two, each time into an empty folder."""
    if not template.is_file() or SLOTS_LINE not in template.read_text():
        raise ConfigError(f"{template}: not the template infra/cluster/ray/dagster.yaml of a checkout")
    if shards % 2:
        raise ConfigError(f"shards must be even, so that two slots share them, got {shards}")
    step = Steps(progress, "bench cluster", 4, "ways")
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("a source")
        source = build_tiny_source(folder, 2 * ROWS_PER_SHARD * (shards + 1))
        write_tiny_campaign(folder, source, "tiny")
        plain, one, two = (_campaign(folder, way) for way in ("plain", "one", "two"))
        shard_ids = _shards_of_one_split(plain, shards)
        step("without an engine")
        plain_s = _plain_seconds(plain, shard_ids)
        with local_cluster(folder / "cluster", template, [one, two], nodes=1) as cluster:
            step("one slot")
            alone = _through_dagster(cluster, one, shard_ids, template, 1)
            cluster.add_node()
            step("two slots")
            both = _through_dagster(cluster, two, shard_ids, template, 2)
        step()
    return ClusterThroughput(
        shards=shards,
        plain_s=plain_s,
        one_per_minute=alone.shards_per_minute,
        two_per_minute=both.shards_per_minute,
        slot_s=alone.slot_s,
        engine_s=alone.engine_s,
        starting_s=alone.starting_s,
        steps_s=alone.steps_s,
        engine_of_two_s=both.engine_s,
        steps_of_two_s=both.steps_s,
        load=load,
        cores=os.cpu_count() or 1,
    )


def _campaign(folder: Path, name: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(HEAVIER.format(name=name, rows=ROWS_PER_SHARD))
    return path


def _shards_of_one_split(campaign: Path, count: int) -> list[str]:
    """The first shards after the one that warms up; those of a split are alike."""
    run_campaign(load_campaign(campaign), shard_ids=[shard_id_of(0)])
    return [shard_id_of(number) for number in range(1, count + 1)]


def _plain_seconds(campaign: Path, shard_ids: Sequence[str]) -> float:
    began = time.perf_counter()
    if not run_campaign(load_campaign(campaign), shard_ids=shard_ids).ok:
        raise CampaignError("a measured run failed, so its time means nothing; look at the machine's disk and memory")
    return (time.perf_counter() - began) / len(shard_ids)


def _through_dagster(
    cluster: LocalCluster, campaign: Path, shard_ids: Sequence[str], template: Path, slots: int
) -> ShardThroughput:
    """Backfill the shards with so many slots, and return the times of their runs."""
    keys = CampaignKeys.of(campaign)
    settings = template.read_text().replace(SLOTS_LINE, SLOTS_LINE.replace("2", str(slots)))
    (cluster.home / "dagster.yaml").write_text(settings)
    cluster.dagster(
        "instance", "concurrency", "set", GPU_POOL, str(slots)
    )  # Postgres keeps the number of the last turn
    cluster.materialize(keys.job(PLAN))
    cluster.start_daemon()
    chain = [keys.key(asset).path for asset in (VIN_SOURCE_ROWS, ROLLOUT_SHARDS, VALIDATED_SHARDS)]
    backfill = cluster.backfill(chain, shard_ids)
    with cluster.variables(), open_instance(cluster.home) as instance:
        wait_until("the backfill", lambda: not backfill_is_running(instance, backfill), LONGEST_S, every_s=2.0)
        cluster.stop_daemon()
        return shard_throughput(instance, keys, backfill, slots)
