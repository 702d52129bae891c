"""The promoted store as an asset."""

from __future__ import annotations

import dagster as dg

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.merging.row_counts import COUNTED_TABLES
from rollout_assets.campaigns.merging.sample import ReadSample
from rollout_assets.campaigns.promotion import PromotionResult, promote_rollout_campaign
from rollout_assets.campaigns.promotion_gate import refuse_unvalidated
from rollout_assets.campaigns.versions import PromotedVersion, PromotionRecord, current_name
from rollout_assets.defs.checks.unreached import checks_withdrawn_on_failure
from rollout_assets.defs.metadata import Metadata, config_hashes, data_version, page, store_metadata, table
from rollout_assets.defs.records import validated_versions
from rollout_assets.defs.step import CampaignStep, LogProgress
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader


def rollouts_zarr(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Promote all validated shards."""
    sample = ReadSample.new()
    with checks_withdrawn_on_failure(step):
        refuse_unvalidated(step.config, validated_versions(step.instance, step.keys), sample)
        result = promote_rollout_campaign(
            step.config,
            incremental=not step.anew,
            allow_fewer=step.allow_fewer,
            sample=sample,
            invocation=step.invocation(),
            progress=LogProgress(step.log),
        )
    return dg.MaterializeResult(
        metadata=_promotion_metadata(step, result),
        data_version=dg.DataVersion(store_data_version(result.version.record)),
    )


def store_data_version(record: PromotionRecord) -> str:
    """The version of a promoted store: of everything that it was made from."""
    return data_version(record.model_dump(mode="json"))


def version_metadata(layout: CampaignLayout, version: PromotedVersion) -> Metadata:
    """Metadata of what a promoted version holds; the same for every run that records it."""
    readers = [RolloutZarrStoreReader(path) for path in version.children]
    counts = [_row_counts(reader) for reader in readers]
    return {
        "version": version.name,
        "version_number": version.number,
        **store_metadata(readers),
        "dagster/row_count": sum(row["candidates"] for row in counts),
        **{name: sum(row[name] for row in counts) for name in COUNTED_TABLES},
        "shards": len(version.shard_ids),
        "rows_by_split": table(counts),
        "bytes": sum(size for reader in readers for size in reader.files.sizes().values()),
        "path": dg.MetadataValue.path(str(layout.store_location)),
        "version_path": dg.MetadataValue.path(str(version.location)),
    }


def _promotion_metadata(step: CampaignStep, result: PromotionResult) -> Metadata:
    layout, version, splits = CampaignLayout.of(step.config), result.version, result.version.record.splits
    made = [{"split": part.split, "made": part.how, "new_shards": part.new_shards} for part in result.splits]
    return page(
        {
            "verdict": f"readers get {current_name(layout)}; {version.name} is complete"
            + (", with fewer rows than before, as the run config allows" if result.fewer else ""),
            **version_metadata(layout, version),
            "made": table(made or [{"split": name, "made": "was there", "new_shards": 0} for name in splits]),
            **({"fewer_rows": table([{"readers have fewer": line} for line in result.fewer])} if result.fewer else {}),
            "damaged": "; ".join(result.damaged),
            "sample_seed": result.sample_seed,
            "seconds": round(result.seconds, 3),
            **config_hashes(step.config),
            "source_manifest_hash": step.source.source_manifest_hash,
            **{f"split_manifest_hash_{name}": step.source.split_manifest_hash(name) for name in splits},
        }
    )


def _row_counts(reader: RolloutZarrStoreReader) -> Metadata:
    split = reader.location.rsplit("/", 1)[-1]
    return {"split": split} | {name: reader.num_rows(name) for name in COUNTED_TABLES}
