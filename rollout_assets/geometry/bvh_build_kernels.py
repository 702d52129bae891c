"""The kernel that builds the tree of ``TriangleBvh``.

The tree is four wide: a node holds the boxes of its four children side by side, so that one vector instruction tests
all of them. Leaves hold references to triangles; a triangle may be referenced by several leaves, and a leaf always
tests the whole triangle, so the references decide speed and never a result.
"""

# mypy: ignore-errors
# ruff: noqa: RUF046, UP018 - int(0) declares a variable that a Warp kernel may assign to

from __future__ import annotations

import warp as wp

from rollout_assets.geometry.bvh_query_kernels import EMPTY, STACK

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

LEAF_SIZE = wp.constant(4)
BINS = wp.constant(16)
SAH_DEPTH = wp.constant(16)
"""Levels built by surface area; deeper ones are halved, which bounds the depth of any tree by 16 + log4(n)."""

_FAR = wp.constant(3.0e38)


@wp.func
def _half_area(low: wp.vec3, high: wp.vec3) -> float:
    size = high - low
    return size[0] * size[1] + size[1] * size[2] + size[2] * size[0]


@wp.func
def _partition(
    start: int,
    stop: int,
    low: wp.array(dtype=wp.vec3),
    high: wp.array(dtype=wp.vec3),
    order: wp.array(dtype=int),
) -> int:
    """Reorder references [start, stop) into two parts and return the boundary."""
    centre_low = wp.vec3(_FAR, _FAR, _FAR)
    centre_high = -centre_low
    for i in range(start, stop):
        centre = low[i] + high[i]
        centre_low = wp.min(centre_low, centre)
        centre_high = wp.max(centre_high, centre)
    spread = centre_high - centre_low
    axis = int(0)
    if spread[1] > spread[axis]:
        axis = 1
    if spread[2] > spread[axis]:
        axis = 2
    half = (start + stop) // 2
    if spread[axis] <= 0.0:
        return half
    scale = float(BINS) * 0.99999 / spread[axis]

    counts = wp.zeros(shape=BINS, dtype=int)
    lows = wp.zeros(shape=BINS, dtype=wp.vec3)
    highs = wp.zeros(shape=BINS, dtype=wp.vec3)
    for b in range(BINS):
        lows[b] = wp.vec3(_FAR, _FAR, _FAR)
        highs[b] = wp.vec3(-_FAR, -_FAR, -_FAR)
    for i in range(start, stop):
        b = wp.clamp(int((low[i][axis] + high[i][axis] - centre_low[axis]) * scale), 0, BINS - 1)
        counts[b] = counts[b] + 1
        lows[b] = wp.min(lows[b], low[i])
        highs[b] = wp.max(highs[b], high[i])

    right_cost = wp.zeros(shape=BINS, dtype=float)
    box_low = wp.vec3(_FAR, _FAR, _FAR)
    box_high = wp.vec3(-_FAR, -_FAR, -_FAR)
    total = int(0)
    for k in range(BINS - 1):
        b = BINS - 1 - k
        if counts[b] > 0:
            box_low = wp.min(box_low, lows[b])
            box_high = wp.max(box_high, highs[b])
            total += counts[b]
        if total > 0:
            right_cost[b] = _half_area(box_low, box_high) * float(total)

    best_cost = float(_FAR)
    best = int(-1)
    box_low = wp.vec3(_FAR, _FAR, _FAR)
    box_high = wp.vec3(-_FAR, -_FAR, -_FAR)
    total = int(0)
    for b in range(BINS - 1):
        if counts[b] > 0:
            box_low = wp.min(box_low, lows[b])
            box_high = wp.max(box_high, highs[b])
            total += counts[b]
        if total > 0 and total < stop - start:
            cost = _half_area(box_low, box_high) * float(total) + right_cost[b + 1]
            if cost < best_cost:
                best_cost = cost
                best = b
    if best < 0:
        return half

    i = int(start)
    j = int(stop - 1)
    while i <= j:
        b = wp.clamp(int((low[i][axis] + high[i][axis] - centre_low[axis]) * scale), 0, BINS - 1)
        if b <= best:
            i += 1
        else:
            swap_low = low[i]
            swap_high = high[i]
            swap_order = order[i]
            low[i] = low[j]
            high[i] = high[j]
            order[i] = order[j]
            low[j] = swap_low
            high[j] = swap_high
            order[j] = swap_order
            j -= 1
    return i


