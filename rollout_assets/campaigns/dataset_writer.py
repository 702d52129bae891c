"""From a planned shard to a validated store of its rollouts. Every planned row is accounted for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout_assets.campaigns.markers import RowOutcome, SealedStore, validate_and_seal
from rollout_assets.campaigns.plan import open_source, planned_rows
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.config import CampaignConfig
from rollout_assets.overlap import Behind, Pausing, without_pause
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.generator import RolloutDatasetWriterStats, RolloutGenerator
from rollout_assets.rollouts.policy_registry import require_policies
from rollout_assets.rollouts.records import SourceProvenance
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.rollouts.zarr_store.writer import OnStep, RolloutZarrStoreWriter, ignore_step
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore

RolloutDatasetWriterConfig = CampaignConfig
"""What a dataset is written from is the campaign itself."""


@dataclass(frozen=True, eq=False)
class WrittenShard:
    """One shard's rows as a validated and sealed store; ``store`` is None when every row was skipped.

    ``mesh_versions`` are the scenes that were scored, each with every version that a record names.
    """

    store: SealedStore | None
    rows: tuple[RowOutcome, ...]
    stats: RolloutDatasetWriterStats
    mesh_versions: frozenset[tuple[str | None, str | None]]


class RolloutDatasetWriter:
    """Generate target-RRI rollout records and write a standalone Zarr store.

    Keeps meshes and kernels between shards, so that one writer per process serves many of them. A policy of a recipe
    that cannot be used is ``PolicyRefused`` before any shard is begun.
    """

    def __init__(self, config: CampaignConfig, source: VinOfflineStore | None = None) -> None:
        require_policies(config.recipes)
        self.config = config
        self.source = source or open_source(config)
        self._scenes = SceneLoader(self.source.meshes, config.oracle)

    def write(
        self,
        entry: RolloutShardEntry,
        store_dir: Path,
        *,
        rows: Sequence[IndexRow] | None = None,
        context: RolloutStoreManifestContext | None = None,
        on_step: OnStep = ignore_step,
        progress: ProgressSink = SILENT,
    ) -> WrittenShard:
        """Generate, write, deeply validate and seal one shard at ``store_dir``; a store that fails is an error.

        Lineage names the source as it was when the shard was planned. ``rows`` are the entry's source rows, if the
        caller has held them against the plan; otherwise that is done here, before any work.
        """
        work = self.writing(entry, store_dir, rows=rows, context=context, on_step=on_step, progress=progress)
        return without_pause(work)

    def writing(
        self,
        entry: RolloutShardEntry,
        store_dir: Path,
        *,
        rows: Sequence[IndexRow] | None = None,
        context: RolloutStoreManifestContext | None = None,
        on_step: OnStep = ignore_step,
        progress: ProgressSink = SILENT,
    ) -> Pausing[WrittenShard]:
        """``write``, with a pause when all rows are scored: the rest leaves device and meshes to the next shard."""
        rows = planned_rows(entry, self.config, self.source) if rows is None else rows
        generator = self.generator(entry)
        records: Counter[int | None] = Counter()
        scored: set[tuple[str | None, str | None]] = set()
        store_config = RolloutZarrStoreConfig.from_campaign(self.config)
        with RolloutZarrStoreWriter(store_dir, store_config, context=context, on_step=on_step) as writer:
            with Behind(writer.append) as append:  # compressed and written while the next row is scored
                for record in generator.records(rows, progress):
                    append(record)
                    records[record.lineage.source_sample_index] += 1
                    scored.add((record.lineage.scene_id, record.lineage.mesh_version))
            yield
            if records:
                writer.finish()
        sealed = validate_and_seal(store_dir) if records else None
        outcomes = _outcomes(rows, records, generator.stats)
        return WrittenShard(sealed, outcomes, generator.stats, frozenset(scored))

    def generator(self, entry: RolloutShardEntry) -> RolloutGenerator:
        """What makes the records of one shard."""
        provenance = SourceProvenance(
            entry.source_cache_version, entry.source_manifest_hash, {entry.split: entry.split_manifest_hash}
        )
        return RolloutGenerator(self.config, self.source, provenance=provenance, scenes=self._scenes)


def _outcomes(
    rows: Sequence[IndexRow], records: Counter[int | None], stats: RolloutDatasetWriterStats
) -> tuple[RowOutcome, ...]:
    """One outcome per row; a row that was neither produced nor skipped is a fault of this package."""
    outcomes = []
    for row in rows:
        detail = stats.skipped_rows.get(row.sample_key)
        count = records[row.sample_index]
        assert count or detail is not None, f"{row.sample_key}: neither records nor a reason"
        outcomes.append(
            RowOutcome(
                sample_index=row.sample_index,
                sample_key=row.sample_key,
                records=count,
                skipped=stats.skip_reasons.get(row.sample_key),
                detail=detail,
            )
        )
    return tuple(outcomes)
