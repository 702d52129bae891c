"""A triangle mesh with a bounding volume hierarchy on a device: rays and exact closest points.

Large triangles are referenced from many small boxes, so that a wall of two faces does not fill every box of the tree;
answers are always about the whole source face.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import warp as wp
from numpy.typing import NDArray

from rollout_assets.errors import GeometryError, MeshError
from rollout_assets.geometry import bvh_build_native, bvh_query_kernels
from rollout_assets.geometry.devices import (
    Array,
    as_numpy,
    empty_warp,
    launch,
    on_host,
    resolve_device,
    run_on_host,
    to_torch,
    upload,
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


@dataclass(frozen=True, eq=False)
class BuiltTree:
    """A tree on the host, ready for a device.

    boxes: (k, 6, 4) low and high of four children per node; children: (k, 4) codes; corners: (r, 4, 3) triangles with
    their normals and slot_face: (r,) their source faces, in the order of the leaves; bounds: lowest and highest corner.
    """

    boxes: NDArray[np.float32]
    children: NDArray[np.int32]
    corners: NDArray[np.float32]
    slot_face: NDArray[np.int32]
    face_count: int
    bounds: tuple[NDArray[np.float32], NDArray[np.float32]]


class TriangleBvh:
    """A mesh on a device. Safe to query from several threads at once.

    vertices: (n, 3) float32, faces: (m, 3) int32. ``edges_only`` (m,) bool marks faces that count as their three edges
    when distances are measured; rays hit them as usual. ``built``: the tree of this very mesh, where it is known.
    """

    def __init__(
        self,
        vertices: Array,
        faces: Array,
        device: str = "auto",
        edges_only: NDArray[np.bool_] | None = None,
        built: BuiltTree | None = None,
    ) -> None:
        self.device = resolve_device(device)
        tree = built or build_tree(*checked_mesh(vertices, faces), edges_only)
        self.face_count, self.bounds = tree.face_count, tree.bounds
        parts = [(tree.boxes, wp.vec4), (tree.children, wp.vec4i), (tree.corners, wp.vec3), (tree.slot_face, wp.int32)]
        self._boxes, self._children, self._corners, self._slot_face = upload(parts, self.device)

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


def build_tree(
    points: NDArray[np.float32], triangles: NDArray[np.int32], edges_only: NDArray[np.bool_] | None = None
) -> BuiltTree:
    """The tree of a checked mesh. Equal to the bit on every device, because the host builds it."""
    references, edge, records = _described(points, triangles)
    if edges_only is not None:
        records[edges_only, 3] = 0.0
    bounds = references[:, :3].min(axis=0), references[:, 4:7].max(axis=0)
    references, owner = _with_pieces(references, points, triangles, edge, bounds)
    slack = np.float32(BOX_SLACK * max(np.abs(corner).max() for corner in bounds))
    boxes, children, order = _build(references, slack)
    slot_face = order if owner is None else owner[order]
    return BuiltTree(boxes, children, records[slot_face], slot_face, len(triangles), bounds)


def triangle_records(
    points: NDArray[np.float32], triangles: NDArray[np.int32], edges_only: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """(m, 4, 3) float32: three corners and the unit normal, zero for faces without area or marked ``edges_only``."""
    records = _described(points, triangles)[2]
    if edges_only is not None:
        records[edges_only, 3] = 0.0
    return records


def _described(points: NDArray[np.float32], triangles: NDArray[np.int32]) -> tuple[NDArray[np.float32], ...]:
    """References (m, 8), longest edges (m,) and records (m, 4, 3) of all faces."""
    count = len(triangles)
    references, edge = empty_warp((count, 8), wp.float32, "cpu"), empty_warp(count, wp.float32, "cpu")
    records = empty_warp((count, 4), wp.vec3, "cpu")
    corners = [on_host(points, wp.vec3), on_host(triangles, wp.int32)]
    run_on_host(bvh_build_native.describe_triangles, count, [*corners, references, edge, records])
    return references.numpy(), edge.numpy(), records.numpy()


def _with_pieces(
    references: NDArray[np.float32],
    points: NDArray[np.float32],
    triangles: NDArray[np.int32],
    edge: NDArray[np.float32],
    bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> tuple[NDArray[np.float32], NDArray[np.int32] | None]:
    """References (r, 8) that together cover every triangle, and the triangle of each (r,); None: each its own."""
    limit = _edge_limit(edge, *bounds)
    large = edge > limit
    if not large.any():
        return references, None
    small, cut = np.flatnonzero(~large).astype(np.int32), np.flatnonzero(large).astype(np.int32)
    low, high, owner = _cut(points[triangles[cut]].astype(np.float64), cut, limit)
    joined = empty_warp((len(small) + len(owner), 8), wp.float32, "cpu").numpy()
    np.take(references, small, axis=0, out=joined[: len(small)])
    joined[len(small) :, :3], joined[len(small) :, 4:7] = low, high
    return joined, np.concatenate([small, owner])


def _edge_limit(edge: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32]) -> float:
    """Longest edge that stays whole: small enough to cut walls, large enough to stay within the allowed pieces."""
    diagonal = float(np.linalg.norm(high.astype(np.float64) - low))
    limit = max(diagonal / PIECES_PER_DIAGONAL, 1e-12)
    allowed = max(MIN_EXTRA_PIECES, len(edge) // 2)
    while float(np.square(edge[edge > limit].astype(np.float64) / limit).sum()) > allowed:
        limit *= 1.25
    return limit


def _cut(
    pieces: NDArray[np.float64], owner: NDArray[np.int32], limit: float, room: int = 1 << 15
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    """Boxes (r, 3), (r, 3) and owners (r,) of triangles (n, 3, 3) halved until no edge is longer than ``limit``."""
    room = max(room, 4 * len(pieces))
    first, second = (empty_warp(9 * room, wp.float64, "cpu") for _ in range(2))
    first_owner, second_owner, owners = (empty_warp(room, wp.int32, "cpu") for _ in range(3))
    first.numpy()[: pieces.size], first_owner.numpy()[: len(owner)] = pieces.reshape(-1), owner
    low, high, made = empty_warp(room, wp.vec3, "cpu"), empty_warp(room, wp.vec3, "cpu"), empty_warp(1, wp.int32, "cpu")
    scratch = [first, second, first_owner, second_owner]
    asked = [len(pieces), room, wp.float64(limit), *scratch, low, high, owners, made]
    run_on_host(bvh_build_native.cut_triangles, 1, asked)
    count = int(made.numpy()[0])
    if count < 0:
        return _cut(pieces, owner, limit, 4 * room)
    return low.numpy()[:count], high.numpy()[:count], owners.numpy()[:count]


def _build(
    references: NDArray[np.float32], slack: np.float32
) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.int32]]:
    """Node boxes (k, 6, 4), child codes (k, 4) and the order (r,) in which leaves refer to the references."""
    count = len(references)
    boxes, children = empty_warp((count // 2 + 1, 6), wp.vec4, "cpu"), empty_warp(count // 2 + 1, wp.vec4i, "cpu")
    used = empty_warp(1, wp.int32, "cpu")
    asked = [float(slack), on_host(references, wp.float32), boxes, children, used]
    run_on_host(bvh_build_native.build_tree, 1, asked)
    nodes = int(used.numpy()[0])
    return boxes.numpy()[:nodes], children.numpy()[:nodes], references[:, 3].copy().view(np.int32)
