"""An opened rollout store: its files, arrays, dictionaries, tables and manifest, read lazily and by chunk.

The ground that records, validation and the reader stand on. A store may lie in a directory, in object storage
(``s3://...``, ``gs://...``, ``az://...``), behind another URL of fsspec (``memory://...``) or in any Zarr storage
backend; it is always opened read-only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import zarr
from numpy.typing import NDArray
from zarr.abc.store import Store
from zarr.storage import FsspecStore

from rollout_assets.errors import ConfigError, RolloutAssetsError, StoreDamaged, StoreError
from rollout_assets.locations.url import is_object_url, without_secrets
from rollout_assets.parsing import expand_path
from rollout_assets.rollouts.zarr_store.chunks.arrays import RowArray, decoding_threads
from rollout_assets.rollouts.zarr_store.chunks.files import BackendFiles, LocalFiles, StoreFiles
from rollout_assets.rollouts.zarr_store.chunks.object_files import ObjectFiles
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.dictionaries import decode_strings
from rollout_assets.rollouts.zarr_store.documents import (
    ZARR_JSON,
    NodeDocuments,
    absence,
    promoted_splits,
    read_document,
    root_attributes_of,
)
from rollout_assets.rollouts.zarr_store.foreign.derived import SOURCE_OF_TARGET, derived_source_of_target
from rollout_assets.rollouts.zarr_store.foreign.schema_versions import schema_problem
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME, SOURCE_SPLITS, parse_manifest
from rollout_assets.rollouts.zarr_store.pointer import resolve_url
from rollout_assets.rollouts.zarr_store.schema import DICTIONARIES, TABLES
from rollout_assets.sources.zarr_files import RegularFileStore

StoreLocation = Path | str | Store | LocalFiles

_WORTH_THREADS = 1 << 21
_MANY_ROWS = 1 << 26


class OpenStore:
    """The arrays and tables of one store; anything missing or altered is ``StoreDamaged`` when it is read.

    ``attributes`` are those of the root, and ``root_sha256`` is the digest of its document.
    """

    def __init__(self, store_dir: StoreLocation) -> None:
        self.location = str(store_dir)
        self.files, self._backend = _opened(store_dir)
        self._arrays: dict[str, RowArray] = {}
        try:
            data, root = read_document(self.files, "")
            self.attributes = root_attributes_of(root)
        except Exception as error:  # storage backends raise many kinds of errors
            raise StoreError(f"{self.location}: is not a rollout store: {error}") from None
        self._nodes = NodeDocuments(self.files, root)
        self.root_sha256 = hashlib.sha256(data).hexdigest()
        if (splits := promoted_splits(self.attributes)) is not None:
            raise StoreError(_one_store_per_split(self.location, splits))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"

    @property
    def resolved_location(self) -> str:
        """Where the files lie themselves: a promoted store is a link, and who opened it stays with its version."""
        return str(self.files) if isinstance(self.files, LocalFiles | ObjectFiles) else self.location

    @cached_property
    def root(self) -> zarr.Group:
        """The store as a plain, read-only Zarr group."""
        return zarr.open_group(self._backend, mode="r", zarr_format=3)

    def attribute(self, name: str) -> Any:
        """An attribute of the root; a missing one is ``StoreDamaged``."""
        if name not in self.attributes:
            raise StoreDamaged(ZARR_JSON, f"attribute {name} is missing")
        return self.attributes[name]

    def has(self, path: str) -> bool:
        """Whether an array can be read; stores of other writers lack most columns that this package adds."""
        return path == SOURCE_OF_TARGET or self._nodes.find(path) is not None

    def row_array(self, path: str) -> RowArray:
        """An array by path, to be read by rows; a missing one is ``StoreDamaged``."""
        if path not in self._arrays:
            self._arrays[path] = self._open_array(path)
        return self._arrays[path]

    def _open_array(self, path: str) -> RowArray:
        document = self._nodes.find(path)
        if document is None and path == SOURCE_OF_TARGET:
            return derived_source_of_target(self.files, self.array)
        if document is None:
            raise StoreDamaged(path, "is not in the store")
        try:
            return RowArray(self.files, path, document, through_zarr=lambda: self.root[path])
        except (ValueError, AttributeError) as error:
            raise StoreDamaged(path, f"is not an array of Zarr format 3: {error}") from None

    def array(self, path: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows of an array by slash-separated path; all of them by default."""
        return self.row_array(path).read(start, stop)

    def columns(
        self, table: Table, names: Collection[str] | None = None, start: int = 0, stop: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """Columns of a table; by default all but rasters and added columns that the store lacks."""
        if names is None:
            columns = table.without_rasters.columns
            names = [column.name for column in columns if not column.added or self.has(table.path(column.name))]
        arrays = {name: self.row_array(table.path(name)) for name in names}
        self.prefetch(arrays.values(), start, stop)
        rows = range(*slice(start, stop).indices(max((len(array) for array in arrays.values()), default=0)))
        if len(rows) * sum(array.row_bytes for array in arrays.values()) < _WORTH_THREADS:
            return {name: array.read(start, stop) for name, array in arrays.items()}
        read = decoding_threads().map(lambda array: array.read(start, stop, threads=False), arrays.values())
        return dict(zip(arrays, read, strict=True))

    def prefetch(self, arrays: Iterable[RowArray], start: int = 0, stop: int | None = None) -> None:
        """Ask for the files of some rows ahead, all at once, where the store lies in object storage."""
        if isinstance(self.files, ObjectFiles):
            self.files.prefetch(key for array in arrays for key in array.files_of(start, stop))

    def num_rows(self, table: str) -> int:
        """Rows of a table; more than its files can hold are ``StoreDamaged``."""
        columns = _table(table)
        array = self.row_array(columns.path(columns.names[0]))
        if len(array) > _MANY_ROWS:
            array.refuse_missing_files(0, len(array))
        return len(array)

    def strings(self, dictionary: str) -> list[str]:
        """A dictionary's strings by id."""
        return self.text(f"dictionaries/{dictionary}")

    def text(self, path: str) -> list[str]:
        """The strings of an array that holds a JSON list."""
        return decode_strings(path, self.array(path))

    @cached_property
    def dictionaries(self) -> dict[str, list[str]]:
        """Every dictionary."""
        return {name: self.strings(name) for name in DICTIONARIES}

    def table(
        self,
        name: str,
        *,
        columns: Collection[str] | None = None,
        decode: bool = False,
        start: int = 0,
        stop: int | None = None,
    ) -> pl.DataFrame:
        """A table as a polars frame; ``decode`` turns dictionary ids into their strings (null where not given).

        Rasters are left out unless named; vectors become fixed-size array columns. Columns that this package adds to
        the schema are null in a store of another writer, which lacks them.
        """
        table = _table(name)
        unknown = sorted(set(columns or ()) - set(table.names))
        if unknown:
            raise StoreError(f"{name} has no column {', '.join(unknown)}; it has {', '.join(table.names)}")
        names = table.without_rasters.names if columns is None else tuple(dict.fromkeys(columns))
        absent = [column for column in names if table[column].added and not self.has(table.path(column))]
        stored = self.columns(table, [column for column in names if column not in absent], start, stop)
        rows = len(range(*slice(start, stop).indices(self.num_rows(name)))) if absent else 0
        return pl.DataFrame(
            [
                _nulls(table, column, rows) if column in absent else self._series(table, column, stored[column], decode)
                for column in names
            ]
        )

    def _series(self, table: Table, column: str, values: NDArray[Any], decode: bool) -> pl.Series:
        dictionary = table[column].dictionary
        if decode and dictionary is not None:
            return decoded_series(column, values, self.strings(dictionary))
        return pl.Series(column, values)

    def manifest(self) -> dict[str, Any]:
        """Root attributes and the sidecar manifest, without touching any array."""
        return {"root_attrs": self.attributes, "manifest": self.sidecar_manifest()}

    def sidecar_manifest(self) -> dict[str, Any]:
        """The sidecar manifest; a missing or broken one is ``StoreDamaged``."""
        try:
            return parse_manifest(self.files.read(ROLLOUT_MANIFEST_FILENAME))
        except OSError as error:
            raise StoreDamaged(ROLLOUT_MANIFEST_FILENAME, absence(error)) from None

    @cached_property
    def source_splits(self) -> dict[str, str]:
        """The source's own split by sample key, of rows that their campaign has put into another split."""
        splits = self.sidecar_manifest().get(SOURCE_SPLITS)
        return splits if isinstance(splits, dict) else {}


def decoded_series(name: str, ids: NDArray[Any], strings: list[str]) -> pl.Series:
    """Dictionary ids as a column of strings (``pl.String``, to join and match by); ids that point nowhere are null."""
    values = pl.Series(name, strings, dtype=pl.String)
    given = (ids >= 0) & (ids < len(strings))
    index = pl.Series(np.where(given, ids, 0).astype(np.uint32)).set(pl.Series(~given), None)
    if not strings:
        return pl.Series(name, [None] * len(ids), dtype=pl.String)
    return values.gather(index)


def _nulls(table: Table, column: str, rows: int) -> pl.Series:
    return pl.Series(column, np.zeros(0, table[column].numpy_dtype)).extend_constant(None, rows)


def split_location(location: Path | str, split: str | None) -> Path | str:
    """The store of a split below a promoted store's root, which must be named; any other location stays as it is.

    A store that is not of the named split is refused. Without a name, what cannot be read is left for others to report.
    """
    files, _ = open_files(location)
    try:
        attributes = root_attributes_of(read_document(files, "")[1])
    except StoreDamaged:
        if split is None:
            return location
        raise
    except Exception as error:  # storage backends raise many kinds of errors
        if isinstance(error, RolloutAssetsError):
            raise
        raise StoreError(f"{location}: cannot be opened: {str(error) or type(error).__name__}") from None
    splits = promoted_splits(attributes)
    if splits is None:
        if schema_problem(attributes) is not None:
            return location  # who opens it says which schema it has
        own = attributes.get("source_split")
        if split not in (None, own):
            raise StoreError(f"{location}: is a store of the split {own!r}, not {split!r}; leave --split out")
        return location
    if split is None:
        raise StoreError(_one_store_per_split(str(location), splits))
    if split not in splits:
        raise StoreError(f"{location}: has no split {split!r}; it has {', '.join(splits) or 'none'}")
    return f"{str(location).rstrip('/')}/{split}"


def _one_store_per_split(location: str, splits: tuple[str, ...]) -> str:
    if not splits:
        return f"{location}: is the root of a promoted store that does not say which splits it has; promote again"
    way = f"open {location.rstrip('/')}/{splits[0]}, or give --split {splits[0]} on the command line"
    return f"{location}: is the root of a promoted store with one store per split ({', '.join(splits)}); {way}"


def _table(name: str) -> Table:
    if name not in TABLES:
        raise StoreError(f"no table {name!r}; a store has {', '.join(TABLES)}")
    return TABLES[name]


def _opened(location: StoreLocation) -> tuple[StoreFiles, Any]:
    try:
        return open_files(location)
    except ConfigError as error:  # a URL that cannot be used
        raise StoreError(str(error)) from None


def open_files(location: StoreLocation) -> tuple[StoreFiles, Any]:
    """The files at a location, and the Zarr storage backend for them; nothing there is a ``StoreError``."""
    if isinstance(location, LocalFiles):
        return location, RegularFileStore(location.root, read_only=True)
    if isinstance(location, Store):
        return BackendFiles(location), location
    if is_object_url(location):
        objects = ObjectFiles(resolve_url(str(location)))
        return objects, objects.backend
    if "://" in str(location):
        backend = _remote_files(str(location))
        return BackendFiles(backend), backend
    folder = expand_path(location).resolve()
    if not folder.is_dir():
        raise StoreError(f"{folder}: no rollout store there")
    return LocalFiles(folder), RegularFileStore(folder, read_only=True)


def _remote_files(url: str) -> FsspecStore:
    """The backend of a URL; a scheme that nobody knows, or whose package is missing, is a ``StoreError``."""
    if url.rstrip("/") in ("http:", "https:"):
        raise StoreError(f"{url}: cannot be opened: it names no host")
    if without_secrets(url) != url:
        raise StoreError(f"{without_secrets(url)}: cannot be opened: a URL holds no credentials and no options")
    try:
        return FsspecStore.from_url(url, read_only=True)
    except Exception as error:  # every backend has errors of its own
        raise StoreError(f"{url}: cannot be opened: {str(error) or type(error).__name__}") from None
