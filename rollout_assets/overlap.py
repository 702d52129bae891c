"""Two threads at once: things made ahead of their use, and things done behind the back of who asks for them.

A GPU waits while the host reads, and the host waits while kernels run; Warp lets other threads work while it launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

Pausing = Generator[None, None, Made]
"""Work that makes something and may pause on its way, at places from where another thread may go on with it."""


def begin(work: Pausing[Made]) -> Callable[[], Made]:
    """Do work until it pauses; the returned function does the rest, in whatever thread, and gives what was made."""
    try:
        next(work)
    except StopIteration as done:
        made: Made = done.value
        return lambda: made
    return partial(without_pause, work)


def without_pause(work: Pausing[Made]) -> Made:
    """What work makes, done to its end here and now."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            made: Made = done.value
            return made


def made_ahead(make: Callable[[Item], Made], items: Sequence[Item]) -> Iterator[tuple[Item, Future[Made]]]:
    """Each item with what is made of it, in order, the next one being made while this one is used.

    An error of ``make`` is raised where its result is asked for, and the item after it is made only when its turn has
    come. With one item nothing is started.
    """
    if len(items) < 2:
        for item in items:
            yield item, _now(make, item)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        ahead: Future[Made] | None = None
        for index, item in enumerate(items):
            current = ahead or pool.submit(make, item)
            failed = current.exception() is not None  # nothing is made ahead of somebody who may give up now
            ahead = pool.submit(make, items[index + 1]) if index + 1 < len(items) and not failed else None
            yield item, current


def _now(make: Callable[[Item], Made], item: Item) -> Future[Made]:
    future: Future[Made] = Future()
    try:
        future.set_result(make(item))
    except Exception as error:
        future.set_exception(error)
    return future


class Behind(Generic[Item]):
    """Calls ``work`` with one item after another in a thread of its own, while the caller makes the next ones.

    At most ``waiting`` items lie ready. The first error is raised by the next call or at the end of the block, and what
    came after it is left undone. A block that ends with an error of its own waits only for the item under work.
    """

    def __init__(self, work: Callable[[Item], object], waiting: int = 8) -> None:
        self._work, self._room = work, threading.Semaphore(waiting)
        self._error: BaseException | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="behind")

    def __enter__(self) -> Behind[Item]:
        return self

    def __call__(self, item: Item) -> None:
        """Have ``work`` done with an item soon."""
        self._room.acquire()
        self._raise()
        self._pool.submit(self._do, item)

    def _do(self, item: Item) -> None:
        try:
            if self._error is None:
                self._work(item)
        except BaseException as error:
            self._error = error
        finally:
            self._room.release()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self._raise()
