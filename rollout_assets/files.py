"""Files that survive a crash: written beside and renamed, flushed to disk, sealed by digest, locked by one process.

The ground floor of every room that writes. Nothing else in the package flushes, locks, renames, walks or removes files.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rollout_assets.errors import ConfigError, NotRegularFile, RolloutAssetsError, ShardBusy
from rollout_assets.parsing import open_regular

_HASH_THREADS = 2
_POLL_S = 0.05
_SCRATCH_PREFIX = ".partial-"
_NOTHING_CAN_BE_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def scratch_path(path: Path) -> Path:
    """Where something is written before it becomes ``path``."""
    if not path.name:
        raise ConfigError(f"{path}: a name is missing; write the path of what is to be made, with its name")
    return path.with_name(_SCRATCH_PREFIX + path.name)


def is_scratch(path: Path) -> bool:
    """Whether a path is an unfinished one."""
    return path.name.startswith(_SCRATCH_PREFIX)


def publish_bytes(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old content or the new, never a mixture."""
    with publishing(path) as scratch:
        scratch.write_bytes(content)


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step without waiting for the disk; any number of processes may do so at once.

    This is for a file inside a tree that is flushed as a whole later, or for one that can be made again.
    """
    scratch = scratch_path(path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}"))
    try:
        with naming(path):
            scratch.write_bytes(content)
        scratch.replace(path)
    except BaseException:
        discard_path(scratch)
        raise


def publish_json(path: Path, payload: Any) -> None:
    """Write indented, sorted JSON, whole or not at all."""
    publish_bytes(path, json.dumps(payload, indent=2, sort_keys=True, allow_nan=False).encode("ascii") + b"\n")


@contextmanager
def publishing(path: Path) -> Iterator[Path]:
    """Give a scratch path to write a file or directory to; it becomes ``path`` when the block ends without an error."""
    scratch = scratch_path(path)
    try:
        with naming(path):
            yield scratch
            publish_path(scratch, path)
    except BaseException:
        discard_path(scratch)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error about a disk that takes no more name what was being written in the block."""
    try:
        yield
    except OSError as error:
        name_written(error, path)
        raise


def name_written(error: object, path: Path) -> None:
    """Give an error about a disk that takes no more the path of what was written, which the system leaves out."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _NOTHING_CAN_BE_WRITTEN:
        error.filename = str(path)


def publish_path(scratch: Path, path: Path) -> None:
    """Rename a finished file or directory into place, after its content has reached the disk."""
    sync_tree(scratch) if scratch.is_dir() else sync_path(scratch)
    rename_path(scratch, path)


def rename_path(path: Path, target: Path) -> None:
    """Rename a file or directory; the new name lasts when this returns."""
    path.rename(target)
    sync_path(target.parent)
    if path.parent != target.parent:
        sync_path(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; its name lasts when this returns.

    The name of one that is there is flushed too: the process that made it may have ended before it did so.
    """
    missing = [folder]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for place in reversed(missing):
        place.mkdir(exist_ok=True)
        with suppress(PermissionError):  # a folder that may be entered but not read, and whose names are not ours
            sync_path(place.parent)


def append_bytes(path: Path, content: bytes) -> int:
    """Add to the end of a file, or make it; the bytes last when this returns, which is the file's length then."""
    with naming(path), path.open("ab") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        size = stream.tell()
    sync_path(path.parent)
    return size


def link_tree(folder: Path, target: Path) -> None:
    """Make ``target`` a second directory of the same files by hard links; neither may be written again."""
    for place, _, names in os.walk(folder):
        linked = target / Path(place).relative_to(folder)
        linked.mkdir(parents=True)
        for name in names:
            (linked / name).hardlink_to(Path(place) / name)


def remove_path(path: Path) -> None:
    """Remove a file, a link or a directory, if it is there."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def discard_path(path: Path) -> None:
    """Remove what can be removed of a file or directory, while another error is on its way to the caller."""
    with suppress(OSError):
        remove_path(path)


@dataclass(frozen=True)
class TreeSeal:
    """Digest over every file below a folder: its relative path, size and content."""

    files: int
    bytes: int
    sha256: str


class FileStamp(NamedTuple):
    """What changes when a file is replaced or written to; no call can set the time of a change of status back."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """The stamp of a file as it is now."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


SizeAndDigest = tuple[int, str]
"""Bytes of a file, and their SHA-256."""


def seal_tree(folder: Path, hashed: Mapping[str, SizeAndDigest] = MappingProxyType({})) -> TreeSeal:
    """Seal every file; one that is added, removed, renamed or altered by one bit gives another digest.

    Files are read once. Those in ``hashed``, by relative path, were read and hashed before and are not read again.
    """
    facts = tree_digests(folder, hashed)
    tree = hashlib.sha256()
    for path, (size, digest) in facts.items():
        tree.update(f"{path}\0{size}\0{digest}\n".encode())
    return TreeSeal(len(facts), sum(size for size, _ in facts.values()), tree.hexdigest())


