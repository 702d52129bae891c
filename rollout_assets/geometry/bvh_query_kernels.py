"""Kernels that ask the tree of ``TriangleBvh``: rays and closest points. One source for CPU and CUDA.

Contraction of products and sums is off: two triangles that share an edge then compute exactly opposite edge functions,
no ray slips between them, and results do not depend on the host's instruction set.
"""

# mypy: ignore-errors
# ruff: noqa: RUF046, UP018 - int(0) declares a variable that a Warp kernel may assign to

from __future__ import annotations

from typing import Any

import warp as wp

from rollout_assets.geometry.triangle_kernels import FAR, triangle_distance_sq, triangle_distance_sq64

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

EMPTY = wp.constant(-2147483648)
"""Child code of an unused slot. Codes >= 0 are nodes, others are leaves: ``-1 - (4 * start + count - 1)``."""

STACK = wp.constant(96)
"""Three entries per level are enough for 2**28 triangles."""

MISS = wp.constant(-1)


# Four lanes at a time: plain comparisons compile to one vector instruction each, which Warp's NaN-aware min and max do
# not. Every lane of a NaN comparison falls to the second operand.


@wp.func_native("""
    wp::vec4 result;
    for (int k = 0; k < 4; ++k) {
        float below = low[k] - upper;
        float above = lower - high[k];
        float gap = below > above ? below : above;
        gap = gap > 0.0f ? gap : 0.0f;
        result[k] = gap * gap;
    }
    return result;
""")
def gap_sq4(low: wp.vec4, high: wp.vec4, lower: float, upper: float) -> wp.vec4:
    """Squared distance along one axis from the interval [lower, upper] to four intervals."""


@wp.func_native("""
    wp::vec4 result;
    for (int k = 0; k < 4; ++k) {
        float tx = (near_x[k] - origin[0]) * inverse[0];
        float ty = (near_y[k] - origin[1]) * inverse[1];
        float tz = (near_z[k] - origin[2]) * inverse[2];
        float enter = tx > ty ? tx : ty;
        enter = enter > tz ? enter : tz;
        tx = (far_x[k] - origin[0]) * inverse[0];
        ty = (far_y[k] - origin[1]) * inverse[1];
        tz = (far_z[k] - origin[2]) * inverse[2];
        float leave = tx < ty ? tx : ty;
        leave = leave < tz ? leave : tz;
        float slack = 1.0e-6f * leave;
        leave = leave + (slack > 0.0f ? slack : -slack);
        result[k] = (enter <= leave && leave >= 0.0f) ? enter : INFINITY;
    }
    return result;
""")
def _enter4(
    near_x: wp.vec4,
    near_y: wp.vec4,
    near_z: wp.vec4,
    far_x: wp.vec4,
    far_y: wp.vec4,
    far_z: wp.vec4,
    origin: wp.vec3,
    inverse: wp.vec3,
) -> wp.vec4:
    """Where a ray enters four boxes, infinity where it misses; leaving has slack for the rounding of both ends."""


def tree_walk(name, child_gaps, search_leaf):
    """The walk of a tree, nearest child first, as a Warp function; every kind of query makes its own.

    Warp takes no functions as arguments of functions, but a function may come from around it, as these two do:
    ``child_gaps(query, boxes, node)`` gives the gaps to four children, ``search_leaf(query, items, code, best, slot)``
    the least distance and its slot after looking at a leaf's items. What is not nearer than ``best`` is not visited.
    """

    @wp.func(name=name)
    def walk(
        query: Any,
        items: Any,
        root: int,
        bound: float,
        seed: int,
        boxes: wp.array2d(dtype=wp.vec4),
        children: wp.array(dtype=wp.vec4i),
    ):
        stack = wp.zeros(shape=STACK, dtype=int)
        near = wp.zeros(shape=STACK, dtype=float)
        best = bound
        slot = seed
        depth = int(0)
        node = root
        while node != EMPTY:
            if node < 0:
                best, slot = search_leaf(query, items, node, best, slot)
                node = EMPTY
            else:
                gap = child_gaps(query, boxes, node)
                codes = children[node]
                node = EMPTY
                nearest = float(FAR)
                for k in range(4):
                    if gap[k] < best and codes[k] != EMPTY:
                        if gap[k] < nearest:
                            if node != EMPTY:
                                stack[depth] = node
                                near[depth] = nearest
                                depth += 1
                            node = codes[k]
                            nearest = gap[k]
                        else:
                            stack[depth] = codes[k]
                            near[depth] = gap[k]
                            depth += 1
            while node == EMPTY and depth > 0:
                depth -= 1
                if near[depth] < best:
                    node = stack[depth]
        return best, slot

    return walk


