"""Something that may be removed: what it is, how much room it takes, why it may go, and whose lock guards it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollout_assets.files import tree_status

Kind = Literal[
    "version",
    "set aside",
    "staging",
    "replaced plan",
    "failure note",
    "training",
    "observations",
    "report",
    "run",
    "log",
]

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Removable:
    """One thing. ``lock`` is held while it is removed; one that another process holds keeps it where it is."""

    kind: Kind
    name: str
    paths: tuple[Path, ...]
    why: str
    bytes: int
    lock: Path | None = None


def size_of(paths: Iterable[Path]) -> int:
    """Bytes that files and folders take and that removing them frees; a file with further hard links frees nothing."""
    return sum(_size(path) for path in paths)


def _size(path: Path) -> int:
    try:
        if path.is_dir() and not path.is_symlink():
            return sum(status.st_size for status in tree_status(path).values() if status.st_nlink == 1)
        return path.lstat().st_size
    except OSError:  # another process has removed it meanwhile
        return 0


def days_since(path: Path) -> float:
    """Days since a file or folder was last written to; 0 if it is gone."""
    try:
        return max((time.time() - path.lstat().st_mtime) / _DAY_S, 0.0)
    except OSError:
        return 0.0


def days_unused(folder: Path) -> float:
    """Days since any file of a folder was last read or written to."""
    try:
        times = [max(status.st_atime, status.st_mtime) for status in tree_status(folder).values()]
    except OSError:
        return 0.0
    return (time.time() - max(times, default=time.time())) / _DAY_S


def aged(days: float) -> str:
    """An age in words."""
    return f"{days:.0f} days old" if days >= 1 else "less than a day old"
