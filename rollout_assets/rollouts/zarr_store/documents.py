"""Every ``zarr.json`` of a store, written in one pass, with consolidated metadata in the root."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zarr.core.metadata.v3 import ArrayV3Metadata

from rollout_assets.files import replace_bytes
from rollout_assets.rollouts.zarr_store.schema import GROUPS

ZARR_JSON = "zarr.json"


def group_document(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The ``zarr.json`` of a group below the root."""
    return {"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"}


def root_document(attributes: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The root's ``zarr.json``: its attributes, and every other document inline."""
    consolidated = {"kind": "inline", "must_understand": False, "metadata": dict(nodes)}
    return {**group_document(attributes), "consolidated_metadata": consolidated}


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """The bytes of a ``zarr.json``; the same document always gives the same bytes."""
    return json.dumps(document, allow_nan=True).encode()


def write_metadata(
    store_dir: Path,
    arrays: Mapping[str, ArrayV3Metadata],
    groups: Mapping[str, Mapping[str, Any]],
    root: Mapping[str, Any],
    on_step: Callable[[str], None],
) -> None:
    """Write all documents; the root's comes last, so that an unfinished directory has none."""
    nodes: dict[str, dict[str, Any]] = {name: group_document(groups.get(name, {})) for name in GROUPS}
    nodes |= {path: dict(array.to_dict()) for path, array in sorted(arrays.items())}
    for path, document in nodes.items():
        folder = store_dir / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ZARR_JSON).write_bytes(document_bytes(document))
    on_step("metadata")
    replace_bytes(store_dir / ZARR_JSON, document_bytes(root_document(root, nodes)))