@wp.func
def box_gaps(low: wp.vec3, high: wp.vec3, boxes: wp.array2d(dtype=wp.vec4), node: int) -> wp.vec4:
    """Squared distances from a box to the four child boxes of a node."""
    return (
        gap_sq4(boxes[node, 0], boxes[node, 3], low[0], high[0])
        + gap_sq4(boxes[node, 1], boxes[node, 4], low[1], high[1])
        + gap_sq4(boxes[node, 2], boxes[node, 5], low[2], high[2])
    )


@wp.func
def _point_gaps(p: wp.vec3, boxes: wp.array2d(dtype=wp.vec4), node: int) -> wp.vec4:
    return box_gaps(p, p, boxes, node)


@wp.func
def _nearest_in_leaf(
    p: wp.vec3, corners: wp.array2d(dtype=wp.vec3), code: int, bound_sq: float, seed: int
) -> tuple[float, int]:
    best = bound_sq
    slot = seed
    packed = -1 - code
    first = packed >> 2
    for i in range(first, first + (packed & 3) + 1):
        d = triangle_distance_sq(p, corners[i, 0], corners[i, 1], corners[i, 2], corners[i, 3])
        if d < best:
            best = d
            slot = i
    return best, slot


_walk_to_point = tree_walk("walk_to_point", _point_gaps, _nearest_in_leaf)


@wp.func
def closest_triangle(
    p: wp.vec3,
    bound_sq: float,
    seed: int,
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    corners: wp.array2d(dtype=wp.vec3),
) -> tuple[float, int]:
    """Squared distance to the nearest triangle strictly below ``bound_sq`` and its slot, or MISS when there is none.

    ``seed`` is a slot that may be near, or MISS; a good one saves most of the search.
    """
    best = bound_sq
    slot = int(MISS)
    if seed >= 0:
        d = triangle_distance_sq(p, corners[seed, 0], corners[seed, 1], corners[seed, 2], corners[seed, 3])
        if d < best:
            best = d
            slot = seed
    root = int(0)
    if wp.dot(p, p) != wp.dot(p, p):
        root = EMPTY
    best, slot = _walk_to_point(p, corners, root, best, slot, boxes, children)
    if slot >= 0:
        best = triangle_distance_sq64(p, corners[slot, 0], corners[slot, 1], corners[slot, 2], corners[slot, 3])
    return best, slot


@wp.kernel
def closest_points(
    points: wp.array(dtype=wp.vec3),
    bound_sq: float,
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    corners: wp.array2d(dtype=wp.vec3),
    slot_face: wp.array(dtype=int),
    distance_sq: wp.array(dtype=float),
    face: wp.array(dtype=int),
):
    i = wp.tid()
    best, slot = closest_triangle(points[i], bound_sq, MISS, boxes, children, corners)
    if slot >= 0:
        distance_sq[i] = best
        face[i] = slot_face[slot]
    else:
        distance_sq[i] = wp.inf
        face[i] = MISS


@wp.func
def _safe_inverse(x: float) -> float:
    """1 / x, kept finite so that a ray inside the plane of a flat box does not compute 0 * infinity."""
    if wp.abs(x) > 1.0e-18:
        return 1.0 / x
    if x < 0.0:
        return -1.0e18
    return 1.0e18


@wp.struct
class _Ray:
    """A ray, the axes that turn it into one along Z, and the rows of its near planes among a node's boxes."""

    origin: wp.vec3
    inverse: wp.vec3
    x_axis: wp.vec3
    y_axis: wp.vec3
    z_axis: wp.vec3
    near_x: int
    near_y: int
    near_z: int


@wp.func
def _ray_gaps(ray: _Ray, boxes: wp.array2d(dtype=wp.vec4), node: int) -> wp.vec4:
    return _enter4(
        boxes[node, ray.near_x],
        boxes[node, ray.near_y],
        boxes[node, ray.near_z],
        boxes[node, 3 - ray.near_x],
        boxes[node, 5 - ray.near_y],
        boxes[node, 7 - ray.near_z],
        ray.origin,
        ray.inverse,
    )


