"""A triangle mesh with a bounding volume hierarchy on a device: rays and exact closest points.

Large triangles are referenced from many small boxes, so that a wall of two faces does not fill every box of the tree;
answers are always about the whole source face.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import warp as wp
from numpy.typing import NDArray

from rollout_assets.errors import GeometryError, MeshError
from rollout_assets.geometry import bvh_build_kernels, bvh_query_kernels
from rollout_assets.geometry.devices import (
    Array,
    as_numpy,
    empty_warp,
    launch,
    resolve_device,
    to_torch,
    to_warp,
    vectors,
)

if TYPE_CHECKING:
    import torch

PIECES_PER_DIAGONAL = 64
"""A triangle edge longer than the mesh's diagonal over this is cut into pieces for the tree."""

MIN_EXTRA_PIECES = 16_384
"""Pieces that a mesh may always be cut into beyond its faces; a large mesh may add half of its faces."""

BOX_SLACK = 2.0**-22
"""Boxes grow by this share of the largest coordinate, so that rounding never moves a triangle out of its box."""

FARTHEST = 1e9
"""Largest coordinate of a mesh: squared distances must stay far from the end of float32."""


class TriangleBvh:
    """A mesh on a device. Safe to query from several threads at once.

    vertices: (n, 3) float32, faces: (m, 3) int32. ``edges_only`` (m,) bool marks faces that count as their three edges
    when distances are measured; rays hit them as usual.
    """

    def __init__(
        self, vertices: Array, faces: Array, device: str = "auto", edges_only: NDArray[np.bool_] | None = None
    ) -> None:
        points, triangles = checked_mesh(vertices, faces)
        self.device = resolve_device(device)
        self.face_count = len(triangles)
        used = np.zeros(len(points), bool)
        used[triangles] = True
        self.bounds = (points[used].min(axis=0), points[used].max(axis=0))
        box_low, box_high, owner = _references(points, triangles)
        boxes, children, order = _build(box_low, box_high)
        slot_face = owner[order]
        corners = triangle_records(points, triangles, edges_only)[slot_face]
        self._boxes = to_warp(boxes, wp.vec4, self.device)
        self._children = to_warp(children, wp.vec4i, self.device)
        self._corners = to_warp(corners, wp.vec3, self.device)
        self._slot_face = to_warp(slot_face, wp.int32, self.device)

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        return sum(int(array.capacity) for array in self.arrays)

    @property
    def arrays(self) -> tuple[wp.array, ...]:
        """Node boxes, child codes, triangle records and their source faces, for kernels that traverse the tree."""
        return self._boxes, self._children, self._corners, self._slot_face

    def cast_rays(
        self, origins: Array, directions: Array, max_t: float = math.inf
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """origins, directions: (n, 3) -> t (n,) float32 in units of the direction and face (n,) int32.

        The first hit with 0 <= t < max_t, on either side of a face. A miss is t = +inf and face = -1.
        """
        starts, ahead = vectors(origins, "origins", self.device), vectors(directions, "directions", self.device)
        if len(starts) != len(ahead):
            raise GeometryError(f"{len(starts)} origins need as many directions, got {len(ahead)}")
        if not max_t >= 0:
            raise GeometryError(f"max_t must be >= 0, got {max_t}")
        t = empty_warp(len(starts), wp.float32, self.device)
        face = empty_warp(len(starts), wp.int32, self.device)
        asked = [starts, ahead, float(max_t), *self.arrays, t, face]
        launch(bvh_query_kernels.cast_rays, len(starts), asked, self.device)
        return to_torch(t), to_torch(face)

    def closest(self, points: Array, max_distance: float = math.inf) -> tuple[torch.Tensor, torch.Tensor]:
        """points: (n, 3) -> squared distance (n,) float32 and face (n,) int32 of the nearest face.

        Nothing strictly nearer than ``max_distance``, or a NaN point: +inf and -1.
        """
        distance_sq, face = self.closest_arrays(points, max_distance)
        return to_torch(distance_sq), to_torch(face)

    def closest_arrays(self, points: Array, max_distance: float = math.inf) -> tuple[wp.array, wp.array]:
        """``closest`` with Warp arrays, for those who do without torch."""
        queries = vectors(points, "points", self.device)
        if not max_distance >= 0:
            raise GeometryError(f"max_distance must be >= 0, got {max_distance}")
        distance_sq = empty_warp(len(queries), wp.float32, self.device)
        face = empty_warp(len(queries), wp.int32, self.device)
        asked = [queries, min(float(max_distance) ** 2, 3e38), *self.arrays, distance_sq, face]
        launch(bvh_query_kernels.closest_points, len(queries), asked, self.device)
        return distance_sq, face


def checked_mesh(vertices: Array, faces: Array) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """vertices (n, 3) float32 and faces (m, 3) int32 of a usable mesh, or a MeshError that names what is wrong."""
    points = np.ascontiguousarray(as_numpy(vertices), np.float32)
    indices = as_numpy(faces)
    if points.ndim != 2 or points.shape[1] != 3 or indices.ndim != 2 or indices.shape[1] != 3:
        raise MeshError(f"a mesh needs vertices (n, 3) and faces (m, 3), got {points.shape} and {indices.shape}")
    if len(points) == 0 or len(indices) == 0:
        raise MeshError(f"the mesh is empty: {len(points)} vertices, {len(indices)} faces")
    if not np.issubdtype(indices.dtype, np.integer):
        raise MeshError(f"faces must be integers, got {indices.dtype}")
    wrong = (indices < 0) | (indices >= len(points))
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise MeshError(f"face {row} refers to vertex {indices[row, column]}, but there are {len(points)} vertices")
    usable = np.abs(points) <= FARTHEST
    if not usable.all():
        row = int(np.flatnonzero(~usable.all(axis=1))[0])
        what = f"lies beyond {FARTHEST:g}" if np.isfinite(points[row]).all() else "is not finite"
        raise MeshError(f"vertex {row} {what}: {points[row].tolist()}")
    return points, np.ascontiguousarray(indices, np.int32)


def triangle_records(
    points: NDArray[np.float32], triangles: NDArray[np.int32], edges_only: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """(m, 4, 3) float32: three corners and the unit normal, zero for faces without area or marked ``edges_only``."""
    corners = points[triangles]
    records = np.zeros((len(triangles), 4, 3), np.float32)
    records[:, :3] = corners
    for rows in _chunks(len(triangles)):
        block = corners[rows].astype(np.float64)
        normal = np.cross(block[:, 1] - block[:, 0], block[:, 2] - block[:, 0])
        length = np.linalg.norm(normal, axis=1, keepdims=True)
        records[rows, 3] = normal / np.where(length > 0, length, 1.0)
    if edges_only is not None:
        records[edges_only, 3] = 0.0
    return records


def _chunks(count: int, size: int = 262_144) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _references(
    points: NDArray[np.float32], triangles: NDArray[np.int32]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    """Boxes (r, 3), (r, 3) that together cover every triangle, and the triangle of each (r,)."""
    a, b, c = (points[triangles[:, corner]] for corner in range(3))
    owner = np.arange(len(triangles), dtype=np.int32)
    low, high = np.minimum(np.minimum(a, b), c), np.maximum(np.maximum(a, b), c)
    edge = np.sqrt(np.maximum(np.maximum(_length_sq(b - a), _length_sq(c - b)), _length_sq(a - c)))
    limit = _edge_limit(edge, low.min(axis=0), high.max(axis=0))
    large = edge > limit
    if large.any():
        pieces, piece_owner = _cut(points[triangles[large]].astype(np.float64), owner[large], limit)
        low = np.concatenate([low[~large], pieces.min(axis=1).astype(np.float32)])
        high = np.concatenate([high[~large], pieces.max(axis=1).astype(np.float32)])
        owner = np.concatenate([owner[~large], piece_owner])
    slack = np.float32(BOX_SLACK * max(np.abs(low).max(), np.abs(high).max()))
    return low - slack, high + slack, owner


def _length_sq(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.einsum("nk,nk->n", vectors, vectors)


def _edge_limit(edge: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32]) -> float:
    """Longest edge that stays whole: small enough to cut walls, large enough to stay within the allowed pieces."""
    diagonal = float(np.linalg.norm(high.astype(np.float64) - low))
    limit = max(diagonal / PIECES_PER_DIAGONAL, 1e-12)
    allowed = max(MIN_EXTRA_PIECES, len(edge) // 2)
    while float(np.square(edge[edge > limit].astype(np.float64) / limit).sum()) > allowed:
        limit *= 1.25
    return limit


def _cut(
    pieces: NDArray[np.float64], owner: NDArray[np.int32], limit: float
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Halve triangles (n, 3, 3) across their longest edge until none is longer than ``limit``."""
    done, done_owner = [], []
    while len(pieces):
        lengths = np.square(pieces - pieces[:, [1, 2, 0]]).sum(axis=2)
        small = lengths.max(axis=1) <= limit * limit
        done.append(pieces[small])
        done_owner.append(owner[small])
        pieces, owner, lengths = pieces[~small], owner[~small], lengths[~small]
        turn = (lengths.argmax(axis=1)[:, None] + np.arange(3)) % 3
        a, b, c = np.moveaxis(np.take_along_axis(pieces, turn[..., None], axis=1), 1, 0)
        middle = (a + b) * 0.5
        pieces = np.concatenate([np.stack([a, middle, c], axis=1), np.stack([middle, b, c], axis=1)])
        owner = np.concatenate([owner, owner])
    return np.concatenate(done), np.concatenate(done_owner)


def _build(
    low: NDArray[np.float32], high: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]:
    """Node boxes (k, 6, 4), child codes (k, 4) and the order (r,) in which leaves refer to the given boxes."""
    order = to_warp(np.arange(len(low), dtype=np.int32), wp.int32, "cpu")
    room = len(low) // 2 + 1
    boxes = empty_warp((room, 6), wp.vec4, "cpu")
    children = empty_warp(room, wp.vec4i, "cpu")
    used = empty_warp(1, wp.int32, "cpu")
    lows, highs = to_warp(low, wp.vec3, "cpu"), to_warp(high, wp.vec3, "cpu")
    launch(bvh_build_kernels.build_tree, 1, [lows, highs, order, boxes, children, used], "cpu")
    count = int(used.numpy()[0])
    return boxes.numpy()[:count].copy(), children.numpy()[:count].copy(), order.numpy().copy()
