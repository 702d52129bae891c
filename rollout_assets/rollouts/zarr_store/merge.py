"""One store from many: whole stores appended to a writer, rows re-based and strings re-numbered, chunk by chunk.

Because dictionaries list strings by first appearance and rows keep their order, stores merged one after another equal
one store written from the same records in the same order, digest for digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import RecordRefused
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.identities import rows_of
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import (
    ABSENT,
    CANDIDATE_DIAGNOSTICS,
    CANDIDATES,
    LINEAGE,
    ROLLOUT_ZARR_SCHEMA_VERSION,
    ROLLOUTS,
    SELECTED_DEPTH,
    SOURCES,
    STEPS,
    TARGETS,
)

if TYPE_CHECKING:
    from rollout_assets.rollouts.zarr_store.writer import RolloutZarrStoreWriter

Columns = dict[str, NDArray[Any]]

_BLOCK_ROWS = 1 << 17
_RASTER_BLOCK_ROWS = 256


def append_store(writer: RolloutZarrStoreWriter, reader: RolloutZarrStoreReader) -> None:
    """Append every row of a finished store to a store being written; linear in its rows, memory bounded."""
    _refuse_other_settings(writer, reader)
    where = reader.location
    ids = writer.dictionaries.intern_store(reader.dictionaries)
    sources, targets = _owners(writer, reader, ids, where)
    base = writer.counts
    shifts = {
        "rollout_row_id": base.rollouts,
        "step_row_id": base.steps,
        "candidate_row_id": base.candidates,
        "selected_candidate_row_id": base.candidates,
    }
    owners = {"source_row_id": sources, "target_row_id": targets}
    for table in (ROLLOUTS, LINEAGE, STEPS, CANDIDATES, CANDIDATE_DIAGNOSTICS, SELECTED_DEPTH):
        for columns in _blocks(reader, table, _BLOCK_ROWS):
            if table is ROLLOUTS:
                writer.raise_horizon(int(columns["horizon"].max(initial=0)))
            writer.append_columns(table.name, _rebased(table, columns, shifts, owners, ids))
    if writer.config.selected_depth.enabled:
        for columns in _blocks(reader, SELECTED_DEPTH.part(SELECTED_DEPTH.rasters), _RASTER_BLOCK_ROWS, rasters=True):
            writer.append_columns("rasters", columns)


def _owners(
    writer: RolloutZarrStoreWriter, reader: RolloutZarrStoreReader, ids: dict[str, NDArray[np.int32]], where: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    found = _rebased(SOURCES, reader.columns(SOURCES), {}, {}, ids)
    sources = [writer.add_source(row, where) for row in rows_of(found, SOURCES.names)]
    source_ids = np.array(sources, np.int64)
    found = _rebased(TARGETS, reader.columns(TARGETS), {}, {"source_row_id": source_ids}, ids)
    targets = [writer.add_target(row, where) for row in rows_of(found, TARGETS.names)]
    return source_ids, np.array(targets, np.int64)


def _blocks(reader: RolloutZarrStoreReader, table: Table, block_rows: int, rasters: bool = False) -> Iterator[Columns]:
    names = table.rasters if rasters else [name for name in table.names if name not in table.rasters]
    rows = len(reader.row_array(table.path(next(iter(names)))))
    for start in range(0, rows, block_rows):
        yield reader.columns(table, names, start, min(start + block_rows, rows))


def _rebased(
    table: Table,
    columns: Columns,
    shifts: dict[str, int],
    owners: dict[str, NDArray[np.int64]],
    ids: dict[str, NDArray[np.int32]],
) -> Columns:
    return {name: _rebased_column(table, name, values, shifts, owners, ids) for name, values in columns.items()}


def _rebased_column(
    table: Table,
    name: str,
    values: NDArray[Any],
    shifts: dict[str, int],
    owners: dict[str, NDArray[np.int64]],
    ids: dict[str, NDArray[np.int32]],
) -> NDArray[Any]:
    dictionary = table[name].dictionary
    if dictionary is not None:
        known = ids[dictionary]
        if values.max(initial=ABSENT) >= len(known):
            raise RecordRefused(f"{table.path(name)}: id {values.max()} is not in dictionary {dictionary}")
        return np.where(values < 0, ABSENT, known[np.maximum(values, 0)] if len(known) else ABSENT)
    if name in owners:
        return owners[name][values]
    if name in shifts:
        return np.where(values == ABSENT, ABSENT, values + shifts[name])
    return values


def _refuse_other_settings(writer: RolloutZarrStoreWriter, reader: RolloutZarrStoreReader) -> None:
    config, found = writer.config, reader.attributes
    expected = {
        "schema_version": ROLLOUT_ZARR_SCHEMA_VERSION,
        "target_protocol_version": config.target_protocol_version,
        "reason_code_version": config.reason_code_version,
        "selected_depth_enabled": config.selected_depth.enabled,
        "selected_depth_width_px": config.selected_depth.width_px,
        "selected_depth_height_px": config.selected_depth.height_px,
    }
    for name, value in expected.items():
        if found.get(name) != value:
            raise RecordRefused(f"{reader.location}: {name} must be {value!r}, got {found.get(name)!r}")
