"""Kept observations: made once by whoever comes first, made again when damaged, lost to nobody who is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.learning.observation_rows import (
    ROWS_FILE,
    SEAL_FILE,
    UNIT_STEPS,
    UNITS_DIR,
    ObservationRows,
    row_dtype,
)
from rollout_assets.observations.observation import Arrays, Observations
from tests.full_disk import full_after
from tests.support.refusals import refused

CONFIG = ObservationConfig(points=16, history=2)
WIDTH = 3
DTYPE = row_dtype(CONFIG, WIDTH)
COUNT = 3 * UNIT_STEPS + 40


def numbered(first: int, stop: int) -> Observations[Arrays]:
    """Observations that tell which step they are of."""
    arrays = {}
    for name in DTYPE.names or ():
        dtype = DTYPE[name].base
        steps = np.arange(first, stop).reshape(-1, *([1] * len(DTYPE[name].shape)))
        arrays[name] = np.broadcast_to(steps % 2 if dtype.kind == "b" else steps, (stop - first, *DTYPE[name].shape))
        arrays[name] = arrays[name].astype(dtype)
    return Observations(**arrays)


class Counted:
    """Makes numbered observations and notes which."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    def __call__(self, first: int, stop: int) -> Observations[Arrays]:
        self.made.append((first, stop))
        return numbered(first, stop)


def refuse(first: int, stop: int) -> Observations[Arrays]:
    raise AssertionError(f"steps {first} to {stop} are made again")


def rows(folder: Path | None) -> ObservationRows:
    return ObservationRows(folder, COUNT, DTYPE)


def require_numbered(kept: ObservationRows, make: Callable[[int, int], Observations[Arrays]]) -> None:
    steps = np.random.default_rng(0).permutation(COUNT)
    whole = numbered(0, COUNT)
    for name, values in kept.gather(steps, make).arrays().items():
        expected = getattr(whole, name)[steps]
        assert values.dtype == expected.dtype and values.flags.c_contiguous
        assert np.array_equal(values, expected), name


@pytest.mark.parametrize("kept", [True, False])
def test_each_unit_is_made_when_it_is_first_asked_for(tmp_path: Path, kept: bool) -> None:
    make = Counted()
    store = rows(tmp_path if kept else None)
    store.gather(np.array([COUNT - 1, 0, 1]), make)
    assert make.made == [(0, UNIT_STEPS), (3 * UNIT_STEPS, COUNT)]
    require_numbered(store, make)
    assert sorted(make.made) == [(at, min(at + UNIT_STEPS, COUNT)) for at in range(0, COUNT, UNIT_STEPS)]
    require_numbered(store, refuse)
    if kept:
        require_numbered(rows(tmp_path), refuse)


def test_the_file_is_a_plain_array_of_records(tmp_path: Path) -> None:
    require_numbered(rows(tmp_path), numbered)
    records = np.load(tmp_path / ROWS_FILE, mmap_mode="r")
    assert records.shape == (COUNT,) and records.dtype.names == DTYPE.names
    assert records["steps_left"].tolist() == list(range(COUNT))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1]))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda folder: flip(folder / ROWS_FILE, (folder / ROWS_FILE).stat().st_size - 5),
    "a short file": lambda folder: os.truncate(folder / ROWS_FILE, 20_000),
    "an empty file": lambda folder: os.truncate(folder / ROWS_FILE, 0),
    "a broken header": lambda folder: flip(folder / ROWS_FILE, 12),
    "no file": lambda folder: (folder / ROWS_FILE).unlink(),
    "another array": lambda folder: np.save(folder / ROWS_FILE, np.zeros(COUNT)),
    "no seal": lambda folder: (folder / UNITS_DIR / "000001" / SEAL_FILE).unlink(),
    "a short seal": lambda folder: os.truncate(folder / UNITS_DIR / "000001" / SEAL_FILE, 5),
    "a seal of other steps": lambda folder: (folder / UNITS_DIR / "000001" / SEAL_FILE).write_text('{"crc32c": 1}'),
    "a seal that is a list": lambda folder: (folder / UNITS_DIR / "000001" / SEAL_FILE).write_text("[1]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_made_again(tmp_path: Path, damage: str) -> None:
    require_numbered(rows(tmp_path), numbered)
    DAMAGE[damage](tmp_path)
    make = Counted()
    require_numbered(rows(tmp_path), make)
    assert make.made
    require_numbered(rows(tmp_path), refuse)


def test_a_full_disk_names_the_file_and_leaves_nothing_sealed(tmp_path: Path) -> None:
    store = rows(tmp_path)
    store.gather(np.array([0]), numbered)
    path = tmp_path / ROWS_FILE
    with full_after(path.stat().st_size - 1_000), refused(OSError, errno=errno.EFBIG, filename=str(path)):
        store.gather(np.array([COUNT - 1]), numbered)
    make = Counted()
    require_numbered(rows(tmp_path), make)
    assert (0, UNIT_STEPS) not in make.made and len(make.made) == 3


def test_an_error_while_making_leaves_the_unit_to_the_next(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        rows(tmp_path).gather(np.array([0]), refuse)
    require_numbered(rows(tmp_path), numbered)


_MAKER = """
import sys, time
from pathlib import Path
import numpy as np
from tests.learning.test_observation_rows import numbered, rows

def make(first, stop):
    print(first, flush=True)
    time.sleep(float(sys.argv[2]))
    return numbered(first, stop)

rows(Path(sys.argv[1])).require(np.arange(4), make)
print("done", flush=True)
"""


def maker(folder: Path, seconds: float) -> subprocess.Popen[str]:
    """A process that makes every unit, each in some seconds, and says which."""
    return subprocess.Popen(
        [sys.executable, "-c", _MAKER, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    process = maker(tmp_path, 0.3)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == str(UNIT_STEPS):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    make = Counted()
    require_numbered(rows(tmp_path), make)
    assert (0, UNIT_STEPS) not in make.made, "what was finished stays"
    assert (UNIT_STEPS, 2 * UNIT_STEPS) in make.made, "what was under way is made by the next"


def test_processes_share_the_work(tmp_path: Path) -> None:
    processes = [maker(tmp_path, 0.5) for _ in range(2)]
    said = [process.communicate()[0].split() for process in processes]
    assert all(lines[-1] == "done" for lines in said)
    made = sorted(int(line) for lines in said for line in lines[:-1])
    assert made == [0, UNIT_STEPS, 2 * UNIT_STEPS, 3 * UNIT_STEPS], "no unit is made twice"
    require_numbered(rows(tmp_path), refuse)


def test_a_unit_that_another_process_makes_is_waited_for(tmp_path: Path) -> None:
    process = maker(tmp_path, 0.6)
    assert process.stdout is not None and process.stdout.readline().strip() == "0"
    rows(tmp_path).gather(np.array([5]), refuse)
    process.communicate()


def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    count = 100 * UNIT_STEPS
    store = ObservationRows(tmp_path, count, DTYPE)
    tracemalloc.start()
    for unit in range(100):
        store.gather(np.arange(unit * UNIT_STEPS, (unit + 1) * UNIT_STEPS), numbered)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * UNIT_STEPS * DTYPE.itemsize < count * DTYPE.itemsize / 10