@wp.kernel
def build_tree(
    low: wp.array(dtype=wp.vec3),
    high: wp.array(dtype=wp.vec3),
    order: wp.array(dtype=int),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    node_count: wp.array(dtype=int),
):
    """Serial build by binned surface area, launched with one thread on the CPU for any device.

    low, high, order: (r,) reference boxes and their triangles, reordered in place; boxes: (nodes, 6) as low x, y, z and
    high x, y, z of four children; children: (nodes,) codes.
    """
    todo_node = wp.zeros(shape=STACK, dtype=int)
    todo_start = wp.zeros(shape=STACK, dtype=int)
    todo_stop = wp.zeros(shape=STACK, dtype=int)
    todo_depth = wp.zeros(shape=STACK, dtype=int)
    part_start = wp.zeros(shape=4, dtype=int)
    part_stop = wp.zeros(shape=4, dtype=int)
    todo_stop[0] = low.shape[0]
    pending = int(1)
    used = int(1)
    while pending > 0:
        pending -= 1
        node = todo_node[pending]
        depth = todo_depth[pending]
        part_start[0] = todo_start[pending]
        part_stop[0] = todo_stop[pending]
        parts = int(1)
        for _split in range(3):
            widest = int(-1)
            most = int(LEAF_SIZE)
            for k in range(parts):
                if part_stop[k] - part_start[k] > most:
                    most = part_stop[k] - part_start[k]
                    widest = k
            if widest >= 0:
                start = part_start[widest]
                stop = part_stop[widest]
                boundary = (start + stop) // 2
                if depth < SAH_DEPTH:
                    boundary = _partition(start, stop, low, high, order)
                part_stop[widest] = boundary
                part_start[parts] = boundary
                part_stop[parts] = stop
                parts += 1
        low_x = wp.vec4(_FAR, _FAR, _FAR, _FAR)
        low_y = wp.vec4(_FAR, _FAR, _FAR, _FAR)
        low_z = wp.vec4(_FAR, _FAR, _FAR, _FAR)
        high_x = wp.vec4(_FAR, _FAR, _FAR, _FAR)
        high_y = wp.vec4(_FAR, _FAR, _FAR, _FAR)
        high_z = wp.vec4(_FAR, _FAR, _FAR, _FAR)
        codes = wp.vec4i(EMPTY, EMPTY, EMPTY, EMPTY)
        for k in range(parts):
            start = part_start[k]
            stop = part_stop[k]
            box_low = wp.vec3(_FAR, _FAR, _FAR)
            box_high = wp.vec3(-_FAR, -_FAR, -_FAR)
            for i in range(start, stop):
                box_low = wp.min(box_low, low[i])
                box_high = wp.max(box_high, high[i])
            low_x[k] = box_low[0]
            low_y[k] = box_low[1]
            low_z[k] = box_low[2]
            high_x[k] = box_high[0]
            high_y[k] = box_high[1]
            high_z[k] = box_high[2]
            if stop - start <= LEAF_SIZE:
                codes[k] = -1 - (4 * start + stop - start - 1)
            else:
                codes[k] = used
                todo_node[pending] = used
                todo_start[pending] = start
                todo_stop[pending] = stop
                todo_depth[pending] = depth + 1
                pending += 1
                used += 1
        boxes[node, 0] = low_x
        boxes[node, 1] = low_y
        boxes[node, 2] = low_z
        boxes[node, 3] = high_x
        boxes[node, 4] = high_y
        boxes[node, 5] = high_z
        children[node] = codes
    node_count[0] = used
