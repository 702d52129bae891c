"""The user's own mesh files as furniture: measured, scaled to a plausible size and set on the floor.

A file's class is its name without trailing numbers (``office_chair_02.obj`` is a chair, ``drum.ply`` a drum). GLB and
OBJ files are taken as Y-up, as those formats have it; PLY as Z-up. A mesh of plausible size is not scaled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rollout_assets.config import canonical_hash
from rollout_assets.errors import MeshError
from rollout_assets.geometry.poses import Float64
from rollout_assets.geometry.voxels import voxel_keys
from rollout_assets.sources.meshes import MESH_ENDINGS, clean_faces, load_mesh
from rollout_assets.synthetic.furnish import Maker
from rollout_assets.synthetic.furniture import CLASS_IDS, CLASS_NAMES, KINDS, Piece, make_piece
from rollout_assets.synthetic.solids import Bounds, Patch

FIRST_OWN_CLASS = 100
"""Semantic ids of classes that only the user's files have start here."""

_PLAUSIBLE_M = (0.25, 2.4)
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
_MAX_HEIGHT_M = 2.2
_KIND_CLASS = {
    "coffee_table": "table",
    "desk": "table",
    "armchair": "sofa",
    "sideboard": "cabinet",
    "wardrobe": "cabinet",
    "nightstand": "cabinet",
    "counter": "cabinet",
}


@dataclass(frozen=True)
class FixedPart:
    """Triangles that stay as they are at any cell size."""

    patch: Patch

    def face_count(self, cell_m: float) -> int:
        """Triangles that ``build`` makes."""
        return len(self.patch.faces)

    def build(self, cell_m: float) -> Patch:
        """The triangles."""
        return self.patch

    def bounds(self) -> Bounds:
        """Lowest and highest corner."""
        return self.patch.vertices.min(axis=0), self.patch.vertices.max(axis=0)


@dataclass(frozen=True)
class FurnitureSet:
    """What homes are furnished with: a maker per kind, names by semantic id, and a digest of the user's files."""

    makers: dict[str, Maker]
    class_names: dict[int, str]
    digest: str | None = None

    @property
    def class_ids(self) -> dict[str, int]:
        """Semantic id by class name."""
        return {name: number for number, name in self.class_names.items()}


BUILT_IN = FurnitureSet(dict(KINDS), dict(CLASS_NAMES))
"""The built-in kinds."""


def load_furniture(folder: Path | None, max_faces: int) -> FurnitureSet:
    """The built-in kinds, or the mesh files of a folder, each cut down to ``max_faces``."""
    if folder is None:
        return BUILT_IN
    if not folder.is_dir():
        raise MeshError(f"{folder}: no such furniture directory")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in MESH_ENDINGS and path.is_file())
    if not paths:
        raise MeshError(f"{folder}: no furniture in it; put {', '.join(MESH_ENDINGS)} files there")
    pieces, hashes = [], []
    for path in paths:
        mesh = load_mesh(path)
        hashes.append([path.name, mesh.content_hash])
        upright = mesh.vertices.astype(np.float64)
        if path.suffix.lower() != ".ply":
            upright = upright[:, [2, 0, 1]]
        pieces.append(_piece(class_of(path), _simplified(Patch(upright, mesh.faces.astype(np.int64)), max_faces)))
    makers = {kind: partial(_pick, pieces=_for_kind(kind, pieces)) for kind in KINDS}
    return FurnitureSet(dict(makers), _class_names(pieces), canonical_hash(hashes))


def class_of(path: Path) -> str:
    """The class a file's name tells: a word in it that names a class, or the name without trailing numbers."""
    words = [word for word in re.split(r"[^a-z]+", path.stem.lower()) if word]
    class_words = [word for word in reversed(words) if word in CLASS_IDS]
    return class_words[0] if class_words else "_".join(words) or "object"


def _class_names(pieces: list[Piece]) -> dict[int, str]:
    own = sorted({piece.class_name for piece in pieces} - CLASS_IDS.keys())
    return dict(CLASS_NAMES) | {FIRST_OWN_CLASS + number: name for number, name in enumerate(own)}


def _for_kind(kind: str, pieces: list[Piece]) -> tuple[Piece, ...]:
    class_name = _KIND_CLASS.get(kind, kind)
    return tuple(piece for piece in pieces if piece.class_name == class_name) or tuple(pieces)


def _pick(rng: np.random.Generator, pieces: tuple[Piece, ...]) -> Piece:
    return pieces[int(rng.integers(len(pieces)))]


def _piece(class_name: str, patch: Patch) -> Piece:
    """Scale a mesh to a plausible size, centre it and stand it on the floor."""
    extent = np.ptp(patch.vertices, axis=0)
    longest = float(extent.max())
    scale = 1.0
    if not _PLAUSIBLE_M[0] <= longest <= _PLAUSIBLE_M[1]:
        scale = _TYPICAL_M.get(class_name, _TYPICAL_OTHER_M) / longest
    scale = min(scale, _MAX_HEIGHT_M / max(float(extent[2]), 1e-9))
    points = patch.vertices * scale
    low, high = points.min(axis=0), points.max(axis=0)
    points = points - [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2, low[2]]
    return make_piece(class_name, [FixedPart(Patch(points, patch.faces))])


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
