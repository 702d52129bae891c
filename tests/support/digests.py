"""Digests of records, stores and versions, by which two runs are compared to the bit."""

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader


def store_digests(store_dir: Path) -> dict[str, str]:
    """Array -> digest of its decoded bytes, from the manifest of a rollout store."""
    return RolloutZarrStoreReader(store_dir).sidecar_manifest()["content_sha256"]


def version_digests(version: Any) -> dict[str, dict[str, str]]:
    """Split -> digests of its store, for a promoted version."""
    return {path.name: store_digests(path) for path in version.children}


def content_digest(value: object) -> str:
    """SHA-256 over the value's whole content, arrays by dtype, shape and bytes."""
    state = hashlib.sha256()
    _feed(state, value)
    return state.hexdigest()


def record_digests(records: Iterable[object]) -> list[str]:
    """Digest of each record, in order."""
    return [content_digest(record) for record in records]


def _feed(state: "hashlib._Hash", value: object) -> None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            state.update(field.name.encode())
            _feed(state, getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, list | tuple):
        state.update(f"[{len(value)}".encode())
        for item in value:
            _feed(state, item)
    else:
        state.update(repr(value).encode())
