"""A synthetic home as one mesh, with the furniture's boxes and the piece every face belongs to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import SourceError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float32, Float64, compose, make_pose, transform
from rollout_assets.randomness import rng_for
from rollout_assets.sources.meshes import clean_faces
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.furnish import Furnisher, PlacedPiece
from rollout_assets.synthetic.furniture import MOVEABLE_CLASSES
from rollout_assets.synthetic.furniture_files import FurnitureSet
from rollout_assets.synthetic.home import HomePlan, draw_plan
from rollout_assets.synthetic.solids import Part, Patch, combine

FURNITURE_CELL_M = 0.05
STRUCTURE_CELL_M = 0.22
"""Edge lengths at scale 1; a face budget scales both."""

_SCALES = (0.15, 8.0)
_BOX_MARGIN_M = 0.002
STRUCTURE = -1
"""``face_piece`` of faces that belong to no piece of furniture."""


@dataclass(frozen=True)
class LabelledScene(ABC):
    """A mesh whose faces know their object: what a walk, its sightings and its detections are made from.

    vertices (n, 3) float32 with the floor at z = 0, faces (m, 3) int32, face_piece (m,) int32: index into ``boxes`` or
    ``STRUCTURE``. class_ids (k,) int64 and moveable (k,) bool describe the k boxes.
    """

    scene_id: str
    boxes: OrientedBoxes
    class_ids: NDArray[np.int64]
    moveable: NDArray[np.bool_]
    vertices: Float32
    faces: NDArray[np.int32]
    face_piece: NDArray[np.int32]

    @abstractmethod
    def in_same_room(self, position: Float64) -> NDArray[np.bool_]:
        """(k,) whether no wall stands between each object and somebody at ``position`` (2,) or (3,)."""


@dataclass(frozen=True)
class SyntheticScene(LabelledScene):
    """A home by its plan; ``boxes`` holds one box per placed piece that contains all its vertices."""

    plan: HomePlan
    placed: tuple[PlacedPiece, ...]

    def in_same_room(self, position: Float64) -> NDArray[np.bool_]:
        """(k,) by the rooms of the plan."""
        centres = self.boxes.centers_world.astype(np.float64)
        same_room = np.zeros(len(centres), bool)
        for room in self.plan.rooms:
            low, high = np.subtract(room.low, 0.1), np.add(room.high, 0.1)
            if ((position[:2] >= low) & (position[:2] <= high)).all():
                same_room |= ((centres[:, :2] >= low) & (centres[:, :2] <= high)).all(axis=1)
        return same_room


def build_scene(config: SyntheticConfig, scene_index: int, furniture: FurnitureSet) -> SyntheticScene:
    """Home number ``scene_index``; equal options, seed and number give equal arrays."""
    rng = rng_for("synthetic home", config.seed, scene_index)
    plan = draw_plan(rng)
    placed = tuple(Furnisher(plan, furniture.makers, rng).furnish())
    if not placed:
        raise SourceError(f"scene {scene_index}: none of the furniture fits into the home")
    structure = plan.parts()
    scale = _fit_scale(structure, placed, config.faces)
    patches = [combine([part.build(STRUCTURE_CELL_M * scale) for part in structure])]
    local = [item.piece.build(FURNITURE_CELL_M * scale) for item in placed]
    for item, patch in zip(placed, local, strict=True):
        patches.append(Patch(transform(item.pose_world_object, patch.vertices).astype(np.float64), patch.faces))
    whole = combine(patches)
    piece = np.repeat(np.arange(len(patches), dtype=np.int32) - 1, [len(patch.faces) for patch in patches])
    vertices, faces, face_piece = _cleaned(whole, piece)
    class_ids = np.array([furniture.class_ids[item.piece.class_name] for item in placed], np.int64)
    moveable = np.array([item.piece.class_name in MOVEABLE_CLASSES for item in placed])
    boxes = _boxes(placed, [patch.vertices for patch in local])
    scene_id = config.scene_id(scene_index)
    return SyntheticScene(scene_id, boxes, class_ids, moveable, vertices, faces, face_piece, plan, placed)


def _fit_scale(structure: list[Part], placed: tuple[PlacedPiece, ...], faces_wanted: int) -> float:
    """The cell scale whose face count comes closest to ``faces_wanted`` from below, by bisection over counts alone."""
    low, high = _SCALES
    for _ in range(18):
        middle = (low * high) ** 0.5
        count = sum(part.face_count(STRUCTURE_CELL_M * middle) for part in structure)
        count += sum(item.piece.face_count(FURNITURE_CELL_M * middle) for item in placed)
        low, high = (middle, high) if count > faces_wanted else (low, middle)
    return high


def _cleaned(whole: Patch, piece: NDArray[np.int32]) -> tuple[Float32, NDArray[np.int32], NDArray[np.int32]]:
    """The mesh exactly as a reader of its file will see it."""
    vertices = whole.vertices.astype(np.float32)
    faces = whole.faces.astype(np.int32)
    corners = vertices[faces].astype(np.float64)
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    keep = area > 1e-10
    cleaned, triangles, _ = clean_faces(vertices, faces[keep], "synthetic home")
    return cleaned, triangles, piece[keep]


def _boxes(placed: tuple[PlacedPiece, ...], local: list[Float64]) -> OrientedBoxes:
    poses, extents = [], []
    for item, points in zip(placed, local, strict=True):
        low, high = points.min(axis=0) - _BOX_MARGIN_M, points.max(axis=0) + _BOX_MARGIN_M
        poses.append(compose(item.pose_world_object, make_pose(np.eye(3), (low + high) / 2)))
        extents.append(high - low)
    return OrientedBoxes(np.array(poses, np.float32), np.array(extents, np.float32))
