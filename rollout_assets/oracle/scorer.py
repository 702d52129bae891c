"""What a view is worth: from states and candidate poses to labels, and from a chosen view to the next state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.errors import GeometryError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.oracle.crops import crop_surface
from rollout_assets.oracle.fusion import FusedCloud, fusion_grid
from rollout_assets.oracle.raycast import EVERYWHERE, ViewPoints, box_row, bytes_per_view, checked_poses
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.surface_error import PointClouds, Surface, SurfaceState

ERROR_FLOOR_M2 = 1e-12
"""Errors below this count as this much when something is divided by them or their logarithm is taken."""


class Refusal(StrEnum):
    """Why a target cannot be labelled; the names are those of the store's reason codes."""

    MESH_REFERENCE_MISSING = "MESH_REFERENCE_MISSING"
    TARGET_CROP_EMPTY = "TARGET_CROP_EMPTY"
    TARGET_SUPPORT_TOO_LOW = "TARGET_SUPPORT_TOO_LOW"


@dataclass(frozen=True)
class Refused:
    """A target that gets no labels; the run goes on."""

    reason: Refusal
    detail: str


@dataclass(frozen=True, eq=False)
class Crop:
    """A region of the scene: its surface, and the (15,) box row that tells which points belong to it."""

    surface: Surface
    box_row: Float64


@dataclass(frozen=True, eq=False)
class CropState:
    """A crop with what the current points say about it. ``root_error_m2`` is the error before the first view."""

    crop: Crop
    state: SurfaceState
    root_error_m2: float

    @property
    def error_m2(self) -> float:
        """error(P_t): the ``before`` of every candidate scored from here."""
        return float(self.crop.surface.error(self.state))


@dataclass(frozen=True, eq=False)
class OracleState:
    """Everything the oracle knows at one node of a rollout. Immutable; siblings share what they have in common."""

    scene: OracleScene
    camera: PinholeCamera
    cloud: FusedCloud
    target: CropState
    scene_region: CropState | None


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """Candidates of one state: poses_world_camera (k, 12), valid (k,) bool. Invalid rows are never looked at."""

    state: OracleState
    poses_world_camera: Float32
    valid: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RegionLabels:
    """Labels of k candidates for one region, (k,) float64 each; NaN in invalid rows.

    current_support counts P_t's points in the region, candidate_support the view's pixels in it, and new_support those
    of them that P_t does not have yet.
    """

    before_m2: Float64
    after_m2: Float64
    rri: Float64
    root_gain: Float64
    log_error_gain: Float64
    current_support: Float64
    candidate_support: Float64
    new_support: Float64


@dataclass(frozen=True, eq=False)
class CandidateLabels:
    """Labels of k candidates. hit_pixels: (k,) int32, pixels with depth; 0 says the view hits nothing, -1 invalid."""

    target: RegionLabels
    scene: RegionLabels | None
    hit_pixels: NDArray[np.int32]


