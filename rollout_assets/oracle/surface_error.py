"""The error of points against a surface, kept incrementally and exactly.

error(P) = mean over points of the squared distance to the nearest triangle
         + mean over triangles of the squared distance from the whole triangle to the nearest point.

Both terms only need a sum over points and a minimum per face, so a state keeps those and a cloud of new points is the
only thing that is measured. All distances start from differences of the float32 world coordinates that were given, and
the winner of every search is measured again in double precision: nothing is lost far from the origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import warp as wp
from numpy.typing import NDArray

from rollout_assets.errors import GeometryError, MeshError
from rollout_assets.geometry.devices import as_warp, empty_warp, launch
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.triangle_bvh import TriangleBvh, rows3, triangle_records
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

    points: (n, 3) float32 on a device, offsets: (c + 1,) int64 on the host.
    """

    points: torch.Tensor
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, clouds: Sequence[Float32 | torch.Tensor], device: str) -> PointClouds:
        """Clouds (n_i, 3) each."""
        parts = [rows3(cloud, "cloud", device) for cloud in clouds]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        joined = torch.cat(parts) if parts else torch.empty((0, 3), dtype=torch.float32, device=device)
        if not bool(torch.isfinite(joined).all()):
            row = int(torch.nonzero(~torch.isfinite(joined).all(dim=1))[0, 0])
            raise GeometryError(f"point {row} is not finite: {joined[row].tolist()}")
        return cls(joined, offsets)

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
        return PointClouds(self.points[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])


