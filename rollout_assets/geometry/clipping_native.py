"""Clipping and sampling of surfaces as native code of the host, which ``clipping`` calls.

Every expression is that of the NumPy twin in ``tests/geometry/naive_clipping.py``, in the same order and without fused
operations, so both give the same bits. A label that follows from a surface therefore does not depend on which one ran.
"""

# mypy: ignore-errors

from __future__ import annotations

import warp as wp

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

_TOUCHING = """
    for (int i = 0; i < vertices; ++i) {
        int beyond = 0;
        for (int axis = 0; axis < 3; ++axis) {
            const auto place = corners.data[3 * (long long)i + axis] - centre.data[axis];
            beyond |= (int)(place >= half.data[axis]) << (2 * axis);
            beyond |= (int)(place <= -half.data[axis]) << (2 * axis + 1);
        }
        sides.data[i] = (unsigned char)beyond;
    }
    int found = 0;
    for (int i = 0; i < count; ++i) {
        const int* face = faces.data + 3 * (long long)i;
        touching.data[found] = i;
        found += (sides.data[face[0]] & sides.data[face[1]] & sides.data[face[2]]) == 0;
    }
    return found;
"""


@wp.func_native(_TOUCHING)
def _touching(
    vertices: int,
    count: int,
    corners: wp.array2d(dtype=wp.float32),
    centre: wp.array(dtype=wp.float32),
    faces: wp.array2d(dtype=int),
    half: wp.array(dtype=wp.float64),
    sides: wp.array(dtype=wp.uint8),
    touching: wp.array(dtype=wp.int64),
) -> int:
    """Fill the ascending faces that may reach into the box; their number."""


@wp.kernel
def faces_touching_box(
    corners: wp.array2d(dtype=wp.float32),
    centre: wp.array(dtype=wp.float32),
    faces: wp.array2d(dtype=int),
    half: wp.array(dtype=wp.float64),
    sides: wp.array(dtype=wp.uint8),
    touching: wp.array(dtype=wp.int64),
    found: wp.array(dtype=int),
):
    """corners: (n, 3), centre, half: (3,), faces: (m, 3), sides: (n,) scratch, touching: room for m + 1. One thread."""
    found[0] = _touching(corners.shape[0], faces.shape[0], corners, centre, faces, half, sides, touching)


_CLIP = """
    // Six half-spaces, one after another, from one buffer into the other: triangles that lie inside as a whole first,
    // then the tips of those with one corner inside, then both halves of what is left of those with two.
    double* front = first.data;
    double* back = second.data;
    long long* front_source = (long long*)first_source.data;
    long long* back_source = (long long*)second_source.data;
    int pending = count;
    for (int side = 0; side < 6; ++side) {
        const int axis = side / 2;
        const double sign = side % 2 == 0 ? 1.0 : -1.0, reach = half.data[axis];
        auto depth_of = [&](const double* corner) { return reach - sign * corner[axis]; };
        int whole = 0, one = 0, two = 0;
        for (int i = 0; i < pending; ++i) {
            const double* t = front + 9 * (long long)i;
            int inside = (depth_of(t) > 0) + (depth_of(t + 3) > 0) + (depth_of(t + 6) > 0);
            whole += inside == 3;
            one += inside == 1;
            two += inside == 2;
        }
        const int made = whole + one + 2 * two;
        if (made > room) return -1;
        int at_whole = 0, at_one = whole, at_two = whole + one;
        for (int i = 0; i < pending; ++i) {
            const double* t = front + 9 * (long long)i;
            const bool in[3] = {depth_of(t) > 0, depth_of(t + 3) > 0, depth_of(t + 6) > 0};
            const int inside = in[0] + in[1] + in[2];
            if (inside == 0) continue;
            if (inside == 3) {
                for (int k = 0; k < 9; ++k) back[9 * (long long)at_whole + k] = t[k];
                back_source[at_whole++] = front_source[i];
                continue;
            }
            const bool lone = inside == 1;  // the corner that is alone on its side comes first
            const int corner = in[0] == lone ? 0 : (in[1] == lone ? 1 : 2);
            const double *a = t + 3 * corner, *b = t + 3 * ((corner + 1) % 3), *c = t + 3 * ((corner + 2) % 3);
            const double at_a = depth_of(a), at_b = depth_of(b), at_c = depth_of(c);
            const double to_b = at_a / (at_a - at_b), to_c = at_a / (at_a - at_c);
            double ab[3], ac[3];
            for (int k = 0; k < 3; ++k) {
                ab[k] = a[k] + (b[k] - a[k]) * to_b;
                ac[k] = a[k] + (c[k] - a[k]) * to_c;
            }
            auto put = [&](int slot, const double* p, const double* q, const double* r) {
                double* out = back + 9 * (long long)slot;
                for (int k = 0; k < 3; ++k) {
                    out[k] = p[k];
                    out[3 + k] = q[k];
                    out[6 + k] = r[k];
                }
                back_source[slot] = front_source[i];
            };
            if (lone) {
                put(at_one++, a, ab, ac);
            } else {
                put(at_two, ab, b, c);
                put(at_two + two, ab, c, ac);
                ++at_two;
            }
        }
        double* other = front;
        front = back;
        back = other;
        long long* other_source = front_source;
        front_source = back_source;
        back_source = other_source;
        pending = made;
    }
    return pending;  // after six turns they lie in the first buffer again
"""


