"""The builder of the tree of ``TriangleBvh`` as native code: the very tree of ``bvh_build_kernels``, only sooner.

A reference lies in one 32-byte record, so that moving it touches one cache line. The pass that parts references also
gathers the bounds that the next split needs, and the boxes of children come from the bins of the split that made them.
Runs on the host whatever the device.
"""

# mypy: ignore-errors

from __future__ import annotations

import warp as wp

wp.set_module_options({"enable_backward": False, "fuse_fp": False})


@wp.kernel
def describe_triangles(
    points: wp.array(dtype=wp.vec3),
    triangles: wp.array2d(dtype=int),
    references: wp.array2d(dtype=float),
    edge: wp.array(dtype=float),
    records: wp.array2d(dtype=wp.vec3),
):
    """Of every face the reference as ``build_tree`` takes it, the longest edge, and the record.

    A record is three corners and the unit normal, which is zero without area.
    """
    i = wp.tid()
    a = points[triangles[i, 0]]
    b = points[triangles[i, 1]]
    c = points[triangles[i, 2]]
    low = wp.min(wp.min(a, b), c)
    high = wp.max(wp.max(a, b), c)
    for axis in range(3):
        references[i, axis] = low[axis]
        references[i, axis + 4] = high[axis]
    ab = b - a
    bc = c - b
    ca = a - c
    edge[i] = wp.sqrt(wp.max(wp.max(wp.dot(ab, ab), wp.dot(bc, bc)), wp.dot(ca, ca)))
    normal = wp.cross(wp.vec3d(b) - wp.vec3d(a), wp.vec3d(c) - wp.vec3d(a))
    length = wp.sqrt(normal[0] * normal[0] + normal[1] * normal[1] + normal[2] * normal[2])
    records[i, 0] = a
    records[i, 1] = b
    records[i, 2] = c
    if length > wp.float64(0.0):
        records[i, 3] = wp.vec3(normal / length)
    else:
        records[i, 3] = wp.vec3(normal)


