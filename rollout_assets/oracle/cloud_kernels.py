"""Kernels of the surface error: point to surface, and face to cloud through a tree over each cloud's points.

A cloud's tree is built over its points in Morton order: leaves are runs of eight points, every node holds the boxes of
four children as in ``bvh_build_kernels``. Sums run in a fixed order that depends on one cloud or one surface only.

Clouds of many states and surfaces go through one launch: a cloud belongs to a state, a state to a surface, and both are
looked up in arrays of structs.
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


@wp.struct
class SurfaceArrays:
    """A surface as kernels see it: pieces in blocks, the tree of its triangles, and the grid of its Morton curve."""

    records: wp.array2d(dtype=wp.vec3)
    samples: wp.array2d(dtype=float)
    weights: wp.array(dtype=wp.float64)
    block_boxes: wp.array2d(dtype=wp.vec3)
    boxes: wp.array2d(dtype=wp.vec4)
    children: wp.array(dtype=wp.vec4i)
    corners: wp.array2d(dtype=wp.vec3)
    low: wp.vec3
    scale: float


@wp.struct
class StateArrays:
    """A state as kernels see it: the number of its surface, and the least squared distance of each of its pieces."""

    surface: int
    minima: wp.array(dtype=float)


@wp.kernel
def points_to_surface(
    points: wp.array(dtype=wp.vec3),
    order: wp.array(dtype=int),
    offsets: wp.array(dtype=wp.int64),
    state_of_cloud: wp.array(dtype=int),
    states: wp.array(dtype=StateArrays),
    surfaces: wp.array(dtype=SurfaceArrays),
    distance_sq: wp.array(dtype=float),
):
    """One thread per cloud and run of neighbouring points, each starting from the triangle of the one before.

    points: (n,) along the curve; distance_sq: (n,) in the order before sorting.
    """
    cloud, run = wp.tid()
    surface = states[state_of_cloud[cloud]].surface
    start = int(offsets[cloud]) + run * RUN_POINTS
    seed = int(-1)
    for i in range(start, wp.min(start + RUN_POINTS, int(offsets[cloud + 1]))):
        best, slot = closest_triangle(
            points[i], FAR, seed, surfaces[surface].boxes, surfaces[surface].children, surfaces[surface].corners
        )
        distance_sq[order[i]] = best
        seed = slot


@wp.kernel
def add_up(
    distance_sq: wp.array(dtype=float),
    offsets: wp.array(dtype=wp.int64),
    state_of_cloud: wp.array(dtype=int),
    states: wp.array(dtype=StateArrays),
    surfaces: wp.array(dtype=SurfaceArrays),
    partial: wp.array2d(dtype=wp.float64),
    sums: wp.array2d(dtype=wp.float64),
):
    """sums: (clouds, 2): over a cloud's points in the order they were given, and over its surface's blocks in theirs.

    Each sum is one thread's, because another order would round differently.
    """
    cloud, which = wp.tid()
    total = wp.float64(0.0)
    if which == 0:
        for i in range(int(offsets[cloud]), int(offsets[cloud + 1])):
            total += wp.float64(distance_sq[i])
    else:
        blocks = surfaces[states[state_of_cloud[cloud]].surface].block_boxes.shape[0]
        for block in range(blocks):
            total += partial[cloud, block]
    sums[cloud, which] = total


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
    state_of_cloud: wp.array(dtype=int),
    states: wp.array(dtype=StateArrays),
    surfaces: wp.array(dtype=SurfaceArrays),
    keys: wp.array(dtype=wp.int64),
    order: wp.array(dtype=int),
):
    """Cloud number above, Morton code on its surface's grid below."""
    i = wp.tid()
    cloud = wp.lower_bound(offsets, wp.int64(i + 1)) - 1
    surface = states[state_of_cloud[cloud]].surface
    low = surfaces[surface].low
    scale = surfaces[surface].scale
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
    """One thread per cloud and node: level upon level, those above the leaves first and the root last.

    Every child of a node covers a run of points, so no node waits for another.
    """
    cloud, number = wp.tid()
    start = int(offsets[cloud])
    stop = int(offsets[cloud + 1])
    below = (stop - start + LEAF_POINTS - 1) // LEAF_POINTS
    if below == 0:
        if number == 0:
            roots[cloud] = EMPTY
        return
    first_node = int(node_offsets[cloud])
    here = number
    below_first = int(-1)
    level_first = int(0)
    span = int(LEAF_POINTS)
    count = (below + 3) // 4
    while here >= count and count > 1:
        here -= count
        below_first = level_first
        level_first += count
        below = count
        count = (count + 3) // 4
        span *= 4
    if here >= count:
        return
    low_x = wp.vec4(FAR, FAR, FAR, FAR)
    low_y = wp.vec4(FAR, FAR, FAR, FAR)
    low_z = wp.vec4(FAR, FAR, FAR, FAR)
    high_x = wp.vec4(FAR, FAR, FAR, FAR)
    high_y = wp.vec4(FAR, FAR, FAR, FAR)
    high_z = wp.vec4(FAR, FAR, FAR, FAR)
    codes = wp.vec4i(EMPTY, EMPTY, EMPTY, EMPTY)
    for k in range(4):
        child = 4 * here + k
        if child < below:
            a = start + child * span
            b = wp.min(a + span, stop)
            low = wp.vec3(FAR, FAR, FAR)
            high = wp.vec3(-FAR, -FAR, -FAR)
            for i in range(a, b):
                low = wp.min(low, points[i])
                high = wp.max(high, points[i])
            if below_first < 0:
                codes[k] = -1 - (a * LEAF_POINTS + b - a - 1)
            else:
                codes[k] = first_node + below_first + child
            low_x[k] = low[0]
            low_y[k] = low[1]
            low_z[k] = low[2]
            high_x[k] = high[0]
            high_y[k] = high[1]
            high_z[k] = high[2]
    node = first_node + level_first + here
    boxes[node, 0] = low_x
    boxes[node, 1] = low_y
    boxes[node, 2] = low_z
    boxes[node, 3] = high_x
    boxes[node, 4] = high_y
    boxes[node, 5] = high_z
    children[node] = codes
    if count == 1:
        roots[cloud] = node


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


