"""``bench promotion``: how promotion scales in one run: many shards from the start, and one more on top.

Shards are fake; building them is not measured. The questions: is promotion linear in the shards, what does one more
cost, does the longer store equal one made from the start, does a reader of the previous version read on, and what does
one more tiny shard among hundreds cost until it is promoted and checked?
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from rollout_assets.benchmarks.one_more_shard import Stage, measure_one_more
from rollout_assets.benchmarks.results import Figure
from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.config import CampaignConfig, SelectedDepthRetentionConfig, ShardConfig
from rollout_assets.files import tree_sizes
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.testing.fake_shards import FakeCampaign


@dataclass(frozen=True)
class PromotionBenchmark:
    """``seconds_by_shards``: promotion from the start by number of shards; one more is compared with the last."""

    rows_per_shard: int
    depth_px: int
    candidates: int
    store_megabytes: float
    seconds_by_shards: Annotated[tuple[tuple[int, float], ...], Figure("promoting {} shards", "{:.2f} s")]
    seconds_one_more: Annotated[float, Figure("promoting one more", "{:.2f} s")]
    seconds_by_workers: Annotated[
        tuple[tuple[int, float], ...], Figure("promoting all again, {} worker(s), wall", "{:.2f} s")
    ]
    cpu_by_workers: Annotated[
        tuple[tuple[int, float], ...], Figure("promoting all again, {} worker(s), processor", "{:.2f} s")
    ]
    workers_equal: Annotated[bool, Figure("several workers give the same content", goal="yes")]
    equals_from_start: Annotated[bool, Figure("equals promotion from the start", goal="yes")]
    reader_undisturbed: Annotated[bool, Figure("a reader of the previous version reads on", goal="yes")]
    tiny_shards: Annotated[int, Figure("tiny shards to which one is added")]
    stages: Annotated[tuple[Stage, ...], Figure("tiny shards, promoted and checked")]

    def __str__(self) -> str:
        depth = f"depth {self.depth_px} px" if self.depth_px else "no depth"
        return f"promotion: {self.candidates:,} candidates, {depth}, {self.store_megabytes:,.0f} MB"

    @property
    def ratio(self) -> Annotated[float, Figure("one more, of promoting all", "{:.1%}", "<= 20%")]:
        """Cost of one more shard, as a share of promoting all."""
        return self.seconds_one_more / self.seconds_by_shards[-1][1]

    @property
    def one_of_many(self) -> Annotated[float, Figure("one more tiny shard, of all, processor", "{:.1%}", "<= 10%")]:
        """Processor seconds until one more tiny shard is promoted and checked, as a share of those for all."""
        return sum(stage.one_cpu_s for stage in self.stages) / sum(stage.all_cpu_s for stage in self.stages)

    @property
    def speedup(self) -> Annotated[float, Figure("one worker over the most workers, wall", "{:.2f}")]:
        """How many times as fast the most workers are."""
        return self.seconds_by_workers[0][1] / self.seconds_by_workers[-1][1]

    @property
    def linearity(self) -> Annotated[float, Figure("seconds a shard, most over fewest shards", "{:.2f}", "<= 1")]:
        """Seconds per shard of the largest promotion over those of the smallest; 1 or less is linear."""
        (few, least), *_, (many, most) = self.seconds_by_shards
        return (most / many) / (least / few)


def benchmark_promotion(
    shards: int = 50,
    rows_per_shard: int = 4,
    depth_px: int = 64,
    workers: int = 2,
    tiny_shards: int = 320,
    progress: ProgressSink = SILENT,
) -> PromotionBenchmark:
    """Build ``shards`` + 1 fake shards (depth 0: none kept), promote a quarter, a half, all, and one more.

    All are promoted again by one worker and by ``workers``, to see what more of them bring. ``tiny_shards`` of one row
    are promoted and checked, and then one more.
    """
    with TemporaryDirectory(prefix="promotion-benchmark-") as folder:
        stages = measure_one_more(Path(folder) / "tiny", tiny_shards, progress)
        measured = _measure(Path(folder) / "shards", shards, rows_per_shard, depth_px, workers, progress)
        return replace(measured, tiny_shards=tiny_shards, stages=stages)


def _measure(
    folder: Path, shards: int, rows_per_shard: int, depth_px: int, workers: int, progress: ProgressSink
) -> PromotionBenchmark:
    depth = SelectedDepthRetentionConfig(enabled=depth_px > 0, width_px=max(depth_px, 1), height_px=max(depth_px, 1))
    config = CampaignConfig(
        name="promotion-benchmark",
        selected_depth=depth,
        shards=ShardConfig(rows_per_shard=rows_per_shard, output_dir=folder),
    )
    built = 0

    def grow(count: int) -> None:
        nonlocal built
        campaign = FakeCampaign.of(config, [("train", count * rows_per_shard)])
        for entry in campaign.plan().entries[built:]:
            campaign.run(entry)
            built += 1
            progress(ProgressEvent("build shards", built, shards + 1, unit="shards"))

    seconds = []
    for count in sorted({max(shards // 4, 1), max(shards // 2, 1), shards}):
        grow(count)
        seconds.append((count, promote_rollout_campaign(config, incremental=False, progress=progress).seconds))
    reader = RolloutZarrStoreReader(folder / "rollouts.zarr" / "train")
    before = _contents(reader)
    grow(shards + 1)
    one_more = promote_rollout_campaign(config, progress=progress)
    undisturbed = _contents(reader) == before and reader.validate().ok
    extended = one_more.version.path / "train"
    promotions = {count: _by_workers(config, count, progress) for count in sorted({1, workers})}
    from_start, by_workers = promotions[1].store, promotions[workers].store
    stored = sum(tree_sizes(extended).values())
    longer = RolloutZarrStoreReader(extended)
    return PromotionBenchmark(
        rows_per_shard=rows_per_shard,
        depth_px=depth_px,
        candidates=longer.num_rows("candidates"),
        store_megabytes=stored / 1e6,
        seconds_by_shards=tuple(seconds),
        seconds_one_more=one_more.seconds,
        seconds_by_workers=tuple((count, promotion.wall_s) for count, promotion in promotions.items()),
        cpu_by_workers=tuple((count, promotion.cpu_s) for count, promotion in promotions.items()),
        workers_equal=_contents(RolloutZarrStoreReader(by_workers)) == _contents(RolloutZarrStoreReader(from_start)),
        equals_from_start=_contents(longer) == _contents(RolloutZarrStoreReader(from_start)),
        reader_undisturbed=undisturbed,
        tiny_shards=0,
        stages=(),
    )


@dataclass(frozen=True)
class _Promotion:
    """A promotion from the start: its seconds, those of its worker processes included, and its child store."""

    wall_s: float
    cpu_s: float
    store: Path


def _by_workers(config: CampaignConfig, workers: int, progress: ProgressSink) -> _Promotion:
    before = os.times()
    result = promote_rollout_campaign(config, incremental=False, workers=workers, progress=progress)
    used = [after - earlier for after, earlier in zip(os.times()[:4], before[:4], strict=True)]
    return _Promotion(result.seconds, sum(used), result.version.path / "train")


def _contents(reader: RolloutZarrStoreReader) -> tuple[object, bytes]:
    """The digest of a store, and the bytes of one of its arrays."""
    return reader.sidecar_manifest()["content_sha256"], reader.array("candidates/target_rri").tobytes()
