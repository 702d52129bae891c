"""Points fused by voxel: the first point of a voxel stays, so a cloud only ever grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import warp as wp
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.geometry.devices import (
    Array,
    as_numpy,
    full_warp,
    launch,
    struct_array,
    struct_value,
    to_host,
    to_warp,
    upload,
)
from rollout_assets.geometry.poses import Float32
from rollout_assets.geometry.voxels import VoxelGrid
from rollout_assets.oracle import view_kernels
from rollout_assets.oracle.surface_error import PointClouds

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
    """One point per voxel, with the voxels in hash tables that kernels can ask.

    parts: points (n, 3) float32 world on the host, in the order they came, as the root and each view brought them.
    table: (slots,) int64 voxel keys of the root's points on the device, -1 where free; added: those of all later
    points. A state shares its root's table and points with every other state of the root.
    """

    parts: tuple[Float32, ...]
    table: wp.array
    added: wp.array
    grid: VoxelGrid

    @classmethod
    def of(cls, points_world: ArrayLike, grid: VoxelGrid, device: str) -> FusedCloud:
        """points_world: (n, 3), fused in the given order. A point that is not finite is refused."""
        points = np.asarray(points_world, np.float32).reshape(-1, 3)
        kept = points[grid.first(points)]
        return cls((kept,), _table(grid.keys(kept), device), _free_table(0, device), grid)

    @property
    def points(self) -> Float32:
        """(n, 3) float32 world, in the order they came."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)

    @property
    def own_bytes(self) -> int:
        """Bytes on host and device that this cloud does not share with its root."""
        return int(self.added.capacity) + sum(part.nbytes for part in self.parts[1:])

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def extended(self, points_world: Array) -> FusedCloud:
        """This cloud and (n, 3) points after it; those in a voxel that is occupied are dropped."""
        new = as_numpy(points_world)
        new = new[self.grid.first(new)]
        fresh = new[~np.isin(self.grid.keys(new), self.grid.keys(self.points))]
        later = np.concatenate([*self.parts[1:], fresh])
        return FusedCloud(
            (*self.parts, fresh), self.table, _table(self.grid.keys(later), str(self.table.device)), self.grid
        )


def grown(clouds: Sequence[FusedCloud], new_points: PointClouds) -> list[FusedCloud]:
    """The i-th cloud with the i-th of the new points after it, each the first and only one of a voxel that is free."""
    if not clouds:
        return []
    device, grid = str(clouds[0].table.device), clouds[0].grid
    sizes = np.diff(new_points.offsets)
    kept = [len(cloud) - len(cloud.parts[0]) for cloud in clouds]
    tables = [_free_table(before + int(new), device) for before, new in zip(kept, sizes, strict=True)]
    growing = [
        struct_value(view_kernels.GrowingTable, before=cloud.added, after=table)
        for cloud, table in zip(clouds, tables, strict=True)
    ]
    described, offsets = upload(
        [struct_array(view_kernels.GrowingTable, growing), (new_points.offsets, wp.int64)], device
    )
    threads = max(len(cloud.added) + int(size) for cloud, size in zip(clouds, sizes, strict=True))
    asked = [described, new_points.points, offsets, wp.float64(grid.size_m), wp.float64(grid.origin_m)]
    launch(view_kernels.grow_tables, (len(clouds), threads), asked, device)
    points = to_host(new_points.points)
    return [
        FusedCloud((*cloud.parts, points[start:stop].copy()), cloud.table, table, grid)
        for cloud, table, (start, stop) in zip(clouds, tables, pairwise(new_points.offsets.tolist()), strict=True)
    ]


def table_size(entries: int) -> int:
    """Slots of a hash table for ``entries`` keys: a power of two, at most half full."""
    return 1 << max(int(2 * entries - 1).bit_length(), 4)


def _free_table(entries: int, device: str) -> wp.array:
    return full_warp(table_size(entries), -1, wp.int64, device)


def _table(keys: NDArray[np.int64], device: str) -> wp.array:
    table = _free_table(len(keys), device)
    launch(view_kernels.insert_keys, len(keys), [to_warp(keys, wp.int64, device), table], device)
    return table
