"""Mesh files of furniture as they are found: quads, doubled and inside-out faces, any units, any polygon count.

Each file is repaired as far as that is certain, and every step is written down; what cannot be used is refused alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import MeshError
from rollout_assets.geometry.poses import Float64
from rollout_assets.geometry.voxels import voxel_keys
from rollout_assets.sources.meshes import clean_faces, load_mesh
from rollout_assets.sources.obj import read_obj
from rollout_assets.synthetic.furniture import CLASS_IDS
from rollout_assets.synthetic.solids import Patch

PLAUSIBLE_M = (0.25, 2.4)
"""Longest side of a piece of furniture that is taken as it is; another one may be in other units than metres."""

MAX_HEIGHT_M = 2.2
THINNEST = 1e-3
"""Share of the longest side that the middle one must have: less is a line, not a piece of furniture."""

KIND_CLASS = {
    "coffee_table": "table",
    "desk": "table",
    "armchair": "sofa",
    "sideboard": "cabinet",
    "wardrobe": "cabinet",
    "nightstand": "cabinet",
    "counter": "cabinet",
    "couch": "sofa",
    "stool": "chair",
    "bookcase": "shelf",
    "bookshelf": "shelf",
    "shelves": "shelf",
    "shelving": "shelf",
    "cupboard": "cabinet",
    "dresser": "cabinet",
}
"""Class of what goes by a more special name."""

_UNITS = {"centimetres": (0.01, 0.0), "millimetres": (0.001, 0.7)}
_OF_A_UNIT_M = (0.1, 4.5)
_TYPICAL_M = {
    "table": 1.4,
    "chair": 0.9,
    "sofa": 1.9,
    "bed": 2.05,
    "shelf": 1.8,
    "cabinet": 1.2,
    "lamp": 1.6,
    "plant": 1.0,
}
_TYPICAL_OTHER_M = 0.9


@dataclass(frozen=True)
class FurnitureFile:
    """What became of one file: faces in it and faces used, its size in metres, and what was done, in order.

    ``refused`` says why it is not used, or is None.
    """

    file: str
    class_name: str
    faces_in_file: int
    faces_used: int
    size_m: tuple[float, float, float] | None
    done: tuple[str, ...]
    refused: str | None = None


@dataclass(frozen=True, eq=False)
class RepairedFurniture:
    """A usable mesh, upright, in metres, centred and standing on z = 0, and how it became so."""

    patch: Patch
    report: FurnitureFile


def class_of(path: Path) -> str:
    """The class a file's name tells: a word in it that names a class, or the name without trailing numbers."""
    stem = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path.stem).lower()
    words = [word for word in re.split(r"[^a-z]+", stem) if word]
    class_words = [KIND_CLASS.get(word, word) for word in reversed(words) if word in CLASS_IDS or word in KIND_CLASS]
    return class_words[0] if class_words else "_".join(words) or "object"


def repair_furniture(path: Path, max_faces: int, name: str | None = None) -> RepairedFurniture | FurnitureFile:
    """One mesh file ready to be placed, or its report, under ``name``, with the reason why it cannot be."""
    class_name, name = class_of(path), name or path.name
    try:
        vertices, faces, done = _read(path)
        in_file = len(faces)
        patch, steps = _repaired(path, vertices, faces)
        smaller, scaling = _sized(class_name, _simplified(_upright(path, patch), max_faces))
    except MeshError as error:
        reason = str(error).removeprefix(f"{path}: ").removeprefix(f"{path.name}: ")
        return FurnitureFile(name, class_name, 0, 0, None, (), reason)
    if len(smaller.faces) < len(patch.faces):
        scaling = (f"simplified from {len(patch.faces):,} faces", *scaling)
    width, depth, height = np.ptp(smaller.vertices, axis=0).tolist()
    report = FurnitureFile(
        name, class_name, in_file, len(smaller.faces), (width, depth, height), (*done, *steps, *scaling)
    )
    return RepairedFurniture(smaller, report)


def _read(path: Path) -> tuple[NDArray[np.floating], NDArray[np.int32], tuple[str, ...]]:
    """Triangles of a file; OBJ files need neither their materials nor their textures for that."""
    if path.suffix.lower() != ".obj":
        mesh = load_mesh(path)
        dropped = sum(mesh.dropped_faces.values())
        return mesh.vertices, mesh.faces, (f"{dropped:,} faces without area dropped",) if dropped else ()
    vertices, faces, _, _ = read_obj(path)
    if not len(faces):
        raise MeshError(f"{path}: no faces in it ({len(vertices)} vertices)")
    return vertices, faces, ()


