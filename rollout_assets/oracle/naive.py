"""The slow, obvious twin of every fast function of this room: NumPy in double precision, every pair looked at.

The kernels are tested against it, because it can be read in one sitting, and ``inspection.second_opinion`` recomputes
stored labels with it. The benchmark times it too, and ``torch_error``: brute force as a PyTorch user would write it.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def rays(pose_world_camera: ArrayLike, camera: PinholeCamera) -> tuple[Float64, Float64]:
    """Origin (3,) and directions (height, width, 3) in the world, as long as one metre of depth."""
    row, column = np.mgrid[0 : camera.height_px, 0 : camera.width_px] + 0.5
    left, up = (camera.cx_px - column) / camera.fx_px, (camera.cy_px - row) / camera.fy_px
    forward = np.stack([left, up, np.ones_like(left)], axis=-1)
    return translation(pose_world_camera), forward @ rotation(pose_world_camera).T


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
    origin, directions = rays(pose_world_camera, camera)
    offset = origin - a
    q = np.cross(offset, b - a)
    volume, across, height = np.cross(c - a, b - a), np.cross(c - a, offset), (q * (c - a)).sum(axis=1)
    image = np.zeros(camera.height_px * camera.width_px)
    pixels = max(_PAIRS // max(len(faces), 1), 1)
    for start in range(0, len(image), pixels):
        block = directions.reshape(-1, 3)[start : start + pixels]
        det = block @ volume.T
        with np.errstate(divide="ignore", invalid="ignore"):
            u, v, z = (block @ across.T) / det, (block @ q.T) / det, height / det
            hit = (det != 0) & (u >= 0) & (v >= 0) & (u + v <= 1) & (z >= 0)
        image[start : start + pixels] = np.where(hit, z, np.inf).min(axis=1, initial=np.inf)
    return in_range(image.reshape(camera.height_px, camera.width_px), znear_m, zfar_m)


def in_range(depth_m: Float64, znear_m: float, zfar_m: float) -> Float64:
    """Depth with 0 where it is too near or too far to be seen."""
    return np.where((1.01 * znear_m < depth_m) & (depth_m < 0.99 * zfar_m), depth_m, 0.0)


def back_project(depth_m: ArrayLike, pose_world_camera: ArrayLike, camera: PinholeCamera, stride: int) -> Float32:
    """World points (n, 3) of the pixels with depth, in pixel order, rounded as the kernels round."""
    image = np.asarray(depth_m)[::stride, ::stride]
    points = camera.unproject(depth_m, pose_world_camera)[::stride, ::stride]
    return points[image > 0]


def unprojected(depth_m: ArrayLike, pose_world_camera: ArrayLike, camera: PinholeCamera, stride: int) -> Float64:
    """``back_project`` by arithmetic of its own, without rounding."""
    image = np.asarray(depth_m, np.float64)[::stride, ::stride]
    origin, directions = rays(pose_world_camera, camera)
    return (origin + image[..., None] * directions[::stride, ::stride])[image > 0]


def fuse(current: ArrayLike, new: ArrayLike, grid: VoxelGrid) -> Float64:
    """``current`` (assumed fused) and after it those of ``new`` that open a voxel, first come first served."""
    before, after = (np.asarray(points, np.float64).reshape(-1, 3) for points in (current, new))
    occupied = set(_voxels(before, grid))
    kept = []
    for row, voxel in enumerate(_voxels(after, grid)):
        if voxel not in occupied:
            occupied.add(voxel)
            kept.append(row)
    return np.concatenate([before, after[kept]])


def _voxels(points: Float64, grid: VoxelGrid) -> Iterator[tuple[int, ...]]:
    """The three whole numbers of each point's voxel."""
    return map(tuple, np.floor((points - grid.origin_m) / grid.size_m).astype(np.int64).tolist())


