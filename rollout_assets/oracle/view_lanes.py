"""Depth and points of pinhole views, sixteen neighbouring pixels at a time. Runs on the CPU only.

The rays of one view start at one point, and those of a tile of 4 x 4 pixels meet nearly the same boxes. They walk the
tree together: a box or a triangle is fetched once for all of them, and vector instructions test it against all. Below a
node that only a few of them meet, each of those goes on by itself. Every ray is tested with the very expressions of
``bvh_query_kernels.first_triangle``, so a depth has the same bits.
"""

# mypy: ignore-errors

from __future__ import annotations

import warp as wp

from rollout_assets.oracle.view_kernels import CloudTables

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

TILE = 4
"""Pixels along one side of a tile."""

_WALK = """
    typedef float lanes __attribute__((ext_vector_type(16)));
    typedef int marks __attribute__((ext_vector_type(16)));
    typedef bool bits __attribute__((ext_vector_type(16)));
    typedef float four __attribute__((ext_vector_type(4), aligned(4)));  // memory need not be aligned
    typedef int marks4 __attribute__((ext_vector_type(4)));
    typedef bool bits4 __attribute__((ext_vector_type(4)));
    struct entry { lanes near; int node; };
    const int FEW = 3;  // measured: of so many rays at a node, or fewer, each is faster by itself
    const int EMPTY = (int)0x80000000;
    // the rays of the tile
    typedef double wide __attribute__((ext_vector_type(16)));
    auto mask = [](marks m) { return (int)__builtin_bit_cast(unsigned short, __builtin_convertvector(m, bits)); };
    auto mask4 = [](marks4 m) { return __builtin_bit_cast(unsigned char, __builtin_convertvector(m, bits4)) & 15; };
    lanes ray_x, ray_y, ray_z;
    int place[16];
    for (int k = 0; k < 16; ++k) {
        int row = 4 * tile_row + k / 4, column = 4 * tile_column + k % 4;
        row = row < height ? row : height - 1;
        column = column < width ? column : width - 1;
        place[k] = row * width + column;
    }
    const float* rays = (const float*)directions.data;
    for (int k = 0; k < 16; ++k) {
        ray_x[k] = rays[3 * place[k]];
        ray_y[k] = rays[3 * place[k] + 1];
        ray_z[k] = rays[3 * place[k] + 2];
    }
    const float* pose = poses.data + 12 * view;
    const float o[3] = {pose[9], pose[10], pose[11]};
    const wide x = __builtin_convertvector(ray_x, wide);
    const wide y = __builtin_convertvector(ray_y, wide);
    const wide z = __builtin_convertvector(ray_z, wide);
    lanes d[3], inv[3], size[3];
    int backward[3];
    for (int a = 0; a < 3; ++a) {
        wide turned = (double)pose[3 * a] * x + (double)pose[3 * a + 1] * y + (double)pose[3 * a + 2] * z;
        d[a] = __builtin_convertvector(turned, lanes);
        size[a] = d[a] < 0.0f ? -d[a] : d[a];
        inv[a] = size[a] > 1.0e-18f ? 1.0f / d[a] : (d[a] < 0.0f ? lanes(-1.0e18f) : lanes(1.0e18f));
        backward[a] = mask(inv[a] < 0.0f);
    }
    marks along_x = (size[0] > size[1]) & (size[0] > size[2]);
    marks along_y = (size[1] > size[2]) & ~along_x;
    lanes dz = along_x ? d[0] : (along_y ? d[1] : d[2]);
    lanes shear_x = -(along_x ? d[1] : (along_y ? d[2] : d[0])) / dz;
    lanes shear_y = -(along_x ? d[2] : (along_y ? d[0] : d[1])) / dz;
    lanes shear_z = 1.0f / dz;
    const marks along[3] = {along_x, along_y, ~(along_x | along_y)};
    const int axis_lanes[3] = {mask(along[0]), mask(along[1]), mask(along[2])};
    const int alive = mask(d[0] * d[0] + d[1] * d[1] + d[2] * d[2] != 0.0f);
    bool same_sign = true;
    for (int a = 0; a < 3; ++a) same_sign &= backward[a] == 0 || backward[a] == 0xffff;
    const int nx = backward[0] & 1 ? 3 : 0, ny = backward[1] & 1 ? 4 : 1, nz = backward[2] & 1 ? 5 : 2;
    // The least and the largest slope of all rays bound where any of them enters and leaves a box.
    float least[3], most[3];
    for (int a = 0; a < 3; ++a) {
        least[a] = __builtin_reduce_min(inv[a]);
        most[a] = __builtin_reduce_max(inv[a]);
    }
    auto lesser = [](four a, four b) { return a < b ? a : b; };
    auto larger = [](four a, four b) { return a > b ? a : b; };
    const four* box = (const four*)boxes.data;
    const int* kids = (const int*)children.data;
    const float* tri = (const float*)corners.data;
    lanes best = farthest_m;
    best = (d[0] * d[0] + d[1] * d[1] + d[2] * d[2] != 0.0f) ? best : lanes(-1.0f);
    // One ray by itself from a node on, for nodes that few rays of the tile meet.
    int lone_node[96];
    float lone_near[96];
    auto walk_alone = [&](int lane, int node, float best) {
        const float ix = inv[0][lane], iy = inv[1][lane], iz = inv[2][lane];
        const int nx = ix < 0.0f ? 3 : 0, ny = iy < 0.0f ? 4 : 1, nz = iz < 0.0f ? 5 : 2;
        const int kz = axis_lanes[0] >> lane & 1 ? 0 : (axis_lanes[1] >> lane & 1 ? 1 : 2);
        const int kx = kz == 2 ? 0 : kz + 1, ky = kx == 2 ? 0 : kx + 1;
        const float sx = shear_x[lane], sy = shear_y[lane], sz = shear_z[lane];
        int depth = 0;
        while (true) {
            if (node >= 0) {
                const four* b = box + 6 * (long long)node;
                const int* code = kids + 4 * node;
                four tx = (b[nx] - o[0]) * ix, ty = (b[ny] - o[1]) * iy, tz = (b[nz] - o[2]) * iz;
                four ux = (b[3 - nx] - o[0]) * ix, uy = (b[5 - ny] - o[1]) * iy, uz = (b[7 - nz] - o[2]) * iz;
                four in = larger(larger(tx, ty), tz), out = lesser(lesser(ux, uy), uz);
                int reached = mask4((out >= 0.0f) & (in <= out + 1.0e-6f * out) & (in < best));
                node = EMPTY;
                float nearest = INFINITY;
                while (reached) {
                    int k = __builtin_ctz(reached);
                    reached &= reached - 1;
                    if (code[k] == EMPTY) continue;
                    float gap = in[k];
                    if (node == EMPTY) {
                        node = code[k]; nearest = gap;
                    } else if (gap < nearest) {
                        lone_node[depth] = node; lone_near[depth++] = nearest;
                        node = code[k]; nearest = gap;
                    } else {
                        lone_node[depth] = code[k]; lone_near[depth++] = gap;
                    }
                }
                if (node != EMPTY) continue;
            } else {
                int packed = -1 - node;
                int first = packed >> 2, count = (packed & 3) + 1;
                for (int i = first; i < first + count; ++i) {
                    const float* c = tri + 12 * (long long)i;
                    float z0 = c[kz] - o[kz], z1 = c[3 + kz] - o[kz], z2 = c[6 + kz] - o[kz];
                    float x0 = (c[kx] - o[kx]) + sx * z0, y0 = (c[ky] - o[ky]) + sy * z0;
                    float x1 = (c[3 + kx] - o[kx]) + sx * z1, y1 = (c[3 + ky] - o[ky]) + sy * z1;
                    float x2 = (c[6 + kx] - o[kx]) + sx * z2, y2 = (c[6 + ky] - o[ky]) + sy * z2;
                    float u = x2 * y1 - y2 * x1, v = x0 * y2 - y0 * x2, w = x1 * y0 - y1 * x0;
                    bool front = (u >= 0.0f) & (v >= 0.0f) & (w >= 0.0f);
                    bool back = (u <= 0.0f) & (v <= 0.0f) & (w <= 0.0f);
                    float det = u + v + w;
                    if ((front | back) && det != 0.0f) {
                        float t = (u * (sz * z0) + v * (sz * z1) + w * (sz * z2)) / det;
                        if (t >= 0.0f && t < best) best = t;
                    }
                }
            }
            node = EMPTY;
            while (depth > 0 && node == EMPTY) {
                --depth;
                if (lone_near[depth] < best) node = lone_node[depth];
            }
            if (node == EMPTY) return best;
        }
    };
    auto fetch_ahead = [&](int code) {  // what is waited for longest is memory
        const char* at = code >= 0 ? (const char*)(box + 6 * (long long)code) : nullptr;
        if (at) __builtin_prefetch(kids + 4 * code);
        else at = (const char*)(tri + 12 * (long long)((-1 - code) >> 2));
        __builtin_prefetch(at);
        __builtin_prefetch(at + 64);
    };
    entry stack[96];
    int depth = 0;
    int node = alive ? 0 : EMPTY;
    lanes here = -1.0f;
    while (node != EMPTY) {
        int active = mask(here < best);
        if (__builtin_popcount(active) <= FEW) {
            for (; active; active &= active - 1) {
                int lane = __builtin_ctz(active);
                best[lane] = walk_alone(lane, node, best[lane]);
            }
        } else if (node >= 0) {
            const four* b = box + 6 * (long long)node;
            const int* code = kids + 4 * node;
            four ax = b[nx] - o[0], ay = b[ny] - o[1], az = b[nz] - o[2];
            four zx = b[3 - nx] - o[0], zy = b[5 - ny] - o[1], zz = b[7 - nz] - o[2];
            four key = larger(
                larger(lesser(ax * least[0], ax * most[0]), lesser(ay * least[1], ay * most[1])),
                lesser(az * least[2], az * most[2])
            );
            four last = lesser(
                lesser(larger(zx * least[0], zx * most[0]), larger(zy * least[1], zy * most[1])),
                larger(zz * least[2], zz * most[2])
            );
            last = last + 1.0e-6f * last;
            lanes enter[4];
            int reached[4];
            for (int k = 0; k < 4; ++k) {
                reached[k] = 0;
                if (same_sign && !(last[k] >= 0.0f && key[k] <= last[k])) continue;  // no ray of the tile meets it
                lanes tx, ty, tz, ux, uy, uz;
                tx = ax[k] * inv[0]; ty = ay[k] * inv[1]; tz = az[k] * inv[2];
                ux = zx[k] * inv[0]; uy = zy[k] * inv[1]; uz = zz[k] * inv[2];
                if (!same_sign) {
                    lanes t;
                    t = tx < ux ? tx : ux; ux = tx < ux ? ux : tx; tx = t;
                    t = ty < uy ? ty : uy; uy = ty < uy ? uy : ty; ty = t;
                    t = tz < uz ? tz : uz; uz = tz < uz ? uz : tz; tz = t;
                }
                lanes in = tx > ty ? tx : ty;
                in = in > tz ? in : tz;
                lanes out = ux < uy ? ux : uy;
                out = out < uz ? out : uz;
                marks hit = (out >= 0.0f) & (in <= out + 1.0e-6f * out) & (in < best);
                enter[k] = hit ? in : lanes(INFINITY);
                reached[k] = code[k] != EMPTY && mask(hit);
                if (reached[k]) fetch_ahead(code[k]);
            }
            node = EMPTY;
            int next = -1;
            float nearest = INFINITY;
            for (int k = 0; k < 4; ++k) {
                if (!reached[k]) continue;
                if (next < 0) { next = k; nearest = key[k]; continue; }
                int away = k;
                if (key[k] < nearest) { away = next; next = k; nearest = key[k]; }
                stack[depth].node = code[away];
                stack[depth].near = enter[away];
                ++depth;
            }
            if (next >= 0) { node = code[next]; here = enter[next]; continue; }
        } else {
            int packed = -1 - node;
            int first = packed >> 2, count = (packed & 3) + 1;
            int todo = mask(here < best);
            for (int kz = 0; kz < 3; ++kz) {
                int mine = todo & axis_lanes[kz];
                if (!mine) continue;
                const marks chosen = along[kz];
                int kx = kz == 2 ? 0 : kz + 1;
                int ky = kx == 2 ? 0 : kx + 1;
                for (int i = first; i < first + count; ++i) {
                    const float* c = tri + 12 * (long long)i;
                    float z0 = c[kz] - o[kz], z1 = c[3 + kz] - o[kz], z2 = c[6 + kz] - o[kz];
                    lanes x0 = (c[kx] - o[kx]) + shear_x * z0, y0 = (c[ky] - o[ky]) + shear_y * z0;
                    lanes x1 = (c[3 + kx] - o[kx]) + shear_x * z1, y1 = (c[3 + ky] - o[ky]) + shear_y * z1;
                    lanes x2 = (c[6 + kx] - o[kx]) + shear_x * z2, y2 = (c[6 + ky] - o[ky]) + shear_y * z2;
                    lanes u = x2 * y1 - y2 * x1;
                    lanes v = x0 * y2 - y0 * x2;
                    lanes w = x1 * y0 - y1 * x0;
                    lanes det = u + v + w;
                    marks hit = (u >= 0.0f) & (v >= 0.0f) & (w >= 0.0f);
                    hit = hit | ((u <= 0.0f) & (v <= 0.0f) & (w <= 0.0f));
                    hit = hit & (det != 0.0f) & (here < best) & chosen;
                    if (mask(hit)) {
                        lanes t = (u * (shear_z * z0) + v * (shear_z * z1) + w * (shear_z * z2)) / det;
                        hit = hit & (t >= 0.0f) & (t < best);
                        best = hit ? t : best;
                    }
                }
            }
        }
        node = EMPTY;
        while (depth > 0) {
            --depth;
            if (mask(stack[depth].near < best)) {
                node = stack[depth].node;
                here = stack[depth].near;
                break;
            }
        }
    }
    for (int k = 0; k < 16; ++k) {
        float z = best[k];
        if (4 * tile_row + k / 4 < height && 4 * tile_column + k % 4 < width)
            depth_m.data[(long long)view * width * height + place[k]] = z < farthest_m && z > nearest_m ? z : 0.0f;
    }
"""


