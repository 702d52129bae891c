"""The error of points against a surface, kept incrementally and exactly.

error(P) = mean over points of the squared distance to the nearest triangle
         + weighted mean over the surface's pieces of the squared distance to the nearest point.

Pieces are samples of the surface, each with the area that it stands for, or whole triangles (``vertex_in_box``).

Both terms only need a sum over points and a minimum per face, so a state keeps those and a cloud of new points is the
only thing that is measured. All distances start from differences of the float32 world coordinates that were given, and
the winner of every search is measured again in double precision: nothing is lost far from the origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import warp as wp
from numpy.typing import NDArray

from rollout_assets.errors import GeometryError, MeshError
from rollout_assets.geometry.devices import (
    Array,
    Parts,
    empty_warp,
    full_warp,
    in_lanes,
    launch,
    sort_pairs,
    struct_array,
    struct_value,
    to_host,
    upload,
    vectors,
)
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.triangle_bvh import TriangleBvh, triangle_records
from rollout_assets.oracle import cloud_kernels, sample_lanes

UNSEEN_SQ = 3.0e38
"""A face's squared distance to no points at all."""

_BYTES_PER_POINT = 96
"""Working memory of one measured point: coordinates twice, sort keys and order, distance, its share of the tree."""

_BLOCK = int(cloud_kernels.BLOCK_FACES)
_LEAF = int(cloud_kernels.LEAF_POINTS)
_RUN = int(cloud_kernels.RUN_POINTS)