def tree_digests(folder: Path, hashed: Mapping[str, SizeAndDigest] = MappingProxyType({})) -> dict[str, SizeAndDigest]:
    """Size and SHA-256 of every file below a folder, by its relative path, sorted; what is ``hashed`` is not read."""
    paths = sorted(path for path, _ in _files(folder))
    unread = [path for path in paths if path not in hashed]
    with ThreadPoolExecutor(_HASH_THREADS) as threads:
        shares = [unread[start::_HASH_THREADS] for start in range(_HASH_THREADS)]
        facts = dict(hashed) | dict(chain.from_iterable(threads.map(partial(_sizes_and_digests, folder), shares)))
    return {path: facts[path] for path in paths}


def stamp_tree(folder: Path) -> str:
    """Digest over path, size and times of every file: equal stamps need no second reading.

    The time of the last change of status is among them, because nobody can set that one back.
    """
    tree = hashlib.sha256()
    for path, entry in sorted(_files(folder), key=itemgetter(0)):
        status = entry.stat()
        tree.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\n".encode())
    return tree.hexdigest()


def tree_sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below a folder, by its relative path with slashes; links are not followed."""
    return {path: status.st_size for path, status in tree_status(folder).items()}


def tree_status(folder: Path) -> dict[str, os.stat_result]:
    """Size and times of every file below a folder, by its relative path with slashes; links are not followed."""
    return {path: entry.stat(follow_symlinks=False) for path, entry in _files(folder)}


def tree_folders(folder: Path) -> set[str]:
    """Every folder below a folder, by its relative path with slashes; links are not followed."""
    return set(_folders(folder))


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, of any number."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_tree(folder: Path) -> None:
    """Return when everything below a folder has reached the disk.

    One ``syncfs`` instead of an fsync per file: a store has some hundred small files, and a hundred times the wait.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not _syncfs(handle):
            for place, _, names in os.walk(folder):
                for path in (Path(place), *(Path(place) / name for name in names)):
                    sync_path(path)
    finally:
        os.close(handle)


def sync_path(path: Path) -> None:
    """Return when a file's bytes, or the names in a folder, have reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def switch_link(link: Path, target: str) -> None:
    """Point a symbolic link elsewhere in one step: whoever opens it sees the old target or the new."""
    scratch = scratch_path(link)
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target, target_is_directory=True)
    rename_path(scratch, link)


@contextmanager
def file_lock(
    path: Path, what: str, patience_s: float = 0.0, busy: type[RolloutAssetsError] = ShardBusy
) -> Iterator[None]:
    """Hold a lock for this process; the system releases it however the process ends.

    ``path`` is a folder that exists, or a lock file, which is created and then stays, because removing it would let two
    processes hold two files of one name. A lock that another process holds for longer than ``patience_s`` raises
    ``busy``, with the holder's name if the lock is a file.
    """
    handle = _open_lock(path)
    try:
        if not _locked(handle, patience_s):
            raise busy(f"{what}: the lock is held by {_holder(path, handle)}; wait for it to finish, then try again")
        if path.is_file():
            os.ftruncate(handle, 0)
            with naming(path):
                os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()} since {now_utc()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def is_locked(path: Path | str) -> bool:
    """Whether a live process holds the lock on a lock file or folder."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


def now_utc() -> str:
    """Now, as ISO-8601 UTC with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def time_name() -> str:
    """Now, to the microsecond, as part of a file name that sorts by time."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")


def _open_lock(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _holder(path: Path, handle: int) -> str:
    noted = b"" if path.is_dir() else os.pread(handle, 200, 0)
    return noted.decode("utf-8", "replace").strip() or "another process"


def _locked(handle: int, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)


def _sizes_and_digests(folder: Path, paths: Sequence[str]) -> list[tuple[str, SizeAndDigest]]:
    facts = []
    for path in paths:
        try:
            with open_regular(folder / path) as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                facts.append((path, (stream.tell(), digest)))
        except IsADirectoryError:  # a link to a folder: its target is its content
            facts.append((path, (0, hashlib.sha256(bytes((folder / path).readlink())).hexdigest())))
        except NotRegularFile:
            facts.append((path, (0, "")))  # no file has this digest
    return facts


def _files(folder: Path | str, below: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Relative path, with slashes, and entry of every file; plain strings, because a store has hundreds of files."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, f"{below}{entry.name}/")
            else:
                yield below + entry.name, entry


def _folders(folder: Path | str, below: str = "") -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield below + entry.name
                yield from _folders(entry.path, f"{below}{entry.name}/")


def _syncfs(handle: int) -> bool:
    """Flush the file system behind a handle; False where the system has no such call."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        return False
    if call(handle) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return True
