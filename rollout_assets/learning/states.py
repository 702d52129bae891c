"""States of one or many stores: which of them count for training, and their rows, read unit by unit.

A unit is a run of consecutive states of one store, as long as a stored chunk, so that reading a unit decodes each chunk
once. The version of each store is pinned here; it is opened in the process that reads it, so a dataset can be forked or
sent to a worker at any time, and every process reads the same version.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rollout_assets.errors import StoreDamaged, StoreError
from rollout_assets.learning.batch import DepthHistory, QHBatch, as_tensor, to_batch
from rollout_assets.learning.observable import COLUMNS_READ
from rollout_assets.learning.observation_source import ObservationReader, ObservationSource
from rollout_assets.learning.pinned import PinnedStore, UnverifiedStoreWarning, open_stores
from rollout_assets.learning.state_filter import StateFilter
from rollout_assets.locations.url import is_object_url
from rollout_assets.observations.observation import Observations
from rollout_assets.progress import ProgressSink
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import ABSENT, Q_H, SELECTED_DEPTH, STEPS

Verify = Literal["manifest", "none"]
"""Whether what is read must be what the stores' manifests say was written."""

Columns = dict[str, NDArray[Any]]

UnitKey = tuple[int, int]
"""Store index and first state of a unit."""

UnitDepth = tuple[int, NDArray[Any], NDArray[Any]]
"""First step row, then (n, h, w) depth and valid masks of the steps that a unit's states look back at."""

_DEPTH_UNIT_STATES = 256
"""States of a unit when depth images are read too: these are large."""


@dataclass(frozen=True)
class Unit:
    """States ``start`` to ``stop`` of one store; ``rows`` is their range in the store's list of states that count."""

    store_index: int
    start: int
    stop: int
    rows: tuple[int, int]

    @property
    def count(self) -> int:
        """How many states count."""
        return self.rows[1] - self.rows[0]

    @property
    def key(self) -> UnitKey:
        """What identifies the unit among all stores."""
        return self.store_index, self.start


