"""How promotion scales, in one run on one machine: many shards from the start, and one more on top.

Shards are made up; building them is not measured. What is asked: is promotion linear in the shards, what does one more
cost, does the longer store equal one made from the start, and does a reader of the previous version read on?
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Group
from rich.table import Table
from rich.text import Text

from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.config import CampaignConfig, SelectedDepthRetentionConfig, ShardConfig
from rollout_assets.files import tree_sizes
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.testing.fake_shards import FakeCampaign

TARGET_RATIO = 0.2
"""One more shard may cost at most this share of promoting all."""


@dataclass(frozen=True)
class PromotionBenchmark:
    """``seconds_by_shards``: promotion from the start by number of shards; one more is compared with the last."""

    rows_per_shard: int
    depth_px: int
    candidates: int
    store_megabytes: float
    seconds_by_shards: tuple[tuple[int, float], ...]
    seconds_one_more: float
    equals_from_start: bool
    reader_undisturbed: bool

    @property
    def ratio(self) -> float:
        """Cost of one more shard, as a share of promoting all."""
        return self.seconds_one_more / self.seconds_by_shards[-1][1]

    @property
    def linearity(self) -> float:
        """Seconds per shard of the largest promotion over those of the smallest; 1 or less is linear."""
        (few, least), *_, (many, most) = self.seconds_by_shards
        return (most / many) / (least / few)


def benchmark_promotion(
    shards: int = 50, rows_per_shard: int = 4, depth_px: int = 64, progress: ProgressSink = SILENT
) -> PromotionBenchmark:
    """Build ``shards`` + 1 made-up shards (depth 0: none kept), promote a quarter, a half, all, and one more."""
    with TemporaryDirectory(prefix="promotion-benchmark-") as folder:
        return _measure(Path(folder), shards, rows_per_shard, depth_px, progress)


def _measure(
    folder: Path, shards: int, rows_per_shard: int, depth_px: int, progress: ProgressSink
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
    before = reader.sidecar_manifest()["content_sha256"]
    first = reader.array("candidates/target_rri")
    grow(shards + 1)
    one_more = promote_rollout_campaign(config, progress=progress)
    undisturbed = (
        reader.sidecar_manifest()["content_sha256"] == before
        and reader.array("candidates/target_rri").tobytes() == first.tobytes()
        and reader.validate().ok
    )
    extended = one_more.version.path / "train"
    scratch = promote_rollout_campaign(config, incremental=False, progress=progress).version.path / "train"
    stored = sum(tree_sizes(extended).values())
    return PromotionBenchmark(
        rows_per_shard=rows_per_shard,
        depth_px=depth_px,
        candidates=RolloutZarrStoreReader(extended).num_rows("candidates"),
        store_megabytes=stored / 1e6,
        seconds_by_shards=tuple(seconds),
        seconds_one_more=one_more.seconds,
        equals_from_start=_digests(extended) == _digests(scratch),
        reader_undisturbed=undisturbed,
    )


def _digests(store_dir: Path) -> object:
    return RolloutZarrStoreReader(store_dir).sidecar_manifest()["content_sha256"]


def render_promotion_benchmark(result: PromotionBenchmark) -> Group:
    """The result as a table with its verdicts."""
    depth = f"depth {result.depth_px} px" if result.depth_px else "no depth"
    title = f"promotion: {result.candidates:,} candidates, {depth}, {result.store_megabytes:,.0f} MB"
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("shards", "seconds", "seconds a shard"):
        table.add_column(name, justify="right")
    for count, seconds in result.seconds_by_shards:
        table.add_row(str(count), f"{seconds:.2f}", f"{seconds / count:.3f}")
    table.add_row("one more", f"{result.seconds_one_more:.2f}", "")
    words = {True: "yes", False: "no"}
    return Group(
        table,
        Text(f"one more costs {result.ratio:.1%} of all (at most {TARGET_RATIO:.0%})"),
        Text(f"seconds a shard, most over fewest: {result.linearity:.2f}"),
        Text(f"equals promotion from the start: {words[result.equals_from_start]}"),
        Text(f"a reader of the previous version reads on: {words[result.reader_undisturbed]}"),
    )
