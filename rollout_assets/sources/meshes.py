"""Scene meshes: found by scene id, read fast, cleaned, hashed by content and kept in a bounded cache.

A mesh's version is the SHA-256 of its cleaned vertex and face bytes, so that it changes when the geometry changes and
only then. The digest is kept in a small file beside the mesh and believed while size and modification time agree.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from rollout_assets.errors import MeshError
from rollout_assets.files import replace_bytes
from rollout_assets.sources.ply import UnusualPly, read_binary_ply

MESH_STEM = "scene_ply_{scene_id}"
"""File name of a scene's mesh, without its ending."""

MESH_ENDINGS = (".ply", ".obj", ".glb")
"""Tried in this order within one directory."""

DEFAULT_CACHE_BYTES = 2 << 30

_CLEAN_FACES = 1 << 20
"""Faces looked at together while cleaning, to bound memory."""

_HASH_VERSION = 1

_Stamp = tuple[int, int]
"""Size and modification time of a file."""


@dataclass(frozen=True)
class TriangleMesh:
    """A cleaned mesh: every vertex is finite and used, every face has an area.

    vertices: (n, 3) float32 metres, faces: (m, 3) int32. ``dropped_faces`` counts what was left out by reason
    (``non_finite``, ``repeated_vertex``, ``zero_area``).
    """

    vertices: NDArray[np.float32]
    faces: NDArray[np.int32]
    content_hash: str
    dropped_faces: Mapping[str, int]
    path: Path | None = None

    @property
    def nbytes(self) -> int:
        """Memory held by the arrays."""
        return self.vertices.nbytes + self.faces.nbytes


def mesh_file_name(scene_id: str, ending: str = ".ply") -> str:
    """``scene_ply_<scene_id>.ply``."""
    return MESH_STEM.format(scene_id=scene_id) + ending


def load_mesh(path: Path) -> TriangleMesh:
    """Read, clean and hash one mesh file; the digest beside it is used when it is current, and written when not."""
    before = _stamp(path)
    vertices, faces = _read(path)
    vertices, faces, dropped = clean_faces(vertices, faces, str(path))
    digest = _read_sidecar(path, before)
    if digest is None:
        digest = content_hash(vertices, faces)
        if _stamp(path) == before:
            _write_sidecar(path, before, digest)
    for array in (vertices, faces):
        array.flags.writeable = False
    return TriangleMesh(vertices, faces, digest, MappingProxyType(dropped), path)


def content_hash(vertices: NDArray[np.float32], faces: NDArray[np.int32]) -> str:
    """SHA-256 in hex over counts and little-endian float32 vertices and int32 faces."""
    digest = hashlib.sha256(f"triangles {len(vertices)} {len(faces)}\n".encode("ascii"))
    digest.update(np.ascontiguousarray(vertices, "<f4").data)
    digest.update(np.ascontiguousarray(faces, "<i4").data)
    return digest.hexdigest()


def clean_faces(
    vertices: NDArray[Any], faces: NDArray[Any], where: str = "mesh"
) -> tuple[NDArray[np.float32], NDArray[np.int32], dict[str, int]]:
    """Drop faces without an area or with a non-finite corner, and vertices nobody uses. Order is kept.

    Returns vertices (n, 3) float32, faces (m, 3) int32 and the number of faces dropped by reason.
    """
    points = np.ascontiguousarray(vertices, np.float32)
    corners = np.asarray(faces)
    if corners.size and (corners.min() < 0 or corners.max() >= len(points)):
        worst = int(corners.min()) if corners.min() < 0 else int(corners.max())
        raise MeshError(f"{where}: a face names vertex {worst}, but there are {len(points)} vertices")
    triangles = np.ascontiguousarray(corners, np.int32)
    finite_vertex = np.asarray(np.isfinite(points).all(axis=1))
    dropped = {"non_finite": 0, "repeated_vertex": 0, "zero_area": 0}
    keep = np.ones(len(triangles), bool)
    for start in range(0, len(triangles), _CLEAN_FACES):
        part = triangles[start : start + _CLEAN_FACES]
        a, b, c = part.T
        non_finite = ~(finite_vertex[a] & finite_vertex[b] & finite_vertex[c])
        repeated = ((a == b) | (b == c) | (c == a)) & ~non_finite
        flat = ~(_has_area(points, part) | repeated | non_finite)
        dropped["non_finite"] += int(non_finite.sum())
        dropped["repeated_vertex"] += int(repeated.sum())
        dropped["zero_area"] += int(flat.sum())
        keep[start : start + _CLEAN_FACES] = ~(non_finite | repeated | flat)
    if not keep.all():
        triangles = triangles[keep]
    if not len(triangles):
        raise MeshError(f"{where}: no usable face among {len(keep)} (dropped {dropped})")
    return *_without_unused(points, triangles), dropped


