"""The files of a store in object storage: few requests, in ranges, several at a time.

An object of up to ``WHOLE_BYTES`` is read whole by the first request for any part of it, and kept for a while, because
a request takes as long as that many bytes; of a larger one only the parts that are asked for. The objects of a store
never change, so what was read once is never asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from threading import Lock

from cachetools import LRUCache
from zarr.abc.store import Store
from zarr.storage import ObjectStore

from rollout_assets.locations.objects import ObjectFolder
from rollout_assets.locations.url import ObjectUrl

WHOLE_BYTES = 4 << 20
"""Largest object that is read whole by the first request for a part of it."""

_ROOT = "zarr.json"
_KEPT_BYTES = 256 << 20


class ObjectFiles:
    """The objects below a URL, as the files of a store."""

    def __init__(self, url: ObjectUrl) -> None:
        self.url = url
        self.objects = ObjectFolder(url)
        self._sizes: dict[str, int] = {}
        self._kept: LRUCache[str, bytes] = LRUCache(_KEPT_BYTES, getsizeof=len)
        self._lock = Lock()

    def __str__(self) -> str:
        return self.url

    def __reduce__(self) -> tuple[type[ObjectFiles], tuple[ObjectUrl]]:
        return ObjectFiles, (self.url,)

    @property
    def backend(self) -> Store:
        """The same objects as a Zarr storage backend."""
        return ObjectStore(self.objects.store, read_only=True)

    def sizes(self) -> dict[str, int]:
        """Every key with its size: one request per thousand."""
        sizes = {fact.key: fact.size for fact in self.objects.listing()}
        with self._lock:
            self._sizes.update(sizes)
        return sizes

    def folders(self) -> set[str]:
        """None: object storage knows keys only."""
        return set()

    def size(self, key: str) -> int:
        """Bytes of one object."""
        if key not in self._sizes:
            self._read_beginning(key)
        return self._sizes[key]

    def read(self, key: str) -> bytes:
        """A whole object; the root's document is asked for every time, because it tells whether the store is gone."""
        if key == _ROOT:
            return self.objects.read(key)
        return self.read_part(key, 0, self.size(key))

    def read_part(self, key: str, start: int, length: int) -> bytes:
        """A byte range of an object."""
        size = self.size(key)
        with self._lock:
            kept = self._kept.get(key)
        if kept is None and size <= WHOLE_BYTES:
            kept = self._read_beginning(key)
        end = min(start + length, size)
        if kept is not None and end <= len(kept):
            return kept[start:end]
        return self.objects.read_part(key, start, end - start) if end > start else b""

    def prefetch(self, keys: Iterable[str]) -> None:
        """Ask for the beginnings of objects that are not known yet, several at a time; missing ones are left out."""
        unknown = [key for key in dict.fromkeys(keys) if key not in self._sizes]
        if len(unknown) > 1:
            self.objects.at_once(self._try_beginning, unknown)

    def _try_beginning(self, key: str) -> None:
        with suppress(FileNotFoundError):  # whoever needs it says so
            self._read_beginning(key)

    def _read_beginning(self, key: str) -> bytes:
        data, size = self.objects.read_beginning(key, WHOLE_BYTES)
        with self._lock:
            self._sizes[key] = size
            self._kept[key] = data
        return data
