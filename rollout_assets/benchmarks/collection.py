"""What a server costs: the same requests run in this process and by a server process, one after the other.

Requests have seeds that were never run before, so nothing is answered from a cache. Both sides are the collector's own
agents with the same number of requests in flight; only one of them works at a time.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.plan import open_source
from rollout_assets.collection.agents import LocalAgent, RemoteAgent
from rollout_assets.collection.in_flight import RolloutAgent
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.remote.messages import RolloutRequest
from rollout_assets.serving.server.fleet import FleetOptions, server_fleet
from rollout_assets.testing.tiny_campaign import build_tiny_source, write_tiny_campaign

IN_FLIGHT = 8
TURNS = 5
"""Times that both sides are measured, alternating; the median counts."""

TINY_ROWS = 4
"""Source rows of the tiny campaign: its rollouts are short, so the way to a server and back weighs most."""

START_S, STOP_S = 120.0, 20.0


@dataclass(frozen=True)
class CollectionBenchmark:
    """Rollouts per second with ``in_flight`` rows at a time, in this process and on a server; medians over turns."""

    campaign: str
    rows: int
    in_flight: Annotated[int, Figure("rollouts in flight")]
    in_process_per_s: Annotated[float, Figure("rollouts in this process", "{:.1f} /s")]
    remote_per_s: Annotated[float, Figure("rollouts on a server", "{:.1f} /s")]
    ratio: Annotated[float, Figure("server, of this process", "{:.0%}")]
    """Remote rate over in-process rate: the median over turns of each turn's own ratio."""

    def __str__(self) -> str:
        return f"collection from campaign {self.campaign}"


def benchmark_collection(
    campaign: str | None, rows: int, in_flight: int = IN_FLIGHT, progress: ProgressSink = SILENT
) -> CollectionBenchmark:
    """Measure a campaign, or a tiny one made for it, with ``rows`` rollouts a turn and side."""
    with tempfile.TemporaryDirectory() as name:
        if campaign is None:
            campaign = str(write_tiny_campaign(Path(name), build_tiny_source(Path(name), TINY_ROWS)))
        config = load_campaign(campaign)
        pairs = asyncio.run(_measure(config, campaign, rows, in_flight, progress))
    local, remote = zip(*pairs, strict=True)
    ratio = median(there / here for here, there in pairs)
    return CollectionBenchmark(config.name, rows, in_flight, median(local), median(remote), ratio)


async def _measure(
    config: CampaignConfig, campaign: str, rows: int, in_flight: int, progress: ProgressSink
) -> list[tuple[float, float]]:
    """Rollouts per second of both sides, turn by turn; the first turn warms up and does not count."""
    here = LocalAgent(config)
    await here.identity()
    source_rows = [row.sample_index for split in config.source.splits for row in open_source(config).rows(split)]
    pairs = []
    async with server_fleet(FleetOptions(campaign, 1, START_S, STOP_S)) as urls:
        there = RemoteAgent(urls)
        for turn in range(TURNS + 1):
            seeds = range(1_000_000 * turn, 1_000_000 * turn + rows)
            places = zip(seeds, cycle(source_rows), cycle(config.recipes), strict=False)
            requests = [RolloutRequest(source_row=row, recipe=recipe, seed=seed) for seed, row, recipe in places]
            pairs.append((await _rate(here, requests, in_flight), await _rate(there, requests, in_flight)))
            progress(ProgressEvent("measuring", turn + 1, TURNS + 1, unit="turns"))
        await there.aclose()
    await here.aclose()
    return pairs[1:]


async def _rate(agent: RolloutAgent, requests: Sequence[RolloutRequest], in_flight: int) -> float:
    gate = asyncio.Semaphore(in_flight)

    async def one(request: RolloutRequest) -> None:
        async with gate:
            await agent.run(request)

    began = perf_counter()
    await asyncio.gather(*(one(request) for request in requests))
    return len(requests) / (perf_counter() - began)
