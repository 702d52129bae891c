"""The files of a store, on a local disk or behind a Zarr storage backend: list, read whole, read a part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from zarr.abc.store import RangeByteRequest, Store
from zarr.buffer import default_buffer_prototype

# Private to zarr, and needed: connections of a remote file system belong to the event loop that opened them, and only
# this function runs a store's coroutines on zarr's own loop, where the store's other users run them too.
from zarr.core.sync import sync


class StoreFiles(Protocol):
    """Read-only access to the files below a store's root, by key (``candidates/target_rri/c/0``)."""

    def sizes(self) -> dict[str, int]:
        """Every key with its size in bytes."""

    def size(self, key: str) -> int:
        """Bytes of one file; a missing one is a ``FileNotFoundError``."""

    def read(self, key: str) -> bytes:
        """A whole file; a missing one is a ``FileNotFoundError``."""

    def read_part(self, key: str, start: int, length: int) -> bytes:
        """``length`` bytes from ``start`` on."""


class LocalFiles:
    """Files in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def sizes(self) -> dict[str, int]:
        """Every file below the root, links not followed."""
        sizes: dict[str, int] = {}
        folders = [(str(self.root), "")]
        while folders:
            folder, prefix = folders.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, f"{prefix}{entry.name}/"))
                    else:
                        sizes[prefix + entry.name] = entry.stat(follow_symlinks=False).st_size
        return sizes

    def size(self, key: str) -> int:
        """Bytes of one file."""
        return os.stat(f"{self.root}/{key}").st_size  # noqa: PTH116 - paths cost as much as the call

    def read(self, key: str) -> bytes:
        """A whole file."""
        handle = os.open(f"{self.root}/{key}", os.O_RDONLY)
        try:
            return _read_all(handle, 0, os.fstat(handle).st_size)
        finally:
            os.close(handle)

    def read_part(self, key: str, start: int, length: int) -> bytes:
        """A part of a file."""
        handle = os.open(f"{self.root}/{key}", os.O_RDONLY)
        try:
            return _read_all(handle, start, length)
        finally:
            os.close(handle)


def _read_all(handle: int, start: int, length: int) -> bytes:
    data = os.pread(handle, length, start)
    while 0 < len(data) < length:  # one call reads at most 2 GiB
        more = os.pread(handle, length - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


class BackendFiles:
    """Files behind any Zarr storage backend (fsspec, obstore, memory)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sizes(self) -> dict[str, int]:
        """Every key with its size, one request per file."""
        return sync(self._sizes())

    def size(self, key: str) -> int:
        """Bytes of one object."""
        return sync(self._store.getsize(key))

    def read(self, key: str) -> bytes:
        """A whole object."""
        return self._get(key, None)

    def read_part(self, key: str, start: int, length: int) -> bytes:
        """A byte range of an object."""
        return self._get(key, RangeByteRequest(start, start + length))

    async def _sizes(self) -> dict[str, int]:
        return {key: await self._store.getsize(key) async for key in self._store.list()}

    def _get(self, key: str, part: Any) -> bytes:
        data = sync(self._store.get(key, default_buffer_prototype(), part))
        if data is None:
            raise FileNotFoundError(key)
        return data.to_bytes()
