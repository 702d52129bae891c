"""``bench dagster``: what Dagster costs; the same shards run plainly and through an instance, in one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated

from rollout_assets.benchmarks.measure import Steps, timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, load_campaign
from rollout_assets.defs.headless import HeadlessRunner, materialize_campaign
from rollout_assets.defs.keys import OBSERVE, PLAN, SHARD
from rollout_assets.defs.splits import SECONDS_PER_SPLIT
from rollout_assets.errors import CampaignError
from rollout_assets.inspection.second_opinion import second_opinion
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.reports.store_report import write_store_report
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.testing.tiny_campaign import build_tiny_source, write_tiny_campaign


@dataclass(frozen=True)
class DagsterOverhead:
    """Seconds per shard, wall and CPU, without Dagster and with it."""

    shards: Annotated[int, Figure("shards")]
    plain_s: Annotated[float, Figure("a shard without Dagster", "{:.2f} s")]
    dagster_s: Annotated[float, Figure("a shard with Dagster", "{:.2f} s")]
    plain_cpu_s: float
    dagster_cpu_s: float

    def __str__(self) -> str:
        return "what Dagster adds to a shard"

    @property
    def added_s(self) -> Annotated[float, Figure("Dagster adds to a shard", "{:.2f} s")]:
        """Wall seconds that Dagster adds to one shard, checks, validation and metadata included."""
        return self.dagster_s - self.plain_s

    @property
    def share(self) -> Annotated[float, Figure("Dagster adds, of the plain time", "{:.0%}")]:
        """What Dagster adds, as a share of the plain time."""
        return self.added_s / self.plain_s

    @property
    def added_cpu_s(self) -> Annotated[float, Figure("Dagster adds in CPU time", "{:.2f} s")]:
        """CPU seconds that Dagster adds to one shard, which neighbours on the machine do not change."""
        return self.dagster_cpu_s - self.plain_cpu_s


def measure_dagster_overhead(shards: int = 40, progress: ProgressSink = SILENT) -> DagsterOverhead:
    """Run ``shards`` one-row shards both ways in this process, after one that warms up kernels and imports."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = build_tiny_source(folder, shards + 2)
        plain, dagster = (write_tiny_campaign(folder, source, way) for way in ("plain", "dagster"))
        config = load_campaign(plain)
        run_campaign(config, shard_ids=["shard-000000"])
        shard_ids = [shard_id_of(number) for number in range(1, shards + 1)]
        runner = HeadlessRunner(str(dagster), str(folder / "home"))
        with runner.session():
            for job, shard in ((OBSERVE, None), (PLAN, None), (SHARD, "shard-000000")):
                _succeed(runner.run(job, shard).ok)
            return _compare(
                lambda: _succeed(run_campaign(config, shard_ids=shard_ids).ok),
                lambda: _succeed(all(runner.run(SHARD, shard).ok for shard in shard_ids)),
                shards,
                progress,
            )


def measure_demo_overhead(source: Path, progress: ProgressSink = SILENT) -> DagsterOverhead:
    """The demo campaign on its source, both ways and with the same work: shards, promotion, validation, report, label.

    Each way uses one process, after a shard that warms up kernels.
    """
    with tempfile.TemporaryDirectory() as name:
        warm, plain, dagster = (_copy_demo(Path(name) / way, source) for way in ("warm", "plain", "dagster"))
        planned = run_campaign(load_campaign(warm), shard_ids=["shard-000000"]).planned
        return _compare(
            lambda: _run_plainly(load_campaign(plain)),
            lambda: _succeed(materialize_campaign(dagster, home=Path(name) / "home").ok),
            planned,
            progress,
        )


def _compare(
    plain: Callable[[], None], dagster: Callable[[], None], shards: int, progress: ProgressSink
) -> DagsterOverhead:
    step = Steps(progress, "bench dagster", 2, "ways")
    step("without Dagster")
    without = timed(plain)
    step("with Dagster")
    through = timed(dagster)
    step()
    return DagsterOverhead(
        shards, without.wall / shards, through.wall / shards, without.cpu / shards, through.cpu / shards
    )


def _succeed(ok: bool) -> None:
    if not ok:
        raise CampaignError("a measured run failed, so its time means nothing; look at the machine's disk and memory")


def _run_plainly(config: CampaignConfig) -> None:
    """What the graph does, by calling the rooms below."""
    _succeed(run_campaign(config).ok)
    version = promote_rollout_campaign(config).version
    for child in version.children:
        validate_rollout_zarr_store(child, deep=True).raise_if_wrong()
        reader = RolloutZarrStoreReader(child)
        count = config.quality.second_opinions_per_split
        opinion = second_opinion(reader, 1.0, version.number, config, limit=count, budget_s=SECONDS_PER_SPLIT)
        _succeed(opinion.agrees)
        page = CampaignLayout.of(config).root / f"{child.name}.html"
        write_store_report(reader, page, campaign=config, opinion=opinion)


def _copy_demo(folder: Path, source: Path) -> Path:
    text = (resources.files("rollout_assets") / "campaigns" / "shipped" / f"{DEMO_CAMPAIGN}.toml").read_text("utf-8")
    folder.mkdir()
    (folder / "source").symlink_to(source.resolve(), target_is_directory=True)
    path = folder / "demo.toml"
    path.write_text(text)
    return path
