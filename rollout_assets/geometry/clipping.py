"""Triangles inside a box: the part of a surface that lies in it, exactly, and points spread evenly over that part.

Both depend on the surface alone. Cutting a triangle into smaller ones moves neither, apart from rounding, so what is
measured with them does not depend on how finely a mesh was tessellated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import warp as wp
from numpy.typing import ArrayLike, NDArray

from rollout_assets.geometry import clipping_native
from rollout_assets.geometry.devices import empty_warp, on_host, run_on_host
from rollout_assets.geometry.poses import Float32, Float64

LATTICE_AXES = np.array(
    [
        [0.4741598817790379, -0.7512254733874759, 0.4591652149771926],
        [0.7384602626041288, 0.62331398394716, 0.25720831629354624],
        [-0.479425538604203, 0.21711740038440563, 0.8503006452922328],
    ]
)
"""Columns: the three directions of lines, written out so that every machine has the same bits.

They are oblique to the axes of the box (turns by 1, 0.5 and 0.25 rad), because edges of furniture are parallel to
those: lines along an edge would all hit or all miss the surface beside it, an error of up to 12 % of a small box's area
at 4,096 samples. Oblique ones stay within 0.5 %.
"""


@dataclass(frozen=True, eq=False)
class SurfaceSamples:
    """n points of a surface: points (n, 3), area_m2 (n,) that each stands for, triangle (n,) that each lies on."""

    points: Float64
    area_m2: Float64
    triangle: NDArray[np.int64]


def touching_box(
    corners: Float32, faces: NDArray[np.int32], half: Float64, centre: ArrayLike = (0.0, 0.0, 0.0)
) -> NDArray[np.int64]:
    """Ascending faces that may reach into the box |x - centre| < half: those not wholly beyond one of its six sides.

    corners: (n, 3) along the box's axes, faces: (m, 3), half, centre: (3,). Differences are those of float32 numbers.
    """
    places = np.ascontiguousarray(corners, np.float32), np.ascontiguousarray(centre, np.float32)
    given = [on_host(part, wp.float32) for part in places]
    given += [on_host(np.ascontiguousarray(faces, np.int32), wp.int32), on_host(_doubles(half), wp.float64)]
    touching, found = empty_warp(len(faces) + 1, wp.int64, "cpu"), empty_warp(1, wp.int32, "cpu")
    scratch = empty_warp(len(corners), wp.uint8, "cpu")
    run_on_host(clipping_native.faces_touching_box, 1, [*given, scratch, touching, found])
    return touching.numpy()[: int(found.numpy()[0])]


def clip_to_box(triangles: Float64, half: Float64, room: int = 1 << 12) -> tuple[Float64, NDArray[np.int64]]:
    """triangles: (m, 3, 3) in the box's frame -> (k, 3, 3) parts of them inside |x| < half, (k,) whose part each is.

    ``room`` is for how many parts memory is taken at first; it never changes a result.
    """
    count = len(triangles)
    room = max(room, 2 * count)
    corners = [empty_warp(9 * room, wp.float64, "cpu") for _ in range(2)]
    sources = [empty_warp(room, wp.int64, "cpu") for _ in range(2)]
    parts, source, made = corners[0].numpy().reshape(-1, 3, 3), sources[0].numpy(), empty_warp(1, wp.int32, "cpu")
    parts[:count], source[:count] = triangles, np.arange(count)
    asked = [count, room, on_host(_doubles(half), wp.float64), *corners, *sources, made]
    run_on_host(clipping_native.clip_triangles, 1, asked)
    left = int(made.numpy()[0])
    return (parts[:left], source[:left]) if left >= 0 else clip_to_box(triangles, half, 4 * room)


def lattice_samples(triangles: Float64, pitch_m: float, room: int = 1 << 14) -> SurfaceSamples:
    """Where three families of parallel lines, ``pitch_m`` apart, meet triangles (m, 3, 3).

    A hit along direction a stands for pitch² |n_a| of area: n_1² + n_2² + n_3² = 1 makes the three families add up to
    every piece of surface exactly once. A line through an edge that two triangles share hits one of them. ``room`` is
    for how many samples memory is taken at first; it never changes a result.
    """
    points, areas = empty_warp((room, 3), wp.float64, "cpu"), empty_warp(room, wp.float64, "cpu")
    owners, hits = empty_warp(room, wp.int64, "cpu"), empty_warp(1, wp.int32, "cpu")
    turned = on_host(np.ascontiguousarray(triangles @ LATTICE_AXES), wp.float64)
    asked = [room, wp.float64(pitch_m), wp.float64(pitch_m**2), turned, points, areas, owners, hits]
    run_on_host(clipping_native.sample_triangles, 1, asked)
    count = int(hits.numpy()[0])
    if count > room:
        return lattice_samples(triangles, pitch_m, count)
    return SurfaceSamples(points.numpy()[:count] @ LATTICE_AXES.T, areas.numpy()[:count], owners.numpy()[:count])


def _doubles(values: Float64) -> Float64:
    return np.ascontiguousarray(values, np.float64)
