"""A store at a glance, for people: what it holds, its first rows, its schema, and any table as a file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from rollout_assets.errors import StoreError
from rollout_assets.files import publish_path, scratch_path
from rollout_assets.rollouts.zarr_store.open_store import OpenStore
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES, GROUPS, Q_H, REASON_BITS_PATH, TABLES, TEXT_PATHS


@dataclass(frozen=True)
class StoreInfo:
    """What a store says of itself, without decoding more than its masks."""

    location: str
    schema_version: str
    created_at_utc: str
    split: str
    target_protocol: str
    discount_gamma: float
    horizon: int
    counts: dict[str, int]
    trainable_states: int
    valid_candidates: int
    selected_depth: str
    files: int
    megabytes: float
    manifest_sha256: str
    config_hashes: dict[str, list[str]]


@dataclass(frozen=True)
class SchemaRow:
    """One array of the schema."""

    array: str
    dtype: str
    row_shape: str
    dictionary: str
    table: str


@dataclass(frozen=True)
class MaskCounts:
    """How many of a store's candidates there are, and how many of them pass each mask."""

    candidates: int
    valid: int
    labelled: int
    trainable: int
    selected: int


def mask_counts(store: OpenStore) -> MaskCounts:
    """Count the candidates that may be taken, have a label, may be trained on, and were selected."""
    masks = store.columns(CANDIDATES, ("actor_action_mask", "oracle_label_mask", "q_train_mask", "selected_mask"))
    return MaskCounts(store.num_rows(CANDIDATES.name), *(int(np.count_nonzero(mask)) for mask in masks.values()))


def store_info(store: OpenStore) -> StoreInfo:
    """Summarise a store from its attributes, its manifest and its masks."""
    attributes, manifest = store.attributes, store.sidecar_manifest()
    sizes = store.files.sizes()
    trainable = int(store.array(Q_H.path("q_train_mask")).any(axis=1).sum())
    depth = "none"
    if attributes["selected_depth_enabled"]:
        depth = f"{attributes['selected_depth_width_px']} x {attributes['selected_depth_height_px']} px"
    return StoreInfo(
        location=store.location,
        schema_version=attributes["schema_version"],
        created_at_utc=attributes["created_at_utc"],
        split=attributes["source_split"],
        target_protocol=attributes["target_protocol_version"],
        discount_gamma=attributes["discount_gamma"],
        horizon=attributes["q_h_horizon"],
        counts=manifest["counts"],
        trainable_states=trainable,
        valid_candidates=mask_counts(store).valid,
        selected_depth=depth,
        files=len(sizes),
        megabytes=sum(sizes.values()) / 1e6,
        manifest_sha256=attributes["manifest_sha256"],
        config_hashes=manifest["config_hashes"],
    )


def schema_rows(table: str | None = None) -> list[SchemaRow]:
    """The schema, array by array; one table of it if named."""
    if table is not None and table not in GROUPS:
        raise StoreError(f"no table {table!r}; the schema has {', '.join(GROUPS)}")
    rows = [
        SchemaRow(
            array=owner.path(column.name),
            dtype=column.dtype,
            row_shape=" x ".join(str(part) for part in column.row_shape),
            dictionary=column.dictionary or "",
            table=owner.name,
        )
        for owner in TABLES.values()
        for column in owner.columns
    ]
    rows += [SchemaRow(path, "uint8", "", "JSON list of strings", path.split("/")[0]) for path in TEXT_PATHS]
    rows.append(SchemaRow(REASON_BITS_PATH, "uint16", "", "", "metadata"))
    return [row for row in rows if table is None or row.table == table]


def head(store: OpenStore, table: str, rows: int, columns: Collection[str] | None = None) -> pl.DataFrame:
    """The first rows of a table, strings decoded."""
    if rows < 1:
        raise StoreError(f"rows must be >= 1, got {rows}")
    return store.table(table, columns=columns or None, decode=True, stop=rows)


def export_table(
    store: OpenStore,
    table: str,
    destination: Path,
    *,
    columns: Collection[str] | None = None,
    decode: bool = True,
) -> int:
    """Write a table to ``.parquet`` or ``.csv``, whole or not at all; returns its rows. CSV holds vectors as JSON."""
    suffix = destination.suffix.lower()
    if suffix not in (".parquet", ".csv"):
        raise StoreError(f"{destination}: must end in .parquet or .csv")
    if destination.exists():
        raise StoreError(f"{destination}: already there; choose another file or remove it first")
    frame = store.table(table, columns=columns or None, decode=decode)
    staged = scratch_path(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        if suffix == ".parquet":
            frame.write_parquet(staged)
        else:
            _flat(frame).write_csv(staged)
        publish_path(staged, destination)
    finally:
        staged.unlink(missing_ok=True)
    return len(frame)


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    vectors = [name for name, kind in frame.schema.items() if kind.is_nested()]
    return frame.with_columns(
        pl.format("[{}]", pl.col(name).arr.to_list().cast(pl.List(pl.String)).list.join(", ", ignore_nulls=True)).alias(
            name
        )
        for name in vectors
    )
