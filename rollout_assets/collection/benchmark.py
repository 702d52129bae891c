"""What a server costs: the same rows run in this process and by a server process, one after the other.

Rows have seeds that were never run before, so nothing is answered from a cache. Both sides are the same service with
the same number of rows in flight; only one of them works at a time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

import httpx

from rollout_assets.collection.service import RolloutService
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import ServerError
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.rollout_rows import RolloutResult, RolloutRow
from rollout_assets.sources.synthetic.config import SyntheticConfig
from rollout_assets.sources.synthetic.store import build_synthetic_store

IN_FLIGHT = 8
TURNS = 5
"""Times that both sides are measured, alternating; the median counts."""

READY_S = 120.0

Run = Callable[[RolloutRow], Awaitable[RolloutResult]]

_CAMPAIGN = """
name = "measured"
seed = 5
source.store_dir = "source"
targets.top_k = 1
oracle = { width_px = 16, height_px = 16 }
selected_depth = { width_px = 16, height_px = 16 }

[[candidates.mixture]]
position = "target_bearing_local"
count = 12

[[recipes]]
name = "oracle_greedy"
policy = "oracle_greedy"
"""
"""Tiny rollouts, for which the way to a server and back weighs most."""


@dataclass(frozen=True)
class CollectionBenchmark:
    """Rollouts per second with ``in_flight`` rows at a time, in this process and on a server; medians over turns."""

    campaign: str
    rows: int
    in_flight: int
    in_process_per_s: float
    remote_per_s: float
    ratio: float
    """Remote rate over in-process rate: the median over turns of each turn's own ratio."""


def benchmark_collection(
    campaign: str | None, rows: int, in_flight: int = IN_FLIGHT, progress: ProgressSink = SILENT
) -> CollectionBenchmark:
    """Measure a campaign, or a tiny one made for it, with ``rows`` rollouts a turn and side."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = str(_tiny_campaign(folder)) if campaign is None else campaign
        config = load_campaign(file)
        with _server(file, folder) as url:
            pairs = asyncio.run(_measure(config, url, rows, in_flight, progress))
    here, there = zip(*pairs, strict=True)
    ratio = median(remote / local for local, remote in pairs)
    return CollectionBenchmark(config.name, rows, in_flight, median(here), median(there), ratio)


async def _measure(
    config: CampaignConfig, url: str, rows: int, in_flight: int, progress: ProgressSink
) -> list[tuple[float, float]]:
    """Rollouts per second of both sides, turn by turn."""
    service = RolloutService(config)
    await service.warm_up()
    pairs = []
    async with httpx.AsyncClient(base_url=url, timeout=READY_S, trust_env=False) as http:

        async def remote(row: RolloutRow) -> RolloutResult:
            answer = await http.post("/run", json=row.model_dump(mode="json", by_alias=True, exclude_defaults=True))
            return RolloutResult.model_validate_json(answer.raise_for_status().content)

        known = [row.sample_index for row in service.store.rows() if row.split in config.source.splits]
        for turn in range(TURNS + 1):
            seeds = range(1_000_000 * turn, 1_000_000 * turn + rows)
            asked = [
                RolloutRow(
                    source_row=known[seed % len(known)], recipe=config.recipes[seed % len(config.recipes)], seed=seed
                )
                for seed in seeds
            ]
            pairs.append((await _rate(service.run, asked, in_flight), await _rate(remote, asked, in_flight)))
            progress(ProgressEvent("measuring", turn + 1, TURNS + 1, unit="turns"))
    await service.aclose()
    return pairs[1:]


async def _rate(run: Run, rows: Sequence[RolloutRow], in_flight: int) -> float:
    gate = asyncio.Semaphore(in_flight)

    async def one(row: RolloutRow) -> RolloutResult:
        async with gate:
            return await run(row)

    began = perf_counter()
    await asyncio.gather(*(one(row) for row in rows))
    return len(rows) / (perf_counter() - began)


@contextmanager
def _server(campaign: str, folder: Path) -> Iterator[str]:
    """A server process for a campaign; ended at the end."""
    ready = folder / "ready"
    call = "from rollout_assets.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", call, "serve", "-c", campaign, "--ready-file", str(ready)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = monotonic() + READY_S
        while not ready.exists():
            if process.poll() is not None or monotonic() > deadline:
                raise ServerError(f"the measured server did not come up; try 'rollout-assets serve -c {campaign}'")
            sleep(0.05)
        yield ready.read_text().strip()
    finally:
        process.terminate()
        process.wait()


def _tiny_campaign(folder: Path) -> Path:
    options = SyntheticConfig(scenes=2, snippets_per_scene=2, faces=30_000, min_points=500, max_points=2_000, workers=1)
    build_synthetic_store(folder / "source", options)
    path = folder / "measured.toml"
    path.write_text(_CAMPAIGN)
    return path
