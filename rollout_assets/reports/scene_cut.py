"""A scene cut open for a picture: the part of its surface in a box, and where walls stand at one height.

Triangles are cut where the box ends. To keep or drop whole ones by where their middle lies would leave walls whose
tall triangles reach above the cut, and such a wall hides the doorway beside or behind it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.clipping import clip_to_box, touching_box
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.voxels import voxel_keys

MOST_FACES = 400_000
"""Faces of a scene that a picture is drawn from; a browser is slow with more, and a page of five million has 70 MB."""

_NEXT_CELL = 1.2
_NUMBERED = 1 << 21
"""Below so many vertices, three of them fit into one integer."""


def thinned(
    vertices: Float32, faces: NDArray[np.int32], most_faces: int = MOST_FACES
) -> tuple[Float32, NDArray[np.int32]]:
    """A mesh for pictures: as it is, or with the vertices of small cells merged until it has at most ``most_faces``."""
    drawn = vertices, faces
    cell_m = math.sqrt(2.0 * _area_m2(vertices, faces) / most_faces) if len(faces) > most_faces else 0.0
    while len(drawn[1]) > most_faces:
        drawn = _merged(vertices, faces, cell_m)
        cell_m *= _NEXT_CELL
    return drawn


def _area_m2(vertices: Float32, faces: NDArray[np.int32]) -> float:
    a, b, c = (vertices[faces[:, corner]] for corner in range(3))
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum(dtype=np.float64)) / 2


def _merged(vertices: Float32, faces: NDArray[np.int32], cell_m: float) -> tuple[Float32, NDArray[np.int32]]:
    """Every cell's vertices become the one that is nearest to their middle, so that flat parts stay flat."""
    _, group = np.unique(voxel_keys(vertices, cell_m), return_inverse=True)
    counts = np.bincount(group)
    middles = np.stack([np.bincount(group, vertices[:, axis]) / counts for axis in range(3)], axis=1)
    away = np.linalg.norm(vertices - middles[group], axis=1)
    nearest = np.lexsort((away, group))[np.cumsum(counts) - counts]
    corners = np.sort(group[faces], axis=1)
    kept = np.flatnonzero((corners[:, 0] != corners[:, 1]) & (corners[:, 1] != corners[:, 2]))
    if len(counts) < _NUMBERED:
        a, b, c = corners[kept].T.astype(np.int64)
        _, first = np.unique((a * len(counts) + b) * len(counts) + c, return_index=True)
        kept = kept[np.sort(first)]
    return vertices[nearest], group[faces[kept]].astype(np.int32)


def surface_in_box(vertices: Float32, faces: NDArray[np.int32], low: Float64, high: Float64) -> Float64:
    """(k, 3, 3): the triangles of a mesh, cut at the sides of the box from ``low`` (3,) to ``high`` (3,)."""
    centre, half = (low + high) / 2, (high - low) / 2
    near = faces[touching_box(vertices, faces, half + 1e-3, centre)]  # a little more, for the rounding of float32
    parts, _ = clip_to_box(vertices[near].astype(np.float64) - centre, half)
    return parts + centre


def slab(triangles: Float64, low_m: float, high_m: float) -> Float64:
    """(m, 3, 3): what of triangles (k, 3, 3) lies between two heights."""
    heights = triangles[:, :, 2]
    reaching = triangles[(heights.max(axis=1) > low_m) & (heights.min(axis=1) < high_m)]
    centre = np.array([0.0, 0.0, (low_m + high_m) / 2])
    parts, _ = clip_to_box(reaching - centre, np.array([np.inf, np.inf, (high_m - low_m) / 2]))
    return parts + centre


def outline_at(triangles: Float64, height_m: float) -> Float64:
    """(n, 2, 3): the segments in which triangles (k, 3, 3) cross the horizontal plane at a height."""
    above = triangles[:, :, 2] > height_m
    crossing = np.flatnonzero(above.any(axis=1) & ~above.all(axis=1))
    rows = np.arange(len(crossing))
    lone_above = above[crossing].sum(axis=1) == 1
    lone = np.where(lone_above, above[crossing].argmax(axis=1), above[crossing].argmin(axis=1))
    corners = [triangles[crossing][rows, (lone + step) % 3] for step in range(3)]
    return np.stack([_crossing(corners[0], other, height_m) for other in corners[1:]], axis=1)


def _crossing(start: Float64, end: Float64, height_m: float) -> Float64:
    share = (height_m - start[:, 2]) / (end[:, 2] - start[:, 2])
    return start + share[:, None] * (end - start)


def indexed(triangles: Float64) -> tuple[Float32, NDArray[np.int32]]:
    """Triangles (k, 3, 3) as vertices (n, 3) to the tenth of a millimetre, each once, and faces (k, 3)."""
    grid, inverse = np.unique(np.round(triangles.reshape(-1, 3) * 1e4).astype(np.int64), axis=0, return_inverse=True)
    return (grid * 1e-4).astype(np.float32), inverse.reshape(-1, 3).astype(np.int32)