@wp.func
def _first_in_leaf(
    ray: _Ray, corners: wp.array2d(dtype=wp.vec3), code: int, max_t: float, seed: int
) -> tuple[float, int]:
    best = max_t
    slot = seed
    packed = -1 - code
    first = packed >> 2
    for i in range(first, first + (packed & 3) + 1):
        a = corners[i, 0] - ray.origin
        b = corners[i, 1] - ray.origin
        c = corners[i, 2] - ray.origin
        ax = wp.dot(ray.x_axis, a)
        ay = wp.dot(ray.y_axis, a)
        bx = wp.dot(ray.x_axis, b)
        by = wp.dot(ray.y_axis, b)
        cx = wp.dot(ray.x_axis, c)
        cy = wp.dot(ray.y_axis, c)
        u = cx * by - cy * bx
        v = ax * cy - ay * cx
        w = bx * ay - by * ax
        if (u >= 0.0 and v >= 0.0 and w >= 0.0) or (u <= 0.0 and v <= 0.0 and w <= 0.0):
            det = u + v + w
            if det != 0.0:
                t = (u * wp.dot(ray.z_axis, a) + v * wp.dot(ray.z_axis, b) + w * wp.dot(ray.z_axis, c)) / det
                if t >= 0.0 and t < best:
                    best = t
                    slot = i
    return best, slot


_walk_along_ray = tree_walk("walk_along_ray", _ray_gaps, _first_in_leaf)


@wp.func
def first_triangle(
    origin: wp.vec3,
    direction: wp.vec3,
    max_t: float,
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    corners: wp.array2d(dtype=wp.vec3),
) -> tuple[float, int]:
    """First triangle along a ray: t in units of ``direction`` with 0 <= t < max_t, and its slot, or MISS.

    Both sides count. Watertight: triangles are sheared so that the ray runs along one axis, where two neighbours see
    their common edge with exactly opposite signs, and a zero counts for both.
    """
    ray = _Ray()
    ray.origin = origin
    ray.x_axis = wp.vec3(1.0, 0.0, -direction[0] / direction[2])
    ray.y_axis = wp.vec3(0.0, 1.0, -direction[1] / direction[2])
    ray.z_axis = wp.vec3(0.0, 0.0, 1.0 / direction[2])
    size = wp.vec3(wp.abs(direction[0]), wp.abs(direction[1]), wp.abs(direction[2]))
    if size[0] > size[1] and size[0] > size[2]:
        ray.x_axis = wp.vec3(-direction[1] / direction[0], 1.0, 0.0)
        ray.y_axis = wp.vec3(-direction[2] / direction[0], 0.0, 1.0)
        ray.z_axis = wp.vec3(1.0 / direction[0], 0.0, 0.0)
    elif size[1] > size[2]:
        ray.x_axis = wp.vec3(0.0, -direction[2] / direction[1], 1.0)
        ray.y_axis = wp.vec3(1.0, -direction[0] / direction[1], 0.0)
        ray.z_axis = wp.vec3(0.0, 1.0 / direction[1], 0.0)
    ray.inverse = wp.vec3(_safe_inverse(direction[0]), _safe_inverse(direction[1]), _safe_inverse(direction[2]))
    ray.near_x = wp.where(ray.inverse[0] < 0.0, 3, 0)
    ray.near_y = wp.where(ray.inverse[1] < 0.0, 4, 1)
    ray.near_z = wp.where(ray.inverse[2] < 0.0, 5, 2)
    root = int(0)
    if wp.dot(direction, direction) == 0.0:
        root = EMPTY
    best, slot = _walk_along_ray(ray, corners, root, max_t, MISS, boxes, children)
    return best, slot


@wp.kernel
def cast_rays(
    origins: wp.array(dtype=wp.vec3),
    directions: wp.array(dtype=wp.vec3),
    max_t: float,
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    corners: wp.array2d(dtype=wp.vec3),
    slot_face: wp.array(dtype=int),
    t: wp.array(dtype=float),
    face: wp.array(dtype=int),
):
    i = wp.tid()
    best, slot = first_triangle(origins[i], directions[i], max_t, boxes, children, corners)
    if slot >= 0:
        t[i] = best
        face[i] = slot_face[slot]
    else:
        t[i] = wp.inf
        face[i] = MISS
