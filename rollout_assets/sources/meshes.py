"""Scene meshes: found by scene id, read fast, cleaned, hashed by content and kept in a bounded cache.

A mesh's version is the SHA-256 of its cleaned vertex and face bytes, so that it changes when the geometry changes and
only then. It is always computed from the triangles that were loaded. Where meshes are simplified, their version is that
of the whole mesh together with how it was simplified.
"""

from __future__ import annotations

import hashlib
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

from rollout_assets.errors import MeshError, NotRegularFile, is_fault
from rollout_assets.files import FileStamp
from rollout_assets.locations.url import Location
from rollout_assets.sources import simplification
from rollout_assets.sources.folder import MeshFolder
from rollout_assets.sources.mesh_digests import MeshDigests
from rollout_assets.sources.ply import UnusualPly, read_binary_ply
from rollout_assets.sources.trimesh_files import opened_for_trimesh

MESH_STEM = "scene_ply_{scene_id}"
"""File name of a scene's mesh, without its ending."""

MESH_ENDINGS = (".ply", ".obj", ".glb")
"""Tried in this order within one directory."""

DEFAULT_CACHE_BYTES = 2 << 30

_CLEAN_FACES = 1 << 20
"""Faces looked at together while cleaning, to bound memory."""


@dataclass(frozen=True)
class TriangleMesh:
    """A cleaned mesh: every vertex is finite and used, every face has an area.

    vertices: (n, 3) float32 metres, faces: (m, 3) int32. ``dropped_faces`` counts what was left out by reason
    (``non_finite``, ``repeated_vertex``, ``zero_area``). ``whole_hash`` is the hash of all triangles of the file;
    ``content_hash`` differs from it where the mesh was simplified.
    """

    vertices: NDArray[np.float32]
    faces: NDArray[np.int32]
    content_hash: str
    dropped_faces: Mapping[str, int]
    path: Path | None = None
    whole_hash: str = ""

    @property
    def nbytes(self) -> int:
        """Memory held by the arrays."""
        return self.vertices.nbytes + self.faces.nbytes


def mesh_file_name(scene_id: str, ending: str = ".ply") -> str:
    """``scene_ply_<scene_id>.ply``."""
    return MESH_STEM.format(scene_id=scene_id) + ending


def load_mesh(path: Path, simplify: float | None = None) -> TriangleMesh:
    """Read, clean and hash one mesh file, and keep only a share ``simplify`` of its faces if one is given."""
    vertices, faces, dropped = clean_faces(*_read(path), str(path))
    whole_hash = version = content_hash(vertices, faces)
    if simplify is not None:
        where = f"{path}, simplified to {simplify:g} of {len(faces)} faces"
        vertices, faces, _ = clean_faces(*simplification.simplify(vertices, faces, simplify), where)
        version = simplification.simplified_version(whole_hash, simplify)
    for array in (vertices, faces):
        array.flags.writeable = False
    return TriangleMesh(vertices, faces, version, MappingProxyType(dropped), path, whole_hash)


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
    keep, dropped = usable_faces(points, triangles)
    if not keep.all():
        triangles = triangles[keep]
    if not len(triangles):
        raise MeshError(f"{where}: no usable face among {len(keep)} (dropped {dropped})")
    return *_without_unused(points, triangles), dropped


