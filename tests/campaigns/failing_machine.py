"""A machine that fails on cue: files that cannot be opened, memory that is not there, a device that is gone."""

from __future__ import annotations

import builtins
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import warp as wp

from rollout_assets.errors import DeviceError

LAUNCH, UPLOAD = "launch a kernel", "upload to the device"


def refused(number: int) -> Callable[[str], Exception]:
    return lambda where: OSError(number, os.strerror(number), where)


FAULTS: dict[str, Callable[[str], Exception]] = {
    "EIO": refused(errno.EIO),
    "EMFILE": refused(errno.EMFILE),
    "ENOSPC": refused(errno.ENOSPC),
    "no device": lambda where: DeviceError(f"{where}: the device is gone"),
    "no memory": lambda where: MemoryError(f"out of memory at {where}"),
    "no thread": lambda _: RuntimeError("can't start new thread"),
}


@dataclass(frozen=True)
class Fault:
    """The ``nth`` time that a path ending in ``place`` is opened with ``mode``, or that a device is given work."""

    place: str
    kind: str
    nth: int = 1
    mode: str = ""

    def concerns(self, place: str, mode: str) -> bool:
        return place.endswith(self.place) and self.mode in mode


@dataclass
class FailingMachine:
    """Has one fault after the other, one for each attempt at a shard; afterwards it works."""

    faults: Sequence[Fault]
    happened: list[Fault] = field(default_factory=list)
    _seen: int = 0
    _next: int = -1

    def attempt(self) -> None:
        """A new attempt: its fault is the next one."""
        self._next, self._seen = len(self.happened), 0

    def meet(self, place: str, mode: str = "") -> None:
        if place.endswith("shard-000000.lock"):
            self.attempt()
        if self._next != len(self.happened) or self._next >= len(self.faults):
            return
        fault = self.faults[self._next]
        if fault.concerns(place, mode):
            self._seen += 1
            if self._seen == fault.nth:
                self.happened.append(fault)
                raise FAULTS[fault.kind](place)


@contextmanager
def failing(*faults: Fault) -> Iterator[FailingMachine]:
    machine = FailingMachine(faults)
    machine.attempt()

    inner = threading.local()

    def opening(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **options: Any) -> Any:
            if getattr(inner, "opens", False):  # ``open`` with an opener, which calls ``os.open``
                return real(path, *rest, **options)
            if isinstance(path, str | os.PathLike):
                mode = rest[0] if rest else options.get("mode", "r")
                machine.meet(os.fspath(path), mode if isinstance(mode, str) else "")
            inner.opens = True
            try:
                return real(path, *rest, **options)
            finally:
                inner.opens = False

        return call

    def working(real: Callable[..., Any], place: str) -> Callable[..., Any]:
        def call(*rest: Any, **options: Any) -> Any:
            machine.meet(place)
            return real(*rest, **options)

        return call

    with (
        patch.object(builtins, "open", opening(builtins.open)),
        patch.object(io, "open", opening(io.open)),
        patch.object(os, "open", opening(os.open)),
        patch.object(wp, "launch", working(wp.launch, LAUNCH)),
        patch.object(wp, "array", _subclass(wp.array, machine)),
    ):
        yield machine


def _subclass(kind: Any, machine: FailingMachine) -> Any:
    """``wp.array`` is a class that Warp itself asks ``isinstance`` of, so making one fails, not the name."""

    class Meta(type):
        def __call__(cls, *rest: Any, **options: Any) -> Any:
            machine.meet(UPLOAD)
            return kind(*rest, **options)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kind)

        def __getattr__(cls, name: str) -> Any:
            return getattr(kind, name)

    return Meta("array", (), {})
