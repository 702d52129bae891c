"""Where the observations of a dataset come from: the sources of its stores, what is shown, and where that is kept."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.config.reading import data_home
from rollout_assets.errors import StoreDamaged, StoreError
from rollout_assets.files import replace_bytes
from rollout_assets.learning.observable import require_observable, require_source_of
from rollout_assets.learning.observation_rows import ObservationRows, row_dtype
from rollout_assets.learning.observed_states import ObservedStates
from rollout_assets.learning.pinned import PinnedStore
from rollout_assets.observations.observation import Arrays, Observations
from rollout_assets.parsing import expand_path
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.sources.vin_store import VinOfflineStore

CACHE_VERSION = 1
"""Part of every kept observation's name; another number when the same settings give other observations."""

ABOUT_FILE = "about.json"
_KEY_DIGITS = 32

Readers = Sequence[RolloutZarrStoreReader]


def default_cache_dir() -> Path:
    """Where observations are kept unless another folder is given."""
    return data_home() / "observations"


@dataclass(frozen=True)
class ObservationSource:
    """What a dataset needs to show the actor's side of a state.

    ``source``: the source store that the rollouts began from, or several, of which every store finds its own.
    ``cache_dir``: where observations are kept, about 25 KB a state at 1,024 points and 60 candidates; made when
    first asked for, and read from there afterwards, by all workers, runs and ranks. It may be deleted when nothing
    trains from it. None keeps them in the memory of each process. ``next_observations``: batches also hold those of the
    states that follow.
    """

    source: Path | str | Sequence[Path | str]
    config: ObservationConfig = field(default_factory=ObservationConfig)
    next_observations: bool = False
    cache_dir: Path | str | None = field(default_factory=default_cache_dir)

    @property
    def sources(self) -> tuple[str, ...]:
        """The paths of all sources."""
        paths = (self.source,) if isinstance(self.source, (str, Path)) else tuple(self.source)
        if not paths:
            raise StoreError("observations need at least one source, got none")
        return tuple(str(path) for path in paths)


class ObservationReader:
    """Observations of the states of some stores, in one process or many."""

    def __init__(self, wanted: ObservationSource, pins: Sequence[PinnedStore], readers: Readers, width: int) -> None:
        self.wanted = wanted
        self._pins = tuple(pins)
        self._width = width
        for reader in readers:
            require_observable(reader)
        opened = [VinOfflineStore.open(path) for path in wanted.sources]
        self._owners = tuple(_owner(reader, opened) for reader in readers)
        self._rows = tuple(self._kept(*pair) for pair in zip(pins, readers, strict=True))
        self._states: dict[int, list[ObservedStates]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_states": {}}

    def batch(self, readers: Readers, store_index: NDArray[np.int64], steps: NDArray[np.int64]) -> Observations[Tensor]:
        """Observations of the steps (b,) of the stores (b,), all padded to the dataset's width."""
        stores = np.unique(store_index).tolist()
        parts = [self._store_batch(readers, store, steps[store_index == store]) for store in stores]
        if len(parts) == 1:
            return parts[0].mapped(torch.from_numpy)
        own = [store_index == store for store in stores]
        return _merged(parts, own).mapped(torch.from_numpy)

    def prepare(self, readers: Readers, progress: ProgressSink = SILENT) -> None:
        """Make whatever is not made yet, of all stores; other processes may do the same and share the work."""
        total, done = sum(rows.units for rows in self._rows), 0
        for store, rows in enumerate(self._rows):
            for unit in range(rows.units):
                rows.require(np.array([unit]), partial(self._made, readers, store))
                done += 1
                progress(ProgressEvent("observations", done, total, unit="units"))

    def _store_batch(self, readers: Readers, store: int, steps: NDArray[np.int64]) -> Observations[Arrays]:
        rows = self._rows[store].gather(steps, partial(self._made, readers, store))
        missing = self._width - rows.candidate_mask.shape[1]
        return _padded(rows, missing) if missing else rows

    def _made(self, readers: Readers, store: int, first: int, stop: int) -> Observations[Arrays]:
        process = os.getpid()
        if process not in self._states:
            pairs = zip(readers, map(copy, self._owners), strict=True)
            config = self.wanted.config
            self._states = {process: [ObservedStates(*pair, config, check=False) for pair in pairs]}
        try:
            return self._states[process][store].observations(range(first, stop))
        except StoreDamaged as error:
            raise self._pins[store].explain(error, readers[store]) from None

    def _kept(self, pin: PinnedStore, reader: RolloutZarrStoreReader) -> ObservationRows:
        dtype = row_dtype(self.wanted.config, int(reader.attribute("q_h_max_candidates")))
        folder = self._folder(pin)
        return ObservationRows(folder, reader.num_rows("steps"), dtype)

    def _folder(self, pin: PinnedStore) -> Path | None:
        """Named by everything that decides what is kept there, so that nothing in it is ever out of date."""
        if self.wanted.cache_dir is None:
            return None
        cache = expand_path(self.wanted.cache_dir).resolve()
        for inside in (pin.location, *(str(owner.root) for owner in self._owners)):
            if "://" not in inside and cache.is_relative_to(Path(inside).resolve()):
                raise StoreError(f"cache_dir {cache} lies inside {inside}, where nothing may be written; give another")
        about = {
            "manifest_sha256": pin.manifest_sha256,
            "root_sha256": pin.root_sha256,
            "layout_hash": self.wanted.config.layout_hash,
            "cache_version": CACHE_VERSION,
        }
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]
        folder = cache / key
        if not (folder / ABOUT_FILE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            replace_bytes(folder / ABOUT_FILE, json.dumps({**about, "store": pin.named}, indent=2).encode() + b"\n")
        return folder


def _owner(reader: RolloutZarrStoreReader, sources: Sequence[VinOfflineStore]) -> VinOfflineStore:
    """The source that a store was made from."""
    refusals = []
    for source in sources:
        try:
            require_source_of(reader, source)
        except StoreError as refusal:
            refusals.append(refusal)
        else:
            return source
    if len(refusals) == 1:
        raise refusals[0]
    raise StoreError(f"none of {len(sources)} sources fits: " + "; ".join(str(refusal) for refusal in refusals))


def _merged(parts: Sequence[Observations[Arrays]], own: Sequence[NDArray[np.bool_]]) -> Observations[Arrays]:
    """Observations of several stores in the order of the batch; ``own`` says which places are whose."""
    merged = {}
    for name, first in parts[0].arrays().items():
        merged[name] = np.empty((len(own[0]), *first.shape[1:]), first.dtype)
        for part, places in zip(parts, own, strict=True):
            merged[name][places] = getattr(part, name)
    return Observations(**merged)


def _padded(observations: Observations[Arrays], missing: int) -> Observations[Arrays]:
    """Rows of padding for ``missing`` more candidates."""
    padded = observations.arrays()
    for name, values in padded.items():
        if name.startswith("candidate_"):
            fill = -1 if name == "candidate_position" else 0
            rows = np.full((len(values), missing, *values.shape[2:]), fill, values.dtype)
            padded[name] = np.concatenate([values, rows], axis=1)
    return Observations(**padded)
