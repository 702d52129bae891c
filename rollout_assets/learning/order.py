"""The order of an epoch: a function of seed and epoch alone, the same for any number of workers and ranks.

Units are shuffled and grouped into windows of a few units, and the states of a window are shuffled together. So states
are mixed within a window, windows are mixed across the data, and few windows are in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import StoreError
from rollout_assets.learning.states import Unit
from rollout_assets.randomness import rng_for

Tail = Literal["drop", "repeat"]


@dataclass(frozen=True)
class Window:
    """Units read together; their states take places ``start`` to ``stop`` of the epoch, in ``permutation`` order."""

    units: tuple[Unit, ...]
    start: int
    stop: int
    key: tuple[int, int, int] | None

    @property
    def permutation(self) -> NDArray[np.int64]:
        """Order of the units' concatenated states."""
        count = self.stop - self.start
        return np.arange(count) if self.key is None else rng_for(*self.key, "rows").permutation(count)


def epoch_windows(units: tuple[Unit, ...], window_units: int, seed: int, epoch: int, shuffle: bool) -> list[Window]:
    """The windows of an epoch, in order."""
    order = rng_for(seed, epoch, "units").permutation(len(units)) if shuffle else np.arange(len(units))
    windows, place = [], 0
    for number, at in enumerate(range(0, len(order), window_units)):
        chosen = tuple(units[index] for index in order[at : at + window_units])
        count = sum(unit.count for unit in chosen)
        windows.append(Window(chosen, place, place + count, (seed, epoch, number) if shuffle else None))
        place += count
    return windows


@dataclass(frozen=True)
class BatchPlan:
    """How the places from ``consumed`` to ``total`` become batches: equally many for every rank, at every step.

    A step takes ``batch_size`` places for each rank. The last step shares what is left; the fewer than ``world_size``
    places that cannot be shared equally are dropped; with tail "repeat", places from the epoch's start fill them up.
    """

    total: int
    consumed: int
    batch_size: int
    world_size: int
    tail: Tail

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size"):
            if getattr(self, name) < 1:
                raise StoreError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.tail not in get_args(Tail):
            raise StoreError(f"tail must be one of {', '.join(get_args(Tail))}, got {self.tail!r}")
        if not 0 <= self.consumed <= self.total:
            raise StoreError(f"consumed must be between 0 and {self.total}, got {self.consumed}")

    @property
    def steps(self) -> int:
        """How many batches each rank gets."""
        full, rest = divmod(self.total - self.consumed, self.batch_size * self.world_size)
        return full + (1 if self._last_size(rest) else 0)

    def places(self, step: int, rank: int) -> list[tuple[int, int]]:
        """Runs of places, (start, stop), that make one rank's batch; two or more where places repeat."""
        full, rest = divmod(self.total - self.consumed, self.batch_size * self.world_size)
        begin = self.consumed + step * self.batch_size * self.world_size
        size = self.batch_size if step < full else self._last_size(rest)
        at = begin + rank * size
        stop = at + size
        runs = []
        while at < stop:
            place = at % self.total
            length = min(stop - at, self.total - place)
            runs.append((place, place + length))
            at += length
        return runs

    def consumed_after(self, step: int) -> int:
        """How many places are used once every rank has its batch of ``step``."""
        return min(self.consumed + (step + 1) * self.batch_size * self.world_size, self.total)

    def _last_size(self, rest: int) -> int:
        return -(-rest // self.world_size) if self.tail == "repeat" else rest // self.world_size
