"""The points that an actor knows around a target: those of the recording, then what each view taken has shown.

Fused as the oracle fuses: the first point of a voxel stays, so a cloud only grows, and within a view the lowest pixel
wins. The choice of a fixed number of points follows a digest of the voxel alone, so it moves as little as it can when
points are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.geometry.poses import Float32
from rollout_assets.geometry.voxels import VoxelGrid
from rollout_assets.observations.frames import points_in_world, points_seen_from

Uint64 = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class TakenView:
    """What one view showed, as a store keeps it: pose (12,) float32, depth_m (h, w) float16, valid_mask (h, w).

    focal_px, principal_point_px: (2,) float32. Rounding to these types happens here, so that a view that was just
    rendered and one that was read from a store are the same.
    """

    pose_world_camera: Float32
    depth_m: NDArray[np.float16]
    valid_mask: NDArray[np.bool_]
    focal_px: Float32
    principal_point_px: Float32

    @classmethod
    def of(
        cls,
        pose_world_camera: Float32,
        depth_m: ArrayLike,
        valid_mask: ArrayLike,
        focal_px: ArrayLike,
        center: ArrayLike,
    ) -> TakenView:
        """Rounded as stored; depth is 0 where it is not valid."""
        valid = np.asarray(valid_mask, np.bool_)
        depth = np.where(valid, np.asarray(depth_m), 0).astype(np.float16)
        return cls(pose_world_camera, depth, valid, np.asarray(focal_px, np.float32), np.asarray(center, np.float32))

    def points_world(self, most_px: int) -> Float32:
        """(n, 3) the points of at most ``most_px`` rows and columns, spread evenly over the image, in pixel order."""
        height, width = self.depth_m.shape
        rows, columns = _spread(height, most_px), _spread(width, most_px)
        depth = self.depth_m[np.ix_(rows, columns)].astype(np.float64)
        shown = self.valid_mask[np.ix_(rows, columns)] & (depth > 0)
        (fx, fy), (cx, cy) = self.focal_px.astype(np.float64), self.principal_point_px.astype(np.float64)
        x = ((cx - (columns + 0.5)) / fx) * depth
        y = ((cy - (rows + 0.5)) / fy)[:, None] * depth
        return points_in_world(self.pose_world_camera, np.stack([x[shown], y[shown], depth[shown]], axis=-1))


@dataclass(frozen=True, eq=False)
class TargetCloud:
    """Fused points in reach of one target, in order of arrival. Immutable; ``extended`` gives the next one.

    keys: (m,) int64 voxels; points: (m, 3) float32 in the target's frame; level: (m,) int16, 0 for the recording's
    points and i for those of the i-th view taken; zone: (m,) int8, 0 the target's own, 1 around it, 2 only kept because
    a point may share its voxel.
    """

    config: ObservationConfig
    pose_world_target: Float32
    extents_m: Float32
    keys: NDArray[np.int64]
    points: Float32
    level: NDArray[np.int16]
    zone: NDArray[np.int8]
    views: int

    @classmethod
    def of(
        cls, points_world: Float32, pose_world_target: Float32, extents_m: Float32, config: ObservationConfig
    ) -> TargetCloud:
        """The cloud of the recording's points (n, 3)."""
        none = np.zeros(0)
        empty = cls(
            config,
            pose_world_target,
            extents_m,
            none.astype(np.int64),
            np.zeros((0, 3), np.float32),
            none.astype(np.int16),
            none.astype(np.int8),
            views=-1,
        )
        return empty.extended(points_world)

    def extended(self, points_world: Float32) -> TargetCloud:
        """This cloud after one more view that showed these points (n, 3)."""
        points = points_seen_from(self.pose_world_target, points_world)
        zone = self._zones(points)
        near = zone < _OUT_OF_REACH
        keys = self._grid.keys(points_world[near])
        first = _first_of_each(keys)
        fresh = first[~np.isin(keys[first], self.keys)]
        level = np.full(len(fresh), self.views + 1, np.int16)
        return TargetCloud(
            self.config,
            self.pose_world_target,
            self.extents_m,
            np.concatenate([self.keys, keys[fresh]]),
            np.concatenate([self.points, points[near][fresh]]),
            np.concatenate([self.level, level]),
            np.concatenate([self.zone, zone[near][fresh]]),
            self.views + 1,
        )

    def after(self, views: list[TakenView]) -> TargetCloud:
        """This cloud after some more views, in the order in which they were taken."""
        cloud = self
        for view in views:
            cloud = cloud.extended(view.points_world(self.config.depth_px))
        return cloud

    def sample(self) -> tuple[Float32, Float32, NDArray[np.bool_]]:
        """points (n, 3), age (n,) and mask (n,): at most ``near_share`` of them the target's own if there are others.

        The target's own come first, then those around it, each in the order of their voxel's digest.
        """
        return self._sampled

    @cached_property
    def _sampled(self) -> tuple[Float32, Float32, NDArray[np.bool_]]:
        """Kept, because all chains of a target share its root cloud."""
        own, around = (self._by_digest(np.flatnonzero(self.zone == zone)) for zone in (0, 1))
        room = self.config.points
        most_own = max(int(room * self.config.near_share), room - len(around))
        own = own[:most_own]
        chosen = np.concatenate([own, around[: room - len(own)]])
        points, age, mask = np.zeros((room, 3), np.float32), np.zeros(room, np.float32), np.zeros(room, np.bool_)
        points[: len(chosen)] = self.points[chosen]
        age[: len(chosen)] = self.views - self.level[chosen]
        mask[: len(chosen)] = True
        return points, age, mask

    @property
    def _grid(self) -> VoxelGrid:
        return VoxelGrid(self.config.voxel_m, -0.5 * self.config.voxel_m)

    def _zones(self, points: Float32) -> NDArray[np.int8]:
        """Zone of points (n, 3) in the target's frame, by how far outside the box they lie on their worst axis."""
        beyond = (np.abs(points.astype(np.float64)) - 0.5 * self.extents_m.astype(np.float64)).max(
            axis=1, initial=-np.inf
        )
        edges = [self.config.near_margin_m, self.config.context_margin_m]
        edges.append(edges[1] + 2 * self.config.voxel_m)
        return np.searchsorted(edges, beyond, side="right").astype(np.int8)

    def _by_digest(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows[np.argsort(_digests(self.keys[rows]), kind="stable")]


_OUT_OF_REACH = 3


def _spread(size: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` pixel numbers, the middles of equal parts."""
    if size <= most:
        return np.arange(size)
    return ((2 * np.arange(most) + 1) * size) // (2 * most)


def _first_of_each(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending places at which each key stands first."""
    return np.sort(np.unique(keys, return_index=True)[1])


def _digests(keys: NDArray[np.int64]) -> Uint64:
    """A well mixed number per voxel (the finaliser of SplitMix64)."""
    mixed = keys.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
