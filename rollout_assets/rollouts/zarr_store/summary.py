"""A store at a glance, for people: what it holds, its first rows, its schema, and any table as a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.errors import StoreError
from rollout_assets.files import publishing
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.attributes import store_counts
from rollout_assets.rollouts.zarr_store.open_store import OpenStore

CANDIDATE_STAGES = {
    "full_shell": None,
    "actor_valid": "actor_action_mask",
    "oracle_label": "oracle_label_mask",
    "q_train": "q_train_mask",
    "selected": "selected_mask",
}
"""Stage -> the candidate mask that lets a row pass; the full shell needs none."""

_BLOCK_ROWS = 1 << 20


@dataclass(frozen=True)
class StoreInfo:
    """What a store says of itself, without decoding more than its masks."""

    location: str
    schema_version: str
    created_at_utc: str
    split: str
    split_in_source: str
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


def store_info(store: OpenStore) -> StoreInfo:
    """Summarise a store from its attributes, its manifest and its masks."""
    attribute, manifest = store.attribute, store.sidecar_manifest()
    sizes = store.files.sizes()
    counts = store_counts(lambda path: store.row_array(path).shape)
    trainable = int(store.array(schema.Q_H.path("q_train_mask")).any(axis=1).sum())
    depth = "none"
    if attribute("selected_depth_enabled"):
        depth = f"{attribute('selected_depth_width_px')} x {attribute('selected_depth_height_px')} px"
    return StoreInfo(
        location=store.location,
        schema_version=attribute("schema_version"),
        created_at_utc=attribute("created_at_utc"),
        split=attribute("source_split"),
        split_in_source=_own_splits(store, counts["sources"]),
        target_protocol=attribute("target_protocol_version"),
        discount_gamma=attribute("discount_gamma"),
        horizon=attribute("q_h_horizon"),
        counts=counts,
        trainable_states=trainable,
        valid_candidates=int(np.count_nonzero(store.array(schema.CANDIDATES.path("actor_action_mask")))),
        selected_depth=depth,
        files=len(sizes),
        megabytes=sum(sizes.values()) / 1e6,
        manifest_sha256=attribute("manifest_sha256"),
        config_hashes=manifest.get("config_hashes", {}),
    )


def _own_splits(store: OpenStore, num_sources: int) -> str:
    """Source rows by the split that the source itself has them in: ``3 train, 1 val``."""
    moved = Counter(store.source_splits.values())
    rows = {str(store.attributes["source_split"]): num_sources - moved.total(), **moved}
    return ", ".join(f"{count} {split}" for split, count in sorted(rows.items()) if count)


@dataclass(frozen=True)
class CandidateCounts:
    """Candidates by stage, from the full shell to the selected, and by the reason why the actor may not take them."""

    stages: dict[str, int]
    refused: Counter[str]


def count_candidates(stores: Iterable[OpenStore]) -> CandidateCounts:
    """The candidates of some stores together, read in blocks."""
    stages, refused = dict.fromkeys(CANDIDATE_STAGES, 0), Counter[str]()
    names = [mask for mask in CANDIDATE_STAGES.values() if mask is not None]
    for block in candidate_blocks(stores, (*names, "primary_invalid_reason")):
        for stage, mask in CANDIDATE_STAGES.items():
            stages[stage] += len(block["primary_invalid_reason"]) if mask is None else int(block[mask].sum())
        reasons = block["primary_invalid_reason"][~block["actor_action_mask"].astype(bool)]
        for code, count in zip(*np.unique(reasons, return_counts=True), strict=True):
            refused[InvalidReason(int(code)).name] += int(count)
    return CandidateCounts(stages, refused)


def candidate_blocks(stores: Iterable[OpenStore], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Columns of the candidate tables of some stores, a million rows at a time."""
    for store in stores:
        for start in range(0, store.num_rows(schema.CANDIDATES.name), _BLOCK_ROWS):
            yield store.columns(schema.CANDIDATES, names, start, start + _BLOCK_ROWS)


def schema_rows(table: str | None = None) -> list[SchemaRow]:
    """The schema, array by array; one table of it if named."""
    if table is not None and table not in schema.GROUPS:
        raise StoreError(f"no table {table!r}; the schema has {', '.join(schema.GROUPS)}")
    rows = [
        SchemaRow(
            array=owner.path(column.name),
            dtype=column.dtype,
            row_shape=" x ".join(str(part) for part in column.row_shape),
            dictionary=column.dictionary or "",
            table=owner.name,
        )
        for owner in schema.TABLES.values()
        for column in owner.columns
    ]
    rows += [SchemaRow(path, "uint8", "", "JSON list of strings", path.split("/")[0]) for path in schema.TEXT_PATHS]
    rows.append(SchemaRow(schema.REASON_BITS_PATH, "uint16", "", "", "metadata"))
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
    destination.parent.mkdir(parents=True, exist_ok=True)
    with publishing(destination) as scratch:
        try:
            frame.write_parquet(scratch) if suffix == ".parquet" else _flat(frame).write_csv(scratch)
        except (pl.exceptions.PolarsError, OSError) as error:  # polars says in its own ways that a disk is full
            raise StoreError(f"{destination}: cannot be written: {error}; is there room on its disk?") from error
    return len(frame)


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    vectors = [name for name, kind in frame.schema.items() if kind.is_nested()]
    return frame.with_columns(
        pl.format("[{}]", pl.col(name).arr.to_list().cast(pl.List(pl.String)).list.join(", ", ignore_nulls=True)).alias(
            name
        )
        for name in vectors
    )