def inside(points: ArrayLike, box: OrientedBoxes, margin_m: float) -> NDArray[np.bool_]:
    """Which points (n, 3) lie in one box, grown by the margin on every side."""
    turn, centre = rotation(box.pose_world_object)[0], translation(box.pose_world_object)[0]
    half = np.asarray(box.extents_m, np.float64)[0] * 0.5 + margin_m
    return (np.abs((np.asarray(points, np.float64) - centre) @ turn) < half).all(axis=1)


def distances_sq(points: Float64, triangles: Float64, edges_only: NDArray[np.bool_]) -> Float64:
    """points: (n, 3), triangles: (n, 3, 3), edges_only: (n,) -> (n,) exact squared distances, pair by pair."""
    a, b, c = np.moveaxis(triangles, 1, 0)
    best = np.full(len(points), np.inf)
    for start, end in ((a, b), (b, c), (c, a)):
        edge = end - start
        length_sq = (edge**2).sum(axis=1)
        t = ((points - start) * edge).sum(axis=1) / np.where(length_sq > 0, length_sq, 1.0)
        foot = start + np.clip(t, 0.0, 1.0)[:, None] * edge
        best = np.minimum(best, ((points - foot) ** 2).sum(axis=1))
    normal = np.cross(b - a, c - a)
    area_sq = (normal**2).sum(axis=1)
    over = (area_sq > 0) & ~edges_only
    for start, end in ((a, b), (b, c), (c, a)):
        over &= (np.cross(normal, end - start) * (points - start)).sum(axis=1) >= 0
    height_sq = ((points - a) * normal).sum(axis=1) ** 2 / np.where(area_sq > 0, area_sq, 1.0)
    return np.where(over, height_sq, best)


def nearest_sq(
    points: Float64, triangles: Float64, edges_only: NDArray[np.bool_], both_ways: bool
) -> tuple[Float64, Float64]:
    """Squared distance of each point to the nearest triangle (n,), and of each triangle to the nearest point (m,).

    A pair is measured unless the balls around the triangles say that another pair is nearer. The distances of the
    triangles hold only if asked for by ``both_ways``.
    """
    centre = triangles.mean(axis=1)
    radius = np.linalg.norm(triangles - centre[:, None], axis=2).max(axis=1)
    away = np.sqrt(_between_sq(points, centre))
    least, most = away - radius - 1e-9, away + radius
    wanted = least <= most.min(axis=1, keepdims=True)
    if both_ways:
        wanted |= least <= most.min(axis=0)
    row, column = np.nonzero(wanted)
    block = np.full(away.shape, np.inf)
    for start in range(0, len(row), _PAIRS):
        i, j = row[start : start + _PAIRS], column[start : start + _PAIRS]
        block[i, j] = distances_sq(points[i], triangles[j], edges_only[j])
    return block.min(axis=1), block.min(axis=0)


