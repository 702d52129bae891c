"""The files of a store, on a local disk or behind a Zarr storage backend: list, read whole, read a part."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from cachetools import LRUCache
from zarr.abc.store import RangeByteRequest, Store
from zarr.buffer import default_buffer_prototype

# Private to zarr, and needed: connections of a remote file system belong to the event loop that opened them, and only
# this function runs a store's coroutines on zarr's own loop, where the store's other users run them too.
from zarr.core.sync import sync

from rollout_assets.files import SizeAndDigest, tree_folders, tree_sizes
from rollout_assets.parsing import open_regular, read_regular
from rollout_assets.sources.zarr_files import RegularFileStore

_KEPT_BYTES = 128 << 20


class StoreFiles(Protocol):
    """Read-only access to the files below a store's root, by key (``candidates/target_rri/c/0``)."""

    @property
    def backend(self) -> Store:
        """The same files as a Zarr storage backend."""

    def sizes(self) -> dict[str, int]:
        """Every key with its size in bytes."""

    def folders(self) -> set[str]:
        """Every folder, by key; none where folders do not exist apart from their files."""

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

    def __str__(self) -> str:
        return str(self.root)

    @property
    def backend(self) -> Store:
        """The directory as a Zarr storage backend."""
        return RegularFileStore(self.root, read_only=True)

    def sizes(self) -> dict[str, int]:
        """Every file below the root, links not followed."""
        return tree_sizes(self.root)

    def folders(self) -> set[str]:
        """Every folder below the root."""
        return tree_folders(self.root)

    def size(self, key: str) -> int:
        """Bytes of one file."""
        return os.stat(f"{self.root}/{key}").st_size  # noqa: PTH116 - paths cost as much as the call

    def read(self, key: str) -> bytes:
        """A whole file."""
        return read_regular(f"{self.root}/{key}")

    def read_part(self, key: str, start: int, length: int) -> bytes:
        """A part of a file."""
        with open_regular(f"{self.root}/{key}") as file:
            size = file.seek(0, os.SEEK_END)  # a longer part would be given memory before it is read
            file.seek(start)
            return file.read(max(min(length, size - start), 0))


class HashingFiles(LocalFiles):
    """Files in a directory, each read once as a whole and hashed; parts and later readings come from memory.

    So a store can be sealed by the very bytes that were validated or copied, without reading them a second time. Only
    the last ``_KEPT_BYTES`` are kept; a file that was dropped is read again.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.hashed: dict[str, SizeAndDigest] = {}
        self._kept: LRUCache[str, bytes] = LRUCache(_KEPT_BYTES, getsizeof=len)
        self._lock = Lock()

    def read(self, key: str) -> bytes:
        """A whole file."""
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None:
            return kept
        data = super().read(key)
        digest = len(data), hashlib.sha256(data).hexdigest()
        if self.hashed.setdefault(key, digest) != digest:
            raise OSError(errno.EIO, "changed while it was read", key)
        with self._lock, suppress(ValueError):  # a file larger than all that is kept
            self._kept[key] = data
        return data

    def read_part(self, key: str, start: int, length: int) -> bytes:
        """A part of a file."""
        return self.read(key)[start : start + length]


class BackendFiles:
    """Files behind any Zarr storage backend (fsspec, obstore, memory)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def backend(self) -> Store:
        """The storage backend itself."""
        return self._store

    def sizes(self) -> dict[str, int]:
        """Every key with its size, one request per file."""
        return sync(self._sizes())

    def folders(self) -> set[str]:
        """None: a backend knows keys only."""
        return set()

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
