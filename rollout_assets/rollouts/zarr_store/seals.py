"""Arrays of an opened store, held against its manifest before they are used.

The root names the digest of the manifest, and the manifest a digest over the checksums of each array's chunks. So four
bytes a chunk tell whether an array is still the one that was written; its values are checked against these checksums
when they are read, which decoding does anyway. It finds what happens to a store by mistake, by any tool. Whoever also
makes the digests again is found by ``validate``, not here. A store of another writer has no digests of its arrays: its
manifest, attributes, dtypes and shapes are checked, and its arrays stay without seals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store.attributes import COUNTED
from rollout_assets.rollouts.zarr_store.chunks.arrays import RowArray, decoding_threads
from rollout_assets.rollouts.zarr_store.chunks.files import StoreFiles
from rollout_assets.rollouts.zarr_store.chunks.inventory import ArrayInventory, take_inventory
from rollout_assets.rollouts.zarr_store.chunks.row_chunks import RowLayout
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON
from rollout_assets.rollouts.zarr_store.foreign.origin import profile_of
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME, parse_manifest
from rollout_assets.rollouts.zarr_store.open_store import OpenStore
from rollout_assets.rollouts.zarr_store.schema import TABLES

Seals = Mapping[str, bytes]
"""Array path -> the checksums that its chunks end with, one after the other."""


def read_seals(store: OpenStore, paths: Collection[str]) -> Seals:
    """The checksums of some columns' chunks, which are those of the manifest; anything else is ``StoreDamaged``.

    Root attributes, dtypes, shapes and the presence of every chunk are checked too; no chunk is decoded. A store of
    another writer has no seals: {}.
    """
    manifest = _confirmed_manifest(store)
    is_foreign = profile_of(store.attributes, manifest) == "foreign"
    for path in paths:
        _require_shape(store.row_array(path), manifest)
        if not is_foreign:
            _require_layout(store.row_array(path))
    if is_foreign:
        return {}
    store.prefetch(store.row_array(path) for path in paths)
    inventories = decoding_threads().map(lambda path: _inventory(store, path), paths)
    return {inventory.path: _confirmed_checksums(inventory, manifest) for inventory in inventories}


def apply_seals(store: OpenStore, seals: Seals) -> None:
    """Let a store refuse every chunk of these arrays that does not end with its checksum."""
    for path, checksums in seals.items():
        store.row_array(path).checksums = checksums


def _confirmed_manifest(store: OpenStore) -> dict[str, Any]:
    """The manifest that the root names, which repeats the root's attributes."""
    try:
        data = store.files.read(ROLLOUT_MANIFEST_FILENAME)
    except OSError as error:
        raise StoreDamaged(ROLLOUT_MANIFEST_FILENAME, f"cannot be read: {error.strerror or error}") from None
    attributes = dict(store.attributes)
    if hashlib.sha256(data).hexdigest() != attributes.pop("manifest_sha256", None):
        raise StoreDamaged(ROLLOUT_MANIFEST_FILENAME, "its SHA-256 is not the root attribute manifest_sha256")
    manifest = parse_manifest(data)
    repeated = manifest.get("root_attrs")
    if repeated != attributes:
        other = _first_difference(attributes, repeated if isinstance(repeated, dict) else {})
        raise StoreDamaged(ZARR_JSON, f"attribute {other} is not what the manifest says")
    return manifest


def _first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return next(name for name in sorted({*one, *other}) if name not in one or one[name] != other.get(name))


def _require_shape(array: RowArray, manifest: Mapping[str, Any]) -> None:
    """Refuse a column whose dtype or shape is not that of schema and manifest."""
    table, name = array.path.split("/")
    column, attributes = TABLES[table][name], manifest["root_attrs"]
    dims = {
        "H": attributes.get("selected_depth_height_px"),
        "W": attributes.get("selected_depth_width_px"),
        "A": attributes.get("q_h_max_candidates"),
    }
    counted = next(name for name, own in COUNTED.items() if own.name == table)
    rows = manifest.get("counts", {}).get(counted, attributes.get(f"num_{counted}"))
    shape = (rows, *column.resolve(dims))
    if array.dtype != column.numpy_dtype or array.shape != shape:
        raise StoreDamaged(array.path, f"must be {column.dtype} of shape {shape}, got {array.dtype} of {array.shape}")


def _require_layout(array: RowArray) -> None:
    if array.layout is None:
        raise StoreDamaged(array.path, "must be chunked by whole rows, with one compressor and crc32c")


def _inventory(store: OpenStore, path: str) -> ArrayInventory:
    array = store.row_array(path)
    assert array.layout is not None
    sizes = _sizes(store.files, path, array.layout, len(array))
    return take_inventory(store.files, sizes, path, array.layout, len(array))


def _sizes(files: StoreFiles, path: str, layout: RowLayout, rows: int) -> dict[str, int]:
    """Sizes of an array's own files; listing the whole store would cost more."""
    sizes = {}
    for index in range(layout.files(rows)):
        key = f"{path}/{layout.file_key(index)}"
        with suppress(FileNotFoundError):
            sizes[key] = files.size(key)
    return sizes


def _confirmed_checksums(inventory: ArrayInventory, manifest: Mapping[str, Any]) -> bytes:
    if inventory.problems:
        raise StoreDamaged(inventory.path, inventory.problems[0])
    written = manifest.get("stored_crc32c")
    digest = written.get(inventory.path) if isinstance(written, dict) else None
    if digest is None:
        raise StoreDamaged(ROLLOUT_MANIFEST_FILENAME, f"has no stored_crc32c of {inventory.path}")
    if digest != inventory.stored_crc32c:
        raise StoreDamaged(inventory.path, "its chunks are not the ones that were written (manifest stored_crc32c)")
    return inventory.checksums