@wp.func
def block_total(
    block: int,
    cloud_root: int,
    surface: int,
    surfaces: wp.array(dtype=SurfaceArrays),
    minima: wp.array(dtype=float),
    points: wp.array(dtype=wp.vec3),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    kept_start: wp.int64,
    kept: wp.array(dtype=float),
) -> wp.float64:
    """The weighted sum of each face's least squared distance over one block, old points included."""
    root = cloud_root
    start = block * BLOCK_FACES
    stop = wp.min(start + BLOCK_FACES, minima.shape[0])
    if root != EMPTY:
        worst = float(0.0)
        for f in range(start, stop):
            worst = wp.max(worst, minima[f])
        gap = box_gaps(surfaces[surface].block_boxes[block, 0], surfaces[surface].block_boxes[block, 1], boxes, root)
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
        least = minima[f]
        if root != EMPTY:
            face = _Face()
            face.a = surfaces[surface].records[f, 0]
            face.b = surfaces[surface].records[f, 1]
            face.c = surfaces[surface].records[f, 2]
            face.normal = surfaces[surface].records[f, 3]
            face.low = wp.min(wp.min(face.a, face.b), face.c)
            face.high = wp.max(wp.max(face.a, face.b), face.c)
            winner = _nearest_point(face, least, seed, root, points, boxes, children)
            if winner >= 0:
                seed = winner
                nearer = triangle_distance_sq64(points[winner], face.a, face.b, face.c, face.normal)
                least = wp.min(least, nearer)
        total += surfaces[surface].weights[f] * wp.float64(least)
        if kept.shape[0] > 0:
            kept[int(kept_start) + f] = least
    return total


@wp.kernel
def faces_to_clouds(
    states: wp.array(dtype=StateArrays),
    surfaces: wp.array(dtype=SurfaceArrays),
    state_of_cloud: wp.array(dtype=int),
    points: wp.array(dtype=wp.vec3),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    roots: wp.array(dtype=int),
    partial: wp.array2d(dtype=wp.float64),
    kept_start: wp.array(dtype=wp.int64),
    kept: wp.array(dtype=float),
):
    """partial: (clouds, most blocks): the weighted sum of each face's least squared distance, old points included.

    kept: the new minima of each cloud from its start on, or empty when they are not needed.
    """
    cloud, block = wp.tid()
    state = state_of_cloud[cloud]
    surface = states[state].surface
    if block < surfaces[surface].block_boxes.shape[0]:
        partial[cloud, block] = block_total(
            block,
            roots[cloud],
            surface,
            surfaces,
            states[state].minima,
            points,
            boxes,
            children,
            kept_start[cloud],
            kept,
        )
