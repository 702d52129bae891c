"""Kernels from poses to new points: depth, back-projection, voxel fusion, compaction.

Fusion in parallel, with the result of doing it pixel by pixel: every pixel looks for its voxel in its view's own hash
table of pixels, the lowest pixel index of a voxel is kept by an atomic minimum, and a second pass asks who won. Points
are compacted with a running sum of integers, so no thread walks a whole image.
"""

# mypy: ignore-errors
# ruff: noqa: RUF046, SIM102, SIM109, UP018 - kernel source: int(0) declares a variable, `and` does not stop early

from __future__ import annotations

import warp as wp

from rollout_assets.geometry.bvh_query_kernels import first_triangle

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

FREE = wp.constant(wp.int64(-1))
"""Key of an unused slot; voxel keys are never negative."""

UNCLAIMED = wp.constant(2147483647)
"""Pixel of a slot that no pixel has claimed yet."""

_AXIS_HALF = wp.constant(wp.int64(1 << 20))
_AXIS_BITS = wp.constant(wp.int64(21))
_MIX = wp.constant(wp.uint64(0x9E3779B97F4A7C15))


@wp.func
def _turn(poses: wp.array2d(dtype=float), view: int, direction: wp.vec3) -> wp.vec3d:
    """Camera direction to world direction, in double precision."""
    d = wp.vec3d(direction)
    x = wp.vec3d(wp.float64(poses[view, 0]), wp.float64(poses[view, 1]), wp.float64(poses[view, 2]))
    y = wp.vec3d(wp.float64(poses[view, 3]), wp.float64(poses[view, 4]), wp.float64(poses[view, 5]))
    z = wp.vec3d(wp.float64(poses[view, 6]), wp.float64(poses[view, 7]), wp.float64(poses[view, 8]))
    return wp.vec3d(wp.dot(x, d), wp.dot(y, d), wp.dot(z, d))


@wp.kernel
def cast_views(
    poses: wp.array2d(dtype=float),
    directions: wp.array(dtype=wp.vec3),
    nearest_m: float,
    farthest_m: float,
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    corners: wp.array2d(dtype=wp.vec3),
    depth: wp.array2d(dtype=float),
):
    """poses: (n, 12), directions: (p,) with Z = 1 -> depth (n, p): Z of the first hit, 0 where none is in range."""
    view, pixel = wp.tid()
    origin = wp.vec3(poses[view, 9], poses[view, 10], poses[view, 11])
    direction = wp.vec3(_turn(poses, view, directions[pixel]))
    z, slot = first_triangle(origin, direction, farthest_m, boxes, children, corners)
    if slot >= 0 and z > nearest_m:
        depth[view, pixel] = z
    else:
        depth[view, pixel] = 0.0


@wp.func
def _cell(coordinate: float, voxel_m: wp.float64, origin_m: wp.float64) -> wp.int64:
    return wp.int64(wp.floor((wp.float64(coordinate) - origin_m) / voxel_m)) + _AXIS_HALF


@wp.func
def _voxel_key(point: wp.vec3, voxel_m: wp.float64, origin_m: wp.float64) -> wp.int64:
    """``geometry.voxels.voxel_keys`` of one point."""
    x = _cell(point[0], voxel_m, origin_m)
    y = _cell(point[1], voxel_m, origin_m)
    z = _cell(point[2], voxel_m, origin_m)
    return (x << (_AXIS_BITS + _AXIS_BITS)) | (y << _AXIS_BITS) | z


@wp.func
def _first_slot(key: wp.int64, size: int) -> int:
    return int((wp.uint64(key) * _MIX) >> wp.uint64(33)) & (size - 1)


@wp.func
def _contains(keys: wp.array(dtype=wp.int64), key: wp.int64) -> bool:
    size = keys.shape[0]
    slot = _first_slot(key, size)
    present = bool(False)
    probing = bool(True)
    while probing:
        here = keys[slot]
        if here == key:
            present = True
            probing = False
        elif here == FREE:
            probing = False
        slot = (slot + 1) & (size - 1)
    return present


@wp.func
def _insert(keys: wp.array(dtype=wp.int64), key: wp.int64):
    """Put ``key`` into a table, which must have room."""
    size = keys.shape[0]
    slot = _first_slot(key, size)
    probing = bool(True)
    while probing:
        here = wp.atomic_cas(keys, slot, FREE, key)
        if here == FREE or here == key:
            probing = False
        else:
            slot = (slot + 1) & (size - 1)


@wp.kernel
def insert_keys(new_keys: wp.array(dtype=wp.int64), table: wp.array(dtype=wp.int64)):
    _insert(table, new_keys[wp.tid()])


@wp.struct
class CloudTables:
    """The voxels that a state has: those of its root, shared with others, and those added since."""

    root: wp.array(dtype=wp.int64)
    added: wp.array(dtype=wp.int64)


@wp.struct
class GrowingTable:
    """The table of added voxels of a state, before and after points are added."""

    before: wp.array(dtype=wp.int64)
    after: wp.array(dtype=wp.int64)


