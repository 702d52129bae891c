"""Random access to training states, one at a time or many at once, from one or many stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from torch.utils.data import Dataset

from rollout_assets.errors import StateMissing, StoreError
from rollout_assets.learning.batch import QHBatch
from rollout_assets.learning.observation_source import ObservationSource
from rollout_assets.learning.ranks import require_agreement
from rollout_assets.learning.states import Columns, StateSource, UnitDepth, UnitKey, Verify, batch_of
from rollout_assets.progress import SILENT, ProgressSink


class QHDataset(Dataset[QHBatch]):
    """Map-style dataset: index ``i`` is the i-th state that counts, store by store; each item is a batch of one state.

    ``batch(indices)`` gives many states at once; a ``DataLoader`` uses it with ``collate_fn=QHDataset.collate``. The
    ``cached_units`` units that were used last stay decoded in memory.

    The stores' versions are those of the moment when the dataset was made, in every worker; one that is gone is a
    ``StoreError`` when it is read. ``verify`` and ``observations``: as in ``QHIterableDataset``.
    """

    def __init__(
        self,
        stores: Sequence[Path | str] | Path | str,
        *,
        history: int = 0,
        trainable_only: bool = True,
        cached_units: int = 32,
        verify: Verify = "manifest",
        observations: ObservationSource | None = None,
    ) -> None:
        if cached_units < 1:
            raise StoreError(f"cached_units must be >= 1, got {cached_units}")
        self.source = StateSource(stores, trainable_only, history, verify, observations)
        self._ends = np.cumsum([unit.count for unit in self.source.units], dtype=np.int64)
        self._cache: LRUCache[int, tuple[Columns, UnitDepth | None]] = LRUCache(cached_units)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": LRUCache(self._cache.maxsize)}

    def __len__(self) -> int:
        return self.source.total

    @property
    def verified(self) -> bool:
        """Whether what is read is held against digests; not with ``verify="none"``, nor in stores of other writers."""
        return self.source.verified

    @property
    def versions(self) -> tuple[str, ...]:
        """The digest of each store's manifest: what a version is, wherever it lies."""
        return tuple(self.source.fingerprint())

    def prepare_observations(self, progress: ProgressSink = SILENT) -> None:
        """Make all observations now instead of when they are first asked for; several processes share the work."""
        self.source.prepare_observations(progress)

    def check_ranks(self, group: Any = None) -> None:
        """Refuse to go on if the ranks of a process group opened other versions; every rank must call this."""
        require_agreement({"stores": self.source.fingerprint(), "total": len(self)}, group=group)

    def __getitem__(self, index: int) -> QHBatch:
        return self.batch([index + len(self) if -len(self) <= index < 0 else index])

    def __getitems__(self, indices: list[int]) -> QHBatch:
        """Many states at once; a ``DataLoader`` calls this and gives the result to ``collate``."""
        return self.batch(indices)

    @staticmethod
    def collate(batch: QHBatch) -> QHBatch:
        """Return the batch unchanged: ``__getitems__`` has already joined its states."""
        return batch

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> QHBatch:
        """States by index, from 0 on, in the given order."""
        indices = self._checked(indices)
        number_of = np.searchsorted(self._ends, indices, side="right")
        columns: Columns = {}
        unit_starts = np.zeros(len(indices), np.int64)
        depths: dict[UnitKey, UnitDepth] = {}
        for number in np.unique(number_of).tolist():
            unit = self.source.units[number]
            own = np.flatnonzero(number_of == number)
            unit_columns, depth = self._read(number)
            for name, values in unit_columns.items():
                if name not in columns:
                    columns[name] = np.empty((len(indices), *values.shape[1:]), values.dtype)
                columns[name][own] = values[indices[own] - (self._ends[number] - unit.count)]
            unit_starts[own] = unit.start
            if depth is not None:
                depths[unit.key] = depth
        return batch_of(self.source, columns, unit_starts, depths)

    def _checked(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """(b,) indices; nothing, numbers that are not whole, and indices beyond the states are refused."""
        given = np.asarray(indices)
        if given.ndim != 1 or not len(given) or given.dtype.kind not in "iu":
            raise StoreError(f"a batch needs a list of at least one whole number, got {indices!r}")
        beyond = given[(given < 0) | (given >= len(self))]
        if len(beyond):
            have = f"0 to {len(self) - 1}" if len(self) else "no states"
            raise StateMissing(f"there is no state {beyond[0]}; the dataset has {have}")
        return given.astype(np.int64)

    def _read(self, number: int) -> tuple[Columns, UnitDepth | None]:
        """A unit's rows and depth images, from the cache or from disk."""
        if number not in self._cache:
            unit = self.source.units[number]
            self._cache[number] = self.source.read(unit), self.source.read_depth(unit) if self.source.history else None
        return self._cache[number]
