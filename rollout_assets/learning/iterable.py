"""Streaming batches: the epoch's order, cut into equal batches for every rank, read window by window.

A position in an epoch is one number, the places of the global order already used, so a run can go on with any other
number of workers or ranks. ``QHLoader`` counts what was delivered; with workers the dataset itself cannot know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from rollout_assets.errors import StoreError
from rollout_assets.learning.batch import QHBatch, to_batch
from rollout_assets.learning.order import BatchPlan, Tail, Window, epoch_windows
from rollout_assets.learning.states import Columns, StateSource, gather_history

STATE_VERSION = 1


class QHIterableDataset(IterableDataset[QHBatch]):
    """Batches of q_h rows from one or many stores, every trainable state once per epoch.

    The order depends on ``seed`` and epoch alone. Every rank gets the same number of batches of the same sizes. Use it
    through ``QHLoader``, or in a ``DataLoader`` with ``batch_size=None``: it makes whole batches itself.
    """

    def __init__(
        self,
        stores: Sequence[Path | str] | Path | str,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        history: int = 0,
        tail: Tail = "drop",
        trainable_only: bool = True,
        window_units: int = 8,
    ) -> None:
        listed = [stores] if isinstance(stores, (str, Path)) else list(stores)
        if not 0 <= rank < world_size:
            raise StoreError(f"rank must be between 0 and {world_size - 1}, got {rank}")
        if window_units < 1:
            raise StoreError(f"window_units must be >= 1, got {window_units}")
        self.source = StateSource(listed, trainable_only, history)
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.tail: Tail = tail
        self.window_units = window_units
        self.epoch = 0
        self.consumed = 0
        _ = self.plan, self.source.units

    @property
    def plan(self) -> BatchPlan:
        """How the rest of the epoch is dealt out."""
        return BatchPlan(self.source.total, self.consumed, self.batch_size, self.world_size, self.tail)

    def __len__(self) -> int:
        return self.plan.steps

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch from its beginning."""
        self.epoch, self.consumed = epoch, 0

    def state_dict(self, steps: int = 0) -> dict[str, Any]:
        """The position after ``steps`` more batches of this rank; the same on every rank."""
        return {
            "version": STATE_VERSION,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "window_units": self.window_units,
            "epoch": self.epoch,
            "consumed": self.plan.consumed_after(steps - 1) if steps else self.consumed,
            "total": self.source.total,
            "stores": self.source.fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position; one taken from other data or another order is refused."""
        own = self.state_dict()
        for name in ("version", "seed", "shuffle", "window_units", "total", "stores"):
            if state.get(name) != own[name]:
                raise StoreError(f"cannot resume: {name} was {state.get(name)!r}, is {own[name]!r}")
        self.epoch, self.consumed = int(state["epoch"]), int(state["consumed"])

    def __iter__(self) -> Iterator[QHBatch]:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        windows = epoch_windows(self.source.units, self.window_units, self.seed, self.epoch, self.shuffle)
        shelf = _Shelf(self.source, windows)
        plan = self.plan
        for step in range(first, plan.steps, stride):
            yield shelf.batch(plan.places(step, self.rank))


class QHLoader:
    """A ``DataLoader`` over a ``QHIterableDataset`` that knows its position and can be saved in the middle."""

    def __init__(self, dataset: QHIterableDataset, num_workers: int = 0, **options: Any) -> None:
        if options.get("persistent_workers"):
            raise StoreError("persistent_workers keep the position of an earlier epoch; leave them off")
        self.dataset = dataset
        self._loader: DataLoader[QHBatch] = DataLoader(dataset, batch_size=None, num_workers=num_workers, **options)
        self._delivered = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[QHBatch]:
        """The rest of the current epoch; afterwards the next one begins."""
        self._delivered = 0
        for batch in self._loader:
            self._delivered += 1
            yield batch
        self._delivered = 0
        self.dataset.set_epoch(self.dataset.epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches delivered so far."""
        return self.dataset.state_dict(self._delivered)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a position, with any number of workers and ranks."""
        self._delivered = 0
        self.dataset.load_state_dict(state)


class _Shelf:
    """Windows in memory, their rows already in the epoch's order: a batch is a slice."""

    def __init__(self, source: StateSource, windows: list[Window]) -> None:
        self._source = source
        self._windows = windows
        self._starts = np.array([window.start for window in windows], np.int64)
        self._loaded: dict[int, Columns] = {}
        self._depth: dict[tuple[int, int], tuple[int, NDArray[Any], NDArray[Any]]] = {}

    def batch(self, places: list[tuple[int, int]]) -> QHBatch:
        parts: list[Columns] = []
        for start, stop in places:
            at = start
            while at < stop:
                number = int(np.searchsorted(self._starts, at, side="right")) - 1
                window = self._windows[number]
                columns = self._load(number)
                end = min(stop, window.stop)
                rows = slice(at - window.start, end - window.start)
                parts.append({name: values[rows] for name, values in columns.items()})
                at = end
        if len(parts) == 1:
            columns = parts[0]
        else:
            columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        history = None
        if self._source.history:
            unit_starts = columns["unit_start"]
            states = columns["state_step_row_id"]
            history = gather_history(self._source, self._depth, columns["store_index"], states, unit_starts)
        return to_batch({name: values for name, values in columns.items() if name != "unit_start"}, history)

    def _load(self, number: int) -> Columns:
        if number not in self._loaded:
            for stale in [known for known in self._loaded if known < number - 1]:
                del self._loaded[stale]
            window = self._windows[number]
            parts = []
            for unit in window.units:
                columns = self._source.read(unit)
                columns["unit_start"] = np.full(unit.count, unit.start, np.int64)
                parts.append(columns)
            order = window.permutation
            self._loaded[number] = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
            self._load_depth(number)
        return self._loaded[number]

    def _load_depth(self, number: int) -> None:
        if not self._source.history:
            return
        wanted = {(unit.store_index, unit.start): unit for known in self._loaded for unit in self._windows[known].units}
        self._depth = {key: value for key, value in self._depth.items() if key in wanted}
        for key, unit in wanted.items():
            if key not in self._depth:
                self._depth[key] = self._source.read_depth(unit.store_index, unit.start, unit.stop)