def usable_faces(points: NDArray[np.float32], triangles: NDArray[np.int32]) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Which faces (m,) have an area and finite corners, and how many have not, by reason."""
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
    return keep, dropped


class MeshLibrary:
    """Scene meshes of some directories, with the most recently used ones kept up to ``max_bytes``. Thread safe.

    ``digests`` is where ``known_hash`` remembers what it has found. With ``simplify``, meshes have only that share of
    their faces; ``ConfigError`` if the package for it is missing.
    """

    def __init__(
        self,
        mesh_dirs: Sequence[Location],
        max_bytes: int = DEFAULT_CACHE_BYTES,
        digests: MeshDigests | None = None,
        simplify: float | None = None,
    ) -> None:
        if max_bytes < 0:
            raise MeshError(f"max_bytes must be >= 0, got {max_bytes}")
        if simplify is not None:
            simplification.require_package(simplify)
        self.simplify = simplify
        self.mesh_dirs = tuple(mesh_dirs)
        self._folders = tuple(MeshFolder(folder) for folder in mesh_dirs)
        self.max_bytes = max_bytes
        self._digests = digests or MeshDigests()
        self._lock = threading.Lock()
        self._loading: dict[Path, threading.Lock] = {}
        self._kept: LRUCache[Path, tuple[FileStamp, TriangleMesh]] = LRUCache(max_bytes, lambda kept: kept[1].nbytes)

    def __reduce__(self) -> tuple[type[MeshLibrary], tuple[Any, ...]]:
        """Another process gets the same folders, but neither locks nor meshes that are kept."""
        return MeshLibrary, (self.mesh_dirs, self.max_bytes, self._digests, self.simplify)

    def find(self, scene_id: str) -> Path | None:
        """The first mesh file of a scene, in order of directories, then endings; None when there is none."""
        if not scene_id or Path(scene_id).name != scene_id:
            return None
        candidates = (folder.file(mesh_file_name(scene_id, end)) for folder in self._folders for end in MESH_ENDINGS)
        return next((path for path in candidates if path is not None), None)

    def scenes(self) -> frozenset[str]:
        """Every scene that has a mesh file, by one listing of each directory."""
        prefix = MESH_STEM.format(scene_id="")
        names = (name for folder in self._folders for name in folder.names())
        return frozenset(
            Path(name).stem.removeprefix(prefix)
            for name in names
            if name.startswith(prefix) and name.endswith(MESH_ENDINGS)
        )

    def load(self, scene_id: str) -> TriangleMesh:
        """The mesh of a scene, from memory when the file has not been touched since."""
        path = self._require(scene_id)
        with self._lock:
            turn = self._loading.setdefault(path, threading.Lock())
        with turn:
            stamp = FileStamp.of(path)
            with self._lock:
                kept = self._kept.get(path)
            if kept is not None and kept[0] == stamp:
                return kept[1]
            mesh = load_mesh(path, self.simplify)
            with self._lock:
                self._kept.pop(path, None)
                with suppress(ValueError):  # a mesh larger than all that may be kept
                    self._kept[path] = stamp, mesh
            return mesh

    def known_hash(self, scene_id: str) -> str:
        """The mesh's version, without reading a file that has not been touched since it was read last.

        To compare with, and to show. A label takes its version from the mesh that it was scored on.
        """
        path = self._require(scene_id)
        stamp = FileStamp.of(path)
        known = self._digests.get(path, stamp)
        if known is None:
            known = self.load(scene_id).whole_hash
            if FileStamp.of(path) == stamp:
                self._digests.put(path, stamp, known)
        return known if self.simplify is None else simplification.simplified_version(known, self.simplify)

    def forget_hash(self, scene_id: str) -> None:
        """Let the next ``known_hash`` of a scene read its mesh."""
        if (path := self.find(scene_id)) is not None:
            self._digests.forget(path)

    def copy_anew(self, scene_id: str) -> None:
        """Let the next reading of a scene's mesh come from where it lies, and not from a copy on this machine."""
        for folder in self._folders:
            for ending in MESH_ENDINGS:
                folder.copy_anew(mesh_file_name(scene_id, ending))

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


def _read(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        if path.suffix.lower() == ".ply":
            with suppress(UnusualPly):
                return read_binary_ply(path)
        return _read_with_trimesh(path)
    except NotRegularFile as error:
        raise MeshError(str(error)) from None


def _read_with_trimesh(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    import trimesh  # slow to load, and needed only for files that our own reader does not know

    try:
        with opened_for_trimesh(path) as source:
            mesh: Any = trimesh.load(**source, force="mesh", process=False)
        vertices, faces = np.asarray(mesh.vertices), np.asarray(mesh.faces)
    except MeshError:
        raise
    except Exception as error:  # a parser may fail in any way on a damaged file
        if is_fault(error):
            raise
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