def _between_sq(a: Float64, b: Float64) -> Float64:
    """a: (n, 3), b: (m, 3) -> (n, m) squared distances."""
    square = np.zeros((len(a), len(b)))
    for axis in range(3):
        square += np.subtract.outer(a[:, axis], b[:, axis]) ** 2
    return square


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
        to_surface = np.full(len(cloud), np.inf)
        to_points = np.full(len(self.pieces), np.inf)
        rows = max(_PAIRS // max(len(self.triangles), len(self.pieces)), 1)
        for start in range(0, len(cloud), rows):
            some = cloud[start : start + rows]
            to_surface[start : start + rows], least = nearest_sq(some, self.triangles, self.edges_only, whole)
            to_points = np.minimum(to_points, least if whole else _between_sq(some, self.pieces[:, 0]).min(axis=0))
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
        within = inside(vertices, box, config.crop_margin_m)
        return whole_faces(vertices, faces[within[faces].any(axis=1)], config)
    turn, centre = rotation(box.pose_world_object)[0], translation(box.pose_world_object)[0]
    half = np.asarray(box.extents_m, np.float64)[0] * 0.5 + config.crop_margin_m
    local = (np.asarray(vertices, np.float64) - centre) @ turn
    corners = local[faces]
    corners = corners[((corners.min(axis=1) < half) & (corners.max(axis=1) > -half)).all(axis=1)]
    whole = (np.abs(corners) < half).all(axis=(1, 2))
    cut = [piece for triangle in corners[~whole] for piece in _clipped(triangle, half)]
    triangles = np.concatenate([corners[whole], np.array(cut).reshape(-1, 3, 3)])
    points, weights, of_triangle = _samples(corners, half, sample_pitch_m(half, config.surface_samples))
    if config.face_weighting == "uniform":
        weights = weights / np.bincount(of_triangle, weights)[of_triangle]
    samples = np.repeat(points[:, None] @ turn.T + centre, 3, axis=1)
    return NaiveCrop(triangles @ turn.T + centre, samples, weights, np.zeros(len(triangles), bool))


def _clipped(triangle: Float64, half: Float64) -> list[list[Float64]]:
    """What a triangle has inside |x| < half, as a fan of triangles: cut at one plane of the box after the other."""
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
    return [[polygon[0], polygon[i], polygon[i + 1]] for i in range(1, len(polygon) - 1)]


def _samples(triangles: Float64, half: Float64, pitch_m: float) -> tuple[Float64, Float64, NDArray[np.int64]]:
    """Where lines along the lattice's directions meet triangles inside |x| < half: points, areas, triangle rows."""
    normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
    found = []
    for axis in range(3):
        along, u, v = (LATTICE_AXES[:, (axis + step) % 3] for step in range(3))
        facing = normals @ along
        owner, at = _ticks(triangles @ np.stack([u, v], axis=1), float(np.linalg.norm(half)), pitch_m)
        owner, at = owner[facing[owner] != 0], at[facing[owner] != 0]
        corner, sides = triangles[owner, 0], triangles[owner, 1:] - triangles[owner, :1]
        flat = sides @ np.stack([u, v], axis=1)
        share = np.linalg.solve(np.swapaxes(flat, 1, 2), (at - corner @ np.stack([u, v], axis=1))[..., None])[..., 0]
        points = corner + (share[..., None] * sides).sum(axis=1)
        met = (share >= 0).all(axis=1) & (share.sum(axis=1) <= 1) & (np.abs(points) < half).all(axis=1)
        slant = np.abs(facing[owner]) / np.linalg.norm(normals[owner], axis=1)
        found.append((points[met], (pitch_m**2 * slant)[met], owner[met]))
    points, areas, owners = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return points, areas, owners


def _ticks(flat: Float64, reach_m: float, pitch_m: float) -> tuple[NDArray[np.int64], Float64]:
    """flat: (n, 3, 2) -> lattice lines that may meet each triangle: the triangle (k,) and where the line is (k, 2)."""
    bounded = np.clip(flat, -reach_m, reach_m) / pitch_m
    first = np.floor(bounded.min(axis=1)).astype(np.int64)
    counts = np.ceil(bounded.max(axis=1)).astype(np.int64) + 1 - first
    owner = np.repeat(np.arange(len(flat)), counts.prod(axis=1))
    number = np.arange(len(owner)) - np.repeat(
        np.cumsum(counts.prod(axis=1)) - counts.prod(axis=1), counts.prod(axis=1)
    )
    steps = np.stack([number // counts[owner, 1], number % counts[owner, 1]], axis=1)
    return owner, (first[owner] + steps) * pitch_m


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
    current: ArrayLike,
    view_points: ArrayLike,
    vertices: Float32,
    faces: NDArray[np.int32],
    box: OrientedBoxes,
    root_error_m2: float,
    config: OracleConfig,
) -> NaiveLabels:
    """What a view is worth, by measuring P_t and P_t ∪ P_q from scratch."""
    surface = crop(vertices, faces, box, config)
    joined = fuse(current, view_points, fusion_grid(config))
    clouds = (np.asarray(current, np.float64), joined)
    before, after = (surface.error(cloud[inside(cloud, box, config.crop_margin_m)]) for cloud in clouds)
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