@dataclass(frozen=True, eq=False)
class SurfaceState:
    """What is known about the points measured so far.

    minima_sq: (faces,) float32 on the device, least squared distance per face in the surface's own order; point_sum,
    face_sum: sums of squared distances over points and (weighted) over faces.
    """

    minima_sq: torch.Tensor
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

    def __init__(
        self,
        vertices: Float32,
        faces: NDArray[np.int32],
        device: str,
        weighting: Literal["uniform", "area"] = "uniform",
        min_area_m2: float = 0.0,
    ) -> None:
        areas = triangle_areas(vertices, faces)
        edges_only = areas < min_area_m2
        order = _spatial_order(vertices, faces)
        self.bvh = TriangleBvh(vertices, faces, device, edges_only)
        self.device = self.bvh.device
        self.face_count = len(faces)
        weights = areas[order] if weighting == "area" else np.ones(len(faces))
        self.weight_sum = float(weights.sum())
        if not self.weight_sum > 0:
            raise MeshError(f"area weights need a surface with area, got {len(faces)} faces with {self.weight_sum} m²")
        records = triangle_records(vertices, faces, edges_only)[order]
        low, high = self.bvh.bounds
        self._low, self._scale = wp.vec3(*low.tolist()), 1023.0 / max(float((high - low).max()), 1e-9)
        self._records = torch.from_numpy(records).to(self.device)
        self._weights = torch.from_numpy(weights).to(self.device)
        self._block_boxes = torch.from_numpy(_block_boxes(records)).to(self.device)

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        own = (self._records, self._weights, self._block_boxes)
        return self.bvh.nbytes + sum(tensor.numel() * tensor.element_size() for tensor in own)

    def unseen(self) -> SurfaceState:
        """The state of no points."""
        minima = torch.full((self.face_count,), UNSEEN_SQ, dtype=torch.float32, device=self.device)
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
            for run in clouds.split(max_bytes, bytes_per_cloud=8 * len(self._block_boxes))
        ]
        return SurfaceSums(
            np.concatenate([part.point_sum for part in parts]) if parts else np.zeros(0),
            np.concatenate([part.point_count for part in parts]) if parts else np.zeros(0, np.int64),
            np.concatenate([part.face_sum for part in parts]) if parts else np.zeros(0),
        )

    def extended(self, state: SurfaceState, points: Float32 | torch.Tensor) -> SurfaceState:
        """``state`` with points (n, 3) added: the sums ``joined`` gives for the same points, to the last bit."""
        clouds = PointClouds.of([points], self.device)
        sums, minima = self._measure([state], clouds, np.zeros(1, np.int64), keep_minima=True)
        return SurfaceState(minima[0], float(sums.point_sum[0]), int(sums.point_count[0]), float(sums.face_sum[0]))

    def _measure(
        self,
        states: Sequence[SurfaceState],
        clouds: PointClouds,
        state_of_cloud: NDArray[np.int64],
        *,
        keep_minima: bool,
    ) -> tuple[SurfaceSums, torch.Tensor]:
        count = len(clouds)
        offsets = torch.from_numpy(clouds.offsets).to(self.device)
        order = self._along_curve(clouds, offsets)
        points = as_warp(clouds.points[order], wp.vec3)
        added = self._point_sums(points, order, clouds, offsets)
        cloud_trees = [points, *self._trees(points, clouds, offsets)]

        minima = torch.stack([state.minima_sq for state in states])
        blocks = len(self._block_boxes)
        partial = torch.empty((count, blocks), dtype=torch.float64, device=self.device)
        new_minima = torch.empty(
            (count, self.face_count if keep_minima else 0), dtype=torch.float32, device=self.device
        )
        of_cloud = torch.from_numpy(state_of_cloud.astype(np.int32)).to(self.device)
        surface = [as_warp(self._records, wp.vec3), self._weights, as_warp(self._block_boxes, wp.vec3)]
        launch(
            cloud_kernels.faces_to_clouds,
            (count, blocks),
            [*surface, minima, of_cloud, *cloud_trees, partial, new_minima],
            self.device,
        )
        face_sum = torch.empty(count, dtype=torch.float64, device=self.device)
        launch(cloud_kernels.sum_blocks, count, [partial, face_sum], self.device)

        old_sum = np.array([state.point_sum for state in states])[state_of_cloud]
        old_count = np.array([state.point_count for state in states], np.int64)[state_of_cloud]
        sums = SurfaceSums(old_sum + added, old_count + np.diff(clouds.offsets), face_sum.cpu().numpy())
        return sums, new_minima

    def _along_curve(self, clouds: PointClouds, offsets: torch.Tensor) -> torch.Tensor:
        """(n,) int64: each cloud's points along a Morton curve."""
        keys = torch.empty(len(clouds.points), dtype=torch.int64, device=self.device)
        points = as_warp(clouds.points, wp.vec3)
        launch(cloud_kernels.morton_keys, len(clouds), [points, offsets, self._low, self._scale, keys], self.device)
        return torch.sort(keys, stable=True).indices

    def _point_sums(self, points: wp.array, order: torch.Tensor, clouds: PointClouds, offsets: torch.Tensor) -> Float64:
        """(c,) sums of squared distances to the surface, added up in the order the points were given."""
        boxes, children, corners, _ = self.bvh.arrays
        runs = -(-int(np.diff(clouds.offsets).max(initial=0)) // _RUN)
        distance_sq = torch.empty(len(order), dtype=torch.float32, device=self.device)
        asked = [points, order, offsets, boxes, children, corners, distance_sq]
        launch(cloud_kernels.points_to_surface, (len(clouds), runs), asked, self.device)
        sums = torch.empty(len(clouds), dtype=torch.float64, device=self.device)
        launch(cloud_kernels.sum_clouds, len(clouds), [distance_sq, offsets, sums], self.device)
        return sums.cpu().numpy()

    def _trees(self, points: wp.array, clouds: PointClouds, offsets: torch.Tensor) -> list[wp.array]:
        """Node boxes, child codes and root per cloud, over points along the curve."""
        leaves = -(-np.diff(clouds.offsets) // _LEAF)
        room = np.concatenate([[0], np.cumsum(leaves // 3 + 16)]).astype(np.int64)
        boxes = empty_warp((int(room[-1]), 6), wp.vec4, self.device)
        children = empty_warp(int(room[-1]), wp.vec4i, self.device)
        roots = empty_warp(len(clouds), wp.int32, self.device)
        tree = [boxes, children, roots]
        node_offsets = torch.from_numpy(room).to(self.device)
        launch(cloud_kernels.build_clouds, len(clouds), [points, offsets, node_offsets, *tree], self.device)
        return tree


def triangle_areas(vertices: Float32, faces: NDArray[np.int32]) -> Float64:
    """(m,) in m², in double precision."""
    a, b, c = np.moveaxis(vertices[faces].astype(np.float64), 1, 0)
    return 0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1)


def _spatial_order(vertices: Float32, faces: NDArray[np.int32]) -> NDArray[np.int64]:
    """Faces along a Morton curve of their centres, so that a block of faces is a small region."""
    centres = vertices[faces].astype(np.float64).mean(axis=1)
    low = centres.min(axis=0)
    cells = ((centres - low) * (1023.0 / max(float((centres.max(axis=0) - low).max()), 1e-9))).astype(np.int64)
    codes = np.zeros(len(faces), np.int64)
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
