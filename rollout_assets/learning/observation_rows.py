"""Observations of a store's steps, made once and kept: one record a step, in a file that is mapped into memory.

The file is a plain ``.npy`` of records, as long as the store has steps, and starts out empty. It is filled unit by unit
as units are asked for, by any number of processes: who holds a unit's lock makes it, the others go on to the next. A
unit counts once its seal, written last, says so, and is held against it when a process first reads it. So whatever a
killed process or a full disk left behind is made again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import StoreError
from rollout_assets.files import file_lock, naming, rename_path, replace_bytes, scratch_path
from rollout_assets.observations.assemble import observe
from rollout_assets.observations.observation import Arrays, Observations

UNIT_STEPS = 256
"""Steps that are made together."""

MakeObservations = Callable[[int, int], Observations[Arrays]]
"""Observations of the steps from a first to a last, which is not included."""

ROWS_FILE = "observations.npy"
UNITS_DIR = "units"
SEAL_FILE = "seal.json"

_POLL_S = 0.02


class _Busy(StoreError):
    """Another process makes the unit."""


def row_dtype(config: ObservationConfig, width: int) -> np.dtype[Any]:
    """The record of one step: every array of its observation, ``width`` candidates wide."""
    nothing = observe([], config, width).arrays()
    fields = [(name, values.dtype, values.shape[1:]) for name, values in nothing.items()]
    return np.dtype(fields, align=True)


class ObservationRows:
    """The observations of ``count`` steps, kept in ``folder``, or without one in this process's memory."""

    def __init__(self, folder: Path | None, count: int, dtype: np.dtype[Any]) -> None:
        self.folder = folder
        self._count = count
        self._dtype = dtype

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("folder", "_count", "_dtype")}

    def gather(self, steps: NDArray[np.int64], make: MakeObservations) -> Observations[Arrays]:
        """Observations of some steps, in the given order; units that nobody has made yet are made now."""
        self.require(np.unique(steps // UNIT_STEPS), make)
        return Observations(**{name: values[steps] for name, values in self._columns.items()})

    def require(self, units: NDArray[np.int64], make: MakeObservations) -> None:
        """Return when some units are there, made by this process or by others."""
        waiting = units[~self._trusted[units]].tolist()
        _ = self._rows
        while waiting:
            left = [unit for unit in waiting if not self._settled(unit, make)]
            if len(left) == len(waiting):
                time.sleep(_POLL_S)
            waiting = left

    @property
    def units(self) -> int:
        """How many units the store has."""
        return -(-self._count // UNIT_STEPS)

    @cached_property
    def _trusted(self) -> NDArray[np.bool_]:
        """(u,) units that this process has made, or has held against their seal."""
        return np.zeros(self.units, np.bool_)

    @cached_property
    def _rows(self) -> NDArray[Any]:
        """(n,) records; memory that is not used yet takes no room."""
        if self.folder is None:
            return np.zeros(self._count, self._dtype)
        path = self.folder / ROWS_FILE
        if (rows := self._mapped(path)) is None:
            with file_lock(self._made(self.folder), str(self.folder), patience_s=60.0):
                if (rows := self._mapped(path)) is None:
                    self._create(path)
                    rows = self._mapped(path)
        if rows is None:
            raise StoreError(f"{path}: was removed while it was made; make the dataset again")
        return rows

    @cached_property
    def _columns(self) -> dict[str, NDArray[Any]]:
        return {name: self._rows[name] for name in self._dtype.names or ()}

    def _mapped(self, path: Path) -> NDArray[Any] | None:
        """The file's records; None if it is not there or not whole."""
        try:
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        except (FileNotFoundError, ValueError, EOFError):
            return None
        return np.asarray(rows) if (rows.dtype, rows.shape) == (self._dtype, (self._count,)) else None

    def _create(self, path: Path) -> None:
        scratch = scratch_path(path)
        with naming(path):
            np.lib.format.open_memmap(scratch, mode="w+", dtype=self._dtype, shape=(self._count,))
        rename_path(scratch, path)

    def _settled(self, unit: int, make: MakeObservations) -> bool:
        """Whether a unit is there now; False while another process makes it."""
        if self.folder is None:
            first, stop = self._span(unit)
            self._rows[first:stop] = self._made_records(first, stop, make)
        elif not self._is_intact(unit):
            try:
                with file_lock(self._made(self._unit_dir(unit)), f"unit {unit}", busy=_Busy):
                    if not self._is_intact(unit):
                        self._write(unit, make)
            except _Busy:
                return False
        self._trusted[unit] = True
        return True

    def _write(self, unit: int, make: MakeObservations) -> None:
        """Make a unit, write it, then seal it; through a file, because a map on a full disk ends the process."""
        first, stop = self._span(unit)
        records = self._made_records(first, stop, make)
        path = self._folder / ROWS_FILE
        content = records.tobytes()
        try:
            with naming(path), path.open("r+b") as stream:
                stream.seek(path.stat().st_size - (self._count - first) * self._dtype.itemsize)
                stream.write(content)
        except FileNotFoundError:
            raise StoreError(f"{path}: was removed while it is in use; make the dataset again") from None
        seal = json.dumps({"crc32c": int(google_crc32c.value(content)), "steps": [first, stop]})
        replace_bytes(self._unit_dir(unit) / SEAL_FILE, seal.encode() + b"\n")

    def _made_records(self, first: int, stop: int, make: MakeObservations) -> NDArray[Any]:
        records = np.zeros(stop - first, self._dtype)
        for name, values in make(first, stop).arrays().items():
            records[name] = values
        return records

    def _is_intact(self, unit: int) -> bool:
        with suppress(OSError, ValueError, TypeError, KeyError):
            seal = json.loads((self._unit_dir(unit) / SEAL_FILE).read_bytes())
            first, stop = self._span(unit)
            content = self._rows[first:stop].view(np.uint8)
            return bool(seal["steps"] == [first, stop] and seal["crc32c"] == google_crc32c.value(content))
        return False

    def _span(self, unit: int) -> tuple[int, int]:
        return unit * UNIT_STEPS, min((unit + 1) * UNIT_STEPS, self._count)

    @property
    def _folder(self) -> Path:
        assert self.folder is not None
        return self.folder

    def _unit_dir(self, unit: int) -> Path:
        return self._folder / UNITS_DIR / f"{unit:06d}"

    @staticmethod
    def _made(folder: Path) -> Path:
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder
