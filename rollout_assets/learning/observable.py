"""Whether what the actor knew can be told from a store and a source: the columns, and that the two belong together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import SourceRowMissing, StoreError
from rollout_assets.observations.observation import MOTION_COLUMNS
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import (
    ABSENT,
    CANDIDATE_DIAGNOSTICS,
    CANDIDATES,
    ROLLOUTS,
    SELECTED_DEPTH,
    SOURCES,
    STEPS,
    TARGETS,
)
from rollout_assets.sources.vin_store import VinOfflineStore

COLUMNS_READ: dict[str, tuple[str, ...]] = {
    STEPS.name: ("rollout_row_id", "step_index", "selected_candidate_row_id", "num_candidates"),
    ROLLOUTS.name: ("source_row_id", "target_row_id", "root_pose_world", "horizon"),
    CANDIDATES.name: ("pose_world_cam", "position_id", "actor_action_mask"),
    CANDIDATE_DIAGNOSTICS.name: MOTION_COLUMNS,
    SELECTED_DEPTH.name: ("depth_m", "valid_mask", "focal_px", "principal_point_px"),
    TARGETS.name: (
        "target_pose_world_object",
        "target_extents",
        "target_class_name_id",
        "target_confidence",
        "target_semidense_support_count",
        "target_evl_support_count",
        "target_effective_support_count",
    ),
    SOURCES.name: (
        "sample_key_id",
        "source_offline_store_manifest_hash_id",
        "source_shard_id",
        "source_shard_row",
    ),
}
"""Every column of a store that an observation is made of, by table. No label and no truth is among them."""


def require_observable(reader: RolloutZarrStoreReader) -> None:
    """Refuse a store that does not hold what the views taken showed, or lacks another column that is needed."""
    if not reader.attributes.get("selected_depth_enabled"):
        raise StoreError(
            f"{reader.location}: has no selected depth, so what the views taken showed is not known; "
            "make it again with selected_depth.enabled = true"
        )
    paths = (f"{table}/{name}" for table, names in COLUMNS_READ.items() for name in names)
    if missing := [path for path in paths if not reader.has(path)]:
        raise StoreError(f"{reader.location}: observations need {', '.join(missing)}, which the store does not have")
    if reader.attributes.get("candidate_diagnostics_enabled") is False:
        raise StoreError(f"{reader.location}: observations need candidate_diagnostics, which the store did not keep")


def require_source_of(reader: RolloutZarrStoreReader, source: VinOfflineStore) -> None:
    """Refuse a source that the store was not made from; rows that were appended to it since do not matter."""
    rows = read_columns(reader, SOURCES, 0, None)
    config, keys = reader.strings("config"), reader.strings("source_key")
    for number in np.unique(rows["source_offline_store_manifest_hash_id"]).tolist():
        made_from = None if number == ABSENT else config[number]
        if made_from is None or not source.had_manifest(made_from):
            raise StoreError(
                f"{reader.location}: was made from a source with manifest {made_from}, but {source.location} has "
                f"{source.source_manifest_hash} and did not have that one before an append either; "
                "give the source that the campaign names"
            )
    shards = reader.strings("source_shard")
    places = (rows[name].tolist() for name in ("sample_key_id", "source_shard_id", "source_shard_row"))
    for key_id, shard_id, shard_row in zip(*places, strict=True):
        _require_row(reader, source, keys[key_id], shards[shard_id], shard_row)


def _require_row(
    reader: RolloutZarrStoreReader, source: VinOfflineStore, sample_key: str, shard: str, shard_row: int
) -> None:
    try:
        row = source.row(sample_key)
    except SourceRowMissing:
        raise StoreError(
            f"{reader.location}: began from row {sample_key!r}, which {source.location} does not have; "
            "give the source that the campaign names"
        ) from None
    if (row.shard_id, row.row) != (shard, shard_row):
        raise StoreError(
            f"{reader.location}: began from row {sample_key!r} in {shard} row {shard_row}, but in {source.location} it "
            f"lies in {row.shard_id} row {row.row}; give the source that the campaign names"
        )


def read_columns(reader: RolloutZarrStoreReader, table: Table, start: int, stop: int | None) -> dict[str, NDArray[Any]]:
    """Rows of the columns of a table that observations are made of."""
    return reader.columns(table, COLUMNS_READ[table.name], start, stop)
