"""Zarr arrays of others: a folder as a storage backend that reads regular files only, and what a chunk is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore

from rollout_assets.parsing import open_regular

if TYPE_CHECKING:
    from zarr.abc.buffer import Buffer
    from zarr.core.buffer import BufferPrototype


class RegularFileStore(LocalStore):
    """zarr's own ``LocalStore`` would wait for a pipe, and read a device without end."""

    def get_sync(
        self, key: str, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The bytes of a key; None if there is no such file."""
        try:
            with open_regular(self.root / key) as stream:
                data = _part(stream, byte_range)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """As ``get_sync``, in a thread."""
        if not self._is_open:
            await self._open()
        return await asyncio.to_thread(self.get_sync, key, prototype=prototype, byte_range=byte_range)


def chunk_shape(document: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of what is decoded at a time by an array's ``zarr.json``; none of it where it is not said the usual way."""
    try:
        inner = [codec["configuration"] for codec in document["codecs"] if codec["name"] == "sharding_indexed"]
        shape = (inner or [document["chunk_grid"]["configuration"]])[0]["chunk_shape"]
        return tuple(map(int, shape))
    except (LookupError, TypeError, ValueError):
        return (0,)


def _part(stream: BinaryIO, part: ByteRequest | None) -> bytes:
    size = stream.seek(0, 2)
    start, end = 0, size
    if isinstance(part, RangeByteRequest):
        start, end = part.start, min(part.end, size)
    elif isinstance(part, OffsetByteRequest):
        start = part.offset
    elif isinstance(part, SuffixByteRequest):
        start = max(size - part.suffix, 0)
    stream.seek(start)
    return stream.read(max(end - start, 0))