_BUILD = """
    typedef float four __attribute__((ext_vector_type(4)));
    struct reference { float low[3]; int order; float high[3]; int unused; };
    struct part { int start, stop; four low, high, centre_low, centre_high; };
    struct job { part all; int node, depth; };
    const int EMPTY = (int)0x80000000;
    const int BINS = 16, LEAF = 4, SAH_DEPTH = 16;
    const float LARGE = 3.0e38f;
    const four NONE_LOW = LARGE, NONE_HIGH = -LARGE;
    auto lesser = [](four a, four b) { return a < b ? a : b; };
    auto larger = [](four a, four b) { return a > b ? a : b; };
    auto half_area = [](four low, four high) {
        four size = high - low;
        return size[0] * size[1] + size[1] * size[2] + size[2] * size[0];
    };
    reference* refs = (reference*)references.data;
    auto low_of = [](const reference& r) { return *(const four*)r.low; };    // the fourth lane is not looked at
    auto high_of = [](const reference& r) { return *(const four*)r.high; };
    auto measure = [&](part& p) {
        p.low = p.centre_low = NONE_LOW;
        p.high = p.centre_high = NONE_HIGH;
        for (int i = p.start; i < p.stop; ++i) {
            four low = low_of(refs[i]), high = high_of(refs[i]), centre = low + high;
            p.low = lesser(p.low, low);
            p.high = larger(p.high, high);
            p.centre_low = lesser(p.centre_low, centre);
            p.centre_high = larger(p.centre_high, centre);
        }
    };
    // Part ``p`` becomes its left half, ``right`` the other one.
    auto split = [&](part& p, part& right, bool by_area) {
        const int start = p.start, stop = p.stop;
        four spread = p.centre_high - p.centre_low;
        int axis = 0;
        if (spread[1] > spread[axis]) axis = 1;
        if (spread[2] > spread[axis]) axis = 2;
        int best = -1;
        float scale = 0.0f;
        const float origin = p.centre_low[axis];
        if (by_area && spread[axis] > 0.0f) {
            scale = (float)BINS * 0.99999f / spread[axis];
            // Most parts are small and leave most bins empty, so only bins with content are ever looked at.
            int counts[BINS];
            four lows[BINS], highs[BINS];
            unsigned filled = 0;
            for (int i = start; i < stop; ++i) {
                const reference& r = refs[i];
                int b = (int)((r.low[axis] + r.high[axis] - origin) * scale);
                b = b < 0 ? 0 : (b > BINS - 1 ? BINS - 1 : b);
                if (filled >> b & 1) {
                    ++counts[b];
                    lows[b] = lesser(lows[b], low_of(r));
                    highs[b] = larger(highs[b], high_of(r));
                } else {
                    filled |= 1u << b;
                    counts[b] = 1;
                    lows[b] = low_of(r);
                    highs[b] = high_of(r);
                }
            }
            int used_bins[BINS], bins = 0;
            for (unsigned rest = filled; rest; rest &= rest - 1) used_bins[bins++] = __builtin_ctz(rest);
            float right_cost[BINS];
            four right_lows[BINS], right_highs[BINS];
            four low = NONE_LOW, high = NONE_HIGH;
            int total = 0;
            for (int k = bins - 1; k > 0; --k) {
                const int b = used_bins[k];
                right_lows[k] = low = lesser(low, lows[b]);
                right_highs[k] = high = larger(high, highs[b]);
                total += counts[b];
                right_cost[k] = half_area(low, high) * (float)total;
            }
            float best_cost = LARGE;
            low = NONE_LOW, high = NONE_HIGH;
            total = 0;
            for (int k = 0; k + 1 < bins; ++k) {
                const int b = used_bins[k];
                low = lesser(low, lows[b]);
                high = larger(high, highs[b]);
                total += counts[b];
                float cost = half_area(low, high) * (float)total + right_cost[k + 1];
                if (cost < best_cost) {
                    best_cost = cost;
                    best = b;
                    p.low = low;
                    p.high = high;
                    right.low = right_lows[k + 1];
                    right.high = right_highs[k + 1];
                }
            }
        }
        if (best < 0) {
            int middle = (start + stop) / 2;
            p.stop = right.start = middle;
            right.stop = stop;
            measure(p);
            measure(right);
            return;
        }
        four left_low = NONE_LOW, left_high = NONE_HIGH, right_low = NONE_LOW, right_high = NONE_HIGH;
        int i = start, j = stop - 1;
        while (i <= j) {
            const reference r = refs[i];
            int b = (int)((r.low[axis] + r.high[axis] - origin) * scale);
            b = b < 0 ? 0 : (b > BINS - 1 ? BINS - 1 : b);
            four centre = low_of(r) + high_of(r);
            if (b <= best) {
                left_low = lesser(left_low, centre);
                left_high = larger(left_high, centre);
                ++i;
            } else {
                right_low = lesser(right_low, centre);
                right_high = larger(right_high, centre);
                refs[i] = refs[j];
                refs[j] = r;
                --j;
            }
        }
        p.stop = right.start = i;
        right.stop = stop;
        p.centre_low = left_low;
        p.centre_high = left_high;
        right.centre_low = right_low;
        right.centre_high = right_high;
    };
    float* box = (float*)boxes.data;
    int* codes = (int*)children.data;
    job todo[96];
    int pending = 1, used = 1;
    todo[0].all.start = 0;
    todo[0].all.stop = count;
    todo[0].node = todo[0].depth = 0;
    for (int i = 0; i < count; ++i) {
        refs[i].order = i;
        for (int axis = 0; axis < 3; ++axis) {
            refs[i].low[axis] = refs[i].low[axis] - slack;
            refs[i].high[axis] = refs[i].high[axis] + slack;
        }
    }
    measure(todo[0].all);
    while (pending > 0) {
        const job now = todo[--pending];
        part parts[4];
        parts[0] = now.all;
        int made = 1;
        for (int turn = 0; turn < 3; ++turn) {
            int widest = -1, most = LEAF;
            for (int k = 0; k < made; ++k) {
                if (parts[k].stop - parts[k].start > most) {
                    most = parts[k].stop - parts[k].start;
                    widest = k;
                }
            }
            if (widest >= 0) {
                split(parts[widest], parts[made], now.depth < SAH_DEPTH);
                ++made;
            }
        }
        float* here = box + 24 * (long long)now.node;
        for (int k = 0; k < 4; ++k) {
            for (int axis = 0; axis < 3; ++axis) {
                here[4 * axis + k] = k < made ? parts[k].low[axis] : LARGE;
                here[12 + 4 * axis + k] = k < made ? parts[k].high[axis] : LARGE;
            }
            int code = EMPTY;
            if (k < made) {
                int size = parts[k].stop - parts[k].start;
                if (size <= LEAF) {
                    code = -1 - (4 * parts[k].start + size - 1);
                } else {
                    code = used;
                    todo[pending].all = parts[k];
                    todo[pending].node = used;
                    todo[pending].depth = now.depth + 1;
                    ++pending;
                    ++used;
                }
            }
            codes[4 * (long long)now.node + k] = code;
        }
    }
    return used;
"""


@wp.func_native(_BUILD)
def _build(
    count: int,
    slack: float,
    references: wp.array2d(dtype=float),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
) -> int:
    """Fill boxes and children, reorder references, return the number of nodes."""