class StateSource:
    """The states of some stores, all padded to the same number of candidates."""

    def __init__(
        self,
        stores: Sequence[Path | str] | Path | str,
        trainable_only: bool,
        history: int,
        verify: Verify,
        observations: ObservationSource | None = None,
        where: StateFilter | None = None,
    ) -> None:
        names = (str(stores),) if isinstance(stores, (str, Path)) else tuple(str(store) for store in stores)
        if not names:
            raise StoreError("a dataset needs at least one store, got none")
        if history < 0:
            raise StoreError(f"history must be >= 0, got {history}")
        if verify not in get_args(Verify):
            raise StoreError(f"verify must be one of {', '.join(get_args(Verify))}, got {verify!r}")
        self.history = history
        self.trainable_only = trainable_only
        self.where = where
        readers = open_stores(names)
        sealed = arrays_read(history, observations is not None) if verify == "manifest" else ()
        self.pins = tuple(PinnedStore.of(reader, sealed) for reader in readers)
        self._readers = {os.getpid(): readers}
        if verify == "manifest":
            _warn_of_unverified(self.pins)
        if history and not all(reader.attributes.get("selected_depth_enabled") for reader in readers):
            raise StoreError("history needs depth images, but a store has no selected depth; use history=0")
        sizes = {
            (reader.attribute("selected_depth_height_px"), reader.attribute("selected_depth_width_px"))
            for reader in readers
        }
        if history and len(sizes) > 1:
            raise StoreError(f"history needs stores with one depth image size, got {sorted(sizes)}")
        self.width = max(int(reader.attribute("q_h_max_candidates")) for reader in readers)
        self.observations = None
        if observations is not None:
            self.observations = ObservationReader(observations, self.pins, readers, self.width)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    @property
    def in_object_storage(self) -> bool:
        """Whether a store lies behind a URL of object storage."""
        return any(is_object_url(pin.location) for pin in self.pins)

    @property
    def readers(self) -> list[RolloutZarrStoreReader]:
        """The pinned versions, opened in this process."""
        process = os.getpid()
        if process not in self._readers:
            self._readers = {process: [pin.open() for pin in self.pins]}
        return self._readers[process]

    @property
    def verified(self) -> bool:
        """Whether everything that is read is held against what the stores' manifests say was written."""
        return all(pin.verified for pin in self.pins)

    def prepare_observations(self, progress: ProgressSink) -> None:
        """Make all observations that are not made yet."""
        if self.observations is None:
            raise StoreError("there is nothing to prepare: the dataset was made without observations")
        self.observations.prepare(self.readers, progress)

    def confirm(self) -> None:
        """Refuse to go on if one of the pinned versions is gone or has changed."""
        for pin, reader in zip(self.pins, self.readers, strict=True):
            pin.confirm(reader)

    def read_rows(self, store_index: int, path: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows of an array of one store; an error says which store it is, or that its version is gone."""
        reader = self.readers[store_index]
        try:
            return reader.row_array(path).read(start, stop, threads=stop is None)
        except StoreDamaged as error:
            raise self.pins[store_index].explain(error, reader) from None

    def _whole(self, path: str) -> list[NDArray[Any]]:
        return [self.read_rows(index, path) for index in range(len(self.pins))]

    @cached_property
    def chosen(self) -> list[NDArray[np.int64]]:
        """Per store, the states that count, ascending."""
        chosen = []
        for reader, mask in zip(self.readers, self._whole(Q_H.path("q_train_mask")), strict=True):
            counted = mask.any(axis=1) if self.trainable_only else np.ones(len(mask), np.bool_)
            chosen.append(np.flatnonzero(counted if self.where is None else counted & self.where.mask(reader)))
        return chosen

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """All units with at least one state that counts, store by store."""
        units = []
        for index, (reader, rows) in enumerate(zip(self.readers, self.chosen, strict=True)):
            length = min(int(reader.attribute("q_h_chunk_states")), _DEPTH_UNIT_STATES if self.history else 1 << 30)
            states = int(reader.attribute("q_h_state_count"))
            edges = np.arange(0, states + length, length)
            bounds = np.searchsorted(rows, edges)
            for start, low, high in zip(edges[:-1].tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                if high > low:
                    units.append(Unit(index, start, min(start + length, states), (low, high)))
        return tuple(units)

    @cached_property
    def total(self) -> int:
        """How many states count, in all stores together."""
        return sum(len(rows) for rows in self.chosen)

    def fingerprint(self) -> list[str]:
        """The data that a position in an epoch belongs to: the digest of each store's manifest."""
        return [pin.manifest_sha256 for pin in self.pins]

    def read(self, unit: Unit) -> Columns:
        """The rows of a unit that count, padded to the common width, with ``store_index``."""
        local = self.chosen[unit.store_index][unit.rows[0] : unit.rows[1]] - unit.start
        columns = {"store_index": np.full(len(local), unit.store_index, np.int64)}
        all_count = len(local) == unit.stop - unit.start
        for name in Q_H.names:
            stored = self.read_rows(unit.store_index, Q_H.path(name), unit.start, unit.stop)
            values = stored if all_count else stored[local]
            columns[name] = self._padded(name, values)
        return columns

    def read_depth(self, unit: Unit) -> UnitDepth:
        """Depth and masks of the steps that a unit's states look back at."""
        steps = self._step_rows[unit.store_index][unit.start : unit.stop]
        first = max(int(steps[0]) - self.history, 0)
        depth, valid = (
            self.read_rows(unit.store_index, SELECTED_DEPTH.path(name), first, int(steps[-1]) + 1)
            for name in SELECTED_DEPTH.rasters
        )
        return first, depth, valid

    def depth_rows(self, store_index: int, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(b, n) step rows before each of the step rows ``steps``, latest first, and which belong to its chain."""
        back = np.arange(1, self.history + 1)
        present = back <= self._step_indices[store_index][steps][:, None]
        return np.where(present, steps[:, None] - back, steps[:, None]), present

    @cached_property
    def _step_indices(self) -> list[NDArray[np.int64]]:
        return [indices.astype(np.int64) for indices in self._whole(STEPS.path("step_index"))]

    @cached_property
    def _step_rows(self) -> list[NDArray[np.int64]]:
        """Per store, the step that each state is; dead ends may be kept out of the view."""
        return self._whole(Q_H.path("state_step_row_id"))

    def _padded(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        missing = self.width - values.shape[1] if values.ndim == 2 else 0
        if not missing:
            return values
        padding = np.full((len(values), missing), Q_H[name].pad, values.dtype)
        return np.concatenate([values, padding], axis=1)


def arrays_read(history: int, observations: bool = False) -> tuple[str, ...]:
    """Every array that a dataset with this history reads, and with observations."""
    depth = (*(SELECTED_DEPTH.path(name) for name in SELECTED_DEPTH.rasters), STEPS.path("step_index"))
    observed = (f"{table}/{name}" for table, names in COLUMNS_READ.items() for name in names)
    paths = (*(Q_H.path(name) for name in Q_H.names), *(depth if history else ()), *(observed if observations else ()))
    return tuple(dict.fromkeys(paths))


def batch_of(
    source: StateSource, columns: Columns, unit_starts: NDArray[np.int64], loaded: Mapping[UnitKey, UnitDepth]
) -> QHBatch:
    """States as a batch; a history comes from the loaded depth images of the units that begin at ``unit_starts``."""
    history = _depth_history(source, columns, unit_starts, loaded)
    return to_batch(columns, depth_history=history, **_shown(source, columns))


def _shown(source: StateSource, columns: Columns) -> dict[str, Observations[Tensor]]:
    """What the actor knew at the states, and on request at those that follow."""
    reader, store_index, steps = source.observations, columns["store_index"], columns["state_step_row_id"]
    if reader is None:
        return {}
    shown = {"observations": reader.batch(source.readers, store_index, steps)}
    if reader.wanted.next_observations:
        following = columns["td_next_step_row_id"]
        following = np.where(following == ABSENT, steps, following)
        shown["next_observations"] = reader.batch(source.readers, store_index, following)
    return shown


def _depth_history(
    source: StateSource, columns: Columns, unit_starts: NDArray[np.int64], loaded: Mapping[UnitKey, UnitDepth]
) -> DepthHistory | None:
    if not source.history:
        return None
    store_index, states = columns["store_index"], columns["state_step_row_id"]
    height, width = next(iter(loaded.values()))[1].shape[1:]
    shape = (len(states), source.history, height, width)
    depth, valid = np.zeros(shape, np.float16), np.zeros(shape, np.bool_)
    present = np.zeros(shape[:2], np.bool_)
    for store, unit_start in set(zip(store_index.tolist(), unit_starts.tolist(), strict=True)):
        own = np.flatnonzero((store_index == store) & (unit_starts == unit_start))
        rows, in_chain = source.depth_rows(store, states[own])
        first, images, masks = loaded[store, unit_start]
        at = np.clip(rows - first, 0, len(images) - 1)
        depth[own] = np.where(in_chain[..., None, None], images[at], np.float16(0))
        valid[own] = masks[at] & in_chain[..., None, None]
        present[own] = in_chain
    return DepthHistory(as_tensor(depth), as_tensor(valid), as_tensor(present))


def _warn_of_unverified(pins: Sequence[PinnedStore]) -> None:
    names = ", ".join(pin.named for pin in pins if not pin.verified)
    if names:
        text = "was not written by this package and has no digests, so what is read is not verified"
        way = "'rollout-assets store convert' makes a store of it that is"
        warnings.warn(f"{names}: {text}; {way}", UnverifiedStoreWarning, stacklevel=4)
