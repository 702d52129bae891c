"""Columns that this package adds to the schema, where a store of another writer lacks them.

Which source row a target belongs to follows from its rollouts, or from the snippet in its name, so that column is
always there. What was drawn and how likely it was follows from nothing that is stored: these columns are absent, and
null in tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.rollouts.zarr_store.chunks.arrays import RowArray
from rollout_assets.rollouts.zarr_store.chunks.files import StoreFiles
from rollout_assets.rollouts.zarr_store.dictionaries import decode_strings
from rollout_assets.rollouts.zarr_store.schema import ABSENT, ROLLOUTS, SOURCES, TABLES, TARGETS

SOURCE_OF_TARGET = TARGETS.path("source_row_id")
"""The column that can be derived."""

ReadArray = Callable[[str], NDArray[Any]]
"""Reads a whole array by its path."""


def sources_of_targets(
    count: int, target_row_id: NDArray[np.int64], source_row_id: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(count,): the source row of each target row, from (rollouts,) target and source rows; -1 without a rollout.

    Where the rollouts of a target contradict each other most of them count; validation names the others.
    """
    owner = np.full(count, ABSENT, np.int64)
    inside = (target_row_id >= 0) & (target_row_id < count)
    pairs = np.stack([target_row_id[inside], source_row_id[inside]], axis=1)
    (targets, sources), times = _distinct(pairs)
    order = np.argsort(times, kind="stable")
    owner[targets[order]] = sources[order]
    return owner


def _distinct(pairs: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n, 2) pairs -> (2, m) distinct ones, and (m,) how often each occurs."""
    distinct, times = np.unique(pairs, axis=0, return_counts=True)
    return distinct.T, times


def named_sources(owner: NDArray[np.int64], target_names: Sequence[str], snippets: Sequence[str]) -> NDArray[np.int64]:
    """``owner`` with its -1 replaced by the source row whose snippet is in the target's name, if that is just one."""
    filled = owner.copy()
    for target in np.flatnonzero(owner == ABSENT).tolist():
        rows = [row for row, snippet in enumerate(snippets) if snippet and snippet in target_names[target]]
        filled[target] = rows[0] if len(rows) == 1 else ABSENT
    return filled


def derived_source_of_target(files: StoreFiles, read: ReadArray) -> RowArray:
    """``targets/source_row_id`` of a store that lacks it, as an array like the stored ones."""
    count = len(read(TARGETS.path("target_row_id")))
    targets, sources = (read(ROLLOUTS.path(name)) for name in ("target_row_id", "source_row_id"))
    values = sources_of_targets(count, targets, sources)
    if (values == ABSENT).any():
        names, snippets = _strings(read, TARGETS.path("target_id")), _strings(read, SOURCES.path("snippet_id"))
        values = named_sources(values, names, snippets)
    document = {"shape": [count], "data_type": values.dtype.name}
    return RowArray(files, SOURCE_OF_TARGET, document, through_zarr=lambda: values)


def _strings(read: ReadArray, path: str) -> list[str]:
    """A column's strings; "" where none is given."""
    table, name = path.split("/")
    dictionary = f"dictionaries/{TABLES[table][name].dictionary}"
    strings = decode_strings(dictionary, read(dictionary))
    return [strings[index] if 0 <= index < len(strings) else "" for index in read(path).tolist()]
