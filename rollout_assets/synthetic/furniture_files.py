"""The user's own mesh files as furniture: repaired, measured, scaled to a plausible size and set on the floor.

Files lie in the folder or below it, as unpacked archives have them. A file's class is its name without trailing
numbers (``office_chair_02.obj`` is a chair, ``drum.ply`` a drum). GLB and OBJ files are taken as Y-up, as those formats
have it; PLY as Z-up. A mesh of plausible size is not scaled. A file that cannot be used is left out, and the set of
furniture says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import canonical_hash
from rollout_assets.errors import MeshError, counted
from rollout_assets.files import FileStamp
from rollout_assets.geometry.poses import Float32
from rollout_assets.sources.meshes import MESH_ENDINGS, content_hash
from rollout_assets.synthetic.furnish import Maker
from rollout_assets.synthetic.furniture import CLASS_IDS, CLASS_NAMES, KINDS, Piece, make_piece
from rollout_assets.synthetic.furniture_repair import KIND_CLASS, FurnitureFile, RepairedFurniture, repair_furniture
from rollout_assets.synthetic.solids import Bounds, Patch

FIRST_OWN_CLASS = 100
"""Semantic ids of classes that only the user's files have start here."""


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
    """What homes are furnished with: a maker per kind and names by semantic id; of the user's files a digest, and
    what was done to each."""

    makers: dict[str, Maker]
    class_names: dict[int, str]
    digest: str | None = None
    files: tuple[FurnitureFile, ...] = ()

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
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in MESH_ENDINGS and path.is_file())
    if not paths:
        raise MeshError(f"{folder}: no furniture in it or below it; put {', '.join(MESH_ENDINGS)} files there")
    return _load(folder, tuple((path, FileStamp.of(path)) for path in paths), max_faces)


@lru_cache(maxsize=2)
def _load(folder: Path, stamped: tuple[tuple[Path, FileStamp], ...], max_faces: int) -> FurnitureSet:
    """Loaded once per process, because every home is furnished from the same files."""
    paths = [path for path, _ in stamped]
    results = [repair_furniture(path, max_faces, path.relative_to(folder).as_posix()) for path in paths]
    usable = [result for result in results if isinstance(result, RepairedFurniture)]
    reports = tuple(result.report if isinstance(result, RepairedFurniture) else result for result in results)
    if not usable:
        reasons = "; ".join(f"{report.file}: {report.refused}" for report in reports[:3])
        raise MeshError(f"{folder}: none of {counted(len(paths), 'file')} can be used as furniture ({reasons})")
    pieces = [make_piece(item.report.class_name, [FixedPart(item.patch)]) for item in usable]
    makers = {kind: partial(_pick, pieces=_for_kind(kind, pieces)) for kind in KINDS}
    hashes = [[item.report.file, item.report.class_name, content_hash(*_arrays(item.patch))] for item in usable]
    return FurnitureSet(dict(makers), _class_names(pieces), canonical_hash(hashes), reports)


def _arrays(patch: Patch) -> tuple[Float32, NDArray[np.int32]]:
    return patch.vertices.astype(np.float32), patch.faces.astype(np.int32)


def _class_names(pieces: list[Piece]) -> dict[int, str]:
    own = sorted({piece.class_name for piece in pieces} - CLASS_IDS.keys())
    return dict(CLASS_NAMES) | {FIRST_OWN_CLASS + number: name for number, name in enumerate(own)}


def _for_kind(kind: str, pieces: list[Piece]) -> tuple[Piece, ...]:
    class_name = KIND_CLASS.get(kind, kind)
    return tuple(piece for piece in pieces if piece.class_name == class_name) or tuple(pieces)


def _pick(rng: np.random.Generator, pieces: tuple[Piece, ...]) -> Piece:
    return pieces[int(rng.integers(len(pieces)))]
