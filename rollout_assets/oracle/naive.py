"""The slow, obvious twin of every fast function of this room: NumPy in double precision, every pair looked at.

The kernels are tested against it, because it can be read in one sitting, and ``inspection.second_opinion`` recomputes
stored labels with it. The benchmark times it too, and ``torch_error``: brute force as a PyTorch user would write it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64, rotation, translation
from rollout_assets.geometry.voxels import voxel_keys
from rollout_assets.oracle.scene import MIN_TRIANGLE_AREA_M2
from rollout_assets.oracle.scorer import ERROR_FLOOR_M2

if TYPE_CHECKING:
    import torch

_PAIRS = 1 << 20
"""Point-triangle pairs in memory at once."""


def depth(
    vertices: ArrayLike,
    faces: NDArray[np.int32],
    pose_world_camera: ArrayLike,
    camera: PinholeCamera,
    znear_m: float,
    zfar_m: float,
) -> Float64:
    """(height, width): Z of the first triangle along each pixel's ray, 0 where there is none in range."""
    a, b, c = np.moveaxis(np.asarray(vertices, np.float64)[faces], 1, 0)
    directions = camera.pixel_directions().astype(np.float64).reshape(-1, 3) @ rotation(pose_world_camera).T
    offset = translation(pose_world_camera) - a
    image = np.zeros(len(directions))
    for pixel, direction in enumerate(directions):
        p = np.cross(direction, c - a)
        q = np.cross(offset, b - a)
        det = ((b - a) * p).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            u, v = (offset * p).sum(axis=1) / det, (q @ direction) / det
            z = (q * (c - a)).sum(axis=1) / det
            hits = z[(det != 0) & (u >= 0) & (v >= 0) & (u + v <= 1) & (z >= 0)]
        first = hits.min(initial=np.inf)
        image[pixel] = first if 1.01 * znear_m < first < 0.99 * zfar_m else 0.0
    return image.reshape(camera.height_px, camera.width_px)


def back_project(depth_m: ArrayLike, pose_world_camera: ArrayLike, camera: PinholeCamera, stride: int) -> Float32:
    """World points (n, 3) of the pixels with depth, in pixel order."""
    image = np.asarray(depth_m)[::stride, ::stride]
    points = camera.unproject(depth_m, pose_world_camera)[::stride, ::stride]
    return points[image > 0]


def fuse(current: Float32, new: Float32, voxel_m: float) -> Float32:
    """``current`` (assumed fused) and after it those of ``new`` that open a voxel, first come first served."""
    occupied = set(voxel_keys(current, voxel_m).tolist())
    kept = []
    for point, key in zip(new, voxel_keys(new, voxel_m).tolist(), strict=True):
        if key not in occupied:
            occupied.add(key)
            kept.append(point)
    return np.concatenate([current, np.array(kept, np.float32).reshape(-1, 3)])


def distances_sq(points: ArrayLike, triangles: ArrayLike, edges_only: NDArray[np.bool_]) -> Float64:
    """points: (n, 3), triangles: (m, 3, 3), edges_only: (m,) -> (n, m) exact squared distances."""
    p = np.asarray(points, np.float64)[:, None, :]
    a, b, c = np.moveaxis(np.asarray(triangles, np.float64), 1, 0)
    best = np.full((p.shape[0], len(a)), np.inf)
    for start, end in ((a, b), (b, c), (c, a)):
        edge = end - start
        length_sq = (edge**2).sum(axis=1)
        t = ((p - start) * edge).sum(axis=2) / np.where(length_sq > 0, length_sq, 1.0)
        foot = start + np.clip(t, 0.0, 1.0)[..., None] * edge
        best = np.minimum(best, ((p - foot) ** 2).sum(axis=2))
    normal = np.cross(b - a, c - a)
    area_sq = (normal**2).sum(axis=1)
    solid = (area_sq > 0) & ~edges_only
    over = np.ones(best.shape, bool)
    for start, end in ((a, b), (b, c), (c, a)):
        over &= (np.cross(normal, end - start) * (p - start)).sum(axis=2) >= 0
    height_sq = ((p - a) * normal).sum(axis=2) ** 2 / np.where(area_sq > 0, area_sq, 1.0)
    return np.where(solid & over, height_sq, best)


