"""Points fused by voxel: the first point of a voxel stays, so a cloud only ever grows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import warp as wp
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.geometry.devices import Array, as_numpy, full_warp, launch, to_warp
from rollout_assets.geometry.poses import Float32
from rollout_assets.geometry.voxels import VoxelGrid
from rollout_assets.oracle import view_kernels

_SHIFTS = {"zero": 0.0, "half_voxel": 0.5, "off_grid": 0.3819}
"""Shift of the fusion grid in voxels; 0.3819 of 2 cm is 7.638 mm, which no drawing has."""


def fusion_grid(config: OracleConfig) -> VoxelGrid:
    """The grid that a campaign fuses points by.

    On the border of two voxels rounding would decide which point stays. Shifted by half a voxel, floors at 0 and walls
    at even centimetres lie inside voxels; off grid, so does every surface at a whole millimetre.
    """
    return VoxelGrid(config.fusion_voxel_m, -_SHIFTS[config.voxel_origin] * config.fusion_voxel_m)


@dataclass(frozen=True, eq=False)
class FusedCloud:
    """One point per voxel, with the voxels in a hash table that kernels can ask.

    points: (n, 3) float32 world on the host, in the order they came; table: (slots,) int64 voxel keys on the device, -1
    where free.
    """

    points: Float32
    table: wp.array
    grid: VoxelGrid

    @classmethod
    def of(cls, points_world: ArrayLike, grid: VoxelGrid, device: str) -> FusedCloud:
        """points_world: (n, 3), fused in the given order. A point that is not finite is refused."""
        points = np.asarray(points_world, np.float32).reshape(-1, 3)
        kept = points[grid.first(points)]
        table = _table(grid.keys(kept), device)
        return cls(kept, table, grid)

    def __len__(self) -> int:
        return len(self.points)

    def extended(self, points_world: Array) -> FusedCloud:
        """This cloud and (n, 3) points after it; those in a voxel that is occupied are dropped."""
        new = as_numpy(points_world)
        new = new[self.grid.first(new)]
        keys, mine = self.grid.keys(new), self.grid.keys(self.points)
        fresh = ~np.isin(keys, mine)
        points = np.concatenate([self.points, new[fresh]])
        if 2 * len(points) > len(self.table):
            table = _table(np.concatenate([mine, keys[fresh]]), str(self.table.device))
        else:
            table = _inserted(wp.clone(self.table), keys[fresh])
        return FusedCloud(points, table, self.grid)


def _table(keys: NDArray[np.int64], device: str) -> wp.array:
    """At most a quarter full, so that a few views fit in before it has to grow."""
    slots = 1 << max(int(4 * len(keys)).bit_length(), 10)
    return _inserted(full_warp(slots, -1, wp.int64, device), keys)


def _inserted(table: wp.array, keys: NDArray[np.int64]) -> wp.array:
    device = str(table.device)
    launch(view_kernels.insert_keys, len(keys), [to_warp(keys, wp.int64, device), table], device)
    return table
