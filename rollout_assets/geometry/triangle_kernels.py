"""Exact distances from a point to a triangle, as Warp functions. One source for CPU and CUDA."""

# mypy: ignore-errors
# ruff: noqa: RUF046, UP018 - int(0) declares a variable that a Warp function may assign to

from __future__ import annotations

import warp as wp

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

FAR = wp.constant(3.0e38)
"""Farther than anything, and still finite."""


@wp.func
def _edge_distance_sq(offset: wp.vec3, edge: wp.vec3) -> float:
    """Squared distance from a point at ``offset`` from an edge's start to the edge; a point-like edge is allowed."""
    along = wp.dot(offset, edge)
    length_sq = wp.dot(edge, edge)
    t = float(0.0)
    if along > 0.0:
        t = wp.min(along / length_sq, 1.0)
    away = offset - t * edge
    return wp.dot(away, away)


@wp.func
def triangle_distance_sq(p: wp.vec3, a: wp.vec3, b: wp.vec3, c: wp.vec3, normal: wp.vec3) -> float:
    """Exact squared distance from ``p`` to a whole triangle, slivers included.

    ``normal`` is the unit normal rounded from double precision, or zero for a triangle that consists of its edges only.
    The closest point of a triangle that ``p`` does not stand over lies on an edge that has ``p`` on its outer side.
    """
    pa = p - a
    pb = p - b
    pc = p - c
    ab = b - a
    bc = c - b
    ca = a - c
    flat = wp.dot(normal, normal) == 0.0
    best = float(FAR)
    outside = int(0)
    if flat or wp.dot(wp.cross(normal, ab), pa) < 0.0:
        best = wp.min(best, _edge_distance_sq(pa, ab))
        outside = 1
    if flat or wp.dot(wp.cross(normal, bc), pb) < 0.0:
        best = wp.min(best, _edge_distance_sq(pb, bc))
        outside = 1
    if flat or wp.dot(wp.cross(normal, ca), pc) < 0.0:
        best = wp.min(best, _edge_distance_sq(pc, ca))
        outside = 1
    if outside == 0:
        height = wp.dot(normal, pa)
        best = height * height
    return best


@wp.func
def _edge_distance_sq64(offset: wp.vec3d, edge: wp.vec3d) -> wp.float64:
    along = wp.dot(offset, edge)
    length_sq = wp.dot(edge, edge)
    t = wp.float64(0.0)
    if along > wp.float64(0.0):
        t = wp.min(along / length_sq, wp.float64(1.0))
    away = offset - t * edge
    return wp.dot(away, away)


@wp.func
def triangle_distance_sq64(p32: wp.vec3, a32: wp.vec3, b32: wp.vec3, c32: wp.vec3, normal: wp.vec3) -> float:
    """``triangle_distance_sq`` in double precision, for the last word on the one triangle that was found nearest."""
    zero = wp.float64(0.0)
    p = wp.vec3d(p32)
    a = wp.vec3d(a32)
    b = wp.vec3d(b32)
    c = wp.vec3d(c32)
    across = wp.cross(b - a, c - a)
    area_sq = wp.dot(across, across)
    flat = wp.dot(normal, normal) == 0.0 or area_sq == zero
    best = wp.float64(FAR)
    outside = int(0)
    if flat or wp.dot(wp.cross(across, b - a), p - a) < zero:
        best = wp.min(best, _edge_distance_sq64(p - a, b - a))
        outside = 1
    if flat or wp.dot(wp.cross(across, c - b), p - b) < zero:
        best = wp.min(best, _edge_distance_sq64(p - b, c - b))
        outside = 1
    if flat or wp.dot(wp.cross(across, a - c), p - c) < zero:
        best = wp.min(best, _edge_distance_sq64(p - c, a - c))
        outside = 1
    if outside == 0:
        height = wp.dot(across, p - a)
        best = height * height / area_sq
    return float(best)
