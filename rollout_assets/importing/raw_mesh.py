"""Mesh files as they are: triangles in the file's own axes and units, and what each face is called.

Names are those of GLB nodes, of OBJ objects or groups, or the numbers of a PLY file's instance column, of faces or of
vertices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import MeshError, is_fault
from rollout_assets.sources.meshes import load_mesh
from rollout_assets.sources.obj import read_obj
from rollout_assets.sources.ply import UnusualPly, has_column, read_labelled_ply
from rollout_assets.sources.trimesh_files import opened_for_trimesh

INSTANCE_COLUMNS = ("object_id", "instance", "instance_id", "objectId")
"""Names that a PLY file's column of instances may have."""

UNNAMED = -1
"""Label of a face without a name."""

_AT_LEAST_MIRRORED = 0.5


@dataclass(frozen=True)
class RawMesh:
    """vertices (n, 3) float, faces (m, 3) int32, face_label (m,) int32: index into ``names`` or ``UNNAMED``.

    ``named_by`` says where names come from, ``notes`` what was done to the file's triangles.
    """

    vertices: NDArray[Any]
    faces: NDArray[np.int32]
    face_label: NDArray[np.int32]
    names: tuple[str, ...]
    named_by: str
    notes: tuple[str, ...] = ()


def read_raw_mesh(path: Path) -> RawMesh:
    """Any mesh file; a mirrored one is refused."""
    reader = {".glb": _read_glb, ".obj": _read_obj, ".ply": _read_ply}[path.suffix.lower()]
    mesh = reader(path)
    if not len(mesh.faces):
        raise MeshError(f"{path.name}: the mesh is empty: {len(mesh.vertices)} vertices, no faces")
    return mesh


def _read_obj(path: Path) -> RawMesh:
    vertices, faces, labels, names = read_obj(path)
    return RawMesh(vertices, _indices(path, faces, len(vertices)), labels, names, "OBJ objects" if names else "")


def _read_ply(path: Path) -> RawMesh:
    try:
        ply = read_labelled_ply(path, INSTANCE_COLUMNS)
    except UnusualPly as error:
        return _read_unusual_ply(path, str(error))
    faces = _indices(path, ply.faces, len(ply.vertices))
    if ply.labels is None:
        return RawMesh(ply.vertices, faces, np.full(len(faces), UNNAMED, np.int32), (), "")
    values, labels = np.unique(ply.labels, return_inverse=True)
    names = tuple(str(int(value)) if value == int(value) else str(value) for value in values.tolist())
    return RawMesh(ply.vertices, faces, labels.astype(np.int32), names, f"column {ply.column}")


def _read_unusual_ply(path: Path, why: str) -> RawMesh:
    """A text file or one of mixed polygons, whose triangles do not keep the rows of their columns."""
    if has_column(path, INSTANCE_COLUMNS):
        raise MeshError(f"{path.name}: its instance column cannot be read ({why}); write binary PLY of triangles")
    mesh = load_mesh(path)
    return RawMesh(mesh.vertices, mesh.faces, np.full(len(mesh.faces), UNNAMED, np.int32), (), "")


def _read_glb(path: Path) -> RawMesh:
    import trimesh  # slow to load, and needed only for GLB

    try:
        with opened_for_trimesh(path) as source:
            scene = trimesh.load_scene(**source, process=False, merge_primitives=True)
        nodes = [(name, *scene.graph[name]) for name in sorted(scene.graph.nodes_geometry)]
        parts = [(name, pose, scene.geometry[geometry]) for name, pose, geometry in nodes]
        triangles = [part for part in parts if isinstance(part[2], trimesh.Trimesh)]
    except MeshError:
        raise
    except Exception as error:  # a parser may fail in any way on a damaged file
        if is_fault(error):
            raise
        raise MeshError(f"{path.name}: cannot be read as GLB: {type(error).__name__}: {error}") from error
    if not triangles:
        raise MeshError(f"{path.name}: the mesh is empty: {len(parts)} nodes, none with triangles")
    return _joined(path, triangles)


def _joined(path: Path, parts: list[tuple[str, NDArray[np.float64], Any]]) -> RawMesh:
    mirrored = [bool(np.linalg.det(pose[:3, :3]) < 0) for _, pose, _ in parts]
    if np.mean(mirrored) > _AT_LEAST_MIRRORED:
        raise MeshError(
            f"{path.name}: mirrored (left-handed): the transforms of {sum(mirrored)} of {len(parts)} nodes have a "
            "negative determinant; apply the scale in the program that made it and export it right-handed"
        )
    vertices, faces, labels, start = [], [], [], 0
    for label, ((_, pose, part), flip) in enumerate(zip(parts, mirrored, strict=True)):
        corners = _indices(path, np.asarray(part.faces), len(part.vertices))
        vertices.append((np.asarray(part.vertices) @ pose[:3, :3].T + pose[:3, 3]).astype(np.float32))
        faces.append((corners[:, ::-1] if flip else corners) + np.int32(start))
        labels.append(np.full(len(corners), label, np.int32))
        start += len(part.vertices)
    notes = (f"{sum(mirrored)} mirrored copies turned right side out",) if any(mirrored) else ()
    names = tuple(name for name, _, _ in parts)
    return RawMesh(np.concatenate(vertices), np.concatenate(faces), np.concatenate(labels), names, "GLB nodes", notes)


def _indices(path: Path, faces: NDArray[Any], count: int) -> NDArray[np.int32]:
    if faces.size and not 0 <= int(faces.min()) <= int(faces.max()) < count:
        raise MeshError(f"{path.name}: a face names vertex {int(faces.max())}, but there are {count} vertices")
    return np.ascontiguousarray(faces, np.int32)
