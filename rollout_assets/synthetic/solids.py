"""Tessellated building blocks: everything in a synthetic home is made of these.

A part knows how many triangles it will have at a given cell size before it is built, so that a whole home can be
fitted to a face budget without building it twice. Lengths are metres, +Z is up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.geometry.poses import Float64, normalise

Triangles = NDArray[np.int64]
Bounds = tuple[Float64, Float64]

_FINE_LEAF_M = 0.07
"""Below this cell size a leaf is bent in four places, above in two."""

_FLAT_CORNERS = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])


@dataclass(frozen=True)
class Patch:
    """Triangles: vertices (n, 3) float64, faces (m, 3) int64."""

    vertices: Float64
    faces: Triangles


class Part(Protocol):
    """A shape that can be tessellated to a cell size in metres."""

    def face_count(self, cell_m: float) -> int:
        """Triangles that ``build`` makes."""

    def build(self, cell_m: float) -> Patch:
        """The triangles."""

    def bounds(self) -> Bounds:
        """Lowest and highest corner, (3,) each, of a box around it at any cell size."""


def combine(patches: Sequence[Patch]) -> Patch:
    """All triangles of several patches, in order."""
    starts = np.cumsum([0, *(len(patch.vertices) for patch in patches)])
    faces = [patch.faces + start for patch, start in zip(patches, starts[:-1], strict=True)]
    return Patch(np.concatenate([patch.vertices for patch in patches]), np.concatenate(faces))


def segments(length_m: float, cell_m: float, least: int = 1) -> int:
    """How many cells a length is divided into."""
    return max(least, math.ceil(length_m / cell_m - 1e-9))


@dataclass(frozen=True)
class Slab:
    """A box around ``centre``; ``radius`` rounds its edges, as of a cushion."""

    size: tuple[float, float, float]
    centre: tuple[float, float, float]
    radius: float = 0.0

    def face_count(self, cell_m: float) -> int:
        """Triangles that ``build`` makes."""
        x, y, z = self._counts(cell_m)
        return 4 * (x * y + y * z + z * x)

    def build(self, cell_m: float) -> Patch:
        """The six sides as grids."""
        counts = self._counts(cell_m)
        half = np.asarray(self.size) / 2.0
        sides = []
        for axis in range(3):
            across, up = (axis + 1) % 3, (axis + 2) % 3
            for sign in (1.0, -1.0):
                origin = -half.copy()
                origin[axis] = sign * half[axis]
                u, v = np.zeros(3), np.zeros(3)
                u[across], v[up] = self.size[across], self.size[up]
                pair = (u, v, counts[across], counts[up]) if sign > 0 else (v, u, counts[up], counts[across])
                sides.append(_grid(origin, *pair))
        patch = combine(sides)
        return Patch(self._rounded(patch.vertices, half) + np.asarray(self.centre), patch.faces)

    def bounds(self) -> Bounds:
        """Lowest and highest corner."""
        return np.subtract(self.centre, np.divide(self.size, 2)), np.add(self.centre, np.divide(self.size, 2))

    def _counts(self, cell_m: float) -> tuple[int, int, int]:
        least = 4 if self.radius > 0 else 1
        x, y, z = (segments(length, cell_m, least) for length in self.size)
        return x, y, z

    def _rounded(self, points: Float64, half: Float64) -> Float64:
        radius = min(self.radius, float(half.min()) * 0.95)
        if radius <= 0:
            return points
        core = np.clip(points, radius - half, half - radius)
        outward = points - core
        return core + radius * outward / np.linalg.norm(outward, axis=1, keepdims=True)


@dataclass(frozen=True)
class Tube:
    """A closed round bar from ``start`` to ``end``; unequal radii make a cone. A thin flat one is a disc."""

    start: tuple[float, float, float]
    end: tuple[float, float, float]
    start_radius: float
    end_radius: float

    def face_count(self, cell_m: float) -> int:
        """Triangles that ``build`` makes."""
        around, along, rings = self._counts(cell_m)
        return 2 * around * along + 2 * around * (2 * rings - 1)

    def build(self, cell_m: float) -> Patch:
        """The lateral surface and both caps."""
        around, along, rings = self._counts(cell_m)
        axis = np.subtract(self.end, self.start)
        side = normalise(np.cross(axis, [0.0, 1.0, 0.0] if abs(axis[1]) < 0.9 * np.linalg.norm(axis) else [1.0, 0, 0]))
        other = np.cross(normalise(axis), side)
        angle = np.arange(around) * (2.0 * np.pi / around)
        circle = np.cos(angle)[:, None] * side + np.sin(angle)[:, None] * other
        steps = np.linspace(0.0, 1.0, along + 1)[:, None, None]
        radius = self.start_radius + steps * (self.end_radius - self.start_radius)
        lateral = np.asarray(self.start) + steps * axis + radius * circle
        patches = [Patch(lateral.reshape(-1, 3), _strip(along, around))]
        for centre, reach, flip in ((self.start, self.start_radius, True), (self.end, self.end_radius, False)):
            patches.append(_disc(np.asarray(centre), reach * circle, rings, flip))
        return combine(patches)

    def bounds(self) -> Bounds:
        """Lowest and highest corner."""
        flat = np.sqrt(np.maximum(1.0 - normalise(np.subtract(self.end, self.start)) ** 2, 0.0))
        low = np.minimum(self.start - self.start_radius * flat, self.end - self.end_radius * flat)
        return low, np.maximum(self.start + self.start_radius * flat, self.end + self.end_radius * flat)

    def _counts(self, cell_m: float) -> tuple[int, int, int]:
        widest = max(self.start_radius, self.end_radius)
        length = float(np.linalg.norm(np.subtract(self.end, self.start)))
        around = segments(2.0 * math.pi * widest, cell_m, 8)
        return around, segments(length, cell_m), segments(widest, cell_m)


@dataclass(frozen=True)
class Ball:
    """An ellipsoid."""

    radii: tuple[float, float, float]
    centre: tuple[float, float, float]

    def face_count(self, cell_m: float) -> int:
        """Triangles that ``build`` makes."""
        around, down = self._counts(cell_m)
        return 2 * around * (down - 1)

    def build(self, cell_m: float) -> Patch:
        """Rings between two poles."""
        around, down = self._counts(cell_m)
        polar = np.arange(1, down)[:, None] * (np.pi / down)
        angle = np.arange(around)[None, :] * (2.0 * np.pi / around)
        x, y = np.sin(polar) * np.cos(angle), np.sin(polar) * np.sin(angle)
        rings = np.stack([x, y, -np.cos(polar) + 0.0 * angle], axis=-1).reshape(-1, 3)
        unit = np.concatenate([rings, [[0.0, 0.0, -1.0], [0.0, 0.0, 1.0]]])
        here = np.arange(around)
        ahead = (here + 1) % around
        last = (down - 2) * around
        bottom = np.stack([np.full(around, len(rings)), ahead, here], axis=1)
        top = np.stack([np.full(around, len(rings) + 1), last + here, last + ahead], axis=1)
        return Patch(
            unit * np.asarray(self.radii) + np.asarray(self.centre),
            np.concatenate([_strip(down - 2, around), bottom, top]),
        )

    def bounds(self) -> Bounds:
        """Lowest and highest corner."""
        return np.subtract(self.centre, self.radii), np.add(self.centre, self.radii)

    def _counts(self, cell_m: float) -> tuple[int, int]:
        reach = max(self.radii)
        return segments(2.0 * math.pi * reach, cell_m, 8), segments(math.pi * reach, cell_m, 4)


@dataclass(frozen=True)
class Leaves:
    """Many small folded leaves. base, direction: (n, 3); length, width: (n,)."""

    base: Float64
    direction: Float64
    length: Float64
    width: Float64
    droop: float = 0.5

    def face_count(self, cell_m: float) -> int:
        """Triangles that ``build`` makes."""
        return len(self.base) * 4 * (self._stations(cell_m) - 1)

    def build(self, cell_m: float) -> Patch:
        """Each leaf bends down along its length and is folded a little along its middle."""
        n, stations = len(self.base), self._stations(cell_m)
        along = np.linspace(0.0, 1.0, stations)[None, :, None]
        reach = self.length[:, None, None]
        forward = normalise(self.direction)[:, None, :]
        side = normalise(np.cross(forward, [0.013, 0.007, 1.0]))
        fold = np.cross(side, forward)
        middle = self.base[:, None, :] + forward * reach * along
        middle = middle - np.array([0.0, 0.0, self.droop]) * reach * along**2
        half = self.width[:, None, None] * 0.5 * np.maximum(np.sin(np.pi * along), 0.08)
        left = middle + half * (side + 0.3 * fold)
        right = middle + half * (0.3 * fold - side)
        vertices = np.stack([left, middle, right], axis=2).reshape(-1, 3)
        step = np.arange(stations - 1)[:, None] * 3
        quads = np.concatenate([step + np.array([0, 1, 4, 3]), step + np.array([1, 2, 5, 4])])
        one = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
        faces = one[None] + (np.arange(n) * stations * 3)[:, None, None]
        return Patch(vertices, faces.reshape(-1, 3))

    def bounds(self) -> Bounds:
        """Lowest and highest corner."""
        points = self.build(0.0).vertices
        return points.min(axis=0), points.max(axis=0)

    def _stations(self, cell_m: float) -> int:
        return 5 if cell_m <= _FINE_LEAF_M else 3


@dataclass(frozen=True)
class Sheet:
    """A flat rectangle from ``origin`` along ``u`` and ``v`` with rectangular holes, seen from the side of u x v.

    holes: (u0, u1, v0, v1) in metres along u and v.
    """

    origin: tuple[float, float, float]
    u: tuple[float, float, float]
    v: tuple[float, float, float]
    holes: tuple[tuple[float, float, float, float], ...] = ()

    def face_count(self, cell_m: float) -> int:
        """Triangles that ``build`` makes."""
        return 2 * int(self._solid(*self._lines(cell_m)).sum())

    def build(self, cell_m: float) -> Patch:
        """A grid whose lines run along the edges of the holes."""
        u_lines, v_lines = self._lines(cell_m)
        across, up = normalise(self.u), normalise(self.v)
        points = np.asarray(self.origin) + u_lines[:, None, None] * across + v_lines[None, :, None] * up
        rows, cols = np.nonzero(self._solid(u_lines, v_lines))
        stride = len(v_lines)
        corners = (rows[:, None] + _FLAT_CORNERS[:, 0]) * stride + cols[:, None] + _FLAT_CORNERS[:, 1]
        faces = np.concatenate([corners[:, [0, 1, 2]], corners[:, [0, 2, 3]]])
        return Patch(points.reshape(-1, 3), faces)

    def bounds(self) -> Bounds:
        """Lowest and highest corner."""
        corners = np.array([self.origin, np.add(self.origin, self.u), np.add(self.origin, self.v)])
        return corners.min(axis=0), corners.max(axis=0)

    def _lines(self, cell_m: float) -> tuple[Float64, Float64]:
        u_length, v_length = float(np.linalg.norm(self.u)), float(np.linalg.norm(self.v))
        u_cuts = [edge for hole in self.holes for edge in hole[:2]]
        v_cuts = [edge for hole in self.holes for edge in hole[2:]]
        return _divided(u_length, u_cuts, cell_m), _divided(v_length, v_cuts, cell_m)

    def _solid(self, u_lines: Float64, v_lines: Float64) -> NDArray[np.bool_]:
        u_mid, v_mid = (u_lines[1:] + u_lines[:-1]) / 2, (v_lines[1:] + v_lines[:-1]) / 2
        solid = np.ones((len(u_mid), len(v_mid)), bool)
        for u0, u1, v0, v1 in self.holes:
            solid &= ~(((u_mid > u0) & (u_mid < u1))[:, None] & ((v_mid > v0) & (v_mid < v1))[None, :])
        return solid


def _divided(length: float, cuts: Sequence[float], cell_m: float) -> Float64:
    edges = sorted({0.0, length, *(min(max(cut, 0.0), length) for cut in cuts)})
    parts = [np.linspace(a, b, segments(b - a, cell_m) + 1)[:-1] for a, b in itertools.pairwise(edges)]
    return np.concatenate([*parts, [length]])


def _grid(origin: ArrayLike, u: ArrayLike, v: ArrayLike, across: int, up: int) -> Patch:
    """A flat grid of ``across`` x ``up`` cells, seen from the side of u x v."""
    i, j = np.arange(across + 1)[:, None, None] / across, np.arange(up + 1)[None, :, None] / up
    points = np.asarray(origin) + i * np.asarray(u) + j * np.asarray(v)
    return Patch(points.reshape(-1, 3), _grid_faces(across, up))


@lru_cache(maxsize=4096)
def _grid_faces(across: int, up: int) -> Triangles:
    index = np.arange((across + 1) * (up + 1)).reshape(across + 1, up + 1)
    a, b, c, d = index[:-1, :-1].ravel(), index[1:, :-1].ravel(), index[1:, 1:].ravel(), index[:-1, 1:].ravel()
    return np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])


def _strip(along: int, around: int) -> Triangles:
    """Faces of ``along`` + 1 rings of ``around`` vertices each."""
    ring = np.arange(along)[:, None] * around
    here, ahead = np.arange(around)[None, :], (np.arange(around)[None, :] + 1) % around
    a, b = (ring + here).ravel(), (ring + ahead).ravel()
    return np.concatenate([np.stack([a, b, b + around], 1), np.stack([a, b + around, a + around], 1)])


def _disc(centre: Float64, rim: Float64, rings: int, flip: bool) -> Patch:
    """A flat disc: a fan in the middle and rings around it."""
    around = len(rim)
    shares = np.arange(1, rings + 1)[:, None, None] / rings
    vertices = np.concatenate([(centre + shares * rim).reshape(-1, 3), centre[None]])
    here = np.arange(around)
    fan = np.stack([np.full(around, rings * around), here, (here + 1) % around], axis=1)
    faces = np.concatenate([fan, _strip(rings - 1, around)[:, ::-1]]) if rings > 1 else fan
    return Patch(vertices, faces[:, ::-1] if flip else faces)
