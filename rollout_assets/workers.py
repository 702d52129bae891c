"""Tasks in a few worker processes: results as they come, and no child that outlives its parent.

Every worker talks through a pipe of its own, so one that is killed takes nothing with it but its task, and another one
takes its place. A worker ends when it is told to, and when its parent is gone, however that ended: it is interrupted,
cleans up, and leaves within ``GRACE_S``; the system hands back its locks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, NoReturn, TypeVar

from rollout_assets.errors import RolloutAssetsError, WorkerDied
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink

GRACE_S = 3.0
"""How long an interrupted worker may take to clean up before it is ended without asking."""

Task = TypeVar("Task")
Result = TypeVar("Result")
RunTask = Callable[[Task, ProgressSink], Result]


def _raise(death: WorkerDied) -> NoReturn:
    raise death


def run_tasks(
    prepare: Callable[[], RunTask[Task, Result]],
    tasks: Mapping[str, Task],
    workers: int,
    *,
    on_result: Callable[[str, Result, int], None] = lambda _name, _result, _finished: None,
    on_death: Callable[[WorkerDied], Result] = _raise,
    progress: ProgressSink = SILENT,
) -> dict[str, Result]:
    """The result of every named task, in the order of ``tasks``.

    ``prepare`` is called once in every process and returns the function that runs a task there, so that what tasks
    share is loaded once. ``on_result`` gets each result as soon as it is there, and how many there are by then. An
    exception of a task ends all work and is raised here. A worker that dies is a ``WorkerDied`` that names its task: it
    is raised too, unless ``on_death`` makes a result of it. One worker means this process; more mean fresh ones, to
    which ``prepare``, tasks and results are pickled.
    """
    results: dict[str, Result] = {}

    def finish(name: str, result: Result) -> None:
        results[name] = result
        on_result(name, result, len(results))

    count = min(workers, len(tasks))
    if count <= 1:
        run = prepare()
        for name, task in tasks.items():
            finish(name, run(task, progress))
        return results
    pool = _Pool(prepare, count, on_death, progress)
    try:
        for name, result in pool.run(tasks):
            finish(name, result)
    finally:
        pool.stop()
    return {name: results[name] for name in tasks}


def run_in_new_process(work: Callable[..., Result], *arguments: object) -> Result:
    """Call a function of a module in a fresh process, which ends with this one; its death is a ``WorkerDied``."""
    pool: _Pool[tuple[object, ...], Result] = _Pool(partial(_caller, work), 1, _raise, SILENT)
    try:
        ((_, result),) = pool.run({work.__name__: arguments})
        return result
    finally:
        pool.stop()


@contextmanager
def beside(work: Callable[..., object], *arguments: object) -> Iterator[None]:
    """Call a function of a module in a fresh process meanwhile, and wait for it at the end of the block.

    For what is of use but not needed: a failure or death of the process is passed over. A block that fails ends it.
    """
    pool: _Pool[tuple[object, ...], object] = _Pool(partial(_caller, work), 1, _raise, SILENT)
    worker = pool.begin(work.__name__, arguments)
    try:
        yield
        with suppress(Exception):
            list(pool.receive(worker))
    finally:
        pool.stop()


def _caller(work: Callable[..., Result]) -> RunTask[tuple[object, ...], Result]:
    return lambda arguments, _progress: work(*arguments)


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: str | None = None


@dataclass(frozen=True)
class _Done:
    """What a worker sends when its task has ended; ``error`` is None if it ended well."""

    result: Any
    error: Exception | None


@dataclass(eq=False)
class _Pool(Generic[Task, Result]):
    """A few worker processes, each with at most one task at a time."""

    prepare: Callable[[], RunTask[Task, Result]]
    count: int
    on_death: Callable[[WorkerDied], Result]
    progress: ProgressSink
    _alive: list[_Worker] = field(default_factory=list)

    def run(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Result]]:
        """Results as they come; a worker that dies is replaced while there is work left."""
        waiting = deque(tasks.items())
        while waiting or any(worker.task for worker in self._alive):
            while waiting and len(self._alive) < self.count:
                self._alive.append(self._start())
            for worker in self._alive:
                if worker.task is None and waiting:
                    self._assign(worker, *waiting.popleft())
            ready = wait([worker.pipe for worker in self._alive])
            for worker in [worker for worker in self._alive if worker.pipe in ready]:
                yield from self.receive(worker)

    def begin(self, name: str, task: Task) -> _Worker:
        """Start a worker on a task."""
        worker = self._start()
        self._alive.append(worker)
        self._assign(worker, name, task)
        return worker

    def stop(self) -> None:
        """End all workers; one that has a task is interrupted and may clean up."""
        for worker in self._alive:
            if worker.task is not None:
                worker.process.terminate()
            worker.pipe.close()
        deadline = time.monotonic() + GRACE_S
        for worker in self._alive:
            worker.process.join(max(deadline - time.monotonic(), 0.0))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._alive.clear()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, self.prepare), daemon=True)
        with _interrupts_held_back():
            process.start()
        there.close()
        return _Worker(process, here)

    def _assign(self, worker: _Worker, name: str, task: Task) -> None:
        worker.task = name
        with suppress(BrokenPipeError):  # the worker has died, which the next ``receive`` reports
            worker.pipe.send(task)

    def receive(self, worker: _Worker) -> Iterator[tuple[str, Result]]:
        """The next message of a worker: progress, the end of its task, or its death."""
        assert worker.task is not None
        try:
            message = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._alive.remove(worker)
            worker.process.join()
            yield worker.task, self.on_death(WorkerDied(worker.task, worker.process.exitcode or 0))
            return
        if isinstance(message, ProgressEvent):
            self.progress(message)
            return
        assert isinstance(message, _Done)
        name, worker.task = worker.task, None
        if message.error is not None:
            raise message.error
        yield name, message.result


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Let a process start that Ctrl-C does not reach, which a terminal sends to children too: its parent will end it.

    One that comes meanwhile waits and reaches this process afterwards; ignoring it for that while would lose it.
    """
    resource_tracker.ensure_running()  # else it is started with the process, and lets interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, prepare: Callable[[], RunTask[Any, Any]]) -> None:
    """A worker process: tasks in, progress and results out, until the pipe closes or the worker is interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt_once)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        task = pipe.recv()
        run: RunTask[Any, Any] | None = None
        while True:
            try:
                run = run or prepare()
                done = _Done(run(task, pipe.send), None)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                done = _Done(None, _portable(error))
            pipe.send(done)
            task = pipe.recv()


def _interrupt_once(_signal: int, _frame: Any) -> NoReturn:
    """Unwind as Ctrl-C would, so that an unfinished attempt is removed; a second signal does not disturb that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """Interrupt this process when its parent is gone, and end it if it has not ended by itself soon after."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error as it can be pickled, with the place where it was raised as a note."""
    own = isinstance(error, (RolloutAssetsError, OSError))
    portable = error if own else RuntimeError(f"{type(error).__name__}: {error}")
    portable.add_note("".join(traceback.format_exception(error)))
    return portable
