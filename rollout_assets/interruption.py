"""Ctrl-C while a program is still loading: one line and exit code 130, and nothing that has to be cleaned up.

An exception would be printed with the import that it met, or be swallowed by a package that takes it for a missing one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

STANDARD_ERROR = 2

Handler = Callable[[int, FrameType | None], Any]


def stop_at_once(_number: int, _frame: FrameType | None) -> None:
    """Say that the program was interrupted, and end it."""
    os.write(STANDARD_ERROR, b"interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def when_interrupted(handler: Handler) -> Iterator[None]:
    """Let ``handler`` answer Ctrl-C inside the block, unless it is ignored, or this is not the main thread."""
    ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