class MeshLibrary:
    """Scene meshes of some directories, with the most recently used ones kept up to ``max_bytes``. Thread safe."""

    def __init__(self, mesh_dirs: Sequence[Path], max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        if max_bytes < 0:
            raise MeshError(f"max_bytes must be >= 0, got {max_bytes}")
        self.mesh_dirs = tuple(Path(folder) for folder in mesh_dirs)
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._loading: dict[Path, threading.Lock] = {}
        self._kept: LRUCache[Path, tuple[_Stamp, TriangleMesh]] = LRUCache(max_bytes, lambda kept: kept[1].nbytes)

    def find(self, scene_id: str) -> Path | None:
        """The first mesh file of a scene, in order of directories, then endings; None when there is none."""
        if not scene_id or Path(scene_id).name != scene_id:
            return None
        candidates = (folder / mesh_file_name(scene_id, end) for folder in self.mesh_dirs for end in MESH_ENDINGS)
        return next((path for path in candidates if path.is_file()), None)

    def load(self, scene_id: str) -> TriangleMesh:
        """The mesh of a scene, from memory when the file has not changed since."""
        path = self._require(scene_id)
        with self._lock:
            turn = self._loading.setdefault(path, threading.Lock())
        with turn:
            stamp = _stamp(path)
            with self._lock:
                kept = self._kept.get(path)
            if kept is not None and kept[0] == stamp:
                return kept[1]
            mesh = load_mesh(path)
            with self._lock:
                self._kept.pop(path, None)
                with suppress(ValueError):  # a mesh larger than all that may be kept
                    self._kept[path] = stamp, mesh
            return mesh

    def content_hash(self, scene_id: str) -> str:
        """The mesh's version, without reading the mesh when the digest beside it is current."""
        path = self._require(scene_id)
        return _read_sidecar(path, _stamp(path)) or self.load(scene_id).content_hash

    @property
    def kept_bytes(self) -> int:
        """Memory held by kept meshes."""
        with self._lock:
            return int(self._kept.currsize)

    def _require(self, scene_id: str) -> Path:
        path = self.find(scene_id)
        if path is None:
            searched = ", ".join(str(folder) for folder in self.mesh_dirs) or "no directory"
            raise MeshError(f"no {mesh_file_name(scene_id, '')}({'|'.join(MESH_ENDINGS)}) in {searched}")
        return path


def sidecar_path(path: Path) -> Path:
    """Where a mesh file's digest is kept."""
    return path.with_name(path.name + ".sha256.json")


def _read(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    if path.suffix.lower() == ".ply":
        try:
            return read_binary_ply(path)
        except UnusualPly:
            pass
    return _read_with_trimesh(path)


def _read_with_trimesh(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    import trimesh  # slow to load, and needed only for files that our own reader does not know

    try:
        mesh: Any = trimesh.load(path, force="mesh", process=False)
        vertices, faces = np.asarray(mesh.vertices), np.asarray(mesh.faces)
    except Exception as error:  # a parser may fail in any way on a damaged file
        raise MeshError(f"{path}: cannot be read as a mesh: {type(error).__name__}: {error}") from error
    if vertices.ndim != 2 or vertices.shape[1:] != (3,) or faces.ndim != 2 or faces.shape[1:] != (3,):
        raise MeshError(f"{path}: no triangles in it (vertices {vertices.shape}, faces {faces.shape})")
    return vertices, faces


def _has_area(points: NDArray[np.float32], triangles: NDArray[np.int32]) -> NDArray[np.bool_]:
    a = points[triangles[:, 0]].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        first = points[triangles[:, 1]] - a
        second = points[triangles[:, 2]] - a
        x = first[:, 1] * second[:, 2] - first[:, 2] * second[:, 1]
        y = first[:, 2] * second[:, 0] - first[:, 0] * second[:, 2]
        z = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    return np.asarray((x != 0) | (y != 0) | (z != 0))


def _without_unused(
    points: NDArray[np.float32], triangles: NDArray[np.int32]
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    used = np.zeros(len(points), bool)
    used[triangles.reshape(-1)] = True
    if used.all():
        return points, triangles
    renumbered = np.cumsum(used, dtype=np.int32) - np.int32(1)
    return points[used], renumbered[triangles]


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError as error:
        raise MeshError(f"{path}: cannot be read: {error.strerror or error}") from None
    return status.st_size, status.st_mtime_ns


def _read_sidecar(path: Path, stamp: _Stamp) -> str | None:
    try:
        kept = json.loads(sidecar_path(path).read_bytes())
        current = (kept["hash_version"], kept["size"], kept["mtime_ns"]) == (_HASH_VERSION, *stamp)
        digest = kept["content_hash"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return digest if current and isinstance(digest, str) and len(digest) == 64 else None


def _write_sidecar(path: Path, stamp: _Stamp, digest: str) -> None:
    """Best effort: a read-only directory only means that the hash is computed again next time."""
    body = {"hash_version": _HASH_VERSION, "size": stamp[0], "mtime_ns": stamp[1], "content_hash": digest}
    with suppress(OSError):
        replace_bytes(sidecar_path(path), json.dumps(body).encode("ascii") + b"\n")
