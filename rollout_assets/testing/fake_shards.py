"""Shards of fake records over a source that does not exist, to exercise everything behind the oracle.

The plan, the build protocol, the markers and the promotion are the real ones; only the rows and what happens in them
are fake. Benchmarks and tests of shards and promotion use them, because they would otherwise spend their time on ray
casting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter, WrittenShard
from rollout_assets.campaigns.plan import ShardPlan, write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.campaigns.shard import RolloutShardRunResult, run_rollout_shard
from rollout_assets.config import CampaignConfig, SplitConfig
from rollout_assets.overlap import Pausing
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.generator import RolloutDatasetWriterStats
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.rollouts.zarr_store.writer import OnStep, ignore_step
from rollout_assets.sources.layout import ALL, FORMAT_VERSION, IndexRow, source_manifest_hash, split_manifest_hash
from rollout_assets.sources.scene_splits import scene_splits
from rollout_assets.testing.fake_records import SyntheticRecords


@dataclass(frozen=True)
class FakeSource:
    """Looks like an opened source store with ``runs`` of rows by split, two rows to a scene, and no files at all."""

    runs: tuple[tuple[str, int], ...]
    root: Path = Path("made-up")
    splits: SplitConfig = field(default_factory=SplitConfig)
    manifest: ClassVar[Any] = SimpleNamespace(shards=())
    """A manifest without shards: there are no files to watch."""
    version: ClassVar[int] = FORMAT_VERSION
    meshes: ClassVar[Any] = SimpleNamespace(simplify=None, find=lambda _: None, scenes=frozenset)
    """A library without meshes."""

    @property
    def location(self) -> Path:
        """Where a real store would lie."""
        return self.root

    @property
    def source_manifest_hash(self) -> str:
        """Of the number of rows alone."""
        return source_manifest_hash({"rows": self.runs})

    def split_manifest_hash(self, split: str) -> str:
        """As a real store computes it."""
        return split_manifest_hash(self.source_manifest_hash, split, self.rows(split))

    def rows(self, split: str = ALL) -> tuple[IndexRow, ...]:
        """Rows in index order."""
        names = [name for name, count in self.runs for _ in range(count)]
        rows = (
            IndexRow(
                sample_index=index,
                sample_key=f"room-{name}-{index // 2:05d}/snippet-{index:05d}",
                scene_id=f"room-{name}-{index // 2:05d}",
                snippet_id=f"snippet-{index:05d}",
                split=name,
                shard_id="shard-000000",
                row=index,
            )
            for index, name in enumerate(names)
        )
        assigned = scene_splits(self.splits).assign(rows, str(self.root))
        return tuple(row for row in assigned if split in (ALL, row.split))

    def row(self, index: int) -> IndexRow:
        """One row."""
        return self.rows()[index]


@dataclass
class FakeGenerator:
    """Makes fake records where ``RolloutGenerator`` makes real ones; ``barren`` rows give none."""

    config: CampaignConfig
    targets: int = 3
    chains: int = 2
    shell: tuple[int, int] = (60, 60)
    barren: frozenset[int] = frozenset()
    stats: RolloutDatasetWriterStats = field(default_factory=RolloutDatasetWriterStats)

    def records(self, rows: Sequence[IndexRow], progress: ProgressSink = SILENT) -> Iterator[RolloutZarrRecord]:
        """Records row by row."""
        depth = self.config.selected_depth
        for row in rows:
            if row.sample_index in self.barren:
                reason = "NO_ACTOR_VISIBLE_SOURCE"
                self.stats.skipped_rows[row.sample_key] = self.stats.skip_reasons[row.sample_key] = reason
            else:
                yield from SyntheticRecords(
                    sources=1,
                    targets=self.targets,
                    chains=self.chains,
                    shell=self.shell,
                    depth_hw=(depth.height_px, depth.width_px) if depth.enabled else None,
                    first_sample=row.sample_index,
                    split=row.split,
                    source_split=None if row.own_split == row.split else row.own_split,
                    seed=self.config.seed,
                )
            self.stats.rows += 1
            progress(ProgressEvent("generating", self.stats.rows, len(rows), unit="rows"))


class FakeWriter(RolloutDatasetWriter):
    """Writes a shard as its base does, with the records of a ``FakeGenerator``."""

    def __init__(self, config: CampaignConfig, source: Any, **options: Any) -> None:
        super().__init__(config, source)
        self.options = options

    def writing(
        self,
        entry: RolloutShardEntry,
        store_dir: Path,
        *,
        context: RolloutStoreManifestContext | None = None,
        **how: Any,
    ) -> Pausing[WrittenShard]:
        """Names no campaign: none made these records, and validation would hold them against it."""
        named = context or RolloutStoreManifestContext.here()
        return super().writing(entry, store_dir, context=replace(named, writer_config=None), **how)

    def generator(self, entry: RolloutShardEntry) -> Any:
        """Knows nothing of the entry: its rows say what to make."""
        return FakeGenerator(self.config, **self.options)


@dataclass(frozen=True)
class FakeCampaign:
    """A campaign whose source and writer are fakes."""

    config: CampaignConfig
    source: Any
    writer: Any

    @classmethod
    def of(cls, config: CampaignConfig, rows: Sequence[tuple[str, int]], **options: Any) -> FakeCampaign:
        """``rows`` are runs of rows by split, in index order; ``options`` are those of ``FakeGenerator``."""
        source = FakeSource(tuple(rows), splits=config.split)
        return cls(config, source, FakeWriter(config, source, **options))

    def plan(self) -> ShardPlan:
        """Plan all rows."""
        return write_rollout_shard_manifest_from_config(self.config, store=self.source)

    def run(self, entry: RolloutShardEntry, on_step: OnStep = ignore_step) -> RolloutShardRunResult:
        """Build one shard the way every shard is built."""
        return run_rollout_shard(self.config, entry, source=self.source, writer=lambda: self.writer, on_step=on_step)

    def run_all(self) -> None:
        """Plan and build every shard."""
        for entry in self.plan().entries:
            self.run(entry)
