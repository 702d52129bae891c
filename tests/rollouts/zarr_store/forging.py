"""Forge values of a store and make every digest, count and summary follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import zarr
from numpy.typing import NDArray

from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store import validation
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.checks.structure import derived_attributes, derived_facts
from rollout_assets.rollouts.zarr_store.chunks.files import LocalFiles
from rollout_assets.rollouts.zarr_store.chunks.inventory import take_inventory
from rollout_assets.rollouts.zarr_store.documents import document_bytes
from rollout_assets.rollouts.zarr_store.manifest import manifest_json_bytes
from tests.rollouts.zarr_store.store_under_test import Mutable

Rows = dict[str, int]
Change = Callable[[NDArray[np.generic], Rows], None]
"""Changes an array's values; named rows are looked up."""


def at(row: int | str, value: object) -> Change:
    """Set a row."""

    def change(values: NDArray[np.generic], rows: Rows) -> None:
        values[rows.get(row, row)] = value

    return change


def bump(row: int | str, by: float = 1) -> Change:
    """Add to a row."""

    def change(values: NDArray[np.generic], rows: Rows) -> None:
        values[rows.get(row, row)] += by

    return change


def flip(row: int | str) -> Change:
    """Negate a row of a mask."""

    def change(values: NDArray[np.generic], rows: Rows) -> None:
        values[rows.get(row, row)] = ~values[rows.get(row, row)]

    return change


def forge(store: Mutable, path: str, change: Change, rows: Rows) -> None:
    """Change an array of the original store through plain zarr, then reseal."""
    forge_all(store, {path: change}, rows)


def forge_all(store: Mutable, changes: dict[str, Change], rows: Rows) -> None:
    """Change several arrays together."""
    store.restore()
    for path, change in changes.items():
        with zarr.config.set({"array.write_empty_chunks": True}):
            array = zarr.open_array(store.path / path, mode="r+")
            values = array[...]
            change(values, rows)
            array[...] = values
    reseal(store.path, changes)


def forge_manifest(store: Mutable, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest of the original store, then reseal."""
    store.restore()
    manifest = json.loads(store.original["manifest.json"])
    change(manifest)
    _seal(store.path, manifest, json.loads(store.original["zarr.json"]))


SEALED = frozenset({"content_digests", "manifest_matches", "attributes_as_derived", "every_file_accounted_for"})
"""Checks that a forged store passes if it was resealed well."""


@contextmanager
def rules_only(*checks: str) -> Iterator[None]:
    """Validate without the checks of documents, files and digests, except these; they take most of the time."""
    kept = tuple(check for check in validation.STRUCTURE_CHECKS if check.__name__ in checks)
    others = tuple(check for check in validation.STORE_CHECKS if check not in validation.STRUCTURE_CHECKS)
    with mock.patch.object(validation, "STORE_CHECKS", (*kept, *others)):
        yield


def reseal(path: Path, changed: Iterable[str]) -> None:
    """Make every digest, checksum, attribute and summary agree with the changed arrays, as far as they can be read."""
    store = StoreUnderCheck(LocalFiles(path), deep=False)
    manifest, root = store.manifest, store.root_document
    for name in changed:
        array = store.array(name)
        values = np.ascontiguousarray(array.read())
        manifest["content_sha256"][name] = hashlib.sha256(values.tobytes()).hexdigest()
        assert array.layout is not None
        found = take_inventory(store.files, store.sizes, name, array.layout, len(array))
        manifest["stored_crc32c"][name] = found.stored_crc32c
    try:
        root["attributes"] |= derived_attributes(store)[0]
        manifest |= derived_facts(store)
    except (StoreDamaged, LookupError):
        pass  # an id that points nowhere cannot be summarised
    _seal(path, manifest, root)


def _seal(path: Path, manifest: dict[str, Any], root: dict[str, Any]) -> None:
    data = manifest_json_bytes(manifest)
    (path / "manifest.json").write_bytes(data)
    root["attributes"]["manifest_sha256"] = hashlib.sha256(data).hexdigest()
    (path / "zarr.json").write_bytes(document_bytes(root))
