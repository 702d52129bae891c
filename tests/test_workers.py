"""Worker processes: results in the order of tasks, deaths that name their task, and no process without a parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rollout_assets.errors import SourceDamaged, WorkerDied
from rollout_assets.files import file_lock, is_locked
from rollout_assets.progress import ProgressEvent, ProgressSink
from rollout_assets.workers import _interrupts_held_back, beside, run_in_new_process, run_tasks
from tests.support.refusals import refused
from tests.support.waiting import PATIENCE_S, wait_until

REPOSITORY = Path(__file__).resolve().parents[1]
LONG_S = 2 * PATIENCE_S
"""How long a task takes that is not interrupted: longer than any test waits."""


def squares(ended: Path | None) -> Callable[[int, ProgressSink], tuple[int, int]]:
    """Square numbers; with a file that the second task writes, the first task ends after the second."""

    def run(number: int, progress: ProgressSink) -> tuple[int, int]:
        progress(ProgressEvent("squares", number))
        if ended and number == 1:
            wait_until(ended.exists, "the end of the second task")
        if ended and number == 2:
            ended.touch()
        return number**2, os.getpid()

    return run


def kills_itself() -> Callable[[int, ProgressSink], int]:
    def run(number: int, _progress: ProgressSink) -> int:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    return run


def refuses() -> Callable[[int, ProgressSink], int]:
    def run(number: int, _progress: ProgressSink) -> int:
        raise SourceDamaged("the store", [f"problem {number}", "and another"])

    return run


def locks_and_waits() -> Callable[[Path, ProgressSink], None]:
    def run(path: Path, _progress: ProgressSink) -> None:
        with file_lock(path, "a task"):
            scratch = path.with_suffix(".unfinished")
            scratch.write_text(str(os.getpid()))
            try:
                time.sleep(LONG_S)
            finally:
                scratch.unlink()

    return run


NUMBERS = {f"task {number}": number for number in (1, 2, 3, 4)}


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_results_are_in_the_order_of_tasks(workers: int, tmp_path: Path) -> None:
    events: list[ProgressEvent] = []
    told: list[tuple[str, int]] = []
    results = run_tasks(
        partial(squares, tmp_path / "ended" if workers > 1 else None),
        NUMBERS,
        workers,
        on_result=lambda name, _, finished: told.append((name, finished)),
        progress=events.append,
    )
    assert {name: square for name, (square, _) in results.items()} == {name: n**2 for name, n in NUMBERS.items()}
    assert list(results) == list(NUMBERS) and sorted(name for name, _ in told) == sorted(NUMBERS)
    assert [finished for _, finished in told] == [1, 2, 3, 4]
    assert sorted(event.done for event in events) == [1, 2, 3, 4]
    assert (os.getpid() in {process for _, process in results.values()}) == (workers == 1)


def test_a_killed_worker_is_an_error_that_names_its_task() -> None:
    with refused(WorkerDied, "task 2", "signal 9", exit_code=-signal.SIGKILL):
        run_tasks(kills_itself, NUMBERS, 2)


def test_a_call_in_a_new_process_returns_or_names_its_death() -> None:
    assert run_in_new_process(os.getppid) == os.getpid()
    with refused(WorkerDied, "_exit", exit_code=3):
        run_in_new_process(os._exit, 3)


def test_other_tasks_continue_when_a_death_becomes_a_result() -> None:
    results = run_tasks(kills_itself, NUMBERS, 2, on_death=lambda death: death.exit_code)
    assert list(results.values()) == [1, -signal.SIGKILL, 3, 4]


def test_an_error_of_a_task_arrives_with_all_that_it_carries() -> None:
    with pytest.raises(SourceDamaged) as caught:
        run_tasks(refuses, {"task 7": 7, "task 8": 8}, 2)
    assert caught.value.problems[0] in ("problem 7", "problem 8") and caught.value.problems[1] == "and another"
    assert str(caught.value).startswith("the store: ")
    assert "in run" in caught.value.__notes__[0]


PARENT = """
import sys
from pathlib import Path
from tests.test_workers import locks_and_waits
from rollout_assets.workers import run_tasks

if __name__ == "__main__":
    run_tasks(locks_and_waits, {name: Path(name) for name in sys.argv[1:]}, 2)
"""


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_children_end_with_their_parent_and_free_their_locks(ending: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    locks = [tmp_path / "one.lock", tmp_path / "two.lock"]
    notes = [lock.with_suffix(".unfinished") for lock in locks]
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), *map(str, locks)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: all(note.exists() and note.read_text() for note in notes), "two tasks at work")
    children = [int(note.read_text()) for note in notes]
    assert all(map(is_locked, locks)) and all(map(is_running, children))
    parent.send_signal(ending)
    wait_until(lambda: not any(map(is_running, children)), "the children to end")
    assert parent.wait(PATIENCE_S) != 0
    assert not any(map(is_locked, locks))
    assert not any(note.exists() for note in notes)  # they cleaned up


def is_running(process: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{process}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_interrupt_while_a_worker_starts_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), _interrupts_held_back():
        os.kill(os.getpid(), signal.SIGINT)
    started = run_tasks(ignored_signals, {"a": 1, "b": 2}, 2)
    assert set(started.values()) == {True}, "a terminal sends Ctrl-C to children too, which leave it to their parent"


def ignored_signals() -> Callable[[int, ProgressSink], bool]:
    def run(_number: int, _progress: ProgressSink) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return True

    return run


def touch(path: Path) -> None:
    path.touch()


def test_work_beside_a_block_is_done_at_its_end_and_its_failure_passed_over(tmp_path):
    with beside(touch, tmp_path / "made"), beside(touch, tmp_path / "nowhere" / "made"):
        pass
    assert (tmp_path / "made").exists()


def test_work_beside_a_block_that_fails_is_ended(tmp_path):
    with pytest.raises(SourceDamaged), beside(time.sleep, LONG_S):
        raise SourceDamaged("a", "b")
