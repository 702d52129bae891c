"""Recompute what a store holds from its lineage and seed, and compare every stored value with the new one.

The recomputed records go through the same writer into a temporary store, so that what is compared is what would be
stored: masks, running sums, relative poses, float16 depth and all. Zero differences are the promise, on the device that
made the store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl

from rollout_assets.config import CampaignConfig, Split
from rollout_assets.errors import ReplayRefused
from rollout_assets.inspection.context import require_row
from rollout_assets.inspection.diff import StoreDiff, StorePart, compare_parts
from rollout_assets.inspection.provenance import refuse_other_campaign
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.driving import RolloutStart, drive
from rollout_assets.rollouts.evaluation import StateEvaluator
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.records import SourceProvenance, refused_record, rollout_record
from rollout_assets.rollouts.roots import PreparedSample, RefusedTarget, TargetedRoot
from rollout_assets.rollouts.trace import RolloutLineage, RolloutZarrRecord, recipe_of
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import ROLLOUTS, TARGETS
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore


@dataclass(frozen=True, eq=False)
class Replay:
    """What came of a replay. In ``diff`` the stored values are ``a``, the recomputed ones ``b``."""

    subject: str
    diff: StoreDiff

    @property
    def identical(self) -> bool:
        """Whether every stored value was met."""
        return self.diff.equal

    @property
    def differences(self) -> pl.DataFrame:
        """One row per column that differs."""
        return self.diff.differences


def replay(
    reader: RolloutZarrStoreReader,
    rollout_row_id: int,
    campaign: CampaignConfig,
    *,
    source: VinOfflineStore | None = None,
    tolerance: float = 0.0,
) -> Replay:
    """Recompute one chain from its lineage and seed, and compare every field of it, its target and its source row.

    Only the chain's own recipe is run. A campaign whose hashes are not the lineage's is ``ReplayRefused`` before any
    work. ``source`` defaults to the campaign's; ``tolerance`` is for stores that were made on another device.
    """
    require_row(reader, "rollouts", rollout_row_id)
    lineage = reader.rollout(rollout_row_id).lineage
    refuse_other_campaign(reader, lineage, campaign)
    assert lineage.source_row_id is not None and lineage.target_row_id is not None
    generator = _generator(campaign, source, reader, lineage.source_row_id)
    prepared = generator.prepare(_source_row(generator, _sample_key(lineage)))
    record = _recomputed(generator, prepared, lineage)
    only = tuple(chain for chain in record.chains if chain.chain_id == lineage.chain_id)
    rows = (np.array([row]) for row in (lineage.source_row_id, lineage.target_row_id, rollout_row_id))
    part = StorePart.of(reader, *rows)
    return Replay(lineage.rollout_id, _compare(part, [replace(record, chains=only)], campaign, tolerance))


def replay_sources(
    reader: RolloutZarrStoreReader,
    campaign: CampaignConfig,
    source_row_ids: Iterable[int] | None = None,
    *,
    source: VinOfflineStore | None = None,
    tolerance: float = 0.0,
    progress: ProgressSink = SILENT,
) -> Iterator[Replay]:
    """Replay whole source rows, all by default: every target, refused ones too, every recipe, every chain.

    A target or a chain that is missing in the store, or should not be there, is a difference like any other.
    """
    source_rows = list(range(reader.num_rows("sources")) if source_row_ids is None else source_row_ids)
    owner = reader.array(ROLLOUTS.path("source_row_id"))
    target_owner = reader.array(TARGETS.path("source_row_id"))
    keys = reader.table("sources", columns=("sample_key_id",), decode=True)["sample_key_id"]
    for done, source_row in enumerate(source_rows, start=1):
        require_row(reader, "sources", source_row)
        rollouts, targets = np.flatnonzero(owner == source_row), np.flatnonzero(target_owner == source_row)
        if len(rollouts):
            refuse_other_campaign(reader, reader.rollout(int(rollouts[0])).lineage, campaign)
        generator = _generator(campaign, source, reader, source_row)
        records = list(generator.records_of(generator.prepare(_source_row(generator, keys[source_row]))))
        part = StorePart.of(reader, np.array([source_row]), targets, rollouts)
        yield Replay(keys[source_row], _compare(part, records, campaign, tolerance))
        progress(ProgressEvent("replaying", done, len(source_rows), unit="source rows"))


def source_of(campaign: CampaignConfig) -> VinOfflineStore:
    """The source store that a campaign names."""
    source = campaign.source
    return VinOfflineStore.open(
        source.store_dir, source.mesh_dirs, splits=campaign.split, simplify=campaign.oracle.simplify
    )


def _generator(
    campaign: CampaignConfig, source: VinOfflineStore | None, reader: RolloutZarrStoreReader, source_row: int
) -> RolloutGenerator:
    """Names the source as the store does: by its state when the shard was planned, whatever was appended since."""
    row = reader.table("sources", decode=True, start=source_row, stop=source_row + 1).row(0, named=True)
    version, manifest_hash, split, split_hash = (
        row[f"{name}_id"] or ""
        for name in ("source_cache_version", "source_offline_store_manifest_hash", "split", "split_manifest_hash")
    )
    provenance = SourceProvenance(version, manifest_hash, {split: split_hash})
    return RolloutGenerator(campaign, source or source_of(campaign), provenance=provenance)


def _source_row(generator: RolloutGenerator, sample_key: str) -> IndexRow:
    """A row in the split in which it is stored, because no label depends on the split; campaigns may have moved it."""
    (split,) = generator.provenance.split_hashes
    return generator.store.row(sample_key).in_split(cast(Split, split))


def _recomputed(generator: RolloutGenerator, prepared: PreparedSample, lineage: RolloutLineage) -> RolloutZarrRecord:
    campaign, recipe_name = generator.config, recipe_of(lineage.rollout_id)
    recipe = next((recipe for recipe in campaign.recipes if recipe.name == recipe_name), None)
    if recipe is None:
        names = ", ".join(recipe.name for recipe in campaign.recipes)
        raise ReplayRefused(
            f"{lineage.rollout_id}: campaign {campaign.name} has no recipe {recipe_name!r}; it has {names}"
        )
    root = _target(prepared, lineage)
    if isinstance(root, RefusedTarget):
        mesh_version = prepared.mesh_version or ""
        return refused_record(prepared.actor, root.match, root.shell, campaign, generator.provenance, mesh_version)
    evaluator = StateEvaluator(campaign, generator.scorer)
    (chains,) = drive([RolloutStart(root, campaign.seed, recipe)], evaluator)
    depths = evaluator.selected_depths([(root, chains)]).get(root, {})
    return rollout_record(
        root.actor, root.match, recipe, campaign, generator.provenance, root.mesh_version, chains, depths
    )


def _target(prepared: PreparedSample, lineage: RolloutLineage) -> TargetedRoot | RefusedTarget:
    """The target of a chain; one that was stored without labels, because its row has no true box, still has none."""
    for target in prepared.targets:
        if target.match.target.target_id == lineage.target_id:
            unlabelled = lineage.gt_match_status == "unmatched_gt"
            if isinstance(target, TargetedRoot) or (unlabelled and target.shell is not None):
                return target
            raise ReplayRefused(f"{lineage.rollout_id}: target {lineage.target_id} is now refused: {target.reason}")
    why = prepared.skip_reason or "other targets are selected"
    raise ReplayRefused(f"{lineage.rollout_id}: target {lineage.target_id} is not selected any more: {why}")


def _compare(
    part: StorePart, records: list[RolloutZarrRecord], campaign: CampaignConfig, tolerance: float
) -> StoreDiff:
    """Stored values against recomputed ones; a column that the store lacks has no values to compare."""
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        path = Path(folder) / "replayed.zarr"
        write_rollout_zarr_store(path, records, RolloutZarrStoreConfig.from_campaign(campaign))
        diff = compare_parts(part, StorePart.whole(RolloutZarrStoreReader(path)), tolerance=tolerance)
    not_stored = (pl.col("what") == "only_in_b") & (pl.col("column") != "")
    return replace(diff, differences=diff.differences.filter(~not_stored))


def _sample_key(lineage: RolloutLineage) -> str:
    if lineage.source_sample_key is None:
        raise ReplayRefused(f"{lineage.rollout_id}: its source row has no sample key")
    return lineage.source_sample_key
