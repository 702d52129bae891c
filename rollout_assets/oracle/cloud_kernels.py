"""Kernels of the surface error: point to surface, and face to cloud through a tree over each cloud's points.

A cloud's tree is built over its points in Morton order: leaves are runs of eight points, every node holds the boxes of
four children as in ``bvh_build_kernels``. Sums run in a fixed order that depends on one cloud or one surface only.
"""

# mypy: ignore-errors
# ruff: noqa: RUF046, UP018 - kernel source: int(0) declares a variable

from __future__ import annotations

import warp as wp

from rollout_assets.geometry.bvh_query_kernels import (
    EMPTY,
    MISS,
    box_gaps,
    closest_triangle,
    tree_walk,
)
from rollout_assets.geometry.triangle_kernels import FAR, triangle_distance_sq, triangle_distance_sq64

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

LEAF_POINTS = wp.constant(8)
BLOCK_FACES = wp.constant(32)
RUN_POINTS = wp.constant(32)


@wp.kernel
def points_to_surface(
    points: wp.array(dtype=wp.vec3),
    order: wp.array(dtype=int),
    offsets: wp.array(dtype=wp.int64),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    corners: wp.array2d(dtype=wp.vec3),
    distance_sq: wp.array(dtype=float),
):
    """One thread per cloud and run of neighbouring points, each starting from the triangle of the one before.

    points: (n,) along the curve; distance_sq: (n,) in the order before sorting.
    """
    cloud, run = wp.tid()
    start = int(offsets[cloud]) + run * RUN_POINTS
    seed = int(-1)
    for i in range(start, wp.min(start + RUN_POINTS, int(offsets[cloud + 1]))):
        best, slot = closest_triangle(points[i], FAR, seed, boxes, children, corners)
        distance_sq[order[i]] = best
        seed = slot


@wp.kernel
def sum_clouds(values: wp.array(dtype=float), offsets: wp.array(dtype=wp.int64), sums: wp.array(dtype=wp.float64)):
    cloud = wp.tid()
    total = wp.float64(0.0)
    for i in range(int(offsets[cloud]), int(offsets[cloud + 1])):
        total += wp.float64(values[i])
    sums[cloud] = total


@wp.kernel
def sum_blocks(partial: wp.array2d(dtype=wp.float64), sums: wp.array(dtype=wp.float64)):
    cloud = wp.tid()
    total = wp.float64(0.0)
    for block in range(partial.shape[1]):
        total += partial[cloud, block]
    sums[cloud] = total


@wp.func
def _spread(value: wp.int64) -> wp.int64:
    """Ten bits with two zero bits between each."""
    x = value
    x = (x | (x << wp.int64(16))) & wp.int64(0x030000FF)
    x = (x | (x << wp.int64(8))) & wp.int64(0x0300F00F)
    x = (x | (x << wp.int64(4))) & wp.int64(0x030C30C3)
    return (x | (x << wp.int64(2))) & wp.int64(0x09249249)


@wp.func
def _grid(coordinate: float, low: float, scale: float) -> wp.int64:
    return wp.int64(wp.clamp((coordinate - low) * scale, 0.0, 1023.0))


@wp.kernel
def morton_keys(
    points: wp.array(dtype=wp.vec3),
    offsets: wp.array(dtype=wp.int64),
    low: wp.vec3,
    scale: float,
    keys: wp.array(dtype=wp.int64),
    order: wp.array(dtype=int),
):
    """One thread per cloud: cloud number above, Morton code below."""
    cloud = wp.tid()
    for i in range(int(offsets[cloud]), int(offsets[cloud + 1])):
        p = points[i]
        x = _spread(_grid(p[0], low[0], scale))
        y = _spread(_grid(p[1], low[1], scale))
        z = _spread(_grid(p[2], low[2], scale))
        code = (x << wp.int64(2)) | (y << wp.int64(1)) | z
        keys[i] = (wp.int64(cloud) << wp.int64(30)) | code
        order[i] = i


@wp.kernel
def gather_points(points: wp.array(dtype=wp.vec3), order: wp.array(dtype=int), out: wp.array(dtype=wp.vec3)):
    i = wp.tid()
    out[i] = points[order[i]]


