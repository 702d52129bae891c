"""Points fused by voxel: the first point of a voxel stays, so a cloud only ever grows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from rollout_assets.geometry.devices import launch
from rollout_assets.geometry.triangle_bvh import rows3
from rollout_assets.geometry.voxels import first_in_voxel, voxel_keys
from rollout_assets.oracle import view_kernels


@dataclass(frozen=True, eq=False)
class FusedCloud:
    """One point per voxel, with the voxels in a hash table that kernels can ask.

    points: (n, 3) float32 world, in the order they came; table: (slots,) int64 voxel keys, -1 where free.
    """

    points: torch.Tensor
    table: torch.Tensor
    voxel_m: float

    @classmethod
    def of(cls, points_world: ArrayLike, voxel_m: float, device: str) -> FusedCloud:
        """points_world: (n, 3), fused in the given order. A point that is not finite is refused."""
        points = np.asarray(points_world, np.float32).reshape(-1, 3)
        kept = points[first_in_voxel(points, voxel_m)]
        table = _table(voxel_keys(kept, voxel_m), device)
        return cls(rows3(kept, "points", device), table, voxel_m)

    def __len__(self) -> int:
        return len(self.points)

    def extended(self, points_world: torch.Tensor) -> FusedCloud:
        """This cloud and (n, 3) points after it; those in a voxel that is taken are dropped."""
        new = points_world.cpu().numpy()
        new = new[first_in_voxel(new, self.voxel_m)]
        keys = voxel_keys(new, self.voxel_m)
        mine = self.table[self.table >= 0].cpu().numpy()
        fresh = ~np.isin(keys, mine)
        points = torch.cat([self.points, rows3(new[fresh], "points", str(self.points.device))])
        if 2 * len(points) > len(self.table):
            table = _table(np.concatenate([mine, keys[fresh]]), str(self.points.device))
        else:
            table = _inserted(self.table.clone(), keys[fresh])
        return FusedCloud(points, table, self.voxel_m)


def _table(keys: NDArray[np.int64], device: str) -> torch.Tensor:
    """At most a quarter full, so that a few views fit in before it has to grow."""
    slots = 1 << max(int(4 * len(keys)).bit_length(), 10)
    return _inserted(torch.full((slots,), -1, dtype=torch.int64, device=device), keys)


def _inserted(table: torch.Tensor, keys: NDArray[np.int64]) -> torch.Tensor:
    device = str(table.device)
    launch(view_kernels.insert_keys, len(keys), [torch.from_numpy(keys).to(device), table], device)
    return table
