"""Shards of fake records over a source that does not exist, to exercise everything behind the oracle.

The plan, the build protocol, the markers and the promotion are the real ones; only the rows and what happens in them
are fake. Benchmarks and tests of shards and promotion use them, because they would otherwise spend their time on ray
casting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollout_assets.campaigns.dataset_writer import WrittenShard
from rollout_assets.campaigns.markers import RowOutcome, validate_and_seal
from rollout_assets.campaigns.plan import (
    RolloutShardEntry,
    ShardPlan,
    write_rollout_shard_manifest_from_config,
)
from rollout_assets.campaigns.shard import RolloutShardRunResult, run_rollout_shard
from rollout_assets.config import CampaignConfig
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.generator import RolloutDatasetWriterStats
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.rollouts.zarr_store.writer import OnStep, RolloutZarrStoreWriter, ignore_step
from rollout_assets.sources.layout import ALL, IndexRow, source_manifest_hash, split_manifest_hash
from rollout_assets.testing.fake_records import SyntheticRecords


@dataclass(frozen=True)
class FakeSource:
    """Looks like an opened source store with ``runs`` of rows by split, two rows to a scene, and no files at all."""

    runs: tuple[tuple[str, int], ...]
    root: Path = Path("made-up")

    @property
    def source_manifest_hash(self) -> str:
        """Of the number of rows alone."""
        return source_manifest_hash({"rows": self.runs})

    def split_manifest_hash(self, split: str) -> str:
        """As a real store computes it."""
        return split_manifest_hash(self.source_manifest_hash, split, self.rows(split))

    @property
    def manifest(self) -> Any:
        """A manifest without shards: there are no files to watch."""
        return SimpleNamespace(shards=())

    @property
    def meshes(self) -> Any:
        """A library without meshes."""
        return SimpleNamespace(find=lambda _: None)

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
        return tuple(row for row in rows if split in (ALL, row.split))

    def row(self, index: int) -> IndexRow:
        """One row."""
        return self.rows()[index]


@dataclass(frozen=True)
class FakeWriter:
    """Writes fake records where ``RolloutDatasetWriter`` writes real ones; ``barren`` rows give none."""

    config: CampaignConfig
    targets: int = 3
    chains: int = 2
    shell: tuple[int, int] = (60, 60)
    barren: frozenset[int] = frozenset()

    def write(
        self,
        entry: RolloutShardEntry,
        store_dir: Path,
        *,
        rows: Sequence[IndexRow],
        context: RolloutStoreManifestContext | None = None,
        on_step: OnStep = ignore_step,
        progress: ProgressSink = SILENT,
    ) -> WrittenShard:
        """One shard, deeply validated."""
        depth = self.config.selected_depth
        config = RolloutZarrStoreConfig.from_campaign(self.config)
        outcomes = []
        with RolloutZarrStoreWriter(store_dir, config, context=context, on_step=on_step) as writer:
            for row in rows:
                count = 0
                if row.sample_index not in self.barren:
                    records = SyntheticRecords(
                        sources=1,
                        targets=self.targets,
                        chains=self.chains,
                        shell=self.shell,
                        depth_hw=(depth.height_px, depth.width_px) if depth.enabled else None,
                        first_sample=row.sample_index,
                        split=row.split,
                        seed=self.config.seed,
                    )
                    for record in records:
                        writer.append(record)
                        count += 1
                reason = None if count else "NO_ACTOR_VISIBLE_SOURCE"
                outcomes.append(
                    RowOutcome(
                        sample_index=row.sample_index,
                        sample_key=row.sample_key,
                        records=count,
                        skipped=reason,
                        detail=reason,
                    )
                )
                progress(ProgressEvent("generating", len(outcomes), len(entry.rows), unit="rows"))
            has_records = any(outcome.records for outcome in outcomes)
            if has_records:
                writer.finish()
        sealed = validate_and_seal(store_dir) if has_records else None
        return WrittenShard(sealed, tuple(outcomes), RolloutDatasetWriterStats(rows=len(outcomes)))


@dataclass(frozen=True)
class FakeCampaign:
    """A campaign whose source and writer are fakes."""

    config: CampaignConfig
    source: Any
    writer: Any

    @classmethod
    def of(cls, config: CampaignConfig, rows: Sequence[tuple[str, int]], **options: Any) -> FakeCampaign:
        """``rows`` are runs of rows by split, in index order; ``options`` are those of ``FakeWriter``."""
        return cls(config, FakeSource(tuple(rows)), FakeWriter(config, **options))

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
