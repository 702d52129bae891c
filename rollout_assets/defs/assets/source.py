"""The observed source: a data version that changes with every row, and what the source holds."""

from __future__ import annotations

import dagster as dg

from rollout_assets.defs.keys import VIN_OFFLINE_STORE
from rollout_assets.defs.metadata import Metadata, data_version
from rollout_assets.defs.step import CampaignStep


def vin_offline_store(step: CampaignStep) -> dg.ObserveResult:
    """Observe the source."""
    return dg.ObserveResult(
        asset_key=step.keys.key(VIN_OFFLINE_STORE),
        data_version=dg.DataVersion(source_data_version(step)),
        metadata=source_metadata(step),
    )


def source_data_version(step: CampaignStep) -> str:
    """Changes with every row that is added, removed or altered in the source's manifest or index."""
    rows = [row.model_dump(mode="json") for row in step.source.rows()]
    return data_version({"manifest": step.source.source_manifest_hash, "index": rows})


def source_metadata(step: CampaignStep) -> Metadata:
    """What the source holds."""
    rows = step.source.rows()
    return {
        "dagster/row_count": len(rows),
        "rows_train": len(step.source.rows("train")),
        "rows_val": len(step.source.rows("val")),
        "scenes": len({row.scene_id for row in rows}),
        "path": dg.MetadataValue.path(str(step.source.location)),
        "source_manifest_hash": step.source.source_manifest_hash,
    }