@dataclass(frozen=True, eq=False)
class PointClouds:
    """c clouds one after another: cloud i is points[offsets[i]:offsets[i + 1]].

    points: (n,) float32 vectors on a device, offsets: (c + 1,) int64 on the host.
    """

    points: wp.array
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, clouds: Sequence[Float32], device: str) -> PointClouds:
        """Clouds (n_i, 3) each."""
        parts = [np.asarray(cloud, np.float32).reshape(-1, 3) for cloud in clouds]
        joined = np.concatenate(parts) if parts else np.zeros((0, 3), np.float32)
        finite = np.isfinite(joined).all(axis=1)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise GeometryError(f"point {row} is not finite: {joined[row].tolist()}")
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return cls(vectors(joined, "points", device), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def split(self, max_bytes: int, bytes_per_cloud: int) -> list[slice]:
        """Runs of whole clouds that need at most ``max_bytes`` each; a cloud that needs more runs alone."""
        runs: list[slice] = []
        start, used = 0, 0
        for cloud, points in enumerate(np.diff(self.offsets).tolist()):
            needed = bytes_per_cloud + _BYTES_PER_POINT * points
            if cloud > start and used + needed > max_bytes:
                runs.append(slice(start, cloud))
                start, used = cloud, 0
            used += needed
        return [*runs, slice(start, len(self))] if len(self) else []

    def select(self, chosen: NDArray[np.int64]) -> PointClouds:
        """The clouds ``chosen``, in that order. Whole runs of neighbours are taken without a copy."""
        if len(chosen) and (np.diff(chosen) == 1).all():
            return self[int(chosen[0]) : int(chosen[-1]) + 1]
        device = str(self.points.device)
        sizes = np.diff(self.offsets)[chosen]
        points = empty_warp(int(sizes.sum()), wp.vec3, device)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        for cloud, start, size in zip(chosen.tolist(), offsets[:-1].tolist(), sizes.tolist(), strict=True):
            if size:
                wp.copy(points, self.points, start, int(self.offsets[cloud]), size)
        return PointClouds(points, offsets)

    def __getitem__(self, run: slice) -> PointClouds:
        offsets = self.offsets[run.start : run.stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        points = self.points[first:last] if last > first else empty_warp(0, wp.vec3, str(self.points.device))
        return PointClouds(points, offsets - offsets[0])


@dataclass(frozen=True, eq=False)
class SurfaceState:
    """What is known about the points measured so far.

    minima_sq: (faces,) float32 on the device, least squared distance per face in the surface's own order; point_sum,
    face_sum: sums of squared distances over points and (weighted) over faces.
    """

    minima_sq: wp.array
    point_sum: float
    point_count: int
    face_sum: float


@dataclass(frozen=True, eq=False)
class SurfaceSums:
    """States of c clouds joined to their state, without the minima: (c,) each."""

    point_sum: Float64
    point_count: NDArray[np.int64]
    face_sum: Float64


class Surface:
    """A triangle surface that clouds are measured against."""

    def __init__(self, bvh: TriangleBvh, records: Float32, weights: Float64) -> None:
        """bvh: the triangles that points are measured to; records: (n, 4, 3), weights: (n,) of the pieces."""
        self.bvh, self.device = bvh, bvh.device
        self.face_count = len(records)
        self.weight_sum = float(weights.sum())
        if not self.weight_sum > 0:
            raise MeshError(f"a surface needs pieces that weigh something, got {len(weights)} with {self.weight_sum}")
        order = _spatial_order(records[:, :3])
        records, weights = records[order], weights[order]
        low, high = self.bvh.bounds
        self._scale, self._low = 1023.0 / max(float((high - low).max()), 1e-9), low
        lanes, self.all_samples = _sample_lanes(records)
        parts: list[tuple[NDArray[Any], Any]] = [
            (records, wp.vec3),
            (weights, wp.float64),
            (_block_boxes(records), wp.vec3),
            (lanes, wp.float32),
        ]
        self._records, self._weights, self._block_boxes, self._lanes = upload(parts, self.device)

    @cached_property
    def arrays(self) -> np.void:
        """``SurfaceArrays`` of this surface, for kernels that measure clouds against many surfaces."""
        boxes, children, corners, _ = self.bvh.arrays
        return struct_value(
            cloud_kernels.SurfaceArrays,
            records=self._records,
            samples=self._lanes,
            weights=self._weights,
            block_boxes=self._block_boxes,
            boxes=boxes,
            children=children,
            corners=corners,
            low=wp.vec3(*self._low.tolist()),
            scale=self._scale,
        )

    @property
    def block_count(self) -> int:
        """Blocks of pieces that are measured together."""
        return int(self._block_boxes.shape[0])

    @classmethod
    def of_faces(
        cls,
        vertices: Float32,
        faces: NDArray[np.int32],
        device: str,
        weighting: Literal["area", "uniform"] = "uniform",
        min_area_m2: float = 0.0,
    ) -> Surface:
        """Whole triangles as pieces; those below ``min_area_m2`` count as their three edges."""
        areas = triangle_areas(vertices, faces)
        edges_only = areas < min_area_m2
        weights = areas if weighting == "area" else np.ones(len(faces))
        bvh = TriangleBvh(vertices, faces, device, edges_only)
        return cls(bvh, triangle_records(vertices, faces, edges_only), weights)

    @classmethod
    def of_samples(cls, triangles: Float32, samples: Float32, weights: Float64, device: str) -> Surface:
        """triangles: (m, 3, 3) that points are measured to; samples: (n, 3) points of them, as triangles of no size."""
        faces = np.arange(3 * len(triangles), dtype=np.int32).reshape(-1, 3)
        records = np.zeros((len(samples), 4, 3), np.float32)
        records[:, :3] = samples[:, None]
        return cls(TriangleBvh(triangles.reshape(-1, 3), faces, device), records, weights)

    @property
    def weights(self) -> Float64:
        """(n,) of the pieces, in an order that depends on the pieces alone."""
        return np.asarray(self._weights.numpy(), np.float64)

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        own = (self._records, self._weights, self._block_boxes, self._lanes)
        return self.bvh.nbytes + sum(int(array.capacity) for array in own)

    def unseen(self) -> SurfaceState:
        """The state of no points."""
        minima = full_warp(self.face_count, UNSEEN_SQ, wp.float32, self.device)
        return SurfaceState(minima, 0.0, 0, float("inf"))

    def error(self, sums: SurfaceState | SurfaceSums) -> Float64:
        """Error in m² of one state, or of each of c joined ones; infinite without points."""
        return errors_m2(sums, self.weight_sum)

    def joined(
        self, states: Sequence[SurfaceState], clouds: PointClouds, state_of_cloud: NDArray[np.int64], max_bytes: int
    ) -> SurfaceSums:
        """Each cloud added to its state, for itself. ``max_bytes`` bounds the memory and never changes a result."""
        return joined([(self, state) for state in states], clouds, state_of_cloud, max_bytes)

    def extended(self, state: SurfaceState, points: Array) -> SurfaceState:
        """``state`` with points (n, 3) added: the sums ``joined`` gives for the same points, to the last bit."""
        cloud = vectors(points, "points", self.device)
        return extended([(self, state)], PointClouds(cloud, np.array([0, len(cloud)], np.int64)))[0]


def errors_m2(sums: SurfaceState | SurfaceSums, weight_sum: Float64 | float) -> Float64:
    """Errors in m² of sums about surfaces whose pieces weigh ``weight_sum`` together; infinite without points."""
    count = np.asarray(sums.point_count, np.float64)
    accuracy = np.divide(sums.point_sum, count, out=np.full(count.shape, np.inf), where=count > 0)
    return np.where(count > 0, accuracy + np.asarray(sums.face_sum) / weight_sum, np.inf)


MeasuredState = tuple[Surface, SurfaceState]
"""A state with the surface that it is about."""


def joined(
    states: Sequence[MeasuredState], clouds: PointClouds, state_of_cloud: NDArray[np.int64], max_bytes: int
) -> SurfaceSums:
    """Each cloud added to its state, for itself, whatever surfaces the states are about."""
    blocks = max((surface.block_count for surface, _ in states), default=0)
    parts = [
        _measure(states, clouds[run], state_of_cloud[run], keep_minima=False)[0]
        for run in clouds.split(max_bytes, bytes_per_cloud=8 * blocks)
    ]
    return SurfaceSums(
        np.concatenate([part.point_sum for part in parts]) if parts else np.zeros(0),
        np.concatenate([part.point_count for part in parts]) if parts else np.zeros(0, np.int64),
        np.concatenate([part.face_sum for part in parts]) if parts else np.zeros(0),
    )


def extended(states: Sequence[MeasuredState], clouds: PointClouds) -> list[SurfaceState]:
    """The i-th cloud added to the i-th state, all at once."""
    if not states:
        return []
    sums, minima = _measure(states, clouds, np.arange(len(states)), keep_minima=True)
    own = minima if len(minima) == 1 else [wp.clone(part) for part in minima]  # siblings are forgotten one by one
    return [
        SurfaceState(own[index], float(point_sum), int(count), float(face_sum))
        for index, (point_sum, count, face_sum) in enumerate(
            zip(sums.point_sum, sums.point_count, sums.face_sum, strict=True)
        )
    ]


def _measure(
    states: Sequence[MeasuredState], clouds: PointClouds, state_of_cloud: NDArray[np.int64], *, keep_minima: bool
) -> tuple[SurfaceSums, list[wp.array]]:
    device, count, total = states[0][0].device, len(clouds), len(clouds.points)
    faces = np.array([surface.face_count for surface, _ in states])[state_of_cloud]
    kept_start = np.concatenate([[0], np.cumsum(faces)]).astype(np.int64)
    sizes = np.diff(clouds.offsets)
    room = np.concatenate([[0], np.cumsum(-(-sizes // _LEAF) // 3 + 16)]).astype(np.int64)
    described: list[tuple[NDArray[Any], Any]] = [
        (clouds.offsets, wp.int64),
        (state_of_cloud.astype(np.int32), wp.int32),
    ]
    offsets, of_cloud, node_offsets, starts, state_arrays, surface_arrays = upload(
        [*described, (room, wp.int64), (kept_start, wp.int64), *_described(states)], device
    )
    known = [of_cloud, state_arrays, surface_arrays]

    keys, order = empty_warp(2 * total, wp.int64, device), empty_warp(2 * total, wp.int32, device)
    launch(cloud_kernels.morton_keys, total, [clouds.points, offsets, *known, keys, order], device)
    sort_pairs(keys, order, total, bits=30 + max(count - 1, 1).bit_length())
    points = empty_warp(total, wp.vec3, device)
    launch(cloud_kernels.gather_points, total, [clouds.points, order, points], device)

    distance_sq = empty_warp(total, wp.float32, device)
    runs = -(-int(sizes.max(initial=0)) // _RUN)
    launch(cloud_kernels.points_to_surface, (count, runs), [points, order, offsets, *known, distance_sq], device)

    boxes, children = empty_warp((int(room[-1]), 6), wp.vec4, device), empty_warp(int(room[-1]), wp.vec4i, device)
    trees = [boxes, children, empty_warp(count, wp.int32, device)]
    nodes = _node_count(int(sizes.max(initial=0)))
    launch(cloud_kernels.build_clouds, (count, max(nodes, 1)), [points, offsets, node_offsets, *trees], device)

    blocks = max(surface.block_count for surface, _ in states)
    partial = empty_warp((count, blocks), wp.float64, device)
    kept = empty_warp(int(kept_start[-1]) if keep_minima else 0, wp.float32, device)
    lanes = in_lanes(device) and all(surface.all_samples for surface, _ in states)
    kernel = sample_lanes.samples_to_clouds if lanes else cloud_kernels.faces_to_clouds
    asked = [state_arrays, surface_arrays, of_cloud, points, *trees, partial, starts, kept]
    launch(kernel, (count, blocks), asked, device)

    added = empty_warp((count, 2), wp.float64, device)
    launch(cloud_kernels.add_up, (count, 2), [distance_sq, offsets, *known, partial, added], device)
    point_sum, face_sum = to_host(added).T.copy()
    old_sum = np.array([state.point_sum for _, state in states])[state_of_cloud]
    old_count = np.array([state.point_count for _, state in states], np.int64)[state_of_cloud]
    minima = [kept[start:stop] for start, stop in pairwise(kept_start.tolist())] if keep_minima else []
    return SurfaceSums(old_sum + point_sum, old_count + sizes, face_sum), minima


def _described(states: Sequence[MeasuredState]) -> Parts:
    """States and the surfaces they are about as arrays of structs."""
    surfaces = {id(surface): surface for surface, _ in states}
    number = {key: index for index, key in enumerate(surfaces)}
    described = [
        struct_value(cloud_kernels.StateArrays, surface=number[id(surface)], minima=state.minima_sq)
        for surface, state in states
    ]
    return [
        struct_array(cloud_kernels.StateArrays, described),
        struct_array(cloud_kernels.SurfaceArrays, [surface.arrays for surface in surfaces.values()]),
    ]


def _node_count(points: int) -> int:
    """Nodes of the tree over so many points."""
    level, nodes = -(-points // _LEAF), 0
    while level:
        level = -(-level // 4)
        nodes += level
        level = 0 if level == 1 else level
    return nodes


def triangle_areas(vertices: Float32, faces: NDArray[np.int32]) -> Float64:
    """(m,) in m², in double precision."""
    a, b, c = np.moveaxis(vertices[faces].astype(np.float64), 1, 0)
    return 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1)


def _spatial_order(corners: Float32) -> NDArray[np.int64]:
    """Pieces (n, 3, 3) along a Morton curve of their centres, so that a block of them is a small region."""
    first, second, third = np.moveaxis(corners.astype(np.float64), 1, 0)
    centres = (first + second + third) / 3.0
    low = centres.min(axis=0)
    cells = ((centres - low) * (1023.0 / max(float((centres.max(axis=0) - low).max()), 1e-9))).astype(np.int64)
    x, y, z = _SPREAD_BITS[cells].T
    return np.argsort(x << 2 | y << 1 | z, kind="stable")


_SPREAD_BITS = np.array([int(f"{cell:b}", 8) for cell in range(1024)])
"""Numbers of ten bits with two zeros before each bit: their binary digits, read as octal ones."""


def _block_boxes(records: Float32) -> Float32:
    """(blocks, 2, 3): lowest and highest corner of each block of faces."""
    starts = np.arange(0, len(records), _BLOCK)
    first, second, third = np.moveaxis(records[:, :3], 1, 0)
    low = np.minimum.reduceat(np.minimum(np.minimum(first, second), third), starts)
    high = np.maximum.reduceat(np.maximum(np.maximum(first, second), third), starts)
    return np.stack([low, high], axis=1)


def _sample_lanes(records: Float32) -> tuple[Float32, bool]:
    """(3, n rounded up to 16) coordinates for ``sample_lanes`` and whether all pieces are points; empty if not."""
    points = records[:, 0]
    if (records[:, :3] != points[:, None]).any():
        return np.zeros((3, 0), np.float32), False
    lanes = np.zeros((3, -(-len(points) // 16) * 16), np.float32)
    lanes[:, : len(points)] = points.T
    return lanes, True
