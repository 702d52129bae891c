"""How much of a target a view would newly show, by what the actor itself knows of the space: no mesh, no true box.

The surface of the target's box, as detected, stands for the target. Its cells that have no known point near them are
unseen; a view shows those that face it, lie in its image and are not behind known points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float32, Float64

CELLS_PER_EDGE = 8
"""A face of the box is divided into the square of this many cells."""

SEEN_WITHIN_M = 0.1
"""A cell with a known point this near has been seen."""

NEAREST_M = 0.05
"""Nothing nearer to a view is in its image."""

BUFFER_PX = 24
"""Pixels a side of the depth buffer in which known points hide cells."""

BEHIND_M = 0.15
"""A cell is hidden by a known point that is nearer by more than this."""

FACES = tuple((axis, side) for axis in range(3) for side in (-1.0, 1.0))
"""The six faces of a box: the axis of the normal, and its sign."""


@dataclass(frozen=True, eq=False)
class SurfaceCells:
    """Cells of a box's surface in the box's frame: centers (s, 3), normals (s, 3), area_m2 (s,)."""

    centers: Float64
    normals: Float64
    area_m2: Float64

    @classmethod
    def of_box(cls, extents_m: Float32) -> SurfaceCells:
        """The surface of a box with these extents (3,) around the origin, face by face."""
        half = 0.5 * extents_m.astype(np.float64)
        place = (2 * np.arange(CELLS_PER_EDGE) + 1) / CELLS_PER_EDGE - 1
        first, second = (values.ravel() for values in np.meshgrid(place, place, indexing="ij"))
        centers, normals, areas = [], [], []
        for axis, side in FACES:
            along = [other for other in range(3) if other != axis]
            unit = np.zeros((len(first), 3))
            unit[:, axis], unit[:, along[0]], unit[:, along[1]] = side, first, second
            centers.append(unit * half)
            normals.append(np.where(np.arange(3) == axis, side, 0.0) * np.ones_like(unit))
            areas.append(np.full(len(first), 4 * half[along[0]] * half[along[1]] / len(first)))
        return cls(np.concatenate(centers), np.concatenate(normals), np.concatenate(areas))

    def of(self, rows: NDArray[np.bool_]) -> SurfaceCells:
        """Some of the cells."""
        return SurfaceCells(self.centers[rows], self.normals[rows], self.area_m2[rows])

    def near(self, points: Float64) -> NDArray[np.bool_]:
        """(s,): which cells have one of the points (n, 3) near them; face by face, with the points near its plane."""
        near = np.zeros(len(self.centers), np.bool_)
        for axis, side in FACES:
            face = np.flatnonzero(self.normals[:, axis] == side)
            beside = np.abs(points[:, axis] - self.centers[face[0], axis]) <= SEEN_WITHIN_M
            near[face] = _any_near(self.centers[face], points[beside])
        return near


def _any_near(centers: Float64, points: Float64) -> NDArray[np.bool_]:
    """(s,): which of the centers (s, 3) have one of the points (n, 3) near them."""
    away = [centers[:, None, axis] - points[None, :, axis] for axis in range(3)]
    squared = away[0] * away[0] + away[1] * away[1] + away[2] * away[2]
    return np.asarray((squared <= SEEN_WITHIN_M**2).any(axis=1))


def unseen_area_m2(poses: Float32, extents_m: Float32, known: Float32, camera: Float32) -> Float64:
    """(k,) area of the box that each view would newly show.

    poses: (k, 12) of the views, extents_m: (3,), known: (n, 3) points, all in the target's frame; camera: (4,) focal
    lengths and principal point as shares of the image. Each sum is written out, so that a view's value does not depend
    on the views beside it.
    """
    points = known.astype(np.float64)
    surface = SurfaceCells.of_box(extents_m)
    unseen = surface.of(~surface.near(points))
    if not len(unseen.centers) or not len(poses):
        return np.zeros(len(poses))
    views = poses.astype(np.float64)
    pixel, depth = _pixels(views, unseen.centers, camera)
    shown = (pixel >= 0) & _facing(views, unseen)
    hidden_from = np.take_along_axis(_depth_buffer(views, points, camera), np.maximum(pixel, 0), axis=1)
    shown &= depth <= hidden_from + BEHIND_M
    return np.cumsum(np.where(shown, unseen.area_m2, 0.0), axis=1)[:, -1]


def _facing(views: Float64, cells: SurfaceCells) -> NDArray[np.bool_]:
    """(k, s): which cells turn their outer side to which view."""
    towards = [
        cells.normals[None, :, axis] * (views[:, 9 + axis, None] - cells.centers[None, :, axis]) for axis in range(3)
    ]
    return np.asarray(towards[0] + towards[1] + towards[2] > 0)


def _pixels(views: Float64, points: Float64, camera: Float32) -> tuple[NDArray[np.int64], Float64]:
    """(k, m) the buffer's pixel on which each view (k, 12) sees each point (m, 3), -1 outside; and (k, m) its depth."""
    away = [points[None, :, axis] - views[:, 9 + axis, None] for axis in range(3)]
    x, y, z = (
        views[:, column, None] * away[0] + views[:, 3 + column, None] * away[1] + views[:, 6 + column, None] * away[2]
        for column in range(3)
    )
    fx, fy, cx, cy = camera.astype(np.float64)
    ahead = z > NEAREST_M
    over = 1.0 / np.where(ahead, z, 1.0)
    column, row = (
        np.floor(BUFFER_PX * (center - focal * side * over)) for center, focal, side in ((cx, fx, x), (cy, fy, y))
    )
    inside = ahead & (column >= 0) & (column < BUFFER_PX) & (row >= 0) & (row < BUFFER_PX)
    return np.where(inside, row * BUFFER_PX + column, -1).astype(np.int64), z


def _depth_buffer(views: Float64, points: Float64, camera: Float32) -> Float64:
    """(k, pixels) depth of the nearest known point on each pixel of each view; infinite where there is none."""
    pixel, depth = _pixels(views, points, camera)
    size = BUFFER_PX * BUFFER_PX
    buffer = np.full(len(views) * size, np.inf)
    inside = pixel >= 0
    np.minimum.at(buffer, (pixel + size * np.arange(len(views))[:, None])[inside], depth[inside])
    return buffer.reshape(len(views), size)
