"""Trees on disk by the hash of their mesh: a scene of millions of faces is built once and then read in a moment.

A file is a line of JSON with the shapes and the checksum, padded to a page, and the arrays one after another. It is
mapped into memory rather than read. A file that is not whole is built again, so losing the folder costs time only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from rollout_assets.files import discard_path, is_scratch, scratch_path
from rollout_assets.geometry.triangle_bvh import BuiltTree

FORMAT = "rollout_assets tree 1"
"""Changes whenever the builder or the layout changes, so that an older file is built again."""

MIN_FACES = 200_000
"""A smaller mesh is built faster than its file is found."""

MAX_BYTES = 16 << 30
"""All files of a folder together; the one that was used longest ago goes first."""

_HEADER_BYTES = 4096
_ARRAYS = ("boxes", "children", "corners", "slot_face")


@dataclass(frozen=True)
class TreeFiles:
    """The trees kept in a folder, which is made when the first of them is. Any number of processes may share it."""

    folder: Path
    min_faces: int = MIN_FACES
    max_bytes: int = MAX_BYTES

    def get(self, mesh_hash: str, face_count: int, build: Callable[[], BuiltTree]) -> BuiltTree:
        """The tree of a mesh, from disk if it is there and whole. A disk that takes no more is not an error."""
        if face_count < self.min_faces:
            return build()
        path = self.folder / f"{mesh_hash}.tree"
        tree = read_tree(path)
        if tree is None or tree.face_count != face_count:
            tree = build()
            with suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_tree(path, tree)
                self._make_room(path)
        else:
            with suppress(OSError):
                path.touch()
        return tree

    def _make_room(self, newest: Path) -> None:
        files = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self.folder.glob("*.tree"))
        total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= self.max_bytes or path == newest or is_scratch(path):
                continue
            discard_path(path)
            total -= size


def write_tree(path: Path, tree: BuiltTree) -> None:
    """Write a tree so that a reader sees all of it or nothing."""
    arrays = {name: np.ascontiguousarray(getattr(tree, name)) for name in _ARRAYS}
    checksum = 0
    scratch = scratch_path(path.with_name(f"{path.name}.{threading.get_native_id()}"))
    try:
        with scratch.open("wb") as file:
            file.write(b" " * _HEADER_BYTES)
            for array in arrays.values():
                content = array.reshape(-1).view(np.uint8)
                checksum = google_crc32c.extend(checksum, content)
                file.write(content.data)
            header = {
                "format": FORMAT,
                "face_count": tree.face_count,
                "bounds": [corner.tolist() for corner in tree.bounds],
                "arrays": {name: [str(array.dtype), array.shape] for name, array in arrays.items()},
                "crc32c": checksum,
            }
            file.seek(0)
            file.write(json.dumps(header).encode("ascii") + b"\n")
        scratch.replace(path)
    except BaseException:
        discard_path(scratch)
        raise


def read_tree(path: Path) -> BuiltTree | None:
    """The tree in a file; None if there is no such file, or it is of another version, cut short or damaged."""
    try:
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(_HEADER_BYTES))
        if header["format"] != FORMAT:
            return None
        content = np.memmap(path, np.uint8, mode="c", offset=_HEADER_BYTES)
        arrays = dict(_arrays(header, content))
        if google_crc32c.value(content) != header["crc32c"]:
            return None
        low, high = (np.array(corner, np.float32) for corner in header["bounds"])
        return BuiltTree(**arrays, face_count=int(header["face_count"]), bounds=(low, high))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _arrays(header: dict[str, Any], content: NDArray[np.uint8]) -> list[tuple[str, NDArray[Any]]]:
    arrays, start = [], 0
    for name, (dtype, shape) in header["arrays"].items():
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if start + size > len(content):
            raise ValueError(f"{name} is cut short")
        arrays.append((name, np.asarray(content[start : start + size]).view(dtype).reshape(shape)))
        start += size
    if start != len(content):
        raise ValueError(f"{len(content) - start} bytes too many")
    return arrays
