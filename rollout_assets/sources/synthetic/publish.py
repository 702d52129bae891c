"""Making files appear whole: written beside, flushed to disk, then renamed."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout_assets.errors import SourceError

_SCRATCH_PREFIX = ".partial-"


def scratch_path(path: Path) -> Path:
    """Where something is written before it becomes ``path``."""
    return path.with_name(_SCRATCH_PREFIX + path.name)


def is_scratch(path: Path) -> bool:
    """Whether a path is an unfinished one."""
    return path.name.startswith(_SCRATCH_PREFIX)


def publish_bytes(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old content or the new, never a mixture."""
    scratch = scratch_path(path)
    with scratch.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    scratch.replace(path)
    _sync_dir(path.parent)


def publish_path(scratch: Path, path: Path) -> None:
    """Rename a finished file or directory into place, after its content has reached the disk."""
    for found in [scratch, *(scratch.rglob("*") if scratch.is_dir() else ())]:
        _sync_dir(found) if found.is_dir() else _sync_file(found)
    scratch.rename(path)
    _sync_dir(path.parent)


def remove_path(path: Path) -> None:
    """Remove a file or a directory."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def exclusive(folder: Path, what: str) -> Iterator[None]:
    """Hold a directory for one writer; released by the system however that writer ends."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SourceError(f"{folder}: {what} is already under way in another process; try again later") from None
        yield
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether a live writer holds a directory."""
    try:
        with exclusive(folder, "a look"):
            return False
    except SourceError:
        return True


def _sync_file(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _sync_dir(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
