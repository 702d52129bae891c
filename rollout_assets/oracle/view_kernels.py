"""Kernels from camera poses to new points: depth, back-projection, voxel fusion, compaction.

Fusion in parallel, with the result of doing it pixel by pixel: every pixel writes its voxel into its view's own hash
table, the lowest pixel index of a voxel is kept by an atomic minimum, and a second pass asks who won.
"""

# mypy: ignore-errors
# ruff: noqa: RUF046, SIM102, SIM109, UP018 - kernel source: int(0) declares a variable, `and` does not stop early

from __future__ import annotations

import warp as wp

from rollout_assets.geometry.bvh_query_kernels import first_triangle

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

FREE = wp.constant(wp.int64(-1))
"""Key of an unused slot; voxel keys are never negative."""

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
def _contains(keys: wp.array(dtype=wp.int64), start: int, size: int, key: wp.int64) -> bool:
    slot = _first_slot(key, size)
    present = bool(False)
    probing = bool(True)
    while probing:
        here = keys[start + slot]
        if here == key:
            present = True
            probing = False
        elif here == FREE:
            probing = False
        slot = (slot + 1) & (size - 1)
    return present


@wp.func
def _insert(keys: wp.array(dtype=wp.int64), start: int, size: int, key: wp.int64) -> int:
    """Slot of ``key`` in the table [start, start + size), which must have room."""
    slot = _first_slot(key, size)
    probing = bool(True)
    while probing:
        here = wp.atomic_cas(keys, start + slot, FREE, key)
        if here == FREE or here == key:
            probing = False
        else:
            slot = (slot + 1) & (size - 1)
    return start + slot


@wp.kernel
def insert_keys(new_keys: wp.array(dtype=wp.int64), table: wp.array(dtype=wp.int64)):
    _insert(table, 0, table.shape[0], new_keys[wp.tid()])


@wp.kernel
def claim_voxels(
    poses: wp.array2d(dtype=float),
    directions: wp.array(dtype=wp.vec3),
    depth: wp.array2d(dtype=float),
    voxel_m: wp.float64,
    origin_m: wp.float64,
    state_of_view: wp.array(dtype=int),
    state_start: wp.array(dtype=int),
    state_size: wp.array(dtype=int),
    state_keys: wp.array(dtype=wp.int64),
    view_size: int,
    view_keys: wp.array(dtype=wp.int64),
    view_first: wp.array(dtype=int),
    points: wp.array2d(dtype=wp.vec3),
    claims: wp.array2d(dtype=int),
):
    """Back-project every pixel and claim its voxel unless the view's state has it. No claim: -1."""
    view, pixel = wp.tid()
    claims[view, pixel] = -1
    z = depth[view, pixel]
    if z > 0.0:
        centre = wp.vec3d(wp.float64(poses[view, 9]), wp.float64(poses[view, 10]), wp.float64(poses[view, 11]))
        point = wp.vec3(centre + wp.float64(z) * _turn(poses, view, directions[pixel]))
        points[view, pixel] = point
        key = _voxel_key(point, voxel_m, origin_m)
        state = state_of_view[view]
        if not _contains(state_keys, state_start[state], state_size[state], key):
            slot = _insert(view_keys, view * view_size, view_size, key)
            wp.atomic_min(view_first, slot, pixel)
            claims[view, pixel] = slot


@wp.func
def _held(point: wp.vec3, boxes: wp.array2d(dtype=wp.float64), box: int) -> bool:
    """Strictly inside box row ``box``: three times (axis x, y, z, offset, half size). Box -1 holds every point."""
    inside = bool(True)
    if box < 0:
        return inside
    for axis in range(3):
        k = 5 * axis
        x = wp.float64(point[0]) * boxes[box, k]
        y = wp.float64(point[1]) * boxes[box, k + 1]
        z = wp.float64(point[2]) * boxes[box, k + 2]
        if not wp.abs(x + y + z - boxes[box, k + 3]) < boxes[box, k + 4]:
            inside = False
    return inside


@wp.kernel
def keep_first(view_first: wp.array(dtype=int), claims: wp.array2d(dtype=int)):
    """Withdraw the claims of pixels that were not the first of their voxel."""
    view, pixel = wp.tid()
    claim = claims[view, pixel]
    if claim >= 0:
        if view_first[claim] != pixel:
            claims[view, pixel] = -1


@wp.kernel
def count_points(
    depth: wp.array2d(dtype=float),
    points: wp.array2d(dtype=wp.vec3),
    claims: wp.array2d(dtype=int),
    boxes: wp.array2d(dtype=wp.float64),
    box_of_view: wp.array(dtype=int),
    counts: wp.array2d(dtype=int),
):
    """counts: (n, 3): pixels with depth, those inside the view's box, and new points inside it. Box -1 holds all."""
    view = wp.tid()
    box = box_of_view[view]
    hit = int(0)
    inside = int(0)
    new = int(0)
    for pixel in range(depth.shape[1]):
        if depth[view, pixel] > 0.0:
            hit += 1
            if _held(points[view, pixel], boxes, box):
                inside += 1
                if claims[view, pixel] >= 0:
                    new += 1
    counts[view, 0] = hit
    counts[view, 1] = inside
    counts[view, 2] = new


@wp.kernel
def gather_new(
    points: wp.array2d(dtype=wp.vec3),
    claims: wp.array2d(dtype=int),
    boxes: wp.array2d(dtype=wp.float64),
    box_of_view: wp.array(dtype=int),
    offsets: wp.array(dtype=wp.int64),
    out: wp.array(dtype=wp.vec3),
):
    """New points inside the view's box in pixel order, at the view's offset."""
    view = wp.tid()
    box = box_of_view[view]
    at = int(offsets[view])
    for pixel in range(claims.shape[1]):
        if claims[view, pixel] >= 0:
            if _held(points[view, pixel], boxes, box):
                out[at] = points[view, pixel]
                at += 1
