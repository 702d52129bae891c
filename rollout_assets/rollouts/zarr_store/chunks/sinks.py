"""Columns on their way to files: buffered to whole files, then hashed, encoded and written by worker threads.

A sink holds one file's worth of rows per column. A full buffer is handed to the workers and replaced, and the next full
one waits for it, so memory stays at two buffers whatever the number of rows, and each column's digest sees its rows in
order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store.chunks.arrays import RowArray
from rollout_assets.rollouts.zarr_store.chunks.row_chunks import ArrayDocument, RowLayout, encode_file
from rollout_assets.rollouts.zarr_store.chunks.tables import SelectedDims, Table

Notify = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class WrittenArray:
    """One finished array: how its rows lie in files, and the digest of its decoded bytes."""

    path: str
    layout: RowLayout
    rows: int
    content_sha256: str

    @property
    def document(self) -> ArrayDocument:
        """The array's ``zarr.json``."""
        return self.layout.document(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return (self.rows, *self.layout.row_shape)


class ColumnSink:
    """One array being written, file by file; an array of less than one file gets ``layout.fitted``."""

    def __init__(self, folder: Path, path: str, layout: RowLayout) -> None:
        self.layout = layout
        self._folder = folder / path
        self._path = path
        self._fitted: RowLayout | None = None
        self._digest = hashlib.sha256()
        self._files = 0
        self._rows = 0

    def write(self, rows: NDArray[Any]) -> None:
        """Write up to one file of rows; a file that is not full must be the last."""
        self._digest.update(rows.reshape(-1).view(np.uint8).data)
        self._rows += len(rows)
        layout = self._fitted = self._fitted or self.layout.fitted(len(rows))
        file = self._folder / layout.file_key(self._files)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_file(layout, rows))
        self._files += 1

    def resume(self, before: RowArray, files_before: Path, content_sha256: str) -> NDArray[Any]:
        """Start from a finished array: its full files become hard links, the rows beyond them are returned.

        Every row is read and hashed on the way; content that is not ``content_sha256`` is ``StoreDamaged``.
        """
        file_rows = self.layout.file_rows
        full = len(before) // file_rows
        if full:
            self._fitted = self.layout
            if before.layout != self.layout:
                raise StoreDamaged(self._path, "is laid out in other chunks than this writer's")
        for index in range(full):
            rows = before.read(index * file_rows, (index + 1) * file_rows, threads=False)
            self._digest.update(rows.reshape(-1).view(np.uint8).data)
            key = self.layout.file_key(index)
            (self._folder / key).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / key).hardlink_to(files_before / self._path / key)
        self._files, self._rows = full, full * file_rows
        tail = before.read(full * file_rows, threads=False)
        whole = self._digest.copy()
        whole.update(tail.reshape(-1).view(np.uint8).data)
        if whole.hexdigest() != content_sha256:
            raise StoreDamaged(self._path, "is not what its manifest says (content_sha256 differs)")
        return tail

    def finish(self) -> WrittenArray:
        """The array as written; valid once every write has returned."""
        layout = self._fitted or self.layout.fitted(0)
        return WrittenArray(self._path, layout, self._rows, self._digest.hexdigest())


class TableSink:
    """The columns of one table, all with the same rows, being written."""

    def __init__(
        self,
        folder: Path,
        table: Table,
        dims: SelectedDims,
        chunk_rows: int,
        chunks_per_file: int,
        workers: Executor,
        notify: Notify,
    ) -> None:
        self.table = table
        self.rows = 0
        self._file_rows = chunk_rows * chunks_per_file
        self._workers = workers
        self._notify = notify
        self._pending: list[Future[None]] = []
        self._filled = 0
        self._columns: dict[str, ColumnSink] = {}
        for column in table.columns:
            codec = table.codec_of(column.name)
            layout = RowLayout(column.numpy_dtype, column.resolve(dims), chunk_rows, chunks_per_file, codec)
            self._columns[column.name] = ColumnSink(folder, table.path(column.name), layout)
        self._buffers, self._spare = self._new_buffers(), self._new_buffers()

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Append rows given as one array per column."""
        rows = len(columns[self.table.columns[0].name])
        done = 0
        while done < rows:
            count = min(rows - done, self._file_rows - self._filled)
            for name, buffer in self._buffers.items():
                buffer[self._filled : self._filled + count] = columns[name][done : done + count]
            done += count
            self._filled += count
            self.rows += count
            if self._filled == self._file_rows:
                self._flush()

    def resume(self, before: Callable[[str], RowArray], files_before: Path, content_sha256: Mapping[str, str]) -> None:
        """Start from the rows of a finished store's table; see ``ColumnSink.resume``."""

        def tail(column: str) -> tuple[int, NDArray[Any]]:
            path = self.table.path(column)
            array = before(path)
            return len(array), self._columns[column].resume(array, files_before, content_sha256[path])

        tails = dict(zip(self._columns, self._workers.map(tail, self._columns), strict=True))
        for name, (rows, values) in tails.items():
            self._buffers[name][: len(values)] = values
            self.rows, self._filled = rows, len(values)

    def finish(self) -> list[WrittenArray]:
        """Write what is left and return every array of the table."""
        if self._filled:
            self._flush()
        self._wait()
        self._buffers, self._spare = {}, {}
        return [column.finish() for column in self._columns.values()]

    def _flush(self) -> None:
        self._wait()
        for name, column in self._columns.items():
            self._pending.append(self._workers.submit(column.write, self._buffers[name][: self._filled]))
        self._buffers, self._spare = self._spare, self._buffers
        self._filled = 0

    def _wait(self) -> None:
        pending, self._pending = self._pending, []
        for job in pending:
            job.result()
        if pending:
            self._notify(f"flush/{self.table.name}")

    def _new_buffers(self) -> dict[str, NDArray[Any]]:
        layouts = {name: column.layout for name, column in self._columns.items()}
        return {name: np.empty((layout.file_rows, *layout.row_shape), layout.dtype) for name, layout in layouts.items()}
