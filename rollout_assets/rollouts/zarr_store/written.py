"""The arrays of a store being finished: read back from disk before any metadata says where they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rollout_assets.errors import NotReadBack
from rollout_assets.rollouts.zarr_store.chunks.arrays import RowArray
from rollout_assets.rollouts.zarr_store.chunks.files import LocalFiles
from rollout_assets.rollouts.zarr_store.chunks.inventory import take_inventory
from rollout_assets.rollouts.zarr_store.chunks.row_chunks import ArrayDocument
from rollout_assets.rollouts.zarr_store.chunks.sinks import WrittenArray
from rollout_assets.rollouts.zarr_store.chunks.tables import Table


class WrittenArrays:
    """Finished arrays of one store directory by path."""

    def __init__(self, store_dir: Path) -> None:
        self._files = LocalFiles(store_dir)
        self._by_path: dict[str, WrittenArray] = {}

    def add(self, arrays: Iterable[WrittenArray]) -> None:
        """Take note of more arrays."""
        self._by_path |= {array.path: array for array in arrays}

    @property
    def documents(self) -> dict[str, ArrayDocument]:
        """The ``zarr.json`` of each array by path."""
        return {path: array.document for path, array in self._by_path.items()}

    @property
    def content_sha256(self) -> dict[str, str]:
        """Digest of each array's decoded bytes by path."""
        return {path: array.content_sha256 for path, array in self._by_path.items()}

    def shape(self, path: str) -> tuple[int, ...]:
        """The shape of an array."""
        return self._by_path[path].shape

    def column(self, table: Table, name: str, rows: slice = slice(0, None)) -> NDArray[Any]:
        """Rows of a column."""
        path = table.path(name)
        return RowArray(self._files, path, self._by_path[path].document).read(rows.start, rows.stop)

    def columns(self, table: Table, names: Collection[str], rows: slice = slice(0, None)) -> dict[str, NDArray[Any]]:
        """Rows of some columns."""
        return {name: self.column(table, name, rows) for name in names}

    def stored_checksums(self) -> dict[str, str]:
        """Digest over the checksums of each array's chunks; a chunk that is not on disk is a ``NotReadBack``."""
        sizes = self._files.sizes()
        checksums = {}
        for path, array in self._by_path.items():
            inventory = take_inventory(self._files, sizes, path, array.layout, array.rows)
            if inventory.problems:
                raise NotReadBack(f"{self._files.root}: {path}: {inventory.problems[0]} right after it was written")
            checksums[path] = inventory.stored_crc32c
        return checksums
