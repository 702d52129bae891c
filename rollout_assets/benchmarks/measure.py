"""How every benchmark measures: clocks, the least of some turns, processes of their own, and the growth of time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from threading import Event, Thread
from time import perf_counter, process_time
from typing import Any, NamedTuple, Self

import numpy as np

from rollout_assets.progress import ProgressEvent, ProgressSink


class Seconds(NamedTuple):
    """Wall seconds and processor seconds of the same work."""

    wall: float
    cpu: float


def timed(work: Callable[[], Any]) -> Seconds:
    """Run ``work`` once."""
    began, used = perf_counter(), process_time()
    work()
    return Seconds(perf_counter() - began, process_time() - used)


def least(work: Callable[[], Any], turns: int = 3) -> Seconds:
    """The shortest of some turns: what the machine can do when nothing else disturbs it."""
    walls, cpus = zip(*(timed(work) for _ in range(turns)), strict=True)
    return Seconds(min(walls), min(cpus))


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent of the power law through seconds over sizes: 1 is linear, 0 constant."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]) if len(set(sizes)) > 1 else 1.0


def peak_memory_mib() -> float:
    """The largest resident size of this process so far.

    Linux's ``ru_maxrss`` starts at the size of the parent process, so the kernel's own mark is read where it exists.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return getrusage(RUSAGE_SELF).ru_maxrss / 2**20
    lines = status.read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 2**10


class Steps:
    """Reports the parts of a benchmark as they begin; the last call says that all are done."""

    def __init__(self, progress: ProgressSink, task: str, total: int, unit: str = "parts") -> None:
        self._progress, self._task, self._total, self._unit = progress, task, total, unit
        self._done = 0

    def __call__(self, note: str = "") -> None:
        self._progress(ProgressEvent(self._task, self._done, self._total, note, self._unit))
        self._done += 1


class ProcessorMeter:
    """Processor seconds of all processes below one, while the block runs.

    The kernel adds up a process's time when it ends only for a parent that waits for it, which not every daemon does.
    So the time of every descendant is read a few times a second; what one uses after the last look is not counted.
    """

    def __init__(self, ancestor: int, every_s: float = 0.2) -> None:
        self._ancestor, self._every_s = ancestor, every_s
        self._before: dict[tuple[int, int], int] = {}
        self._used: dict[tuple[int, int], int] = {}
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._before = dict(self._look())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._used.update(self._look())

    @property
    def seconds(self) -> float:
        """What was used since the block began."""
        ticks = sum(used - self._before.get(process, 0) for process, used in self._used.items())
        return ticks / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            self._used.update(self._look())

    def _look(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Every living descendant, by its number and its start, and the clock ticks that it has used."""
        parents, facts = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                number = int(path.parent.name)
                parents[number] = int(fields[1])
                facts[number] = ((number, int(fields[19])), int(fields[11]) + int(fields[12]))
        for number in parents:
            above = parents[number]
            while above in parents and above != self._ancestor:
                above = parents[above]
            if above == self._ancestor:
                yield facts[number]
