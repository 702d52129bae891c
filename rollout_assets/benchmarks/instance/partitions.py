"""``bench dagster --partitions N``: a quiet tick, and what the UI asks for, of a campaign with very many shards.

The instance is a real one on disk in which every shard is validated; the UI is a real web server, asked as a browser
asks it. Shards are made as ``testing.many_shards`` says.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rollout_assets.benchmarks.measure import Seconds, Steps, timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import open_source, read_rollout_shard_manifest
from rollout_assets.config import load_campaign
from rollout_assets.defs.headless import HeadlessRunner
from rollout_assets.defs.keys import OBSERVE, PLAN, VALIDATED_SHARDS, CampaignKeys
from rollout_assets.defs.ticking import record_validated, sensor_tick
from rollout_assets.errors import CampaignError
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.testing.local_daemon import LocalDaemon, local_daemon
from rollout_assets.testing.many_shards import build_large_source, finish_shards, write_large_campaign
from rollout_assets.testing.postgres import daemon_on_postgres
from rollout_assets.workers import run_in_new_process

SETTINGS = "telemetry: {enabled: false}\nnux: {enabled: false}\n"

PAGES = {
    "partitions of an asset": """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        partitionKeysByDimension { name partitionKeys }
        assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } }
        partitionStats { numMaterialized numFailed } } } }""",
    "last materializations": """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        assetMaterializations(limit: 200) { partition timestamp runId metadataEntries { label } } } } }""",
    "checks of an asset": """query ($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
        assetChecksOrError { ... on AssetChecks { checks { name executionForLatestMaterialization { status } } } }
        } } }""",
}
"""What the UI asks for -> the query."""


@dataclass(frozen=True)
class ManyPartitions:
    """Wall seconds unless a figure says otherwise.

    A tick is made by a process that has loaded the definitions, as the daemon's server has.
    """

    partitions: Annotated[int, Figure("partitions", "{:,}")]
    tick_s: Annotated[float, Figure("a tick with nothing new", "{:.2f} s", "< 2 s")]
    tick_cpu_s: Annotated[float, Figure("a tick with nothing new, processor", "{:.2f} s")]
    first_s: Annotated[dict[str, float], Figure("{}, first time", "{:.2f} s")]
    again_s: Annotated[dict[str, float], Figure("{}", "{:.2f} s", "< 3 s")]

    def __str__(self) -> str:
        return "a campaign with very many partitions"


def measure_partitions(
    partitions: int = 5_000, postgres: bool = False, progress: ProgressSink = SILENT
) -> ManyPartitions:
    """Make a campaign of so many validated shards, evaluate its sensor, and ask for its pages."""
    instance = daemon_on_postgres if postgres else local_daemon
    step = Steps(progress, "bench dagster", 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step("make the shards")
        campaign = write_large_campaign(folder, build_large_source(folder / "source", partitions))
        with instance(folder, [campaign], SETTINGS) as daemon:
            run_in_new_process(_finish, campaign, daemon.home)
            step("ticks")
            tick = run_in_new_process(_quiet_tick, campaign, daemon.home)
            step("pages")
            key = {"key": {"path": list(CampaignKeys.of(campaign).key(VALIDATED_SHARDS).path)}}
            first, again = _pages(daemon, key)
        step()
    return ManyPartitions(partitions, *tick, first, again)


def _finish(campaign: Path, home: Path) -> None:
    runner = HeadlessRunner(str(campaign), str(home))
    with runner.session():
        if not all(runner.run(job).ok for job in (OBSERVE, PLAN)):
            raise CampaignError("the campaign could not be planned; look at the machine's disk and memory")
    config = load_campaign(campaign)
    planned = read_rollout_shard_manifest(config)
    finish_shards(CampaignLayout.of(config), planned, open_source(config))
    record_validated(campaign, home, 0, len(planned))


def _quiet_tick(campaign: Path, home: Path) -> Seconds:
    cursor = sensor_tick(campaign, home, "new_snippets", None)
    if cursor is None:
        raise CampaignError("the sensor asked for runs, although every shard is validated")
    return timed(lambda: sensor_tick(campaign, home, "new_snippets", cursor))


def _pages(daemon: LocalDaemon, variables: object) -> Sequence[dict[str, float]]:
    """Every page, twice: page -> seconds."""
    url = daemon.start_web()
    return [{page: timed(lambda: _ask(url, query, variables)).wall for page, query in PAGES.items()} for _ in "12"]  # noqa: B023


def _ask(url: str, query: str, variables: object) -> None:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        problems = json.load(answer).get("errors")
    if problems:
        raise CampaignError(f"the web server did not answer a query: {problems[0]['message']}")
