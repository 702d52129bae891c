"""One store's rows as another store continues them: row ids re-based, strings re-numbered, block by block.

Because dictionaries list strings by first appearance and rows keep their order, stores merged one after another equal
one store written from the same records in the same order, digest for digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import RecordRefused
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.flatten import RowCounts
from rollout_assets.rollouts.zarr_store.identities import Row, rows_of
from rollout_assets.rollouts.zarr_store.open_store import OpenStore
from rollout_assets.rollouts.zarr_store.schema import (
    ABSENT,
    CANDIDATE_DIAGNOSTICS,
    CANDIDATES,
    LINEAGE,
    ROLLOUT_ZARR_SCHEMA_VERSION,
    ROLLOUTS,
    SELECTED_DEPTH,
    STEPS,
)

Columns = dict[str, NDArray[Any]]

_BLOCK_ROWS = 1 << 17
_RASTER_BLOCK_ROWS = 256


@dataclass(frozen=True, eq=False)
class Rebasing:
    """What the ids of one store become in another.

    ``strings`` holds the new id of each string per dictionary, ``owners`` the new row id of each source and target row
    per column that names one, ``shifts`` what is added to all other row ids.
    """

    strings: Mapping[str, NDArray[np.int32]]
    owners: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    shifts: Mapping[str, int] = field(default_factory=dict)

    def columns(self, table: Table, columns: Columns) -> Columns:
        """Columns of a table with the ids of the other store."""
        return {name: self._column(table, name, values) for name, values in columns.items()}

    def _column(self, table: Table, name: str, values: NDArray[Any]) -> NDArray[Any]:
        dictionary = table[name].dictionary
        if dictionary is not None:
            new_ids = self.strings[dictionary]
            if values.max(initial=ABSENT) >= len(new_ids):
                raise RecordRefused(f"{table.path(name)}: id {values.max()} is not in dictionary {dictionary}")
            return np.where(values < 0, ABSENT, new_ids[np.maximum(values, 0)] if len(new_ids) else ABSENT)
        if name in self.owners:
            return self.owners[name][values]
        if name in self.shifts:
            return np.where(values == ABSENT, ABSENT, values + self.shifts[name])
        return values


def shifts_after(counts: RowCounts) -> dict[str, int]:
    """What is added to row ids that follow the rows of a store."""
    return {
        "rollout_row_id": counts.rollouts,
        "step_row_id": counts.steps,
        "candidate_row_id": counts.candidates,
        "selected_candidate_row_id": counts.candidates,
    }


def rebased_rows(store: OpenStore, table: Table, rebasing: Rebasing) -> Iterable[Row]:
    """Every row of a small table."""
    return rows_of(rebasing.columns(table, store.columns(table)), table.names)


def rebased_blocks(store: OpenStore, rebasing: Rebasing, rasters: bool) -> Iterator[tuple[str, Columns]]:
    """Every row below rollouts: the name of its table, or ``rasters``, and a block of columns; memory is bounded."""
    for table in (ROLLOUTS, LINEAGE, STEPS, CANDIDATES, CANDIDATE_DIAGNOSTICS, SELECTED_DEPTH):
        for columns in table_blocks(store, table.without_rasters, _BLOCK_ROWS):
            yield table.name, rebasing.columns(table, columns)
    if rasters:
        for columns in table_blocks(store, SELECTED_DEPTH.part(SELECTED_DEPTH.rasters), _RASTER_BLOCK_ROWS):
            yield "rasters", columns


def refuse_other_settings(config: RolloutZarrStoreConfig, store: OpenStore) -> None:
    """Raise ``RecordRefused`` for a store whose rows do not fit one with this config."""
    expected = {
        "schema_version": ROLLOUT_ZARR_SCHEMA_VERSION,
        "target_protocol_version": config.target_protocol_version,
        "reason_code_version": config.reason_code_version,
        "selected_depth_enabled": config.selected_depth.enabled,
        "selected_depth_width_px": config.selected_depth.width_px,
        "selected_depth_height_px": config.selected_depth.height_px,
        "target_eval_crops_num_rows": 0,
    }
    for name, value in expected.items():
        stored = store.attributes.get(name)
        if stored != value:
            raise RecordRefused(f"{store.location}: {name} must be {value!r}, got {stored!r}")


def table_blocks(store: OpenStore, table: Table, block_rows: int) -> Iterator[Columns]:
    """Every row of a table in blocks of columns."""
    rows = len(store.row_array(table.path(table.names[0])))
    for start in range(0, rows, block_rows):
        yield store.columns(table, table.names, start, min(start + block_rows, rows))
