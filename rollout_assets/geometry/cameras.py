"""Pinhole cameras in the LUF frame: left, up, forward; pixel centres at +0.5; depth is Z, not ray length.

u = cx - fx X / Z and v = cy - fy Y / Z, with u to the right and v down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rollout_assets.errors import GeometryError
from rollout_assets.geometry.poses import Float32, transform


@dataclass(frozen=True)
class PinholeCamera:
    """Intrinsics in pixels of an image of ``height_px`` x ``width_px``."""

    fx_px: float
    fy_px: float
    cx_px: float
    cy_px: float
    height_px: int
    width_px: int

    def __post_init__(self) -> None:
        for name in ("fx_px", "fy_px"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value > 0):
                raise GeometryError(f"{name} must be a finite focal length > 0, got {value}")
        for name in ("cx_px", "cy_px"):
            value = getattr(self, name)
            if not np.isfinite(value):
                raise GeometryError(f"{name} must be finite, got {value}")
        for name in ("height_px", "width_px"):
            value = getattr(self, name)
            if value < 1:
                raise GeometryError(f"{name} must be >= 1, got {value}")

    def resized(self, height_px: int, width_px: int) -> PinholeCamera:
        """The same field of view on another pixel grid."""
        if height_px < 1 or width_px < 1:
            raise GeometryError(f"an image needs at least 1 x 1 pixels, got {height_px} x {width_px}")
        down, across = height_px / self.height_px, width_px / self.width_px
        return PinholeCamera(
            fx_px=self.fx_px * across,
            fy_px=self.fy_px * down,
            cx_px=self.cx_px * across,
            cy_px=self.cy_px * down,
            height_px=height_px,
            width_px=width_px,
        )

    def pixel_directions(self) -> Float32:
        """(height, width, 3) camera-frame directions with Z = 1, so that depth times direction is the point."""
        across = (self.cx_px - (np.arange(self.width_px) + 0.5)) / self.fx_px
        up = (self.cy_px - (np.arange(self.height_px) + 0.5)) / self.fy_px
        x, y = np.meshgrid(across, up)
        return np.stack([x, y, np.ones_like(x)], axis=-1).astype(np.float32)

    def project(self, points_camera: ArrayLike) -> tuple[Float32, Float32]:
        """points_camera: (..., 3) -> pixels (..., 2) as (u, v), and depth (...). Not in front: NaN pixels."""
        points = np.asarray(points_camera, np.float64)
        depth = points[..., 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            over = np.where(depth > 0, 1.0 / depth, np.nan)
            u = self.cx_px - self.fx_px * points[..., 0] * over
            v = self.cy_px - self.fy_px * points[..., 1] * over
        return np.stack([u, v], axis=-1).astype(np.float32), depth.astype(np.float32)

    def unproject(self, depth_m: ArrayLike, pose_world_camera: ArrayLike) -> Float32:
        """depth_m: (height, width), pose: (12,) -> world points (height, width, 3)."""
        depth = np.asarray(depth_m, np.float64)
        if depth.shape != (self.height_px, self.width_px):
            raise GeometryError(f"depth must be {self.height_px} x {self.width_px}, got shape {depth.shape}")
        points_camera = depth[..., None] * self.pixel_directions()
        return transform(pose_world_camera, points_camera.reshape(-1, 3)).reshape(points_camera.shape)
