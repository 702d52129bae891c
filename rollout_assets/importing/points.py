"""Semi-dense points that come with a scene, and those of them that a snippet sees."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import SourceError
from rollout_assets.geometry.poses import Float32, inverse, transform, translation
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.importing.frames import Frame
from rollout_assets.parsing import open_regular
from rollout_assets.sources.ply import read_ply_points
from rollout_assets.synthetic.config import SnippetConfig
from rollout_assets.synthetic.sight import camera_of
from rollout_assets.synthetic.walk import Walk

TYPICAL_INV_STD = 0.0025
"""Inverse-distance deviation (1/m) of points that come without one."""

FARTHEST_M = 12.0
"""Depth beyond which a point does not belong to a snippet."""

_COLUMNS = ("px_world", "py_world", "pz_world", "inv_dist_std")
_BEHIND_M = 0.06


def read_points(path: Path, frame: Frame) -> Float32:
    """(n, 4) float32: world coordinates and inverse-distance deviation in 1/m, without what is not finite."""
    if path.suffix.lower() == ".ply":
        file_points = read_ply_points(path).astype(np.float64)
        deviations = np.full(len(file_points), TYPICAL_INV_STD)
    else:
        table = _read_csv(path)
        file_points, deviations = table[:, :3], table[:, 3] / frame.metres_per_unit
    points = np.concatenate([frame.to_world(file_points), deviations[:, None]], axis=1).astype(np.float32)
    usable = np.isfinite(points).all(axis=1) & (points[:, 3] > 0)
    if not usable.any():
        raise SourceError(f"{path.name}: no usable point among {len(points)}")
    return points[usable]


def seen_points(
    config: SnippetConfig, points: Float32, bvh: TriangleBvh, walk: Walk, rng: np.random.Generator
) -> Float32:
    """(n, 4): up to ``max_points`` of the points that some view has in its image and nothing in front of."""
    camera = camera_of(config)
    seen = np.zeros(len(points), bool)
    for pose in walk.pose_world_camera:
        rest = np.flatnonzero(~seen)
        local = transform(inverse(pose), points[rest, :3])
        depth = np.maximum(local[:, 2], 1e-6)
        u, v = camera.cx_px - camera.fx_px * local[:, 0] / depth, camera.cy_px - camera.fy_px * local[:, 1] / depth
        inside = (u >= 0) & (u < camera.width_px) & (v >= 0) & (v < camera.height_px)
        near = rest[inside & (local[:, 2] > 0.1) & (local[:, 2] < FARTHEST_M)]
        seen[near[_unhidden(points[near, :3], bvh, pose)]] = True
    index = np.flatnonzero(seen)
    if len(index) > config.max_points:
        index = np.sort(rng.choice(index, config.max_points, replace=False))
    return points[index]


def _unhidden(points: Float32, bvh: TriangleBvh, pose: Float32) -> NDArray[np.bool_]:
    if not len(points):
        return np.zeros(0, bool)
    origin = translation(pose)
    towards = points.astype(np.float64) - origin
    first, _ = bvh.cast_rays(np.broadcast_to(origin, towards.shape), towards, 1.0)
    behind_m = (1.0 - first.numpy()) * np.linalg.norm(towards, axis=1)
    return np.asarray(behind_m < _BEHIND_M)


def _read_csv(path: Path) -> NDArray[np.float64]:
    """(n, 4) of ``semidense_points.csv.gz``, by the names of its columns."""
    try:
        with open_regular(path) as stored, _text(path, stored) as stream:
            header = [name.strip() for name in stream.readline().split(",")]
            missing = [name for name in _COLUMNS if name not in header]
            if missing:
                raise SourceError(f"{path.name}: no column {missing[0]}; it has {', '.join(header[:6])[:80]}")
            columns = [header.index(name) for name in _COLUMNS]
            return np.loadtxt(stream, np.float64, delimiter=",", usecols=columns, ndmin=2)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(f"{path.name}: cannot be read, it may be cut: {error}") from None


def _text(path: Path, stored: BinaryIO) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(stored, "rt", encoding="utf-8", errors="replace")
    return io.TextIOWrapper(stored, "utf-8", errors="replace")
