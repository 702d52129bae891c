"""How every benchmark measures: clocks, the least of some turns, processes of their own, and the growth of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import perf_counter, process_time
from typing import Any, NamedTuple

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