def _repaired(path: Path, vertices: NDArray[np.floating], faces: NDArray[np.int32]) -> tuple[Patch, tuple[str, ...]]:
    """Equal vertices merged, faces without area and doubled faces dropped, closed parts turned right side out."""
    points, triangles, dropped = clean_faces(vertices, faces, str(path))
    merged, index = np.unique(points, axis=0, return_inverse=True)
    corners = index.reshape(-1)[triangles].astype(np.int64)
    _, first = np.unique(np.sort(corners, axis=1), axis=0, return_index=True)
    single = corners[np.sort(first)]
    turned, flipped = _right_side_out(merged.astype(np.float64), single)
    counts = {
        "faces without area dropped": sum(dropped.values()),
        "doubled faces dropped": len(corners) - len(single),
        "inside-out faces flipped": flipped,
    }
    return Patch(merged.astype(np.float64), turned), tuple(f"{n:,} {what}" for what, n in counts.items() if n)


def _right_side_out(points: Float64, faces: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Faces with every closed part that encloses a negative volume flipped, and how many those were."""
    part = _parts(len(points), faces)[faces[:, 0]]
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    sides = _edge_keys(edges, len(points))
    back = _edge_keys(edges[:, ::-1], len(points))
    paired = np.isin(back, sides)
    open_parts = np.unique(np.concatenate([part, part, part])[~paired])
    corners = points[faces] - points.mean(axis=0)
    volume = np.einsum("ni,ni->n", corners[:, 0], np.cross(corners[:, 1], corners[:, 2]))
    enclosed = np.bincount(part, volume, minlength=len(points))
    wrong = (enclosed[part] < 0) & ~np.isin(part, open_parts)
    return np.where(wrong[:, None], faces[:, ::-1], faces), int(wrong.sum())


def _edge_keys(edges: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.asarray(edges[:, 0] * count + edges[:, 1])


def _parts(count: int, faces: NDArray[np.int64]) -> NDArray[np.int64]:
    """(count,) the least vertex that each vertex is connected to by faces."""
    part = np.arange(count)
    while True:
        least = part[faces].min(axis=1)
        after = part.copy()
        for corner in range(3):
            np.minimum.at(after, faces[:, corner], least)
        after = after[after]
        if np.array_equal(after, part):
            return part
        part = after


def _upright(path: Path, patch: Patch) -> Patch:
    """Z-up: GLB and OBJ files are Y-up, as those formats have it."""
    if path.suffix.lower() == ".ply":
        return patch
    return Patch(patch.vertices[:, [2, 0, 1]], patch.faces)


def _sized(class_name: str, patch: Patch) -> tuple[Patch, tuple[str, ...]]:
    """Scaled to a plausible size, by a unit if one makes it so, centred, and standing on the floor."""
    extent = np.ptp(patch.vertices, axis=0)
    longest = float(extent.max())
    if not float(np.sort(extent)[1]) > THINNEST * longest:
        raise MeshError(f"it is a line of {longest:.3g} units, not a piece of furniture")
    scale, why = _scale(class_name, longest)
    done = [why] if why else []
    highest = MAX_HEIGHT_M / max(float(extent[2]), 1e-9)
    if scale > highest:
        done.append(f"made {MAX_HEIGHT_M} m high instead of {extent[2] * scale:.2f} m")
        scale = highest
    points = patch.vertices * scale
    low, high = points.min(axis=0), points.max(axis=0)
    foot = np.array([(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]])
    return Patch(points - foot, patch.faces), tuple(done)


def _scale(class_name: str, longest: float) -> tuple[float, str]:
    low, high = PLAUSIBLE_M
    if low <= longest <= high:
        return 1.0, ""
    typical = _TYPICAL_M.get(class_name, _TYPICAL_OTHER_M)
    costs = {
        unit: abs(math.log(longest * metres / typical)) + unusual
        for unit, (metres, unusual) in _UNITS.items()
        if longest > high and _OF_A_UNIT_M[0] <= longest * metres <= _OF_A_UNIT_M[1]
    }
    if not costs:
        return typical / longest, f"scaled by {typical / longest:.3g} to {typical} m"
    unit = min(costs, key=lambda name: costs[name])
    metres = _UNITS[unit][0]
    if longest * metres <= high:
        return metres, f"taken as {unit}"
    return high / longest, f"taken as {unit}, made {high} m long instead of {longest * metres:.2f} m"


def _simplified(patch: Patch, max_faces: int) -> Patch:
    """Merge vertices in ever larger cells until the mesh is small enough."""
    cell = float(np.ptp(patch.vertices, axis=0).max()) / 256.0
    smaller = patch
    while len(smaller.faces) > max_faces:
        smaller = _clustered(patch, cell)
        cell *= 1.3
    return smaller


def _clustered(patch: Patch, cell: float) -> Patch:
    _, group = np.unique(voxel_keys(patch.vertices, cell), return_inverse=True)
    total: Float64 = np.zeros((int(group.max()) + 1, 3))
    np.add.at(total, group, patch.vertices)
    merged = total / np.bincount(group)[:, None]
    vertices, faces, _ = clean_faces(merged, group[patch.faces], "simplified furniture")
    return Patch(vertices.astype(np.float64), faces.astype(np.int64))
