"""Every ``zarr.json`` of a store, written in one pass, with consolidated metadata in the root; and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rollout_assets.errors import NotRegularFile, StoreDamaged
from rollout_assets.files import replace_bytes
from rollout_assets.parsing import parse_json
from rollout_assets.rollouts.zarr_store.chunks.files import StoreFiles
from rollout_assets.rollouts.zarr_store.schema import GROUPS

ZARR_JSON = "zarr.json"

PROMOTION_ATTRIBUTE = "rollout_promotion"
"""Root attribute of a promoted store's root group: what its child stores, one per split, were made from."""


def group_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The ``zarr.json`` of a group below the root."""
    return {"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"}


def root_document(attributes: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The ``zarr.json`` of a store's root, which repeats the documents of all nodes below it."""
    consolidated = {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}
    return {**group_document(attributes), "consolidated_metadata": consolidated}


def nodes_in_order(arrays: Iterable[str]) -> tuple[str, ...]:
    """Paths of all nodes in the order in which the root repeats them."""
    return (*GROUPS, *sorted(arrays))


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """The bytes of a ``zarr.json``; the same document always gives the same bytes."""
    return json.dumps(document, allow_nan=True).encode()


def read_document(files: StoreFiles, path: str) -> tuple[bytes, dict[str, Any]]:
    """The ``zarr.json`` of a node ("" is the root), as bytes and as an object; any other is ``StoreDamaged``."""
    where = path or ZARR_JSON
    try:
        data = files.read(f"{path}/{ZARR_JSON}" if path else ZARR_JSON)
        document = parse_json(data)
    except OSError as error:
        raise StoreDamaged(where, f"{ZARR_JSON} {absence(error)}") from None
    except ValueError as error:
        raise StoreDamaged(where, f"{ZARR_JSON} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise StoreDamaged(where, f"{ZARR_JSON} must hold an object, got {type(document).__name__}")
    return data, document


def absence(error: OSError) -> str:
    """What is wrong with a file that cannot be read."""
    return "is not a regular file" if isinstance(error, NotRegularFile) else "is missing"


def consolidated_documents(root: Mapping[str, Any]) -> dict[str, Any]:
    """Documents of all nodes as the root repeats them; a root without them is ``StoreDamaged``."""
    section = root.get("consolidated_metadata")
    nodes = section.get("metadata") if isinstance(section, dict) else None
    if not isinstance(nodes, dict):
        raise StoreDamaged(ZARR_JSON, "the root has no consolidated metadata")
    return nodes


class NodeDocuments:
    """Documents of a store's nodes by path: the root's copies, or, in a root that holds none, each node's own."""

    def __init__(self, files: StoreFiles, root: Mapping[str, Any]) -> None:
        self._files = files
        self._root = root
        self._own: dict[str, dict[str, Any] | None] = {}

    def find(self, path: str) -> dict[str, Any] | None:
        """The document of a node; None if the store has no such node."""
        if self._root.get("consolidated_metadata") is not None:
            return consolidated_documents(self._root).get(path)
        if path not in self._own:
            self._own[path] = self._read(path)
        return self._own[path]

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            self._files.size(f"{path}/{ZARR_JSON}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return read_document(self._files, path)[1]


def root_attributes_of(root: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes in a root's document; a root without them is ``StoreDamaged``."""
    attributes = root.get("attributes")
    if not isinstance(attributes, dict):
        raise StoreDamaged(ZARR_JSON, "the root has no attributes")
    return attributes


def promoted_splits(attributes: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Splits that have a child store below a promoted store's root; None for the attributes of any other group."""
    if PROMOTION_ATTRIBUTE not in attributes:
        return None
    record = attributes[PROMOTION_ATTRIBUTE]
    splits = record.get("splits") if isinstance(record, dict) else None
    if not isinstance(splits, dict):
        return ()
    return tuple(sorted(name for name, shards in splits.items() if _any_records(shards)))


def _any_records(shards: Any) -> bool:
    listed = shards if isinstance(shards, list) else []
    return any(isinstance(shard, dict) and shard.get("content_sha256") is not None for shard in listed)


def write_metadata(
    store_dir: Path,
    arrays: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Any]],
    root: Mapping[str, Any],
    on_step: Callable[[str], None],
) -> None:
    """Write all documents; the root's comes last, so that an unfinished directory has none."""
    nodes = {
        path: dict(arrays[path]) if path in arrays else group_document(groups.get(path, {}))
        for path in nodes_in_order(arrays)
    }
    for path, document in nodes.items():
        folder = store_dir / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ZARR_JSON).write_bytes(document_bytes(document))
    on_step("metadata")
    replace_bytes(store_dir / ZARR_JSON, document_bytes(root_document(root, nodes)))
