"""Depth images of many pinhole views in one launch, and the points that such views would add.

Depth is Z, not ray length: pixel directions have Z = 1, so the ray parameter of the first hit is the depth itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import warp as wp
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.errors import GeometryError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.devices import empty_warp, full_warp, launch, to_torch, to_warp, vectors
from rollout_assets.geometry.poses import Float32, Float64, finite_rigid, rotation, translation
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.oracle import view_kernels
from rollout_assets.oracle.fusion import FusedCloud, fusion_grid
from rollout_assets.oracle.surface_error import PointClouds

if TYPE_CHECKING:
    import torch

RENDERER = "warp_bvh4"
"""Name of this ray caster, for stores that keep its images."""

EVERYWHERE = -1
"""Box index that holds every point."""


@dataclass(frozen=True, eq=False)
class DepthImages:
    """depth_m: (n, height, width) float32, 0 where ``valid`` is false; valid: (n, height, width) bool."""

    depth_m: torch.Tensor
    valid: torch.Tensor


def render_depth(
    bvh: TriangleBvh, poses_world_camera: ArrayLike, camera: PinholeCamera, znear_m: float, zfar_m: float
) -> DepthImages:
    """poses: (n, 12) -> depth of every pixel; valid where something is hit and 1.01 near < z < 0.99 far."""
    poses = to_warp(checked_poses(poses_world_camera), wp.float32, bvh.device)
    pixels = vectors(camera.pixel_directions().reshape(-1, 3), "pixels", bvh.device)
    depth = to_torch(_cast(bvh, poses, pixels, znear_m, zfar_m)).reshape(-1, camera.height_px, camera.width_px)
    return DepthImages(depth, depth > 0)


def checked_poses(poses_world_camera: ArrayLike) -> Float32:
    """(n, 12) float32, each finite and rigid, or a GeometryError that names the first that is not."""
    poses = np.ascontiguousarray(poses_world_camera, np.float32)
    if poses.ndim != 2 or poses.shape[1] != 12:
        raise GeometryError(f"poses must have shape (n, 12), got {poses.shape}")
    good = finite_rigid(poses)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise GeometryError(f"pose {row} is not finite and rigid: {poses[row].tolist()}")
    return poses


def box_row(box: OrientedBoxes, margin_m: float) -> Float64:
    """One grown box as the (15,) row that kernels test points with: per axis direction, offset along it, half size."""
    turned, centre = rotation(box.pose_world_object)[0], translation(box.pose_world_object)[0]
    half = np.asarray(box.extents_m, np.float64)[0] * 0.5 + margin_m
    return np.concatenate([np.append(turned[:, axis], [turned[:, axis] @ centre, half[axis]]) for axis in range(3)])


class ViewPoints:
    """The back-projected pixels of n views, with those marked that would open a voxel their state does not have."""

    def __init__(
        self,
        bvh: TriangleBvh,
        poses_world_camera: Float32,
        camera: PinholeCamera,
        clouds: Sequence[FusedCloud],
        cloud_of_view: NDArray[np.int64],
        config: OracleConfig,
    ) -> None:
        self.device = bvh.device
        self.count = len(poses_world_camera)
        stride = config.pixel_stride
        rays = camera.pixel_directions()[::stride, ::stride].reshape(-1, 3)
        poses = to_warp(poses_world_camera, wp.float32, self.device)
        pixels = vectors(rays, "pixels", self.device)
        self._depth = _cast(bvh, poses, pixels, config.znear_m, config.zfar_m)
        shape = tuple(self._depth.shape)
        self._points = empty_warp(shape, wp.vec3, self.device)
        self._claims = empty_warp(shape, wp.int32, self.device)
        size = table_size(shape[1])
        keys = full_warp(self.count * size, -1, wp.int64, self.device)
        first = full_warp(self.count * size, 2**31 - 1, wp.int32, self.device)
        grid = fusion_grid(config)
        views = [poses, pixels, self._depth, wp.float64(grid.size_m), wp.float64(grid.origin_m)]
        states = [to_warp(cloud_of_view.astype(np.int32), wp.int32, self.device), *_joined_tables(clouds, self.device)]
        outputs = [size, keys, first, self._points, self._claims]
        launch(view_kernels.claim_voxels, shape, [*views, *states, *outputs], self.device)
        launch(view_kernels.keep_first, shape, [first, self._claims], self.device)

    def new_in(self, boxes: Float64, box_of_view: NDArray[np.int64]) -> tuple[NDArray[np.int32], PointClouds]:
        """boxes: (b, 15) -> counts (n, 3) and the new points of each view inside its box, in pixel order.

        Counts are pixels with depth, pixels with depth inside the box, and new points inside the box.
        """
        rows = to_warp(boxes.reshape(-1, 15), wp.float64, self.device)
        of_view = to_warp(box_of_view.astype(np.int32), wp.int32, self.device)
        counts = empty_warp((self.count, 3), wp.int32, self.device)
        inputs = [self._points, self._claims, rows, of_view]
        launch(view_kernels.count_points, self.count, [self._depth, *inputs, counts], self.device)
        counted = counts.numpy()
        offsets = np.concatenate([[0], np.cumsum(counted[:, 2], dtype=np.int64)])
        points = empty_warp(int(offsets[-1]), wp.vec3, self.device)
        starts = to_warp(offsets, wp.int64, self.device)
        launch(view_kernels.gather_new, self.count, [*inputs, starts, points], self.device)
        return counted, PointClouds(points, offsets)


def _joined_tables(clouds: Sequence[FusedCloud], device: str) -> list[wp.array]:
    """Start and size of each cloud's table, and the tables one after another."""
    sizes = np.array([len(cloud.table) for cloud in clouds], np.int32)
    starts = np.cumsum(sizes, dtype=np.int32) - sizes
    joined = clouds[0].table
    if len(clouds) > 1:
        joined = empty_warp(int(sizes.sum()), wp.int64, device)
        for cloud, start, size in zip(clouds, starts.tolist(), sizes.tolist(), strict=True):
            wp.copy(joined, cloud.table, dest_offset=start, count=size)
    return [to_warp(starts, wp.int32, device), to_warp(sizes, wp.int32, device), joined]


def table_size(entries: int) -> int:
    """Slots of a hash table for ``entries`` keys: a power of two, at most half full."""
    return 1 << max(int(2 * entries - 1).bit_length(), 4)


def bytes_per_view(camera: PinholeCamera, config: OracleConfig) -> int:
    """Working memory of one view in ``ViewPoints`` and of its points in ``Surface.joined``."""
    pixels = -(-camera.height_px // config.pixel_stride) * -(-camera.width_px // config.pixel_stride)
    return pixels * (4 + 12 + 4 + 12) + table_size(pixels) * 12 + 48


def _cast(bvh: TriangleBvh, poses: wp.array, pixels: wp.array, znear_m: float, zfar_m: float) -> wp.array:
    """(views, pixels) float32 depth, 0 where there is none in range."""
    depth = empty_warp((poses.shape[0], len(pixels)), wp.float32, bvh.device)
    asked = [poses, pixels, 1.01 * znear_m, 0.99 * zfar_m, *bvh.arrays[:3], depth]
    launch(view_kernels.cast_views, tuple(depth.shape), asked, bvh.device)
    return depth
