"""Random access: state by state, or a batch of them at once, from one or many stores."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from rollout_assets.errors import StoreError
from rollout_assets.learning.batch import QHBatch, to_batch
from rollout_assets.learning.states import Columns, StateSource, gather_history


class QHDataset(Dataset[QHBatch]):
    """Map-style: index ``i`` is the i-th state that counts, store by store; each item is a batch of one.

    ``batch(indices)`` gives many at once and is what a ``DataLoader`` uses (``collate_fn=QHDataset.collate``). Recently
    used units stay decoded, ``cached_units`` of them.
    """

    def __init__(
        self,
        stores: Sequence[Path | str] | Path | str,
        *,
        history: int = 0,
        trainable_only: bool = True,
        cached_units: int = 32,
    ) -> None:
        listed = [stores] if isinstance(stores, (str, Path)) else list(stores)
        if cached_units < 1:
            raise StoreError(f"cached_units must be >= 1, got {cached_units}")
        self.source = StateSource(listed, trainable_only, history)
        self._cached_units = cached_units
        self._ends = np.cumsum([unit.count for unit in self.source.units], dtype=np.int64)
        self._cache: OrderedDict[int, Columns] = OrderedDict()
        self._depth: dict[int, tuple[int, NDArray[Any], NDArray[Any]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": OrderedDict(), "_depth": {}}

    def __len__(self) -> int:
        return self.source.total

    def __getitem__(self, index: int) -> QHBatch:
        if not -len(self) <= index < len(self):
            raise IndexError(f"state {index} of {len(self)}")
        return self.batch([index % len(self)])

    def __getitems__(self, indices: list[int]) -> QHBatch:
        """Many states at once; DataLoader's fetcher calls it and hands the result to ``collate``."""
        return self.batch(indices)

    @staticmethod
    def collate(batch: QHBatch) -> QHBatch:
        """The batch is one already."""
        return batch

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> QHBatch:
        """States by index, in the order asked for."""
        wanted = np.asarray(indices, np.int64)
        units = np.searchsorted(self._ends, wanted, side="right")
        out: Columns = {}
        unit_starts = np.zeros(len(wanted), np.int64)
        for unit in np.unique(units).tolist():
            own = np.flatnonzero(units == unit)
            columns = self._read(unit)
            rows = wanted[own] - (self._ends[unit] - self.source.units[unit].count)
            unit_starts[own] = self.source.units[unit].start
            for name, values in columns.items():
                if name not in out:
                    out[name] = np.empty((len(wanted), *values.shape[1:]), values.dtype)
                out[name][own] = values[rows]
        history = None
        if self.source.history:
            loaded = {}
            for unit in np.unique(units).tolist():
                part = self.source.units[unit]
                loaded[(part.store_index, part.start)] = self._depth[unit]
            history = gather_history(self.source, loaded, out["store_index"], out["state_step_row_id"], unit_starts)
        self._forget()
        return to_batch(out, history)

    def _read(self, unit: int) -> Columns:
        if unit not in self._cache:
            part = self.source.units[unit]
            self._cache[unit] = self.source.read(part)
            if self.source.history:
                self._depth[unit] = self.source.read_depth(part.store_index, part.start, part.stop)
        self._cache.move_to_end(unit)
        return self._cache[unit]

    def _forget(self) -> None:
        while len(self._cache) > self._cached_units:
            unit, _ = self._cache.popitem(last=False)
            self._depth.pop(unit, None)
