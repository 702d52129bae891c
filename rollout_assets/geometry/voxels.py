"""Integer voxel keys: one int64 per point, equal exactly when two points share a voxel."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.errors import GeometryError

AXIS_BITS = 21
"""Bits per axis in a key: 2,097,152 voxels, 42 km at 2 cm."""

_HALF = 1 << (AXIS_BITS - 1)


def voxel_keys(points: ArrayLike, voxel_m: float) -> NDArray[np.int64]:
    """points: (n, 3) -> (n,) int64. Cells are half open: a cell starts at its lower corner."""
    if not voxel_m > 0:
        raise GeometryError(f"voxel_m must be > 0, got {voxel_m}")
    array = np.asarray(points, np.float64)
    if array.ndim != 2 or array.shape[1] != 3:
        raise GeometryError(f"points must have shape (n, 3), got {array.shape}")
    if not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        raise GeometryError(f"point {row} is not finite: {array[row].tolist()}")
    cells = np.floor(array / voxel_m)
    if array.size and np.abs(cells).max() >= _HALF:
        raise GeometryError(f"points reach {np.abs(array).max()} m, beyond {_HALF * voxel_m} m at voxel_m {voxel_m}")
    shifted = cells.astype(np.int64) + _HALF
    return (shifted[:, 0] << (2 * AXIS_BITS)) | (shifted[:, 1] << AXIS_BITS) | shifted[:, 2]


def first_in_voxel(points: ArrayLike, voxel_m: float) -> NDArray[np.int64]:
    """Ascending indices of the points that are the first of their voxel."""
    _, first = np.unique(voxel_keys(points, voxel_m), return_index=True)
    return np.sort(first).astype(np.int64)
