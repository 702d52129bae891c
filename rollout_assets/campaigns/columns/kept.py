"""Columns in one file, with the stamp of what they were made from."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from rollout_assets.files import replace_bytes

Columns = dict[str, NDArray[Any]]

FileStamp = tuple[int, int, int, int]
"""Inode, bytes, time of the last write and time of the last change of status; nobody can set the last one back."""

NO_FILE: FileStamp = (0, 0, 0, 0)
"""The stamp of a file that is not there."""

_STAMP = "stamp"


def file_stamp(path: Path | str) -> FileStamp:
    """The stamp of a file or folder; links are not followed."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return NO_FILE
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def content_stamp(path: Path) -> str:
    """What columns made from a file are kept under."""
    return _stamp_text(path.stat())


def read_stamped(path: Path) -> tuple[bytes, str]:
    """The bytes of a file, and what columns made from them are kept under."""
    with path.open("rb") as stream:
        return stream.read(), _stamp_text(os.fstat(stream.fileno()))


def _stamp_text(status: os.stat_result) -> str:
    return f"columns-v1 {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def keep_columns(path: Path, stamp: str, columns: Mapping[str, NDArray[Any]]) -> None:
    """Keep columns for the next process; a folder that cannot be written to costs only time."""
    stream = io.BytesIO()
    np.savez(stream, **{_STAMP: np.array(stamp), **columns})  # type: ignore[arg-type]
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        replace_bytes(path, stream.getvalue())


def kept_columns(path: Path, stamp: str) -> Columns | None:
    """Columns that were kept under this very stamp; None if there are none, or none that can be read."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored[_STAMP]) != stamp:
                return None
            return {name: stored[name] for name in stored.files if name != _STAMP}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def texts(values: list[str]) -> NDArray[Any]:
    """Texts as a column; NumPy's fixed width would drop zeros at the end, so each is followed by a mark."""
    return np.array([f"{value}." for value in values], dtype=np.str_) if values else np.zeros(0, "U1")


def text_list(column: NDArray[Any]) -> list[str]:
    """The texts of a column."""
    return [value[:-1] for value in column.tolist()]