@wp.func_native(_CLIP)
def _clip(
    count: int,
    room: int,
    half: wp.array(dtype=wp.float64),
    first: wp.array(dtype=wp.float64),
    second: wp.array(dtype=wp.float64),
    first_source: wp.array(dtype=wp.int64),
    second_source: wp.array(dtype=wp.int64),
) -> int:
    """Clip the triangles in ``first``; the number of parts, or -1 if there is no room for them."""


@wp.kernel
def clip_triangles(
    count: int,
    room: int,
    half: wp.array(dtype=wp.float64),
    first: wp.array(dtype=wp.float64),
    second: wp.array(dtype=wp.float64),
    first_source: wp.array(dtype=wp.int64),
    second_source: wp.array(dtype=wp.int64),
    made: wp.array(dtype=int),
):
    """first: (9 room,) corners of ``count`` triangles in front and later of their parts; sources: (room,). One thread.

    The second of each pair is scratch.
    """
    made[0] = _clip(count, room, half, first, second, first_source, second_source)


_SAMPLE = """
    int hits = 0;
    for (int axis = 0; axis < 3; ++axis) {
        const int u = (axis + 1) % 3, v = (axis + 2) % 3;
        for (int i = 0; i < count; ++i) {
            const double* t = triangles.data + 9 * (long long)i;
            double p[3], q[3], normal[3];
            for (int k = 0; k < 3; ++k) {
                p[k] = t[3 + k] - t[k];
                q[k] = t[6 + k] - t[k];
            }
            normal[0] = p[1] * q[2] - p[2] * q[1];
            normal[1] = p[2] * q[0] - p[0] * q[2];
            normal[2] = p[0] * q[1] - p[1] * q[0];
            if (normal[axis] == 0.0) continue;
            const double length = sqrt(normal[0] * normal[0] + normal[1] * normal[1] + normal[2] * normal[2]);
            const bool upward = normal[axis] > 0;
            auto least = [&](int k) {
                double low = t[k] < t[3 + k] ? t[k] : t[3 + k];
                return low < t[6 + k] ? low : t[6 + k];
            };
            auto largest = [&](int k) {
                double high = t[k] > t[3 + k] ? t[k] : t[3 + k];
                return high > t[6 + k] ? high : t[6 + k];
            };
            const long long first_u = (long long)ceil(least(u) / pitch), last_u = (long long)floor(largest(u) / pitch);
            const long long first_v = (long long)ceil(least(v) / pitch), last_v = (long long)floor(largest(v) / pitch);
            // An edge is judged from its lower end to its upper one, whichever triangle asks.
            double low_u[3], low_v[3], side_u[3], side_v[3];
            bool turned[3];
            for (int k = 0; k < 3; ++k) {
                const double *from = t + 3 * k, *to = t + 3 * ((k + 1) % 3);
                const bool backward = from[u] > to[u] || (from[u] == to[u] && from[v] > to[v]);
                low_u[k] = backward ? to[u] : from[u];
                low_v[k] = backward ? to[v] : from[v];
                side_u[k] = (backward ? from[u] : to[u]) - low_u[k];
                side_v[k] = (backward ? from[v] : to[v]) - low_v[k];
                turned[k] = backward != !upward;
            }
            for (long long row = first_u; row <= last_u; ++row) {
                const double at_u = (double)row * pitch;
                for (long long column = first_v; column <= last_v; ++column) {
                    const double at_v = (double)column * pitch;
                    bool inside = true;
                    for (int k = 0; k < 3; ++k) {
                        const bool left = side_u[k] * (at_v - low_v[k]) - side_v[k] * (at_u - low_u[k]) >= 0;
                        inside &= left != turned[k];
                    }
                    if (!inside) continue;
                    if (hits < room) {
                        double* point = points.data + 3 * (long long)hits;
                        const double slope = (at_u - t[u]) * normal[u] + (at_v - t[v]) * normal[v];
                        point[u] = at_u;
                        point[v] = at_v;
                        point[axis] = t[axis] - slope / normal[axis];
                        const double facing = normal[axis] < 0 ? -normal[axis] : normal[axis];
                        areas.data[hits] = cell * facing / length;
                        owners.data[hits] = i;
                    }
                    ++hits;
                }
            }
        }
    }
    return hits;
"""


@wp.func_native(_SAMPLE)
def _sample(
    count: int,
    room: int,
    pitch: wp.float64,
    cell: wp.float64,
    triangles: wp.array3d(dtype=wp.float64),
    points: wp.array2d(dtype=wp.float64),
    areas: wp.array(dtype=wp.float64),
    owners: wp.array(dtype=wp.int64),
) -> int:
    """Fill the first ``room`` hits; the number of all."""


@wp.kernel
def sample_triangles(
    room: int,
    pitch: wp.float64,
    cell: wp.float64,
    triangles: wp.array3d(dtype=wp.float64),
    points: wp.array2d(dtype=wp.float64),
    areas: wp.array(dtype=wp.float64),
    owners: wp.array(dtype=wp.int64),
    hits: wp.array(dtype=int),
):
    """Where lines along the three axes, ``pitch`` apart, meet triangles (m, 3, 3); cell: pitch². One thread.

    points: (room, 3), areas and owners: (room,). ``hits`` may exceed the room; the rest is then left out.
    """
    hits[0] = _sample(triangles.shape[0], room, pitch, cell, triangles, points, areas, owners)