@wp.func_native(_WALK)
def _cast_tile(
    view: int,
    tile_row: int,
    tile_column: int,
    height: int,
    width: int,
    poses: wp.array2d(dtype=float),
    directions: wp.array(dtype=wp.vec3),
    nearest_m: float,
    farthest_m: float,
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    corners: wp.array2d(dtype=wp.vec3),
    depth_m: wp.array2d(dtype=float),
):
    """Fill one tile of one view."""


@wp.kernel
def cast_tiles(
    height: int,
    width: int,
    poses: wp.array2d(dtype=float),
    directions: wp.array(dtype=wp.vec3),
    nearest_m: float,
    farthest_m: float,
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    corners: wp.array2d(dtype=wp.vec3),
    depth: wp.array2d(dtype=float),
):
    """``view_kernels.cast_views``, where the pixels are those of an image in rows."""
    view, row, column = wp.tid()
    # fmt: off
    _cast_tile(
        view, row, column, height, width, poses, directions, nearest_m, farthest_m, boxes, children, corners, depth
    )
    # fmt: on


LANES = 16
"""Pixels that are back-projected together."""

_BACK_PROJECT = """
    typedef float lanes __attribute__((ext_vector_type(16)));
    typedef double wide __attribute__((ext_vector_type(16)));
    typedef long long keys16 __attribute__((ext_vector_type(16)));
    typedef unsigned long long hashes __attribute__((ext_vector_type(16)));
    const int pixels = depth.shape[1];
    const int begin = 16 * run, count = pixels - begin < 16 ? pixels - begin : 16;
    const float* z = depth.data + (long long)view * pixels + begin;
    const float* rays = (const float*)directions.data + 3 * begin;
    float* out = (float*)points.data + 3 * ((long long)view * pixels + begin);
    long long* out_keys = (long long*)keys.data + (long long)view * pixels + begin;
    lanes ray_x = 0.0f, ray_y = 0.0f, ray_z = 0.0f, far = 0.0f;
    for (int k = 0; k < count; ++k) {
        ray_x[k] = rays[3 * k];
        ray_y[k] = rays[3 * k + 1];
        ray_z[k] = rays[3 * k + 2];
        far[k] = z[k];
    }
    const float* pose = poses.data + 12 * view;
    const wide x = __builtin_convertvector(ray_x, wide);
    const wide y = __builtin_convertvector(ray_y, wide);
    const wide w = __builtin_convertvector(ray_z, wide);
    const wide distance = __builtin_convertvector(far, wide);
    lanes place[3];
    keys16 cell[3];
    for (int a = 0; a < 3; ++a) {
        wide turned = (double)pose[3 * a] * x + (double)pose[3 * a + 1] * y + (double)pose[3 * a + 2] * w;
        place[a] = __builtin_convertvector((double)pose[9 + a] + distance * turned, lanes);
        wide at = __builtin_elementwise_floor((__builtin_convertvector(place[a], wide) - origin_m) / voxel_m);
        cell[a] = __builtin_convertvector(at, keys16) + (1LL << 20);
    }
    const keys16 key = (cell[0] << 42) | (cell[1] << 21) | cell[2];
    const hashes hash = (__builtin_convertvector(key, hashes) * 0x9E3779B97F4A7C15ULL) >> 33;
    const long long* root_keys = (const long long*)root.data;
    const long long* added_keys = (const long long*)added.data;
    const unsigned root_mask = root.shape[0] - 1, added_mask = added.shape[0] - 1;
    for (int k = 0; k < count; ++k) __builtin_prefetch(root_keys + ((unsigned)hash[k] & root_mask));
    for (int k = 0; k < count; ++k) {
        long long mine = -1;
        if (z[k] > 0.0f) {
            for (int a = 0; a < 3; ++a) out[3 * k + a] = place[a][k];
            mine = key[k];
            unsigned slot = (unsigned)hash[k] & root_mask;
            while (root_keys[slot] != mine && root_keys[slot] != -1) slot = (slot + 1) & root_mask;
            bool known = root_keys[slot] == mine;
            if (!known) {
                slot = (unsigned)hash[k] & added_mask;
                while (added_keys[slot] != mine && added_keys[slot] != -1) slot = (slot + 1) & added_mask;
                known = added_keys[slot] == mine;
            }
            if (known) mine = -1;
        }
        out_keys[k] = mine;
    }
"""


@wp.func_native(_BACK_PROJECT)
def _back_project_run(
    view: int,
    run: int,
    poses: wp.array2d(dtype=float),
    directions: wp.array(dtype=wp.vec3),
    depth: wp.array2d(dtype=float),
    voxel_m: wp.float64,
    origin_m: wp.float64,
    root: wp.array(dtype=wp.int64),
    added: wp.array(dtype=wp.int64),
    points: wp.array2d(dtype=wp.vec3),
    keys: wp.array2d(dtype=wp.int64),
):
    """Fill sixteen pixels of one view."""


@wp.kernel
def back_project_runs(
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
    """``view_kernels.back_project``, (views, runs of sixteen pixels) threads."""
    view, run = wp.tid()
    state = state_of_view[view]
    root = tables[state].root
    added = tables[state].added
    _back_project_run(view, run, poses, directions, depth, voxel_m, origin_m, root, added, points, keys)
