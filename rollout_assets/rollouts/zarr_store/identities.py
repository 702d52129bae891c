"""Source and target rows: one row per identity, and no contradicting facts about it.

A source row is identified by sample index and key, a target row by its source row, target id and selection policy.
Several recipes bring the same target; it is stored once. Facts that disagree are refused with both values.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import RecordRefused
from rollout_assets.rollouts.trace import RolloutLineage
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.dictionaries import Dictionaries
from rollout_assets.rollouts.zarr_store.label_rules import VALID_BITSET, gt_label_is_valid
from rollout_assets.rollouts.zarr_store.schema import ABSENT, SOURCES, TARGETS

SOURCE_KEY = ("sample_index", "sample_key_id")
"""Columns that identify a source row."""

TARGET_KEY = ("source_row_id", "target_id", "target_selection_policy_id")
"""Columns that identify a target row."""

SOURCE_FIELDS: Mapping[str, str] = {
    "sample_index": "source_sample_index",
    "sample_key_id": "source_sample_key",
    "scene_id": "scene_id",
    "snippet_id": "snippet_id",
    "split_id": "split",
    "source_cache_version_id": "source_cache_version",
    "source_offline_store_manifest_hash_id": "source_offline_store_manifest_hash",
    "split_manifest_hash_id": "split_manifest_hash",
    "source_shard_id": "source_shard_id",
    "source_shard_row": "source_shard_row",
}
"""Source column -> the ``RolloutLineage`` field behind it."""

_LINEAGE_FIELDS = {field.name for field in fields(RolloutLineage)}
_DERIVED_TARGET_COLUMNS = ("target_row_id", "source_row_id", "target_valid_mask", "gt_label_valid_mask")

TARGET_FIELDS: Mapping[str, str] = {
    name: name if name in _LINEAGE_FIELDS else name.removesuffix("_id")
    for name in TARGETS.names
    if name not in _DERIVED_TARGET_COLUMNS
}
"""Target column -> the ``RolloutLineage`` field behind it."""

Row = dict[str, Any]


def source_row(lineage: RolloutLineage, dictionaries: Dictionaries) -> Row:
    """The source columns of a lineage, without the row id."""
    return _row(SOURCES, SOURCE_FIELDS, lineage, dictionaries)


def target_row(lineage: RolloutLineage, source_row_id: int, dictionaries: Dictionaries, protocol: str) -> Row:
    """The target columns of a lineage, without the row id; both validity masks are derived here."""
    row = _row(TARGETS, TARGET_FIELDS, lineage, dictionaries)
    row["source_row_id"] = source_row_id
    if lineage.target_invalid_reason_bitset is None:
        row["target_invalid_reason_bitset"] = VALID_BITSET
    row["target_valid_mask"] = row["target_invalid_reason_bitset"] == VALID_BITSET
    if lineage.target_primary_invalid_reason is None:
        row["target_primary_invalid_reason"] = 0
    row["gt_label_valid_mask"] = gt_label_is_valid(lineage.gt_match_status, row["matched_gt_target_row_id"], protocol)
    return row


class IdentityTable:
    """Rows of a table by identity; remembers the facts of each to refuse contradicting ones."""

    def __init__(self, table: Table, noun: str, identity: tuple[str, ...]) -> None:
        self.table = table
        self._noun = noun
        self._identity = identity
        self._rows: dict[tuple[Hashable, ...], tuple[int, bytes]] = {}
        assert table.key is not None
        self._key_column = table.key
        self._facts = [column for column in table.columns if column.name != table.key]

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row, where: str) -> tuple[int, bool]:
        """The row id of a row's identity, and whether it is new; facts that differ from the first ones are refused."""
        key = tuple(np.asarray(row[name]).item() for name in self._identity)
        fingerprint = b"".join(np.asarray(row[column.name], column.numpy_dtype).tobytes() for column in self._facts)
        first = self._rows.get(key)
        if first is None:
            row_id = len(self._rows)
            self._rows[key] = (row_id, fingerprint)
            return row_id, True
        if first[1] != fingerprint:
            raise RecordRefused(f"{where}: conflicting {self._noun} identity: {self._difference(first[1], row)}")
        return first[0], False

    def block(self, row_id: int, row: Row) -> dict[str, NDArray[Any]]:
        """One row as columns, ready to be appended."""
        columns = {column.name: np.asarray(row[column.name], column.numpy_dtype)[None] for column in self._facts}
        columns[self._key_column] = np.array([row_id], np.int64)
        return columns

    def _difference(self, stored: bytes, row: Row) -> str:
        parts, at = [], 0
        for column in self._facts:
            size = column.numpy_dtype.itemsize * int(np.prod(column.resolve({})))
            before = np.frombuffer(stored[at : at + size], column.numpy_dtype)
            after = np.asarray(row[column.name], column.numpy_dtype).reshape(-1)
            at += size
            if before.tobytes() != after.tobytes():
                shown = [values.tolist() if len(values) > 1 else values[0] for values in (before, after)]
                parts.append(f"{column.name} {shown[0]} and {shown[1]}")
        return "; ".join(parts)


def rows_of(columns: Mapping[str, NDArray[Any]], names: Iterable[str]) -> Iterable[Row]:
    """Columns as rows, one dict each."""
    selected = {name: columns[name] for name in names}
    for values in zip(*selected.values(), strict=True):
        yield dict(zip(selected, values, strict=True))


def _row(table: Table, fields_of: Mapping[str, str], lineage: RolloutLineage, dictionaries: Dictionaries) -> Row:
    return {
        column: _stored(table, column, getattr(lineage, field), dictionaries) for column, field in fields_of.items()
    }


def _stored(table: Table, name: str, value: Any, dictionaries: Dictionaries) -> Any:
    column = table[name]
    if column.dictionary is not None:
        return dictionaries[column.dictionary].intern(value)
    if value is None:
        missing = np.nan if column.is_float else ABSENT if column.numpy_dtype.kind == "i" else 0
        return np.full(column.resolve({}), missing, column.numpy_dtype)
    return np.asarray(value, column.numpy_dtype).reshape(column.resolve({}))
