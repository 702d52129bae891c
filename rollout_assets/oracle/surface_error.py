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
from typing import Literal

import numpy as np
import warp as wp
import warp.utils
from numpy.typing import NDArray

from rollout_assets.errors import GeometryError, MeshError
from rollout_assets.geometry.devices import Array, empty_warp, full_warp, launch, to_warp, vectors
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.triangle_bvh import TriangleBvh, triangle_records
from rollout_assets.oracle import cloud_kernels

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
        self._low, self._scale = wp.vec3(*low.tolist()), 1023.0 / max(float((high - low).max()), 1e-9)
        self._records = to_warp(records, wp.vec3, self.device)
        self._weights = to_warp(weights, wp.float64, self.device)
        self._block_boxes = to_warp(_block_boxes(records), wp.vec3, self.device)

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
        own = (self._records, self._weights, self._block_boxes)
        return self.bvh.nbytes + sum(int(array.capacity) for array in own)

    def unseen(self) -> SurfaceState:
        """The state of no points."""
        minima = full_warp(self.face_count, UNSEEN_SQ, wp.float32, self.device)
        return SurfaceState(minima, 0.0, 0, float("inf"))

    def error(self, sums: SurfaceState | SurfaceSums) -> Float64:
        """Error in m² of one state, or of each of c joined ones; infinite without points."""
        count = np.asarray(sums.point_count, np.float64)
        accuracy = np.divide(sums.point_sum, count, out=np.full(count.shape, np.inf), where=count > 0)
        return np.where(count > 0, accuracy + np.asarray(sums.face_sum) / self.weight_sum, np.inf)

    def joined(
        self, states: Sequence[SurfaceState], clouds: PointClouds, state_of_cloud: NDArray[np.int64], max_bytes: int
    ) -> SurfaceSums:
        """Each cloud added to its state, for itself. ``max_bytes`` bounds the memory and never changes a result."""
        parts = [
            self._measure(states, clouds[run], state_of_cloud[run], keep_minima=False)[0]
            for run in clouds.split(max_bytes, bytes_per_cloud=8 * self._block_boxes.shape[0])
        ]
        return SurfaceSums(
            np.concatenate([part.point_sum for part in parts]) if parts else np.zeros(0),
            np.concatenate([part.point_count for part in parts]) if parts else np.zeros(0, np.int64),
            np.concatenate([part.face_sum for part in parts]) if parts else np.zeros(0),
        )

    def extended(self, state: SurfaceState, points: Array) -> SurfaceState:
        """``state`` with points (n, 3) added: the sums ``joined`` gives for the same points, to the last bit."""
        cloud = vectors(points, "points", self.device)
        clouds = PointClouds(cloud, np.array([0, len(cloud)], np.int64))
        sums, minima = self._measure([state], clouds, np.zeros(1, np.int64), keep_minima=True)
        kept = minima.reshape(self.face_count)
        return SurfaceState(kept, float(sums.point_sum[0]), int(sums.point_count[0]), float(sums.face_sum[0]))

    def _measure(
        self,
        states: Sequence[SurfaceState],
        clouds: PointClouds,
        state_of_cloud: NDArray[np.int64],
        *,
        keep_minima: bool,
    ) -> tuple[SurfaceSums, wp.array]:
        count, blocks = len(clouds), self._block_boxes.shape[0]
        offsets = to_warp(clouds.offsets, wp.int64, self.device)
        points, order = self._along_curve(clouds, offsets)
        added = self._point_sums(points, order, clouds, offsets)
        trees = self._trees(points, clouds, offsets)

        partial = empty_warp((count, blocks), wp.float64, self.device)
        new_minima = empty_warp((count, self.face_count if keep_minima else 0), wp.float32, self.device)
        of_cloud = to_warp(state_of_cloud.astype(np.int32), wp.int32, self.device)
        surface = [self._records, self._weights, self._block_boxes, self._stacked(states), of_cloud]
        asked = [*surface, points, *trees, partial, new_minima]
        launch(cloud_kernels.faces_to_clouds, (count, blocks), asked, self.device)
        face_sum = empty_warp(count, wp.float64, self.device)
        launch(cloud_kernels.sum_blocks, count, [partial, face_sum], self.device)

        old_sum = np.array([state.point_sum for state in states])[state_of_cloud]
        old_count = np.array([state.point_count for state in states], np.int64)[state_of_cloud]
        sums = SurfaceSums(old_sum + added, old_count + np.diff(clouds.offsets), face_sum.numpy())
        return sums, new_minima

    def _stacked(self, states: Sequence[SurfaceState]) -> wp.array:
        """(states, faces) minima."""
        if len(states) == 1:
            return states[0].minima_sq.reshape((1, self.face_count))
        stacked = empty_warp((len(states), self.face_count), wp.float32, self.device)
        for row, state in enumerate(states):
            wp.copy(stacked[row], state.minima_sq)
        return stacked

    def _along_curve(self, clouds: PointClouds, offsets: wp.array) -> tuple[wp.array, wp.array]:
        """Each cloud's points (n,) along a Morton curve, and where each of them came from (n,)."""
        count = len(clouds.points)
        keys, order = empty_warp(2 * count, wp.int64, self.device), empty_warp(2 * count, wp.int32, self.device)
        curve = [clouds.points, offsets, self._low, self._scale, keys, order]
        launch(cloud_kernels.morton_keys, len(clouds), curve, self.device)
        if count:
            warp.utils.radix_sort_pairs(keys, order, count)
        points = empty_warp(count, wp.vec3, self.device)
        launch(cloud_kernels.gather_points, count, [clouds.points, order, points], self.device)
        return points, order

    def _point_sums(self, points: wp.array, order: wp.array, clouds: PointClouds, offsets: wp.array) -> Float64:
        """(c,) sums of squared distances to the surface, added up in the order the points were given."""
        boxes, children, corners, _ = self.bvh.arrays
        runs = -(-int(np.diff(clouds.offsets).max(initial=0)) // _RUN)
        distance_sq = empty_warp(len(points), wp.float32, self.device)
        asked = [points, order, offsets, boxes, children, corners, distance_sq]
        launch(cloud_kernels.points_to_surface, (len(clouds), runs), asked, self.device)
        sums = empty_warp(len(clouds), wp.float64, self.device)
        launch(cloud_kernels.sum_clouds, len(clouds), [distance_sq, offsets, sums], self.device)
        return sums.numpy()

    def _trees(self, points: wp.array, clouds: PointClouds, offsets: wp.array) -> list[wp.array]:
        """Node boxes, child codes and root per cloud, over points along the curve."""
        leaves = -(-np.diff(clouds.offsets) // _LEAF)
        room = np.concatenate([[0], np.cumsum(leaves // 3 + 16)]).astype(np.int64)
        boxes = empty_warp((int(room[-1]), 6), wp.vec4, self.device)
        children = empty_warp(int(room[-1]), wp.vec4i, self.device)
        roots = empty_warp(len(clouds), wp.int32, self.device)
        tree = [boxes, children, roots]
        node_offsets = to_warp(room, wp.int64, self.device)
        launch(cloud_kernels.build_clouds, len(clouds), [points, offsets, node_offsets, *tree], self.device)
        return tree


def triangle_areas(vertices: Float32, faces: NDArray[np.int32]) -> Float64:
    """(m,) in m², in double precision."""
    a, b, c = np.moveaxis(vertices[faces].astype(np.float64), 1, 0)
    return 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1)


def _spatial_order(corners: Float32) -> NDArray[np.int64]:
    """Pieces (n, 3, 3) along a Morton curve of their centres, so that a block of them is a small region."""
    centres = corners.astype(np.float64).mean(axis=1)
    low = centres.min(axis=0)
    cells = ((centres - low) * (1023.0 / max(float((centres.max(axis=0) - low).max()), 1e-9))).astype(np.int64)
    codes = np.zeros(len(corners), np.int64)
    for bit in range(10):
        for axis in range(3):
            codes |= ((cells[:, axis] >> bit) & 1) << (3 * bit + 2 - axis)
    return np.argsort(codes, kind="stable")


def _block_boxes(records: Float32) -> Float32:
    """(blocks, 2, 3): lowest and highest corner of each block of faces."""
    starts = np.arange(0, len(records), _BLOCK)
    low = np.minimum.reduceat(records[:, :3].min(axis=1), starts)
    high = np.maximum.reduceat(records[:, :3].max(axis=1), starts)
    return np.stack([low, high], axis=1)
