"""One stored array, read by rows: straight from its files when this package wrote it, through Zarr otherwise."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import StoreDamaged, is_fault
from rollout_assets.rollouts.zarr_store.chunks.files import StoreFiles
from rollout_assets.rollouts.zarr_store.chunks.row_chunks import (
    CRC_BYTES,
    MISSING,
    ArrayDocument,
    RowLayout,
    decode_chunk,
    index_bytes,
    layout_of,
    shard_index,
)
from rollout_assets.sources.zarr_files import chunk_shape

_WORTH_A_THREAD = 1 << 20
_LARGE_BYTES, _MANY_FILES = 1 << 26, 1 << 10
_LARGEST_SIZE = 1 << 48
_LARGEST_EMPTY_BYTES = 1 << 30
"""Decoded bytes that need no file in a store of another writer, whose empty chunks may be absent."""

_LARGEST_RATIO = 1 << 16
"""Decoded bytes for each stored one that no compressor exceeds: Zstd makes four bytes of 128 KiB of zeros."""


def decoding_threads() -> Executor:
    """Threads that decode chunks, shared by all readers of this process; a forked process gets its own."""
    return _threads_of(os.getpid())


@cache
def _threads_of(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(os.cpu_count() or 1, 1), thread_name_prefix=f"rollout-store-{process}")


class RowArray:
    """An array of a store. Reading raises ``StoreDamaged`` with its path for anything missing or altered.

    ``document`` is the array's ``zarr.json``; one that does not describe an array is a ``ValueError``. ``checksums``,
    once set, are those that its chunks must end with, one after the other; any other chunk is refused.
    """

    def __init__(
        self,
        files: StoreFiles,
        path: str,
        document: ArrayDocument,
        through_zarr: Callable[[], Any] | None = None,
    ) -> None:
        self.path = path
        self.shape, self.dtype = _shape(document), _dtype(document)
        self.layout = layout_of(document)
        self._chunk_bytes = math.prod(chunk_shape(document)) * self.dtype.itemsize
        self.checksums: bytes | None = None
        self._files = files
        self._through_zarr = through_zarr

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Decoded bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, start: int = 0, stop: int | None = None, threads: bool = True) -> NDArray[Any]:
        """Rows ``start`` to ``stop``; with ``threads`` several files are decoded at a time."""
        stop = len(self) if stop is None else min(stop, len(self))
        if self.layout is None:
            return self._read_through_zarr(start, stop)
        self.refuse_missing_files(start, stop)
        out = np.empty((max(stop - start, 0), *self.shape[1:]), self.dtype)
        if not out.size:
            return out
        jobs = self._jobs(self.layout, start, stop, out)
        if threads and len(jobs) > 1 and out.nbytes >= _WORTH_A_THREAD:
            for _ in decoding_threads().map(lambda job: self._fill(*job), jobs):
                pass
        else:
            for job in jobs:
                self._fill(*job)
        return out

    def files_of(self, start: int = 0, stop: int | None = None) -> list[str]:
        """Keys of the files that hold some rows; none where Zarr reads them."""
        stop = len(self) if stop is None else min(stop, len(self))
        if self.layout is None or stop <= start or not self.row_bytes:
            return []
        rows = self.layout.file_rows
        return [f"{self.path}/{self.layout.file_key(index)}" for index in range(start // rows, -(-stop // rows))]

    def refuse_missing_files(self, start: int, stop: int) -> None:
        """Raise ``StoreDamaged`` unless very many rows have their files: a document can promise any number.

        To be called before anything is done or memory is taken for each row.
        """
        if self.layout is None:
            self._refuse_unfounded_rows(start, stop)
            return
        files = range(start // self.layout.file_rows, -(-stop // self.layout.file_rows))
        decoded = (stop - start) * self.row_bytes
        if not decoded or (decoded < _LARGE_BYTES and len(files) < _MANY_FILES):
            return
        stored = 0
        for index in files:
            key = self.layout.file_key(index)
            try:
                stored += self._files.size(f"{self.path}/{key}")
            except FileNotFoundError:
                raise StoreDamaged(self.path, f"file {key} is missing") from None
        if decoded > stored * _LARGEST_RATIO:
            raise self._unfounded(decoded, stored)

    def _jobs(
        self, layout: RowLayout, start: int, stop: int, out: NDArray[Any]
    ) -> list[tuple[RowLayout, int, int, NDArray[Any]]]:
        jobs = []
        for index in range(start // layout.file_rows, -(-stop // layout.file_rows)):
            first = index * layout.file_rows
            begin, end = max(start, first), min(stop, first + layout.file_rows)
            jobs.append((layout, index, begin - first, out[begin - start : end - start]))
        return jobs

    def _fill(self, layout: RowLayout, index: int, first_row: int, out: NDArray[Any]) -> None:
        key = f"{self.path}/{layout.file_key(index)}"
        try:
            if layout.sharded:
                self._fill_from_shard(layout, index, first_row, out)
            else:
                self._decode(layout, index, memoryview(self._files.read(key)), out, first_row)
        except FileNotFoundError:
            raise StoreDamaged(self.path, f"file {layout.file_key(index)} is missing") from None
        except Exception as error:  # compressors raise many kinds of errors on broken input
            if is_fault(error):
                raise
            raise StoreDamaged(self.path, f"file {layout.file_key(index)}: {error}") from None

    def _fill_from_shard(self, layout: RowLayout, shard: int, first_row: int, out: NDArray[Any]) -> None:
        key = f"{self.path}/{layout.file_key(shard)}"
        tail = index_bytes(layout)
        size = self._files.size(key)
        index = shard_index(layout, self._files.read_part(key, max(size - tail, 0), tail))
        first, last = first_row // layout.chunk_rows, (first_row + len(out) - 1) // layout.chunk_rows
        spans = index[first : last + 1]
        if (spans == MISSING).any():
            raise ValueError(f"chunk {first + int(np.argmax((spans == MISSING).any(axis=1)))} is missing in its shard")
        begin = int(spans[:, 0].min())
        end = int((spans[:, 0] + spans[:, 1]).max())
        if end > size - tail:
            raise ValueError(f"a chunk reaches to byte {end}, beyond the shard's {size - tail}")
        data = memoryview(self._files.read_part(key, begin, end - begin))
        for chunk, (offset, length) in enumerate(spans, start=first):
            row = chunk * layout.chunk_rows
            target = out[max(row - first_row, 0) : row + layout.chunk_rows - first_row]
            at = int(offset) - begin
            number = shard * layout.chunks_per_file + chunk
            self._decode(layout, number, data[at : at + int(length)], target, max(first_row - row, 0))

    def _decode(self, layout: RowLayout, chunk: int, data: memoryview, out: NDArray[Any], first_row: int) -> None:
        if self.checksums is not None:
            at = chunk * CRC_BYTES
            if bytes(data[-CRC_BYTES:]) != self.checksums[at : at + CRC_BYTES]:
                raise ValueError(f"chunk {chunk} of the array is not the one that was written")
        decode_chunk(layout, data, out, first_row)

    def _read_through_zarr(self, start: int, stop: int) -> NDArray[Any]:
        if self._through_zarr is None:
            raise StoreDamaged(self.path, "is not laid out in whole rows with one compressor and crc32c")
        self.refuse_missing_files(start, stop)
        try:
            return np.asarray(self._through_zarr()[start:stop])
        except Exception as error:  # zarr and its codecs raise many kinds of errors on broken input
            if is_fault(error):
                raise
            raise StoreDamaged(self.path, f"cannot be decoded: {error}") from None

    def _refuse_unfounded_rows(self, start: int, stop: int) -> None:
        largest = max((stop - start) * self.row_bytes, self._chunk_bytes)
        if largest <= _LARGEST_EMPTY_BYTES:
            return
        stored = sum(size for key, size in self._files.sizes().items() if key.startswith(f"{self.path}/"))
        if largest > stored * _LARGEST_RATIO:
            raise self._unfounded(largest, stored)

    def _unfounded(self, decoded: int, stored: int) -> StoreDamaged:
        return StoreDamaged(self.path, f"its shape promises {decoded:,} bytes, its files have {stored:,}")


def _shape(document: ArrayDocument) -> tuple[int, ...]:
    shape = document.get("shape")
    if not isinstance(shape, list) or not shape or not all(map(_is_size, shape)):
        raise ValueError(f"shape must be a list of sizes, got {shape!r}")
    return tuple(shape)


def _is_size(size: object) -> bool:
    return type(size) is int and 0 <= size <= _LARGEST_SIZE


def _dtype(document: ArrayDocument) -> np.dtype[Any]:
    name = document.get("data_type")
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = None
    if not isinstance(name, str) or dtype is None or dtype.name != name or dtype.kind not in "biuf":
        raise ValueError(f"data_type must name booleans or numbers, got {name!r}")
    return dtype