class OracleScorer:
    """The oracle of one campaign. Holds no state between calls, so threads may share it."""

    def __init__(self, config: OracleConfig) -> None:
        self.config = config

    def fuse(self, scene: OracleScene, points_world: ArrayLike) -> FusedCloud:
        """The root's points (n, 3), fused in the given order; one call serves all targets of a root."""
        low, high = scene.bounds
        reach, limit = float(np.abs([low, high]).max()), self.config.fusion_voxel_m * 2**20
        if reach >= limit:
            raise GeometryError(
                f"the mesh reaches {reach} m; voxels of {self.config.fusion_voxel_m} m end at {limit} m"
            )
        return FusedCloud.of(points_world, fusion_grid(self.config), scene.device)

    def begin(
        self,
        scene: OracleScene | None,
        camera: PinholeCamera,
        cloud: FusedCloud,
        target_box: OrientedBoxes,
        scene_region: CropState | None = None,
    ) -> OracleState | Refused:
        """The root state of one target, or why there is none.

        target_box: the matched ground-truth box; scene_region: ``region`` of the snippet's extent when the scene is
        labelled too, shared by all targets of the root. The camera is resized to the configured scoring resolution.
        """
        if scene is None:
            return Refused(Refusal.MESH_REFERENCE_MISSING, "the scene has no mesh")
        target = self.region(scene, cloud, target_box)
        if isinstance(target, Refused):
            return target
        small = camera.resized(self.config.height_px, self.config.width_px)
        return OracleState(scene, small, cloud, target, scene_region)

    def region(self, scene: OracleScene, cloud: FusedCloud, box: OrientedBoxes) -> CropState | Refused:
        """The surface and points in one box ± the crop margin at the root, or why they cannot be measured."""
        margin = self.config.crop_margin_m
        surface = crop_surface(scene, box, self.config)
        if surface is None:
            return Refused(Refusal.TARGET_CROP_EMPTY, f"no surface with area in the box ± {margin} m")
        row = box_row(box, margin)
        points = cloud.points[points_in(cloud.points, row)]
        if len(points) < self.config.min_current_points:
            needed = f"min_current_points is {self.config.min_current_points}"
            return Refused(Refusal.TARGET_SUPPORT_TOO_LOW, f"{len(points)} points in the box ± {margin} m; {needed}")
        state = surface.extended(surface.unseen(), points)
        return CropState(Crop(surface, row), state, float(surface.error(state)))

    def score(self, requests: Sequence[ScoreRequest]) -> list[CandidateLabels]:
        """Labels of every request's candidates, in order.

        All candidates that share a scene go through one launch per kernel, as far as ``batch_mib`` allows; neither that
        limit nor the order or company of a candidate changes a bit of its label.
        """
        poses, owner, rows = _valid_rows(requests)
        scores = _ViewScores.empty(len(poses))
        for group in self._batches(requests, owner):
            self._score_batch([request.state for request in requests], poses, owner, group, scores)
        labels = []
        for index, request in enumerate(requests):
            mine = owner == index
            labels.append(_labels(request, rows[mine], scores.of(mine)))
        return labels

    def advance(self, state: OracleState, pose_world_camera: ArrayLike) -> OracleState:
        """The state after taking one view; its error equals the ``after`` that ``score`` gave this pose, to the bit."""
        pose = checked_poses(np.asarray(pose_world_camera, np.float32).reshape(1, -1))
        views = self._views([state], pose, np.zeros(1, np.int64))
        boxes = np.stack([region.crop.box_row for region in _regions(state)])
        regions = []
        for index, region in enumerate(_regions(state)):
            _, clouds = views.new_in(boxes, np.array([index]))
            extended = region.crop.surface.extended(region.state, clouds.points)
            regions.append(CropState(region.crop, extended, region.root_error_m2))
        _, everything = views.new_in(boxes, np.array([EVERYWHERE]))
        grown = state.cloud.extended(everything.points.numpy())
        return OracleState(state.scene, state.camera, grown, regions[0], regions[1] if len(regions) > 1 else None)

    def _batches(self, requests: Sequence[ScoreRequest], owner: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Rows that go through the kernels together: one scene and camera, neighbours share a surface."""

        def kind(row: int) -> tuple[int, str, int]:
            state = requests[owner[row]].state
            return id(state.scene), repr(state.camera), id(state.target.crop)

        ordered = sorted(range(len(owner)), key=kind)
        for _, group in groupby(ordered, key=lambda row: kind(row)[:2]):
            rows = np.fromiter(group, np.int64)
            camera = requests[owner[rows[0]]].state.camera
            tables = sum(8 * len(requests[index].state.cloud.table) for index in np.unique(owner[rows]))
            needed = bytes_per_view(camera, self.config) + tables // len(rows)
            size = max((self.config.batch_mib << 20) // needed, 1)
            yield from np.split(rows, range(size, len(rows), size))

    def _views(self, states: Sequence[OracleState], poses: Float32, state_of_view: NDArray[np.int64]) -> ViewPoints:
        clouds = [state.cloud for state in states]
        return ViewPoints(states[0].scene.bvh, poses, states[0].camera, clouds, state_of_view, self.config)

    def _score_batch(
        self,
        states: Sequence[OracleState],
        poses: Float32,
        owner: NDArray[np.int64],
        rows: NDArray[np.int64],
        scores: _ViewScores,
    ) -> None:
        used, state_of_view = np.unique(owner[rows], return_inverse=True)
        mine = [states[index] for index in used]
        views = self._views(mine, poses[rows], state_of_view)
        for region in range(2):
            crops = [_regions(state)[region] if region < len(_regions(state)) else None for state in mine]
            boxes = np.stack([np.zeros(15) if crop is None else crop.crop.box_row for crop in crops])
            if not any(crop is not None for crop in crops):
                continue
            counts, clouds = views.new_in(boxes, state_of_view)
            scores.hit_pixels[rows] = counts[:, 0]
            scores.seen[region, rows] = counts[:, 1]
            scores.new[region, rows] = counts[:, 2]
            scores.after[region, rows] = self._after(crops, clouds, state_of_view)

    def _after(
        self, crops: Sequence[CropState | None], clouds: PointClouds, state_of_view: NDArray[np.int64]
    ) -> Float64:
        """(n,) errors of each view's points joined to its state, one measurement per run of views on one surface."""
        after = np.full(len(state_of_view), np.nan)
        for _, run in groupby(range(len(state_of_view)), key=lambda view: _surface_id(crops[int(state_of_view[view])])):
            views = list(run)
            span = slice(views[0], views[-1] + 1)
            used, state_of_cloud = np.unique(state_of_view[span], return_inverse=True)
            present = [crop for crop in (crops[index] for index in used.tolist()) if crop is not None]
            if present:
                surface = present[0].crop.surface
                states = [crop.state for crop in present]
                sums = surface.joined(states, clouds[span], state_of_cloud, self.config.batch_mib << 20)
                after[span] = surface.error(sums)
        return after


@dataclass(frozen=True, eq=False)
class _ViewScores:
    """What the kernels say about n valid views, per region where it has two rows (target, scene)."""

    hit_pixels: NDArray[np.int32]
    seen: NDArray[np.int32]
    new: NDArray[np.int32]
    after: Float64

    @classmethod
    def empty(cls, count: int) -> _ViewScores:
        zeros = np.zeros((2, count), np.int32)
        return cls(np.zeros(count, np.int32), zeros, zeros.copy(), np.full((2, count), np.nan))

    def of(self, views: NDArray[np.bool_]) -> _ViewScores:
        return _ViewScores(self.hit_pixels[views], self.seen[:, views], self.new[:, views], self.after[:, views])


def points_in(points: Float32, row: Float64) -> NDArray[np.bool_]:
    """points: (n, 3) -> (n,) bool: strictly inside the box of a (15,) row, judged in double precision."""
    x, y, z = points.astype(np.float64).T
    inside = np.ones(len(points), bool)
    for axis in row.reshape(3, 5):
        inside &= np.abs(x * axis[0] + y * axis[1] + z * axis[2] - axis[3]) < axis[4]
    return inside


def _regions(state: OracleState) -> tuple[CropState, ...]:
    return (state.target,) if state.scene_region is None else (state.target, state.scene_region)


def _surface_id(crop: CropState | None) -> int:
    return 0 if crop is None else id(crop.crop.surface)


def _valid_rows(requests: Sequence[ScoreRequest]) -> tuple[Float32, NDArray[np.int64], NDArray[np.int64]]:
    """Poses (n, 12) of all valid candidates, the request (n,) and the row in it (n,) that each belongs to."""
    poses, owner, rows = [np.zeros((0, 12), np.float32)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for index, request in enumerate(requests):
        if request.valid.shape != (len(request.poses_world_camera),):
            shapes = f"{request.poses_world_camera.shape} and {request.valid.shape}"
            raise GeometryError(f"a request needs poses (k, 12) and valid (k,), got {shapes}")
        chosen = np.flatnonzero(request.valid)
        poses.append(checked_poses(request.poses_world_camera[chosen]))
        owner.append(np.full(len(chosen), index))
        rows.append(chosen)
    return np.concatenate(poses), np.concatenate(owner), np.concatenate(rows)


def _labels(request: ScoreRequest, rows: NDArray[np.int64], scores: _ViewScores) -> CandidateLabels:
    count = len(request.valid)
    hits = np.full(count, -1, np.int32)
    hits[rows] = scores.hit_pixels
    regions = [
        _region_labels(region, count, rows, scores.after[index], scores.seen[index], scores.new[index])
        for index, region in enumerate(_regions(request.state))
    ]
    return CandidateLabels(regions[0], regions[1] if len(regions) > 1 else None, hits)


def _region_labels(
    region: CropState,
    count: int,
    rows: NDArray[np.int64],
    after: Float64,
    seen: NDArray[np.int32],
    new: NDArray[np.int32],
) -> RegionLabels:
    def spread(values: Float64 | NDArray[np.int32] | float) -> Float64:
        column = np.full(count, np.nan)
        column[rows] = values
        return column

    before = region.error_m2
    gain = before - after
    log_gain = np.log(max(before, ERROR_FLOOR_M2)) - np.log(np.maximum(after, ERROR_FLOOR_M2))
    return RegionLabels(
        before_m2=spread(before),
        after_m2=spread(after),
        rri=spread(gain / max(before, ERROR_FLOOR_M2)),
        root_gain=spread(gain / max(region.root_error_m2, ERROR_FLOOR_M2)),
        log_error_gain=spread(log_gain),
        current_support=spread(float(region.state.point_count)),
        candidate_support=spread(seen),
        new_support=spread(new),
    )