@wp.kernel
def build_tree(
    slack: float,
    references: wp.array2d(dtype=float),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    node_count: wp.array(dtype=int),
):
    """references: (r, 8) as low x, y, z, number, high x, y, z, unused. One thread.

    Boxes grow by ``slack``, references are numbered and then reordered in place.
    """
    node_count[0] = _build(references.shape[0], slack, references, boxes, children)


_CUT = """
    // Triangles of nine doubles; ``front`` holds those that are still too long, ``back`` takes their halves.
    double* front = first.data;
    double* back = second.data;
    int* front_owner = first_owner.data;
    int* back_owner = second_owner.data;
    const double limit_sq = limit * limit;
    int pending = count, made = 0;
    while (pending > 0) {
        int large = 0;
        for (int i = 0; i < pending; ++i) {
            const double* t = front + 9 * (long long)i;
            double most = -1.0;
            int longest = 0;
            for (int k = 0; k < 3; ++k) {
                const double* p = t + 3 * k;
                const double* q = t + 3 * ((k + 1) % 3);
                double x = p[0] - q[0], y = p[1] - q[1], z = p[2] - q[2];
                double length = x * x + y * y + z * z;
                if (length > most) {
                    most = length;
                    longest = k;
                }
            }
            if (most <= limit_sq) {
                float* low = (float*)lows.data + 3 * (long long)made;
                float* high = (float*)highs.data + 3 * (long long)made;
                if (made < room) {
                    for (int a = 0; a < 3; ++a) {
                        double least = t[a] < t[3 + a] ? t[a] : t[3 + a], highest = t[a] > t[3 + a] ? t[a] : t[3 + a];
                        low[a] = (float)(least < t[6 + a] ? least : t[6 + a]);
                        high[a] = (float)(highest > t[6 + a] ? highest : t[6 + a]);
                    }
                    owners.data[made] = front_owner[i];
                }
                ++made;
            } else {
                // moved to the front of the same buffer, turned so that the longest edge comes first
                double a[9];
                for (int k = 0; k < 3; ++k)
                    for (int axis = 0; axis < 3; ++axis) a[3 * k + axis] = t[3 * ((longest + k) % 3) + axis];
                for (int k = 0; k < 9; ++k) front[9 * (long long)large + k] = a[k];
                front_owner[large] = front_owner[i];
                ++large;
            }
        }
        if (2 * large > room || made > room) return -1;
        for (int i = 0; i < large; ++i) {
            const double* t = front + 9 * (long long)i;
            double* left = back + 9 * (long long)i;
            double* right = back + 9 * (long long)(i + large);
            for (int axis = 0; axis < 3; ++axis) {
                double middle = (t[axis] + t[3 + axis]) * 0.5;
                left[axis] = t[axis];
                left[3 + axis] = middle;
                left[6 + axis] = t[6 + axis];
                right[axis] = middle;
                right[3 + axis] = t[3 + axis];
                right[6 + axis] = t[6 + axis];
            }
            back_owner[i] = back_owner[i + large] = front_owner[i];
        }
        double* other = front;
        front = back;
        back = other;
        int* other_owner = front_owner;
        front_owner = back_owner;
        back_owner = other_owner;
        pending = 2 * large;
    }
    return made;
"""


@wp.func_native(_CUT)
def _cut(
    count: int,
    room: int,
    limit: wp.float64,
    first: wp.array(dtype=wp.float64),
    second: wp.array(dtype=wp.float64),
    first_owner: wp.array(dtype=int),
    second_owner: wp.array(dtype=int),
    lows: wp.array(dtype=wp.vec3),
    highs: wp.array(dtype=wp.vec3),
    owners: wp.array(dtype=int),
) -> int:
    """Fill boxes and owners of the pieces; their number, or -1 if there is no room for them."""


@wp.kernel
def cut_triangles(
    count: int,
    room: int,
    limit: wp.float64,
    first: wp.array(dtype=wp.float64),
    second: wp.array(dtype=wp.float64),
    first_owner: wp.array(dtype=int),
    second_owner: wp.array(dtype=int),
    lows: wp.array(dtype=wp.vec3),
    highs: wp.array(dtype=wp.vec3),
    owners: wp.array(dtype=int),
    piece_count: wp.array(dtype=int),
):
    """Halve triangles across their longest edge until none is longer than ``limit``, and box the pieces. One thread.

    first: (9 room,) corners of ``count`` triangles in front; second: as much scratch; all others: (room,).
    """
    piece_count[0] = _cut(count, room, limit, first, second, first_owner, second_owner, lows, highs, owners)