@wp.kernel
def grow_tables(
    tables: wp.array(dtype=GrowingTable),
    points: wp.array(dtype=wp.vec3),
    offsets: wp.array(dtype=wp.int64),
    voxel_m: wp.float64,
    origin_m: wp.float64,
):
    """Fill each table after with the voxels of the one before and of its points, (tables, slots + points) threads."""
    which, i = wp.tid()
    slots = tables[which].before.shape[0]
    if i < slots:
        key = tables[which].before[i]
        if key != FREE:
            _insert(tables[which].after, key)
    else:
        at = int(offsets[which]) + i - slots
        if at < int(offsets[which + 1]):
            _insert(tables[which].after, _voxel_key(points[at], voxel_m, origin_m))


@wp.kernel
def back_project(
    poses: wp.array2d(dtype=float),
    directions: wp.array(dtype=wp.vec3),
    depth: wp.array2d(dtype=float),
    voxel_m: wp.float64,
    origin_m: wp.float64,
    state_of_view: wp.array(dtype=int),
    tables: wp.array(dtype=CloudTables),
    points: wp.array2d(dtype=wp.vec3),
    keys: wp.array2d(dtype=wp.int64),
):
    """The point of every pixel with depth, and its voxel unless the view's state has it. No new voxel: ``FREE``."""
    view, pixel = wp.tid()
    z = depth[view, pixel]
    new = FREE
    if z > 0.0:
        centre = wp.vec3d(wp.float64(poses[view, 9]), wp.float64(poses[view, 10]), wp.float64(poses[view, 11]))
        point = wp.vec3(centre + wp.float64(z) * _turn(poses, view, directions[pixel]))
        points[view, pixel] = point
        key = _voxel_key(point, voxel_m, origin_m)
        state = state_of_view[view]
        if not _contains(tables[state].root, key):
            if not _contains(tables[state].added, key):
                new = key
    keys[view, pixel] = new


@wp.kernel
def claim_voxels(keys: wp.array2d(dtype=wp.int64), first: wp.array2d(dtype=int), claims: wp.array2d(dtype=int)):
    """first: (views, slots) lowest pixel of a voxel, ``UNCLAIMED`` where free; claims: (views, pixels) slots or -1."""
    view, pixel = wp.tid()
    key = keys[view, pixel]
    claim = int(-1)
    if key != FREE:
        size = first.shape[1]
        slot = _first_slot(key, size)
        probing = bool(True)
        while probing:
            here = wp.atomic_cas(first, view, slot, UNCLAIMED, pixel)
            if here == UNCLAIMED:
                probing = False
            elif keys[view, here] == key:
                wp.atomic_min(first, view, slot, pixel)
                probing = False
            else:
                slot = (slot + 1) & (size - 1)
        claim = slot
    claims[view, pixel] = claim


@wp.func
def _held(point: wp.vec3, boxes: wp.array2d(dtype=wp.float64), box: int) -> bool:
    """Strictly inside box row ``box``: three times (axis x, y, z, offset, half size)."""
    inside = bool(True)
    for axis in range(3):
        k = 5 * axis
        x = wp.float64(point[0]) * boxes[box, k]
        y = wp.float64(point[1]) * boxes[box, k + 1]
        z = wp.float64(point[2]) * boxes[box, k + 2]
        if not wp.abs(x + y + z - boxes[box, k + 3]) < boxes[box, k + 4]:
            inside = False
    return inside


@wp.kernel
def mark_new(
    depth: wp.array2d(dtype=float),
    points: wp.array2d(dtype=wp.vec3),
    first: wp.array2d(dtype=int),
    claims: wp.array2d(dtype=int),
    boxes: wp.array2d(dtype=wp.float64),
    box_of_view: wp.array2d(dtype=int),
    marks: wp.array3d(dtype=int),
    counts: wp.array3d(dtype=int),
):
    """marks: (regions, views, pixels) 1 where the first pixel of a new voxel lies in the view's box of that region.

    counts: (regions, views, 3) pixels with depth, those inside the box, and new points inside it; zero before.
    """
    region, view, pixel = wp.tid()
    mark = int(0)
    if depth[view, pixel] > 0.0:
        wp.atomic_add(counts, region, view, 0, 1)
        if _held(points[view, pixel], boxes, box_of_view[region, view]):
            wp.atomic_add(counts, region, view, 1, 1)
            claim = claims[view, pixel]
            if claim >= 0:
                if first[view, claim] == pixel:
                    wp.atomic_add(counts, region, view, 2, 1)
                    mark = 1
    marks[region, view, pixel] = mark


@wp.kernel
def gather_new(
    points: wp.array2d(dtype=wp.vec3),
    marks: wp.array3d(dtype=int),
    places: wp.array3d(dtype=int),
    out: wp.array(dtype=wp.vec3),
):
    """places: (regions, views, pixels) running sums of marks; out: marked points in order of region, view and pixel."""
    region, view, pixel = wp.tid()
    if marks[region, view, pixel] != 0:
        out[places[region, view, pixel] - 1] = points[view, pixel]
