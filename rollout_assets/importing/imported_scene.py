"""A scene as it was understood: the mesh in our world, its objects, and the floor one can walk on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import SourceError
from rollout_assets.geometry.poses import Float64
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.synthetic.floor_grid import FloorGrid
from rollout_assets.synthetic.furnish import WALK_CLEARANCE_M
from rollout_assets.synthetic.scene import LabelledScene
from rollout_assets.synthetic.walk import GRID_CELL_M, HEAD_HEIGHT_M

_FLOOR_TOLERANCE_M = 0.12
_BODY_HEIGHTS_M = (0.42, 0.7, 1.0, 1.3, 1.55)
_MOST_CELLS = 250_000
_LEAST_FLOOR_M2 = 0.5
_INNER_CORNERS = np.array([(0, 0, 0), *np.ndindex(2, 2, 2)], np.float64)
_INNER_CORNERS[1:] = (_INNER_CORNERS[1:] - 0.5) * 0.7


@dataclass(frozen=True, eq=False)
class ImportedScene(LabelledScene):
    """A labelled scene with its tree of triangles."""

    bvh: TriangleBvh

    def in_same_room(self, position: Float64) -> NDArray[np.bool_]:
        """(k,) whether a ray from a head at ``position`` to the object's inside ends on the object."""
        head = np.array([position[0], position[1], HEAD_HEIGHT_M])
        offsets = np.einsum("kij,knj->kni", _turns(self), _INNER_CORNERS * self.boxes.extents_m[:, None, :])
        towards = self.boxes.centers_world[:, None, :].astype(np.float64) + offsets - head
        flat = towards.reshape(-1, 3)
        _, face = self.bvh.cast_rays(np.broadcast_to(head, flat.shape), flat, 10.0)
        hit = face.numpy().reshape(len(self.boxes), -1)
        piece = np.where(hit >= 0, self.face_piece[hit], -2)
        return np.asarray((piece == np.arange(len(self.boxes))[:, None]).any(axis=1))


def free_floor(scene: ImportedScene) -> FloorGrid:
    """Where a person can walk: over the floor, with clearance to all that is between knee and head."""
    low, high = (bound[:2].astype(np.float64) for bound in scene.bvh.bounds)
    width, depth = (high - low).tolist()
    cell_m = max(GRID_CELL_M, math.sqrt(width * depth / _MOST_CELLS))
    grid = FloorGrid((width, depth), cell_m, WALK_CLEARANCE_M, (float(low[0]), float(low[1])))
    grid.free = _standing_room(scene.bvh, grid.centres.reshape(-1, 2)).reshape(grid.free.shape)
    grid.free = grid.largest_part()
    area_m2 = float(grid.free.sum()) * cell_m**2
    if area_m2 < _LEAST_FLOOR_M2:
        raise SourceError(
            f"no free floor to walk on: {area_m2:.2f} m2 with {WALK_CLEARANCE_M} m clearance; "
            "is the up axis right? a trajectory file beside the mesh needs no free floor"
        )
    return grid


def _standing_room(bvh: TriangleBvh, places: Float64) -> NDArray[np.bool_]:
    """places (n, 2) -> (n,)."""
    knee = _BODY_HEIGHTS_M[0]
    origins = np.column_stack([places, np.full(len(places), knee)])
    down = np.broadcast_to(np.array([0.0, 0.0, -1.0]), origins.shape)
    depth, _ = bvh.cast_rays(origins, down, knee + _FLOOR_TOLERANCE_M)
    free = np.abs(depth.numpy() - knee) <= _FLOOR_TOLERANCE_M
    for height in _BODY_HEIGHTS_M:
        index = np.flatnonzero(free)
        if not len(index):
            break
        distance_sq, _ = bvh.closest(np.column_stack([places[index], np.full(len(index), height)]), WALK_CLEARANCE_M)
        free[index[distance_sq.numpy() < WALK_CLEARANCE_M**2]] = False
    return np.asarray(free)


def _turns(scene: ImportedScene) -> Float64:
    return scene.boxes.pose_world_object[:, :9].reshape(-1, 3, 3).astype(np.float64)
