"""From a planned shard to a validated store of its rollouts. Every planned row is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_assets.campaigns.plan import RolloutShardEntry, open_source, refuse_config_drift
from rollout_assets.config import CampaignConfig, SelectedDepthRetentionConfig
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.generator import RolloutDatasetWriterStats, RolloutGenerator
from rollout_assets.rollouts.records import SourceProvenance
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.writer import (
    OnStep,
    RolloutZarrStoreWriter,
    RolloutZarrWriteResult,
    ignore_step,
)
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore

__all__ = [
    "RolloutDatasetWriter",
    "RolloutDatasetWriterConfig",
    "RolloutDatasetWriterStats",
    "RowOutcome",
    "SelectedDepthRetentionConfig",
    "WrittenShard",
]

RolloutDatasetWriterConfig = CampaignConfig
"""What a dataset is written from is the campaign itself."""


@dataclass(frozen=True)
class RowOutcome:
    """What became of one planned row: its number of records, or why there are none."""

    sample_index: int
    sample_key: str
    records: int
    skipped: str | None
    detail: str | None


@dataclass(frozen=True, eq=False)
class WrittenShard:
    """One shard's rows as a validated store; ``store`` is None when every row was skipped."""

    store: RolloutZarrWriteResult | None
    rows: tuple[RowOutcome, ...]
    stats: RolloutDatasetWriterStats


class RolloutDatasetWriter:
    """Generate target-RRI rollout records and write a standalone Zarr store.

    Keeps meshes and kernels between shards, so that one writer per process serves many of them.
    """

    def __init__(self, config: CampaignConfig, source: VinOfflineStore | None = None) -> None:
        self.config = config
        self.source = source or open_source(config)
        self._scenes = SceneLoader(self.source.meshes, config.oracle.device)

    def write(
        self,
        entry: RolloutShardEntry,
        store_dir: Path,
        *,
        context: RolloutStoreManifestContext | None = None,
        on_step: OnStep = ignore_step,
        progress: ProgressSink = SILENT,
    ) -> WrittenShard:
        """Generate, write and deeply validate one shard at ``store_dir``, streaming; a store that fails is an error.

        Lineage names the source as it was when the shard was planned. Drift is refused before any work.
        """
        refuse_config_drift(entry, self.config)
        rows = entry.source_rows(self.source)
        generator = RolloutGenerator(
            self.config, self.source, provenance=_planned_provenance(entry), scenes=self._scenes
        )
        records: Counter[str] = Counter()
        written = None
        store_config = RolloutZarrStoreConfig.from_campaign(self.config)
        with RolloutZarrStoreWriter(store_dir, store_config, context=context, on_step=on_step) as writer:
            for record in generator.records(rows, progress):
                writer.append(record)
                records[record.lineage.source_sample_key or ""] += 1
            if records:
                written = writer.finish()
        if written is not None:
            validate_rollout_zarr_store(store_dir, deep=True).raise_if_wrong()
        return WrittenShard(written, _outcomes(rows, records, generator.stats), generator.stats)


def _planned_provenance(entry: RolloutShardEntry) -> SourceProvenance:
    return SourceProvenance(
        entry.source_cache_version, entry.source_manifest_hash, {entry.split: entry.split_manifest_hash}
    )


def _outcomes(
    rows: Sequence[IndexRow], records: Counter[str], stats: RolloutDatasetWriterStats
) -> tuple[RowOutcome, ...]:
    """One outcome per row; a row that was neither produced nor skipped is a fault of this package."""
    outcomes = []
    for row in rows:
        detail = stats.skipped_rows.get(row.sample_key)
        count = records[row.sample_key]
        assert count or detail is not None, f"{row.sample_key}: neither records nor a reason"
        reason = None if detail is None else stats.skip_reasons[row.sample_key]
        outcomes.append(RowOutcome(row.sample_index, row.sample_key, count, reason, detail))
    return tuple(outcomes)
