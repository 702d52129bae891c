"""Kernels that ask the tree of ``TriangleBvh``: rays and closest points. One source for CPU and CUDA.

Contraction of products and sums is off: two triangles that share an edge then compute exactly opposite edge functions,
no ray slips between them, and results do not depend on the host's instruction set.
"""

# mypy: ignore-errors
# ruff: noqa: RUF046, UP018 - int(0) declares a variable that a Warp kernel may assign to

from __future__ import annotations

import warp as wp

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

EMPTY = wp.constant(-2147483648)
"""Child code of an unused slot. Codes >= 0 are nodes, others are leaves: ``-1 - (4 * start + count - 1)``."""

STACK = wp.constant(96)
"""Three entries per level are enough for 2**28 triangles."""

MISS = wp.constant(-1)
_FAR = wp.constant(3.0e38)


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
    best = float(_FAR)
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
    best = wp.float64(_FAR)
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
        float tx = (x[k] - origin[0]) * inverse[0];
        float ty = (y[k] - origin[1]) * inverse[1];
        float tz = (z[k] - origin[2]) * inverse[2];
        float t = tx > ty ? tx : ty;
        result[k] = t > tz ? t : tz;
    }
    return result;
""")
def _enter4(x: wp.vec4, y: wp.vec4, z: wp.vec4, origin: wp.vec3, inverse: wp.vec3) -> wp.vec4:
    """Where a ray enters four boxes, from their near planes."""


@wp.func_native("""
    wp::vec4 result;
    for (int k = 0; k < 4; ++k) {
        float tx = (x[k] - origin[0]) * inverse[0];
        float ty = (y[k] - origin[1]) * inverse[1];
        float tz = (z[k] - origin[2]) * inverse[2];
        float t = tx < ty ? tx : ty;
        t = t < tz ? t : tz;
        float slack = 1.0e-6f * t;
        result[k] = t + (slack > 0.0f ? slack : -slack);
    }
    return result;
""")
def _leave4(x: wp.vec4, y: wp.vec4, z: wp.vec4, origin: wp.vec3, inverse: wp.vec3) -> wp.vec4:
    """Where a ray leaves four boxes, from their far planes, with slack for the rounding of both ends."""


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
    stack = wp.zeros(shape=STACK, dtype=int)
    near = wp.zeros(shape=STACK, dtype=float)
    best = bound_sq
    slot = int(MISS)
    if seed >= 0:
        d = triangle_distance_sq(p, corners[seed, 0], corners[seed, 1], corners[seed, 2], corners[seed, 3])
        if d < best:
            best = d
            slot = seed
    depth = int(0)
    node = int(0)
    if wp.dot(p, p) != wp.dot(p, p):
        node = EMPTY
    while node != EMPTY:
        if node < 0:
            packed = -1 - node
            first = packed >> 2
            for i in range(first, first + (packed & 3) + 1):
                d = triangle_distance_sq(p, corners[i, 0], corners[i, 1], corners[i, 2], corners[i, 3])
                if d < best:
                    best = d
                    slot = i
            node = EMPTY
        else:
            gap = (
                gap_sq4(boxes[node, 0], boxes[node, 3], p[0], p[0])
                + gap_sq4(boxes[node, 1], boxes[node, 4], p[1], p[1])
                + gap_sq4(boxes[node, 2], boxes[node, 5], p[2], p[2])
            )
            codes = children[node]
            node = EMPTY
            nearest = float(_FAR)
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
    stack = wp.zeros(shape=STACK, dtype=int)
    near = wp.zeros(shape=STACK, dtype=float)
    x_axis = wp.vec3(1.0, 0.0, -direction[0] / direction[2])
    y_axis = wp.vec3(0.0, 1.0, -direction[1] / direction[2])
    z_axis = wp.vec3(0.0, 0.0, 1.0 / direction[2])
    size = wp.vec3(wp.abs(direction[0]), wp.abs(direction[1]), wp.abs(direction[2]))
    if size[0] > size[1] and size[0] > size[2]:
        x_axis = wp.vec3(-direction[1] / direction[0], 1.0, 0.0)
        y_axis = wp.vec3(-direction[2] / direction[0], 0.0, 1.0)
        z_axis = wp.vec3(1.0 / direction[0], 0.0, 0.0)
    elif size[1] > size[2]:
        x_axis = wp.vec3(0.0, -direction[2] / direction[1], 1.0)
        y_axis = wp.vec3(1.0, -direction[0] / direction[1], 0.0)
        z_axis = wp.vec3(0.0, 1.0 / direction[1], 0.0)

    inverse = wp.vec3(_safe_inverse(direction[0]), _safe_inverse(direction[1]), _safe_inverse(direction[2]))
    near_x = wp.where(inverse[0] < 0.0, 3, 0)
    near_y = wp.where(inverse[1] < 0.0, 4, 1)
    near_z = wp.where(inverse[2] < 0.0, 5, 2)

    best = max_t
    slot = int(MISS)
    depth = int(0)
    node = int(0)
    if wp.dot(direction, direction) == 0.0:
        node = EMPTY
    while node != EMPTY:
        if node < 0:
            packed = -1 - node
            first = packed >> 2
            for i in range(first, first + (packed & 3) + 1):
                a = corners[i, 0] - origin
                b = corners[i, 1] - origin
                c = corners[i, 2] - origin
                ax = wp.dot(x_axis, a)
                ay = wp.dot(y_axis, a)
                bx = wp.dot(x_axis, b)
                by = wp.dot(y_axis, b)
                cx = wp.dot(x_axis, c)
                cy = wp.dot(y_axis, c)
                u = cx * by - cy * bx
                v = ax * cy - ay * cx
                w = bx * ay - by * ax
                if (u >= 0.0 and v >= 0.0 and w >= 0.0) or (u <= 0.0 and v <= 0.0 and w <= 0.0):
                    det = u + v + w
                    if det != 0.0:
                        t = (u * wp.dot(z_axis, a) + v * wp.dot(z_axis, b) + w * wp.dot(z_axis, c)) / det
                        if t >= 0.0 and t < best:
                            best = t
                            slot = i
            node = EMPTY
        else:
            enter = _enter4(boxes[node, near_x], boxes[node, near_y], boxes[node, near_z], origin, inverse)
            leave = _leave4(boxes[node, 3 - near_x], boxes[node, 5 - near_y], boxes[node, 7 - near_z], origin, inverse)
            codes = children[node]
            node = EMPTY
            nearest = float(_FAR)
            for k in range(4):
                if enter[k] <= leave[k] and leave[k] >= 0.0 and enter[k] < best and codes[k] != EMPTY:
                    if enter[k] < nearest:
                        if node != EMPTY:
                            stack[depth] = node
                            near[depth] = nearest
                            depth += 1
                        node = codes[k]
                        nearest = enter[k]
                    else:
                        stack[depth] = codes[k]
                        near[depth] = enter[k]
                        depth += 1
        while node == EMPTY and depth > 0:
            depth -= 1
            if near[depth] < best:
                node = stack[depth]
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
