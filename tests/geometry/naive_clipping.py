"""The twin of ``rollout_assets.geometry.clipping`` in NumPy, one array operation after another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.clipping import LATTICE_AXES, SurfaceSamples
from rollout_assets.geometry.poses import Float32, Float64


def touching_box(corners: Float32 | Float64, faces: NDArray[np.int32], half: Float64) -> NDArray[np.int64]:
    """Ascending faces that may reach into the box |x| < half: those not wholly beyond one of its six sides.

    corners: (n, 3) in the box's frame, faces: (m, 3), half: (3,).
    """
    beyond = np.zeros(len(corners), np.uint8)
    for axis in range(3):
        beyond |= (corners[:, axis] >= half[axis]).astype(np.uint8) << (2 * axis)
        beyond |= (corners[:, axis] <= -half[axis]).astype(np.uint8) << (2 * axis + 1)
    return np.flatnonzero((beyond[faces[:, 0]] & beyond[faces[:, 1]] & beyond[faces[:, 2]]) == 0)


def clip_to_box(triangles: Float64, half: Float64) -> tuple[Float64, NDArray[np.int64]]:
    """triangles: (m, 3, 3) in the box's frame -> (k, 3, 3) parts of them inside |x| < half, (k,) whose part each is."""
    source = np.arange(len(triangles))
    for axis in range(3):
        for sign in (1.0, -1.0):
            triangles, source = _clip_to_half_space(triangles, source, half[axis] - sign * triangles[:, :, axis])
    return triangles, source


def lattice_samples(triangles: Float64, pitch_m: float) -> SurfaceSamples:
    """Where three families of parallel lines, ``pitch_m`` apart, meet triangles (m, 3, 3).

    A hit along direction a stands for pitch² |n_a| of area: n_1² + n_2² + n_3² = 1 makes the three families add up to
    every piece of surface exactly once. A line through an edge that two triangles share hits one of them.
    """
    turned = triangles @ LATTICE_AXES
    normals = np.cross(turned[:, 1] - turned[:, 0], turned[:, 2] - turned[:, 0])
    lengths = np.linalg.norm(normals, axis=1)
    parts = [_hits_along(axis, turned, normals, lengths, pitch_m) for axis in range(3)]
    return SurfaceSamples(
        np.concatenate([part.points for part in parts]) @ LATTICE_AXES.T,
        np.concatenate([part.area_m2 for part in parts]),
        np.concatenate([part.triangle for part in parts]),
    )


def _clip_to_half_space(
    triangles: Float64, source: NDArray[np.int64], depth: Float64
) -> tuple[Float64, NDArray[np.int64]]:
    """depth: (m, 3), positive where a corner is inside. One corner inside leaves a triangle, two leave a pair."""
    inside = depth > 0
    count = inside.sum(axis=1)
    one, two = np.flatnonzero(count == 1), np.flatnonzero(count == 2)
    a, b, c, ab, ac = _cut_at_corner(triangles[one], depth[one], np.argmax(inside[one], axis=1))
    tips = np.stack([a, ab, ac], axis=1)
    a, b, c, ab, ac = _cut_at_corner(triangles[two], depth[two], np.argmin(inside[two], axis=1))
    pairs = [np.stack([ab, b, c], axis=1), np.stack([ab, c, ac], axis=1)]
    whole = count == 3
    sources = np.concatenate([source[whole], source[one], source[two], source[two]])
    return np.concatenate([triangles[whole], tips, *pairs]), sources


def _cut_at_corner(
    triangles: Float64, depth: Float64, corner: NDArray[np.int64]
) -> tuple[Float64, Float64, Float64, Float64, Float64]:
    """Corners from ``corner`` on, and where the plane of depth 0 crosses the two edges that meet there."""
    rows = np.arange(len(triangles))
    (a, at_a), (b, at_b), (c, at_c) = (
        (triangles[rows, (corner + step) % 3], depth[rows, (corner + step) % 3, None]) for step in range(3)
    )
    return a, b, c, a + (b - a) * (at_a / (at_a - at_b)), a + (c - a) * (at_a / (at_a - at_c))


def _hits_along(axis: int, triangles: Float64, normals: Float64, lengths: Float64, pitch_m: float) -> SurfaceSamples:
    u, v = (axis + 1) % 3, (axis + 2) % 3
    owner, at_u, at_v = _lines_over(triangles, normals[:, axis] != 0, pitch_m, u, v)
    kept = _inside_projection(triangles[owner], normals[owner, axis] > 0, at_u, at_v, u, v)
    owner, at_u, at_v = owner[kept], at_u[kept], at_v[kept]
    corner, normal = triangles[owner, 0], normals[owner]
    points = np.empty((len(owner), 3))
    points[:, u], points[:, v] = at_u, at_v
    slope = (at_u - corner[:, u]) * normal[:, u] + (at_v - corner[:, v]) * normal[:, v]
    points[:, axis] = corner[:, axis] - slope / normal[:, axis]
    return SurfaceSamples(points, pitch_m**2 * np.abs(normal[:, axis]) / lengths[owner], owner)


def _lines_over(
    triangles: Float64, faced: NDArray[np.bool_], pitch_m: float, u: int, v: int
) -> tuple[NDArray[np.int64], Float64, Float64]:
    """Lines through the rectangle around each projected triangle: the triangle (n,), and where each line stands."""
    first = np.ceil(triangles.min(axis=1)[:, [u, v]] / pitch_m).astype(np.int64)
    last = np.floor(triangles.max(axis=1)[:, [u, v]] / pitch_m).astype(np.int64)
    size = np.maximum(last - first + 1, 0)
    counts = np.where(faced, size[:, 0] * size[:, 1], 0)
    owner = np.repeat(np.arange(len(triangles)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    row, column = np.divmod(within, np.maximum(size[owner, 1], 1))
    at = (first[owner] + np.stack([row, column], axis=1)) * pitch_m
    return owner, at[:, 0], at[:, 1]


def _inside_projection(
    triangles: Float64, upward: NDArray[np.bool_], at_u: Float64, at_v: Float64, u: int, v: int
) -> NDArray[np.bool_]:
    """Whether each line (n,) meets its triangle (n, 3, 3).

    The side of an edge is judged from its lower end to its upper one, whichever triangle asks, so that two neighbours
    judge a line on their common edge with the same arithmetic and give opposite answers.
    """
    inside = np.ones(len(triangles), bool)
    for start, end in ((0, 1), (1, 2), (2, 0)):
        from_u, from_v, to_u, to_v = (triangles[:, c, k] for c, k in ((start, u), (start, v), (end, u), (end, v)))
        backward = (from_u > to_u) | ((from_u == to_u) & (from_v > to_v))
        low_u, high_u = np.where(backward, to_u, from_u), np.where(backward, from_u, to_u)
        low_v, high_v = np.where(backward, to_v, from_v), np.where(backward, from_v, to_v)
        left = (high_u - low_u) * (at_v - low_v) - (high_v - low_v) * (at_u - low_u) >= 0
        inside &= left ^ backward ^ ~upward
    return inside
