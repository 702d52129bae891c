"""Streaming batches: the epoch's order, cut into equal batches for every rank, read window by window.

A position in an epoch is one number: how many places of the global order are already used. So a run can resume with
any other number of workers or ranks. ``QHLoader`` counts the batches it delivered, because a dataset whose workers are
other processes cannot know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from rollout_assets.errors import RolloutAssetsError, StoreError
from rollout_assets.learning.batch import QHBatch
from rollout_assets.learning.observation_source import ObservationSource
from rollout_assets.learning.order import BatchPlan, Tail, Window, epoch_windows
from rollout_assets.learning.ranks import group_size, require_agreement
from rollout_assets.learning.state_filter import StateFilter
from rollout_assets.learning.states import Columns, StateSource, Unit, UnitDepth, UnitKey, Verify, batch_of
from rollout_assets.progress import SILENT, ProgressSink

STATE_VERSION = 1


class EpochPosition(TypedDict):
    """Where an epoch stands, and of which data and order; plain values, so it can be saved as JSON.

    ``stores`` are the digests of the stores' manifests: a version is what it holds, wherever it lies.
    """

    version: int
    seed: int
    shuffle: bool
    window_units: int
    epoch: int
    consumed: int
    total: int
    stores: list[str]


class QHIterableDataset(IterableDataset[QHBatch]):
    """Batches of training states (rows of ``q_h``) from one or many stores, every trainable state once per epoch.

    The order depends on ``seed`` and epoch alone. Every rank gets the same number of batches of the same sizes. Use it
    through ``QHLoader``, or in a ``DataLoader`` with ``batch_size=None``, because it makes whole batches itself.

    The version of each store is the one that is current when the dataset is made, for all workers and epochs, whatever
    is promoted later; an epoch whose version is gone is refused. Ranks must have the same version: ``QHLoader`` finds
    out where ``torch.distributed`` is initialised; without it compare ``versions``, or load one rank's ``state_dict``
    on all, which refuses another version.

    ``history``: how many earlier depth images each state comes with. ``tail``: what happens to the last places of an
    epoch that cannot be shared equally by all ranks. ``trainable_only``: leave out states that have no candidate with a
    label. ``window_units``: how many stored chunks are shuffled together; more mix better and need more memory.
    ``verify``: "manifest" refuses what is not what the manifest says was written. It reads four bytes of every chunk
    when the dataset is made, and compares them whenever a chunk is decoded. A store of another writer has no digests of
    its arrays: a warning says so, and ``verified`` is False. "none" leaves it out, for stores behind a slow network;
    schema and version are checked all the same. ``observations``: what the actor knew at each state comes with it.
    ``where``: only states of some scenes, or equal ones once.
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
        verify: Verify = "manifest",
        observations: ObservationSource | None = None,
        where: StateFilter | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise StoreError(f"rank must be between 0 and {world_size - 1}, got {rank}")
        if window_units < 1:
            raise StoreError(f"window_units must be >= 1, got {window_units}")
        self.source = StateSource(stores, trainable_only, history, verify, observations, where)
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
    def verified(self) -> bool:
        """Whether what is read is held against digests; not with ``verify="none"``, nor in stores of other writers."""
        return self.source.verified

    @property
    def versions(self) -> tuple[str, ...]:
        """The digest of each store's manifest: what a version is, wherever it lies."""
        return tuple(self.source.fingerprint())

    @property
    def plan(self) -> BatchPlan:
        """How the rest of the epoch is divided into batches."""
        return BatchPlan(self.source.total, self.consumed, self.batch_size, self.world_size, self.tail)

    def __len__(self) -> int:
        return self.plan.steps

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its start."""
        self.epoch, self.consumed = _whole_number("epoch", epoch), 0

    def prepare_observations(self, progress: ProgressSink = SILENT) -> None:
        """Make all observations now instead of when they are first asked for; several processes share the work."""
        self.source.prepare_observations(progress)

    def check_ranks(self, group: Any = None) -> None:
        """Refuse to go on if the ranks of a process group differ in data, order or position.

        Every rank of the group must call this. ``QHLoader`` does at the start of each epoch, where the default process
        group has ``world_size`` ranks.
        """
        settings = {"batch_size": self.batch_size, "world_size": self.world_size, "tail": self.tail}
        require_agreement({**self.state_dict(), **settings}, self.rank, group)

    def state_dict(self, steps: int = 0) -> EpochPosition:
        """The position after ``steps`` more batches of each rank; it is the same on every rank."""
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

    def load_state_dict(self, state: EpochPosition) -> None:
        """Resume at a saved position; one of other data or of another order, or beyond the epoch, is refused."""
        own = self.state_dict()
        for name in ("version", "seed", "shuffle", "window_units", "total", "stores"):
            if state.get(name) != own.get(name):
                raise StoreError(f"cannot resume: {name} was {state.get(name)!r}, is {own.get(name)!r} now")
        epoch = _whole_number("cannot resume: epoch", state.get("epoch"))
        consumed = _whole_number("cannot resume: consumed", state.get("consumed"))
        if consumed > self.source.total:
            raise StoreError(f"cannot resume: consumed must be between 0 and {self.source.total}, got {consumed}")
        self.epoch, self.consumed = epoch, consumed

    def __iter__(self) -> Iterator[QHBatch]:
        self.source.confirm()
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        windows = epoch_windows(self.source.units, self.window_units, self.seed, self.epoch, self.shuffle)
        cache = _WindowCache(self.source, windows)
        plan = self.plan
        for step in range(first, plan.steps, stride):
            yield cache.batch(plan.places(step, self.rank))


class QHLoader:
    """A ``DataLoader`` over a ``QHIterableDataset`` that knows its position, so that training can resume mid-epoch.

    Iterating gives the rest of the current epoch; the next iteration gives the next epoch. ``options`` are those of
    ``DataLoader``, for example ``pin_memory`` or ``prefetch_factor``. An error of this package that happens in a worker
    is raised here as what it is. Workers over stores in object storage are not forked.

    Where ``torch.distributed`` is initialised and the dataset is shared by all its ranks, each epoch begins with
    ``check_ranks``, so every rank must begin it.
    """

    def __init__(self, dataset: QHIterableDataset, num_workers: int = 0, **options: Any) -> None:
        if options.get("persistent_workers"):
            raise StoreError("persistent_workers=True would keep the position of an earlier epoch; leave it out")
        self.dataset = dataset
        if num_workers and dataset.source.in_object_storage:  # its client does not survive a fork
            options.setdefault("multiprocessing_context", "forkserver")
        self._loader: DataLoader[QHBatch | _WorkerError] = DataLoader(
            _WithErrors(dataset), batch_size=None, num_workers=num_workers, **options
        )
        self._delivered = 0

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[QHBatch]:
        """The batches that are left of the current epoch; at its end the next one begins."""
        self._delivered = 0
        if 1 < self.dataset.world_size == group_size():
            self.dataset.check_ranks()
        for batch in self._loader:
            if isinstance(batch, _WorkerError):
                raise batch.error
            self._delivered += 1
            yield batch
        self._delivered = 0
        self.dataset.set_epoch(self.dataset.epoch + 1)

    def state_dict(self) -> EpochPosition:
        """The position after the batches delivered so far."""
        return self.dataset.state_dict(self._delivered)

    def load_state_dict(self, state: EpochPosition) -> None:
        """Resume at a saved position, with any number of workers and ranks."""
        self._delivered = 0
        self.dataset.load_state_dict(state)


@dataclass(frozen=True)
class _WorkerError:
    """An error of a worker on its way to the process that it belongs to."""

    error: RolloutAssetsError


class _WithErrors(IterableDataset["QHBatch | _WorkerError"]):
    """A dataset's batches; in a worker an error of this package is the last item.

    Torch would make it anew from its text, traceback and all, and without what it carries.
    """

    def __init__(self, dataset: QHIterableDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[QHBatch | _WorkerError]:
        try:
            yield from self._dataset
        except RolloutAssetsError as error:
            if get_worker_info() is None:
                raise
            yield _WorkerError(error)


class _WindowCache:
    """The current windows in memory, their rows already in the epoch's order, so that a batch is a slice."""

    def __init__(self, source: StateSource, windows: list[Window]) -> None:
        self._source = source
        self._windows = windows
        self._starts = np.array([window.start for window in windows], np.int64)
        self._loaded: dict[int, Columns] = {}
        self._depth: dict[UnitKey, UnitDepth] = {}

    def batch(self, places: list[tuple[int, int]]) -> QHBatch:
        """The states at some runs of places, (start, stop), in order."""
        parts = [part for start, stop in places for part in self._slices(start, stop)]
        columns = parts[0] if len(parts) == 1 else _joined(parts)
        return batch_of(self._source, columns, columns.pop("unit_start"), self._depth)

    def _slices(self, start: int, stop: int) -> Iterator[Columns]:
        """Places ``start`` to ``stop``, window by window."""
        while start < stop:
            number = int(np.searchsorted(self._starts, start, side="right")) - 1
            window = self._windows[number]
            end = min(stop, window.stop)
            rows = slice(start - window.start, end - window.start)
            yield {name: values[rows] for name, values in self._window(number).items()}
            start = end

    def _window(self, number: int) -> Columns:
        """The rows of a window; windows before the previous one are dropped, because batches only move forward."""
        if number not in self._loaded:
            for stale in [loaded for loaded in self._loaded if loaded < number - 1]:
                del self._loaded[stale]
            window = self._windows[number]
            rows = _joined([self._unit_columns(unit) for unit in window.units])
            order = window.permutation
            self._loaded[number] = {name: values[order] for name, values in rows.items()}
            if self._source.history:
                self._load_depth()
        return self._loaded[number]

    def _unit_columns(self, unit: Unit) -> Columns:
        return {**self._source.read(unit), "unit_start": np.full(unit.count, unit.start, np.int64)}

    def _load_depth(self) -> None:
        """Keep the depth images of exactly the loaded windows' units."""
        units = [unit for number in self._loaded for unit in self._windows[number].units]
        self._depth = {unit.key: self._depth.get(unit.key) or self._source.read_depth(unit) for unit in units}


def _whole_number(what: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
        raise StoreError(f"{what} must be a whole number >= 0, got {value!r}")
    return int(value)


def _joined(parts: list[Columns]) -> Columns:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
