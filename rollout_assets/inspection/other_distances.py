"""Errors of points and a surface by distances that are not the kernels': libigl's where it is installed, or all pairs.

libigl measures in double precision through a tree of its own. It measures points to triangles and points to points,
which is all that the policy ``clipped_surface`` needs. ``vertex_in_box`` measures whole triangles to points, and
``pytorch3d`` small triangles as their edges; libigl does neither, so there every pair is looked at.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any, Protocol

import numpy as np

from rollout_assets.config import OracleConfig
from rollout_assets.geometry.poses import Float64
from rollout_assets.oracle.naive import NaiveCrop

BRUTE_FORCE = "brute force"


class Distances(Protocol):
    """Whoever can measure points against a crop; ``name`` says who it is."""

    name: str

    def error_m2(self, crop: NaiveCrop, points: Float64) -> float:
        """Mean squared distance of points (n, 3) to the surface plus weighted mean of the surface's to the points."""


def distances_of(config: OracleConfig) -> Distances:
    """The best that is installed and can measure by the configured crop policy."""
    usable = config.crop_policy == "clipped_surface" and importlib.util.find_spec("igl") is not None
    return IglDistances() if usable else BruteForceDistances()


class BruteForceDistances:
    """Every pair, in double precision."""

    name = BRUTE_FORCE

    def error_m2(self, crop: NaiveCrop, points: Float64) -> float:
        """See ``Distances``."""
        return crop.error(points)


class IglDistances:
    """libigl's tree over the triangles, and over the points."""

    def __init__(self) -> None:
        self._igl: Any = importlib.import_module("igl")  # an optional package
        self.name = f"libigl {importlib.metadata.version('libigl')}"

    def error_m2(self, crop: NaiveCrop, points: Float64) -> float:
        """See ``Distances``; the crop's pieces must be samples of its surface, not whole triangles."""
        corners = np.arange(3 * len(crop.triangles)).reshape(-1, 3)
        to_surface = self._nearest_sq(points, crop.triangles.reshape(-1, 3), corners)
        to_points = self._nearest_sq(crop.pieces[:, 0], points, np.arange(len(points))[:, None])
        return float(to_surface.mean() + (crop.weights * to_points).sum() / crop.weights.sum())

    def _nearest_sq(self, queries: Float64, vertices: Float64, elements: Any) -> Float64:
        """queries: (n, 3) -> (n,) squared distances to elements (m, 3 or 1), rows of vertices (k, 3)."""
        given = (np.ascontiguousarray(part, np.float64) for part in (queries, vertices))
        return np.asarray(self._igl.point_mesh_squared_distance(*given, elements)[0])