def surface_error(points: ArrayLike, vertices: ArrayLike, faces: NDArray[np.int32], config: OracleConfig) -> float:
    """Mean over points of the distance to the surface plus (weighted) mean over faces of the distance to the points."""
    triangles = np.asarray(vertices, np.float64)[faces]
    cloud = np.asarray(points, np.float64)
    areas = 0.5 * np.linalg.norm(np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]), axis=1)
    edges_only = (areas < MIN_TRIANGLE_AREA_M2) & (config.distance == "pytorch3d")
    to_surface = np.full(len(cloud), np.inf)
    to_points = np.full(len(triangles), np.inf)
    rows = max(_PAIRS // len(triangles), 1)
    for start in range(0, len(cloud), rows):
        block = distances_sq(cloud[start : start + rows], triangles, edges_only)
        to_surface[start : start + rows] = block.min(axis=1)
        to_points = np.minimum(to_points, block.min(axis=0))
    weights = areas if config.face_weighting == "area" else np.ones(len(triangles))
    return float(to_surface.mean() + (weights * to_points).sum() / weights.sum())


@dataclass(frozen=True)
class NaiveLabels:
    """Labels of one candidate."""

    before_m2: float
    after_m2: float
    rri: float
    root_gain: float
    log_error_gain: float

    @classmethod
    def of(cls, before_m2: float, after_m2: float, root_error_m2: float) -> NaiveLabels:
        """What follows from the errors before and after a view, and at the root."""
        before, after = max(before_m2, ERROR_FLOOR_M2), max(after_m2, ERROR_FLOOR_M2)
        gain = before_m2 - after_m2
        return cls(
            before_m2=before_m2,
            after_m2=after_m2,
            rri=gain / before,
            root_gain=gain / max(root_error_m2, ERROR_FLOOR_M2),
            log_error_gain=float(np.log(before) - np.log(after)),
        )


def label(
    current: Float32,
    view_points: Float32,
    vertices: Float32,
    faces: NDArray[np.int32],
    box: OrientedBoxes,
    root_error_m2: float,
    config: OracleConfig,
) -> NaiveLabels:
    """What a view is worth, by measuring P_t and P_t ∪ P_q from scratch."""
    crop = faces[box.contains(vertices, config.crop_margin_m)[0][faces].any(axis=1)]
    joined = fuse(current, view_points, config.fusion_voxel_m)
    before, after = (
        surface_error(cloud[box.contains(cloud, config.crop_margin_m)[0]], vertices, crop, config)
        for cloud in (current, joined)
    )
    return NaiveLabels.of(before, after, root_error_m2)


def torch_error(points: torch.Tensor, triangles: torch.Tensor, pairs: int = 1 << 19) -> torch.Tensor:
    """points: (n, 3), triangles: (m, 3, 3) -> the uniform error in their precision, chunked over points."""
    import torch

    a, b, c = triangles.unbind(dim=1)
    normal = torch.linalg.cross(b - a, c - a)
    area_sq = (normal * normal).sum(dim=1)
    to_surface = []
    to_points = torch.full((len(a),), torch.inf, dtype=points.dtype)
    rows = max(pairs // len(a), 1)
    for first in range(0, len(points), rows):
        chunk = points[first : first + rows]
        p = chunk[:, None, :]
        best = torch.full((len(chunk), len(a)), torch.inf, dtype=points.dtype)
        over = area_sq > 0
        for start, end in ((a, b), (b, c), (c, a)):
            edge, away = end - start, p - start
            length_sq = (edge * edge).sum(dim=1)
            t = ((away * edge).sum(dim=2) / length_sq.clamp_min(1e-30)).clamp(0.0, 1.0)
            best = torch.minimum(best, (away - t[..., None] * edge).square().sum(dim=2))
            over = over & ((away * torch.linalg.cross(normal, edge)).sum(dim=2) >= 0)
        height_sq = ((p - a) * normal).sum(dim=2).square() / area_sq.clamp_min(1e-30)
        best = torch.where(over, height_sq, best)
        to_surface.append(best.min(dim=1).values)
        to_points = torch.minimum(to_points, best.min(dim=0).values)
    return torch.cat(to_surface).double().mean() + to_points.double().mean()
