"""The points that an actor knows around a target: those of the recording, then what each view taken has shown.

Fused as the oracle fuses: the first point of a voxel stays, so a cloud only grows, and within a view the lowest pixel
wins. The choice of a fixed number of points follows a digest of the voxel alone, so it moves as little as it can when
points are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.geometry.poses import Float32
from rollout_assets.geometry.voxels import VoxelGrid
from rollout_assets.observations.frames import points_in_world, points_seen_from

Uint64 = NDArray[np.uint64]

Sample = tuple[Float32, Float32, NDArray[np.bool_]]
"""Points, their age, and which places hold one."""


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
    """Everything that is known at one node of a rollout, fused, in order of arrival. Immutable, like the oracle's.

    keys: (m,) int64 voxels; points: (m, 3) float32 in the target's frame; level: (m,) int16, 0
    for the recording's points and i for those of the i-th view taken.
    """

    config: ObservationConfig
    pose_world_target: Float32
    extents_m: Float32
    keys: NDArray[np.int64]
    points: Float32
    level: NDArray[np.int16]
    views: int
    _samples: dict[bytes, Sample] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, points_world: Float32, pose_world_target: Float32, extents_m: Float32, config: ObservationConfig
    ) -> TargetCloud:
        """The cloud of the recording's points (n, 3)."""
        nothing = np.zeros(0, np.int64), np.zeros((0, 3), np.float32), np.zeros(0, np.int16)
        return cls(config, pose_world_target, extents_m, *nothing, views=-1).extended(points_world)

    def extended(self, points_world: Float32) -> TargetCloud:
        """This cloud after one more view that showed these points (n, 3)."""
        keys = VoxelGrid(self.config.voxel_m, -0.5 * self.config.voxel_m).keys(points_world)
        first = _first_of_each(keys)
        fresh = first[~np.isin(keys[first], self.keys)]
        return replace(
            self,
            keys=np.concatenate([self.keys, keys[fresh]]),
            points=np.concatenate([self.points, points_seen_from(self.pose_world_target, points_world[fresh])]),
            level=np.concatenate([self.level, np.full(len(fresh), self.views + 1, np.int16)]),
            views=self.views + 1,
        )

    def after(self, views: Sequence[TakenView]) -> TargetCloud:
        """This cloud after some more views, in the order in which they were taken."""
        cloud = self
        for view in views:
            cloud = cloud.extended(view.points_world(self.config.depth_px))
        return cloud

    def sample(self, position: Float32) -> Sample:
        """points (n, 3), age (n,) and mask (n,) for an actor at ``position`` (3,) in the target's frame.

        Kept, because all chains of a target share its root.

        The target's own points come first, then those between it and the actor, each in the order of their voxel's
        digest. The own ones take at most ``near_share`` if there are enough others.
        """
        here = position.tobytes()
        if here not in self._samples:
            self._samples[here] = self._sampled(position)
        return self._samples[here]

    def _sampled(self, position: Float32) -> Sample:
        own = self._near_box()
        between = self._in_corridor(position) & ~own
        first, then = self._by_digest(own), self._by_digest(between)
        room = self.config.points
        first = first[: max(int(room * self.config.near_share), room - len(then))]
        chosen = np.concatenate([first, then[: room - len(first)]])
        points, age, mask = np.zeros((room, 3), np.float32), np.zeros(room, np.float32), np.zeros(room, np.bool_)
        points[: len(chosen)] = self.points[chosen]
        age[: len(chosen)] = self.views - self.level[chosen]
        mask[: len(chosen)] = True
        return points, age, mask

    def _near_box(self) -> NDArray[np.bool_]:
        reach = 0.5 * self.extents_m.astype(np.float64) + self.config.near_margin_m
        near = np.ones(len(self.points), np.bool_)
        for axis in range(3):
            near &= np.abs(self.points[:, axis]) < reach[axis]
        return near

    def _in_corridor(self, position: Float32) -> NDArray[np.bool_]:
        """Which points lie within ``corridor_m`` of the straight line from ``position`` to the target's centre."""
        x, y, z = self.points.astype(np.float64).T
        a, b, c = position.astype(np.float64)
        along = np.clip((a * x + b * y + c * z) / max(a * a + b * b + c * c, 1e-12), 0.0, 1.0)
        gap = (x - along * a) ** 2 + (y - along * b) ** 2 + (z - along * c) ** 2
        return gap < self.config.corridor_m**2

    def _by_digest(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Rows in the order of their voxel's digest, at most as many as an observation has."""
        rows = np.flatnonzero(chosen)
        return rows[np.argsort(_digests(self.keys[rows]), kind="stable")[: self.config.points]]


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
