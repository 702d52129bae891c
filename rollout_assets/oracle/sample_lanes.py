"""Nearest points of clouds to the samples of a surface, sixteen samples at a time. Runs on the CPU only.

Neighbouring samples look for their nearest point together: one walk of a cloud's tree serves sixteen of them, a box or
a point is fetched once for all, and vector instructions measure it against all. A sample is a triangle of no size, so
its distance to a point is the same expression as in ``cloud_kernels`` and has the same bits.

The nearest point of a sample is found in whatever order the tree is walked. Only where two points are equally near in
single precision does the order decide which of them is measured again in double precision; the walk notices that, and
``cloud_kernels.block_total`` then says what the walk of each sample alone says.
"""

# mypy: ignore-errors

from __future__ import annotations

import warp as wp

from rollout_assets.oracle.cloud_kernels import BLOCK_FACES, StateArrays, SurfaceArrays, block_total

wp.set_module_options({"enable_backward": False, "fuse_fp": False})

_WALK = """
    typedef float lanes __attribute__((ext_vector_type(16)));
    typedef int marks __attribute__((ext_vector_type(16)));
    typedef bool bits __attribute__((ext_vector_type(16)));
    typedef float four __attribute__((ext_vector_type(4), aligned(4)));
    typedef double wide __attribute__((ext_vector_type(16)));
    typedef float loose __attribute__((ext_vector_type(16), aligned(4)));  // memory need not be aligned
    struct entry { lanes gap; int node; };
    const int EMPTY = (int)0x80000000;
    auto mask = [](marks m) { return (int)__builtin_bit_cast(unsigned short, __builtin_convertvector(m, bits)); };
    const int stride = samples.shape[1];
    const float* old = minima.data;
    float* out = kept.shape[0] > 0 ? kept.data + kept_start : nullptr;
    const float* xs = samples.data;
    const float* ys = xs + stride;
    const float* zs = ys + stride;
    const float* cloud_points = (const float*)points.data;
    const four* box = (const four*)boxes.data;
    const int* kids = (const int*)children.data;
    entry stack[96];
    double total = 0.0;
    for (int start = first; start < stop; start += 16) {
        const lanes x = *(const loose*)(xs + start), y = *(const loose*)(ys + start), z = *(const loose*)(zs + start);
        lanes bound = -1.0f;
        for (int k = 0; k < 16; ++k) bound[k] = start + k < stop ? old[start + k] : -1.0f;
        // What is not below the limit is not looked at: the old minimum, or just above the nearest point so far.
        lanes limit = bound, best = bound;
        marks winner = -1, equal = 0;
        int depth = 0;
        int node = root;
        while (node != EMPTY) {
            if (node >= 0) {
                const four* b = box + 6 * (long long)node;
                const int* code = kids + 4 * node;
                lanes gap[4];
                float nearest = 3.4e38f;
                int next = -1;
                for (int k = 0; k < 4; ++k) {
                    if (code[k] == EMPTY) continue;
                    lanes below = b[0][k] - x, above = x - b[3][k];
                    lanes g = below > above ? below : above;
                    g = g > 0.0f ? g : lanes(0.0f);
                    lanes sum = g * g;
                    below = b[1][k] - y, above = y - b[4][k];
                    g = below > above ? below : above;
                    g = g > 0.0f ? g : lanes(0.0f);
                    sum = sum + g * g;
                    below = b[2][k] - z, above = z - b[5][k];
                    g = below > above ? below : above;
                    g = g > 0.0f ? g : lanes(0.0f);
                    sum = sum + g * g;
                    if (!mask(sum < limit)) continue;
                    gap[k] = sum;
                    float middle = sum[7];
                    if (next < 0) {
                        next = k;
                        nearest = middle;
                    } else {
                        int away = k;
                        if (middle < nearest) {
                            away = next;
                            next = k;
                            nearest = middle;
                        }
                        stack[depth].node = code[away];
                        stack[depth].gap = gap[away];
                        ++depth;
                    }
                }
                node = EMPTY;
                if (next >= 0) {
                    node = code[next];
                    continue;
                }
            } else {
                int packed = -1 - node;
                int begin = packed >> 3, end = begin + (packed & 7) + 1;
                for (int i = begin; i < end; ++i) {
                    const float* p = cloud_points + 3 * i;
                    lanes dx = p[0] - x, dy = p[1] - y, dz = p[2] - z;
                    lanes d = dx * dx + dy * dy + dz * dz;
                    marks hit = d < limit;
                    if (mask(hit)) {
                        marks again = hit & (d == best) & (winner >= 0);
                        marks nearer = hit & ~again;
                        equal = again ? marks(-1) : (nearer ? marks(0) : equal);
                        winner = nearer ? marks(i) : winner;
                        best = nearer ? d : best;
                        marks up = __builtin_bit_cast(marks, best) + 1;
                        limit = hit ? __builtin_bit_cast(lanes, up) : limit;
                    }
                }
            }
            node = EMPTY;
            while (depth > 0) {
                --depth;
                if (mask(stack[depth].gap < limit)) {
                    node = stack[depth].node;
                    break;
                }
            }
        }
        if (mask(equal)) return NAN;
        if (mask(winner >= 0)) {
            lanes px = x, py = y, pz = z;
            for (int k = 0; k < 16; ++k) {
                if (winner[k] < 0) continue;
                px[k] = cloud_points[3 * winner[k]];
                py[k] = cloud_points[3 * winner[k] + 1];
                pz[k] = cloud_points[3 * winner[k] + 2];
            }
            wide dx = __builtin_convertvector(px, wide) - __builtin_convertvector(x, wide);
            wide dy = __builtin_convertvector(py, wide) - __builtin_convertvector(y, wide);
            wide dz = __builtin_convertvector(pz, wide) - __builtin_convertvector(z, wide);
            lanes nearer = __builtin_convertvector(dx * dx + dy * dy + dz * dz, lanes);
            bound = ((winner >= 0) & (nearer < bound)) ? nearer : bound;
        }
        for (int k = 0; k < 16 && start + k < stop; ++k) total += weights.data[start + k] * (double)bound[k];
        if (out)
            for (int k = 0; k < 16 && start + k < stop; ++k) out[start + k] = bound[k];
    }
    return total;
"""


@wp.func_native(_WALK)
def _lanes_total(
    root: int,
    first: int,
    stop: int,
    samples: wp.array2d(dtype=float),
    weights: wp.array(dtype=wp.float64),
    minima: wp.array(dtype=float),
    points: wp.array(dtype=wp.vec3),
    boxes: wp.array2d(dtype=wp.vec4),
    children: wp.array(dtype=wp.vec4i),
    kept_start: wp.int64,
    kept: wp.array(dtype=float),
) -> wp.float64:
    """The weighted sum of a block of samples, NaN where two points are equally near to one of them."""


@wp.kernel
def samples_to_clouds(
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
    """``cloud_kernels.faces_to_clouds`` where all pieces of all surfaces are samples."""
    cloud, block = wp.tid()
    state = state_of_cloud[cloud]
    surface = states[state].surface
    if block < surfaces[surface].block_boxes.shape[0]:
        first = block * BLOCK_FACES
        total = _lanes_total(
            roots[cloud],
            first,
            wp.min(first + BLOCK_FACES, states[state].minima.shape[0]),
            surfaces[surface].samples,
            surfaces[surface].weights,
            states[state].minima,
            points,
            boxes,
            children,
            kept_start[cloud],
            kept,
        )
        if wp.isnan(total):
            total = block_total(
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
        partial[cloud, block] = total