@wp.kernel
def build_clouds(
    points: wp.array(dtype=wp.vec3),
    offsets: wp.array(dtype=wp.int64),
    node_offsets: wp.array(dtype=wp.int64),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    roots: wp.array(dtype=int),
):
    """One thread per cloud: leaves in point order, then level upon level of nodes; the last node is the root."""
    cloud = wp.tid()
    start = int(offsets[cloud])
    stop = int(offsets[cloud + 1])
    first_node = int(node_offsets[cloud])
    below_start = int(-1)
    below_count = (stop - start + LEAF_POINTS - 1) // LEAF_POINTS
    used = int(0)
    building = below_count > 0
    roots[cloud] = EMPTY
    while building:
        count = (below_count + 3) // 4
        level_start = first_node + used
        for n in range(count):
            low_x = wp.vec4(FAR, FAR, FAR, FAR)
            low_y = wp.vec4(FAR, FAR, FAR, FAR)
            low_z = wp.vec4(FAR, FAR, FAR, FAR)
            high_x = wp.vec4(FAR, FAR, FAR, FAR)
            high_y = wp.vec4(FAR, FAR, FAR, FAR)
            high_z = wp.vec4(FAR, FAR, FAR, FAR)
            codes = wp.vec4i(EMPTY, EMPTY, EMPTY, EMPTY)
            for k in range(4):
                child = 4 * n + k
                if child < below_count:
                    low = wp.vec3(FAR, FAR, FAR)
                    high = wp.vec3(-FAR, -FAR, -FAR)
                    if below_start < 0:
                        a = start + child * LEAF_POINTS
                        b = wp.min(a + LEAF_POINTS, stop)
                        for i in range(a, b):
                            low = wp.min(low, points[i])
                            high = wp.max(high, points[i])
                        codes[k] = -1 - (a * LEAF_POINTS + b - a - 1)
                    else:
                        node = below_start + child
                        kids = children[node]
                        for j in range(4):
                            if kids[j] != EMPTY:
                                low = wp.min(low, wp.vec3(boxes[node, 0][j], boxes[node, 1][j], boxes[node, 2][j]))
                                high = wp.max(high, wp.vec3(boxes[node, 3][j], boxes[node, 4][j], boxes[node, 5][j]))
                        codes[k] = node
                    low_x[k] = low[0]
                    low_y[k] = low[1]
                    low_z[k] = low[2]
                    high_x[k] = high[0]
                    high_y[k] = high[1]
                    high_z[k] = high[2]
            here = level_start + n
            boxes[here, 0] = low_x
            boxes[here, 1] = low_y
            boxes[here, 2] = low_z
            boxes[here, 3] = high_x
            boxes[here, 4] = high_y
            boxes[here, 5] = high_z
            children[here] = codes
        used += count
        below_start = level_start
        below_count = count
        building = count > 1
        if count == 1:
            roots[cloud] = level_start


@wp.struct
class _Face:
    """A triangle with its unit normal and its box."""

    a: wp.vec3
    b: wp.vec3
    c: wp.vec3
    normal: wp.vec3
    low: wp.vec3
    high: wp.vec3


@wp.func
def _face_gaps(face: _Face, boxes: wp.array2d(dtype=wp.vec4), node: int) -> wp.vec4:
    return box_gaps(face.low, face.high, boxes, node)


@wp.func
def _nearest_in_leaf(
    face: _Face, points: wp.array(dtype=wp.vec3), code: int, bound_sq: float, seed: int
) -> tuple[float, int]:
    best = bound_sq
    winner = seed
    packed = -1 - code
    first = packed >> 3
    for i in range(first, first + (packed & 7) + 1):
        p = points[i]
        away = wp.max(wp.max(face.low - p, p - face.high), wp.vec3(0.0, 0.0, 0.0))
        if wp.dot(away, away) < best:
            d = triangle_distance_sq(p, face.a, face.b, face.c, face.normal)
            if d < best:
                best = d
                winner = i
    return best, winner


_walk_to_face = tree_walk("walk_to_face", _face_gaps, _nearest_in_leaf)


@wp.func
def _nearest_point(
    face: _Face,
    bound_sq: float,
    seed: int,
    root: int,
    points: wp.array(dtype=wp.vec3),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
) -> int:
    """The point of a cloud nearest to a whole triangle below ``bound_sq``, or MISS; ``seed``: one that may be near."""
    best = bound_sq
    winner = int(MISS)
    if seed >= 0:
        d = triangle_distance_sq(points[seed], face.a, face.b, face.c, face.normal)
        if d < best:
            best = d
            winner = seed
    best, winner = _walk_to_face(face, points, root, best, winner, boxes, children)
    return winner


@wp.kernel
def faces_to_clouds(
    records: wp.array2d(dtype=wp.vec3),
    weights: wp.array(dtype=wp.float64),
    block_boxes: wp.array2d(dtype=wp.vec3),
    minima: wp.array2d(dtype=float),
    state_of_cloud: wp.array(dtype=int),
    points: wp.array(dtype=wp.vec3),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    roots: wp.array(dtype=int),
    partial: wp.array2d(dtype=wp.float64),
    new_minima: wp.array2d(dtype=float),
):
    """Per cloud and block of faces: the weighted sum of each face's least squared distance, old points included.

    minima: (states, faces) before; new_minima: (clouds, faces) after, or no columns when they are not needed.
    """
    cloud, block = wp.tid()
    state = state_of_cloud[cloud]
    root = roots[cloud]
    start = block * BLOCK_FACES
    stop = wp.min(start + BLOCK_FACES, records.shape[0])
    if root != EMPTY:
        worst = float(0.0)
        for f in range(start, stop):
            worst = wp.max(worst, minima[state, f])
        gap = box_gaps(block_boxes[block, 0], block_boxes[block, 1], boxes, root)
        codes = children[root]
        reached = bool(False)
        for k in range(4):
            if codes[k] != EMPTY and gap[k] < worst:
                reached = True
        if not reached:
            root = EMPTY
    total = wp.float64(0.0)
    seed = int(-1)
    for f in range(start, stop):
        least = minima[state, f]
        if root != EMPTY:
            face = _Face()
            face.a = records[f, 0]
            face.b = records[f, 1]
            face.c = records[f, 2]
            face.normal = records[f, 3]
            face.low = wp.min(wp.min(face.a, face.b), face.c)
            face.high = wp.max(wp.max(face.a, face.b), face.c)
            winner = _nearest_point(face, least, seed, root, points, boxes, children)
            if winner >= 0:
                seed = winner
                nearer = triangle_distance_sq64(points[winner], face.a, face.b, face.c, face.normal)
                least = wp.min(least, nearer)
        total += weights[f] * wp.float64(least)
        if new_minima.shape[1] > 0:
            new_minima[cloud, f] = least
    partial[cloud, block] = total
