"""States of one or many stores: which of them can be trained on, and their rows, read unit by unit.

A unit is a run of consecutive states of one store, as long as a stored chunk, so that reading a unit decodes each chunk
once. Stores are opened in the process that reads them: a dataset can be forked or pickled to a worker at any time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import StoreError
from rollout_assets.learning.batch import DepthHistory, as_tensor
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import Q_H, SELECTED_DEPTH, STEPS

Columns = dict[str, NDArray[Any]]

_DEPTH_UNIT_STATES = 256


@dataclass(frozen=True)
class Unit:
    """States ``start`` to ``stop`` of one store; ``rows`` are those of them that count, from the unit's start."""

    store_index: int
    start: int
    stop: int
    rows: tuple[int, int]

    @property
    def count(self) -> int:
        """States that count."""
        return self.rows[1] - self.rows[0]


class StateSource:
    """The states of some stores, padded to one width."""

    def __init__(self, stores: Sequence[Path | str], trainable_only: bool, history: int) -> None:
        if not stores:
            raise StoreError("a dataset needs at least one store, got none")
        if history < 0:
            raise StoreError(f"history must be >= 0, got {history}")
        self.stores = tuple(str(store) for store in stores)
        self.history = history
        self.trainable_only = trainable_only
        self._readers: dict[int, list[RolloutZarrStoreReader]] = {}
        readers = self.readers
        if history and not all(reader.attributes.get("selected_depth_enabled") for reader in readers):
            raise StoreError("depth history was asked for, but a store keeps no selected depth")
        sizes = {
            (reader.attributes["selected_depth_height_px"], reader.attributes["selected_depth_width_px"])
            for reader in readers
        }
        if history and len(sizes) > 1:
            raise StoreError(f"depth history needs one image size, got {sorted(sizes)}")
        self.width = max(int(reader.attributes["q_h_max_candidates"]) for reader in readers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    @property
    def readers(self) -> list[RolloutZarrStoreReader]:
        """The stores, opened in this process."""
        process = os.getpid()
        if process not in self._readers:
            self._readers = {process: [RolloutZarrStoreReader(store) for store in self.stores]}
        return self._readers[process]

    @cached_property
    def chosen(self) -> list[NDArray[np.int64]]:
        """Per store, the states that count, ascending."""
        chosen = []
        for reader in self.readers:
            mask = reader.array(Q_H.path("q_train_mask"))
            wanted = mask.any(axis=1) if self.trainable_only else np.ones(len(mask), np.bool_)
            chosen.append(np.flatnonzero(wanted))
        return chosen

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """All units with at least one state that counts, store by store."""
        units = []
        for index, (reader, rows) in enumerate(zip(self.readers, self.chosen, strict=True)):
            length = min(int(reader.attributes["q_h_chunk_states"]), _DEPTH_UNIT_STATES if self.history else 1 << 30)
            states = int(reader.attributes["q_h_state_count"])
            edges = np.arange(0, states + length, length)
            bounds = np.searchsorted(rows, edges)
            for start, low, high in zip(edges[:-1].tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                if high > low:
                    units.append(Unit(index, start, min(start + length, states), (low, high)))
        return tuple(units)

    @cached_property
    def total(self) -> int:
        """States that count, in all stores."""
        return sum(len(rows) for rows in self.chosen)

    def fingerprint(self) -> list[str]:
        """Which data a position in an epoch is about: one digest per store."""
        return [str(reader.attributes["manifest_sha256"]) for reader in self.readers]

    def read(self, unit: Unit) -> Columns:
        """The rows of a unit that count, padded to the common width, with ``store_index``."""
        reader = self.readers[unit.store_index]
        local = self.chosen[unit.store_index][unit.rows[0] : unit.rows[1]] - unit.start
        columns = {"store_index": np.full(len(local), unit.store_index, np.int64)}
        whole = len(local) == unit.stop - unit.start
        for name in Q_H.names:
            stored = reader.row_array(Q_H.path(name)).read(unit.start, unit.stop, threads=False)
            values = stored if whole else stored[local]
            columns[name] = self._padded(name, values)
        return columns

    def read_depth(self, store_index: int, start: int, stop: int) -> tuple[int, NDArray[Any], NDArray[Any]]:
        """Depth and masks of the steps that states ``start`` to ``stop`` look back at; first says where they begin."""
        first = max(start - self.history, 0)
        reader = self.readers[store_index]
        depth, valid = (
            reader.row_array(SELECTED_DEPTH.path(name)).read(first, stop, threads=False)
            for name in SELECTED_DEPTH.rasters
        )
        return first, depth, valid

    def depth_rows(self, store_index: int, states: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(b, n) step rows before each state, latest first, and which of them belong to its chain."""
        back = np.arange(1, self.history + 1)
        present = back <= self._step_index(store_index)[states][:, None]
        return np.where(present, states[:, None] - back, states[:, None]), present

    def _step_index(self, store_index: int) -> NDArray[np.int64]:
        return self._step_indices[store_index]

    @cached_property
    def _step_indices(self) -> list[NDArray[np.int64]]:
        return [reader.array(STEPS.path("step_index")).astype(np.int64) for reader in self.readers]

    def _padded(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        missing = self.width - values.shape[1] if values.ndim == 2 else 0
        if not missing:
            return values
        padding = np.full((len(values), missing), Q_H[name].pad, values.dtype)
        return np.concatenate([values, padding], axis=1)


def gather_history(
    source: StateSource,
    loaded: dict[tuple[int, int], tuple[int, NDArray[Any], NDArray[Any]]],
    store_index: NDArray[np.int64],
    states: NDArray[np.int64],
    unit_starts: NDArray[np.int64],
) -> DepthHistory:
    """The depth history of some states from the units' loaded rasters, keyed by (store, unit start)."""
    height, width = next(iter(loaded.values()))[1].shape[1:]
    shape = (len(states), source.history, height, width)
    depth, valid = np.zeros(shape, np.float16), np.zeros(shape, np.bool_)
    present = np.zeros(shape[:2], np.bool_)
    for key in {(int(s), int(u)) for s, u in zip(store_index, unit_starts, strict=True)}:
        own = np.flatnonzero((store_index == key[0]) & (unit_starts == key[1]))
        rows, there = source.depth_rows(key[0], states[own])
        first, rasters, masks = loaded[key]
        at = np.clip(rows - first, 0, len(rasters) - 1)
        depth[own] = np.where(there[..., None, None], rasters[at], np.float16(0))
        valid[own] = masks[at] & there[..., None, None]
        present[own] = there
    return DepthHistory(as_tensor(depth), as_tensor(valid), as_tensor(present))
