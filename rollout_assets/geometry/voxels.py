"""Integer voxel keys: one int64 per point, equal exactly when two points share a voxel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.errors import GeometryError

AXIS_BITS = 21
"""Bits per axis in a key: 2,097,152 voxels, 42 km at 2 cm."""

_HALF = 1 << (AXIS_BITS - 1)


@dataclass(frozen=True)
class VoxelGrid:
    """Cubes of ``size_m`` whose corners lie at ``origin_m`` plus whole multiples of it, on every axis."""

    size_m: float
    origin_m: float = 0.0

    def keys(self, points: ArrayLike) -> NDArray[np.int64]:
        """points: (n, 3) -> (n,) int64, equal exactly when two points share a voxel."""
        return voxel_keys(points, self.size_m, self.origin_m)

    def first(self, points: ArrayLike) -> NDArray[np.int64]:
        """Ascending indices of the points that are the first of their voxel."""
        _, first = np.unique(self.keys(points), return_index=True)
        return np.sort(first).astype(np.int64)


def voxel_keys(points: ArrayLike, voxel_m: float, origin_m: float = 0.0) -> NDArray[np.int64]:
    """points: (n, 3) -> (n,) int64. Cells are half open: a cell starts at its lower corner."""
    if not voxel_m > 0:
        raise GeometryError(f"voxel_m must be > 0, got {voxel_m}")
    array = np.asarray(points, np.float64)
    if array.ndim != 2 or array.shape[1] != 3:
        raise GeometryError(f"points must have shape (n, 3), got {array.shape}")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise GeometryError(f"point {row} is not finite: {array[row].tolist()}")
    cells = np.floor((array - origin_m) / voxel_m)
    if array.size and np.abs(cells).max() >= _HALF:
        raise GeometryError(f"points reach {np.abs(array).max()} m, beyond {_HALF * voxel_m} m at voxel_m {voxel_m}")
    shifted = cells.astype(np.int64) + _HALF
    return (shifted[:, 0] << (2 * AXIS_BITS)) | (shifted[:, 1] << AXIS_BITS) | shifted[:, 2]
