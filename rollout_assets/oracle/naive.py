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
from rollout_assets.geometry.clipping import LATTICE_AXES
from rollout_assets.geometry.poses import Float32, Float64, rotation, translation
from rollout_assets.geometry.voxels import VoxelGrid
from rollout_assets.oracle.crops import MIN_TRIANGLE_AREA_M2, sample_pitch_m
from rollout_assets.oracle.fusion import fusion_grid
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


def fuse(current: Float32, new: Float32, grid: VoxelGrid) -> Float32:
    """``current`` (assumed fused) and after it those of ``new`` that open a voxel, first come first served."""
    occupied = set(grid.keys(current).tolist())
    kept = []
    for point, key in zip(new, grid.keys(new).tolist(), strict=True):
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


@dataclass(frozen=True, eq=False)
class NaiveCrop:
    """The surface in a box: triangles (m, 3, 3) that points are measured to, and pieces that are measured to points.

    pieces: (n, 3, 3), whole triangles or samples as triangles of no size; weights: (n,); edges_only: (m,) of triangles.
    """

    triangles: Float64
    pieces: Float64
    weights: Float64
    edges_only: NDArray[np.bool_]

    def error(self, points: ArrayLike) -> float:
        """Mean distance of the points to the triangles plus weighted mean distance of the pieces to the points."""
        cloud = np.asarray(points, np.float64)
        whole = self.pieces is self.triangles
        edges_only = self.edges_only if whole else np.zeros(len(self.pieces), bool)
        to_surface = np.full(len(cloud), np.inf)
        to_points = np.full(len(self.pieces), np.inf)
        rows = max(_PAIRS // max(len(self.triangles), len(self.pieces)), 1)
        for start in range(0, len(cloud), rows):
            block = distances_sq(cloud[start : start + rows], self.triangles, self.edges_only)
            to_surface[start : start + rows] = block.min(axis=1)
            if not whole:
                block = distances_sq(cloud[start : start + rows], self.pieces, edges_only)
            to_points = np.minimum(to_points, block.min(axis=0))
        return float(to_surface.mean() + (self.weights * to_points).sum() / self.weights.sum())


def whole_faces(vertices: ArrayLike, faces: NDArray[np.int32], config: OracleConfig) -> NaiveCrop:
    """Triangles that are their own pieces."""
    triangles = np.asarray(vertices, np.float64)[faces]
    areas = 0.5 * np.linalg.norm(np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]), axis=1)
    weights = areas if config.face_weighting == "area" else np.ones(len(triangles))
    return NaiveCrop(triangles, triangles, weights, (areas < MIN_TRIANGLE_AREA_M2) & (config.distance == "pytorch3d"))


def crop(vertices: Float32, faces: NDArray[np.int32], box: OrientedBoxes, config: OracleConfig) -> NaiveCrop:
    """The surface in one box ± the crop margin, by the campaign's crop policy."""
    if config.crop_policy == "vertex_in_box":
        inside = box.contains(vertices, config.crop_margin_m)[0]
        return whole_faces(vertices, faces[inside[faces].any(axis=1)], config)
    turn, centre = rotation(box.pose_world_object)[0], translation(box.pose_world_object)[0]
    half = np.asarray(box.extents_m, np.float64)[0] * 0.5 + config.crop_margin_m
    local = (np.asarray(vertices, np.float64) - centre) @ turn
    triangles, points, weights = [], [], []
    for triangle in local[faces]:
        polygon = _clipped(triangle, half)
        triangles += [(polygon[0], polygon[i], polygon[i + 1]) for i in range(1, len(polygon) - 1)]
        hits, areas = _samples(triangle, half, sample_pitch_m(half, config.surface_samples)) if polygon else ([], [])
        points += hits
        weights += areas if config.face_weighting == "area" else [area / sum(areas) for area in areas]
    world = np.array(triangles).reshape(-1, 3, 3) @ turn.T + centre
    samples = np.array(points).reshape(-1, 1, 3) @ turn.T + centre
    return NaiveCrop(world, np.repeat(samples, 3, axis=1), np.array(weights), np.zeros(len(world), bool))


def _clipped(triangle: Float64, half: Float64) -> list[Float64]:
    """The corners of what a triangle has inside |x| < half: one plane of the box after the other."""
    polygon = list(triangle)
    for axis in range(3):
        for sign in (1.0, -1.0):
            cut = []
            for p, q in zip(polygon, [*polygon[1:], *polygon[:1]], strict=True):
                inside_p, inside_q = half[axis] - sign * p[axis], half[axis] - sign * q[axis]
                cut += [p] if inside_p > 0 else []
                if (inside_p > 0) != (inside_q > 0):
                    cut.append(p + (q - p) * inside_p / (inside_p - inside_q))
            polygon = cut
    return polygon


def _samples(triangle: Float64, half: Float64, pitch_m: float) -> tuple[list[Float64], list[float]]:
    """Where lines along the lattice's directions meet one triangle inside |x| < half, and the area of each hit."""
    corner, *sides = triangle[0], triangle[1] - triangle[0], triangle[2] - triangle[0]
    normal = np.cross(*sides)
    hits: list[Float64] = []
    areas: list[float] = []
    for axis in range(3):
        along, u, v = (LATTICE_AXES[:, (axis + step) % 3] for step in range(3))
        flat = np.array([[side @ u, side @ v] for side in sides])
        reach = [
            np.clip([(corner + s) @ line for s in (0 * normal, *sides)], *(np.linalg.norm(half) * np.array([-1, 1])))
            for line in (u, v)
        ]
        ticks = (np.arange(np.floor(r.min() / pitch_m), np.ceil(r.max() / pitch_m) + 1) * pitch_m for r in reach)
        at = np.stack(np.meshgrid(*ticks), axis=-1).reshape(-1, 2)
        if normal @ along == 0:
            continue
        share = (at - [corner @ u, corner @ v]) @ np.linalg.inv(flat)
        met = share[(share >= 0).all(axis=1) & (share.sum(axis=1) <= 1)]
        points = corner + met @ np.array(sides)
        points = points[(np.abs(points) < half).all(axis=1)]
        hits += list(points)
        areas += [pitch_m**2 * abs(normal @ along) / float(np.linalg.norm(normal))] * len(points)
    return hits, areas


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
    surface = crop(vertices, faces, box, config)
    joined = fuse(current, view_points, fusion_grid(config))
    before, after = (surface.error(cloud[box.contains(cloud, config.crop_margin_m)[0]]) for cloud in (current, joined))
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
