"""Depth images of many pinhole views in one launch, and the points that such views would add.

Depth is Z, not ray length: pixel directions have Z = 1, so the ray parameter of the first hit is the depth itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import warp as wp
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.errors import GeometryError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.devices import (
    empty_warp,
    full_warp,
    in_lanes,
    launch,
    running_sums,
    struct_array,
    struct_value,
    to_host,
    to_torch,
    to_warp,
    upload,
)
from rollout_assets.geometry.poses import Float32, Float64, finite_rigid, rotation, translation
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.oracle import view_kernels, view_lanes
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
    depth, shape = _rendered(bvh, poses_world_camera, camera, znear_m, zfar_m)
    images = to_torch(depth).reshape(-1, *shape)
    return DepthImages(images, images > 0)


def depth_on_host(
    bvh: TriangleBvh, poses_world_camera: ArrayLike, camera: PinholeCamera, znear_m: float, zfar_m: float
) -> Float32:
    """``render_depth`` as (n, height, width) NumPy, for those who have no use for torch; 0 where it is not valid."""
    depth, shape = _rendered(bvh, poses_world_camera, camera, znear_m, zfar_m)
    return to_host(depth).reshape(-1, *shape)


def _rendered(
    bvh: TriangleBvh, poses_world_camera: ArrayLike, camera: PinholeCamera, znear_m: float, zfar_m: float
) -> tuple[wp.array, tuple[int, int]]:
    poses = to_warp(checked_poses(poses_world_camera), wp.float32, bvh.device)
    pixels, shape = pixel_rays(camera, 1, bvh.device)
    return _cast(bvh, poses, pixels, shape, znear_m, zfar_m), shape


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
        pixels, image = pixel_rays(camera, config.pixel_stride, self.device)
        known = [struct_value(view_kernels.CloudTables, root=cloud.table, added=cloud.added) for cloud in clouds]
        poses, state_of_view, tables = upload(
            [
                (poses_world_camera, wp.float32),
                (cloud_of_view.astype(np.int32), wp.int32),
                struct_array(view_kernels.CloudTables, known),
            ],
            self.device,
        )
        self._depth = _cast(bvh, poses, pixels, image, config.znear_m, config.zfar_m)
        shape = tuple(self._depth.shape)
        self._points = empty_warp(shape, wp.vec3, self.device)
        self._claims = empty_warp(shape, wp.int32, self.device)
        slots = (self.count, _claim_slots(shape[1]))
        self._first = full_warp(slots, int(view_kernels.UNCLAIMED), wp.int32, self.device)
        keys = empty_warp(shape, wp.int64, self.device)
        grid = fusion_grid(config)
        views = [poses, pixels, self._depth, wp.float64(grid.size_m), wp.float64(grid.origin_m)]
        asked = [*views, state_of_view, tables, self._points, keys]
        if in_lanes(self.device):
            runs = -(-shape[1] // view_lanes.LANES)
            launch(view_lanes.back_project_runs, (self.count, runs), asked, self.device)
        else:
            launch(view_kernels.back_project, shape, asked, self.device)
        launch(view_kernels.claim_voxels, shape, [keys, self._first, self._claims], self.device)

    def new_in(self, boxes: Float64, box_of_view: NDArray[np.int64]) -> tuple[NDArray[np.int32], PointClouds]:
        """boxes: (b, 15) -> counts (n, 3) and the new points of each view inside its box, in pixel order.

        Counts are pixels with depth, pixels with depth inside the box, and new points inside the box.
        """
        counts, clouds = self.new_in_regions(boxes, box_of_view[None])
        return counts[0], clouds

    def new_in_regions(self, boxes: Float64, box_of_view: NDArray[np.int64]) -> tuple[NDArray[np.int32], PointClouds]:
        """boxes: (b, 15), box_of_view: (r, n) -> counts (r, n, 3) and r * n clouds, those of the first region first."""
        regions, pixels = len(box_of_view), self._depth.shape[1]
        of_view = np.where(box_of_view == EVERYWHERE, len(boxes), box_of_view).astype(np.int32)
        rows, chosen = upload(
            [(np.concatenate([boxes.reshape(-1, 15), _EVERY_POINT[None]]), wp.float64), (of_view, wp.int32)],
            self.device,
        )
        shape = (regions, self.count, pixels)
        marks = empty_warp(shape, wp.int32, self.device)
        counts = full_warp((regions, self.count, 3), 0, wp.int32, self.device)
        inputs = [self._depth, self._points, self._first, self._claims, rows, chosen]
        launch(view_kernels.mark_new, shape, [*inputs, marks, counts], self.device)
        counted = to_host(counts)
        offsets = np.concatenate([[0], np.cumsum(counted[..., 2].reshape(-1), dtype=np.int64)])
        points = empty_warp(int(offsets[-1]), wp.vec3, self.device)
        places = running_sums(marks.flatten()).reshape(shape)
        launch(view_kernels.gather_new, shape, [self._points, marks, places, points], self.device)
        return counted, PointClouds(points, offsets)


_EVERY_POINT = np.tile([0.0, 0.0, 0.0, 0.0, np.inf], 3)
"""A box row that holds every point."""


@lru_cache(maxsize=64)
def pixel_rays(camera: PinholeCamera, stride: int, device: str) -> tuple[wp.array, tuple[int, int]]:
    """Directions of every ``stride``-th pixel of every ``stride``-th row, and the rows and columns of that image."""
    rays = camera.pixel_directions()[::stride, ::stride]
    return to_warp(rays.reshape(-1, 3), wp.vec3, device), (rays.shape[0], rays.shape[1])


def bytes_per_view(camera: PinholeCamera, config: OracleConfig) -> int:
    """Working memory of one view in ``ViewPoints`` and of its points in ``Surface.joined``."""
    pixels = -(-camera.height_px // config.pixel_stride) * -(-camera.width_px // config.pixel_stride)
    depth, point, claim, key, mark, place = 4, 12, 4, 8, 4 * 2, 4 * 2
    return pixels * (depth + point + claim + key + mark + place + point) + _claim_slots(pixels) * 4 + 48


def _claim_slots(pixels: int) -> int:
    """Slots for the voxels of a view: a power of two, at most three quarters full, since every view's are cleared."""
    return 1 << (4 * pixels // 3).bit_length()


def _cast(
    bvh: TriangleBvh, poses: wp.array, pixels: wp.array, shape: tuple[int, int], znear_m: float, zfar_m: float
) -> wp.array:
    """(views, pixels) float32 depth of images with ``shape`` (rows, columns), 0 where there is none in range."""
    depth = empty_warp((poses.shape[0], len(pixels)), wp.float32, bvh.device)
    asked = [poses, pixels, 1.01 * znear_m, 0.99 * zfar_m, *bvh.arrays[:3], depth]
    if in_lanes(bvh.device):
        tiles = tuple(-(-side // view_lanes.TILE) for side in shape)
        launch(view_lanes.cast_tiles, (poses.shape[0], *tiles), [*shape, *asked], bvh.device)
    else:
        launch(view_kernels.cast_views, tuple(depth.shape), asked, bvh.device)
    return depth
