"""What a view is worth: from states and candidate poses to labels, and from a chosen view to the next state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.errors import DeviceMemoryError, GeometryError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.oracle.crops import crop_surface
from rollout_assets.oracle.fusion import FusedCloud, fusion_grid, grown
from rollout_assets.oracle.labels import ERROR_FLOOR_M2, CandidateLabels, RegionLabels, region_labels
from rollout_assets.oracle.raycast import EVERYWHERE, ViewPoints, box_row, bytes_per_view, checked_poses
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.surface_error import PointClouds, Surface, SurfaceState, errors_m2, extended, joined

__all__ = ["ERROR_FLOOR_M2", "CandidateLabels", "OracleScorer", "OracleState", "Refusal", "Refused", "RegionLabels"]


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

    @property
    def own_bytes(self) -> int:
        """Bytes on host and device that this state does not share with its root."""
        return self.cloud.own_bytes + sum(int(region.state.minima_sq.capacity) for region in _regions(self))


@dataclass(frozen=True, eq=False)
class ScoreRequest:
    """Candidates of one state: poses_world_camera (k, 12), valid (k,) bool. Invalid rows are never looked at."""

    state: OracleState
    poses_world_camera: Float32
    valid: NDArray[np.bool_]


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
        return self.begin_all(scene, camera, cloud, [target_box], scene_region)[0]

    def begin_all(
        self,
        scene: OracleScene | None,
        camera: PinholeCamera,
        cloud: FusedCloud,
        target_boxes: Sequence[OrientedBoxes],
        scene_region: CropState | None = None,
    ) -> list[OracleState | Refused]:
        """``begin`` for all targets of a root, measured together."""
        if scene is None:
            return [Refused(Refusal.MESH_REFERENCE_MISSING, "the scene has no mesh") for _ in target_boxes]
        small = camera.resized(self.config.height_px, self.config.width_px)
        return [
            target if isinstance(target, Refused) else OracleState(scene, small, cloud, target, scene_region)
            for target in self._regions(scene, cloud, target_boxes)
        ]

    def region(self, scene: OracleScene, cloud: FusedCloud, box: OrientedBoxes) -> CropState | Refused:
        """The surface and points in one box ± the crop margin at the root, or why they cannot be measured."""
        return self._regions(scene, cloud, [box])[0]

    def _regions(
        self, scene: OracleScene, cloud: FusedCloud, boxes: Sequence[OrientedBoxes]
    ) -> list[CropState | Refused]:
        prepared = [self._prepared_region(scene, cloud, box) for box in boxes]
        crops = [(crop, points) for crop, points in (p for p in prepared if not isinstance(p, Refused))]
        states = iter(
            extended(
                [(crop.surface, crop.surface.unseen()) for crop, _ in crops],
                PointClouds.of([points for _, points in crops], scene.device),
            )
        )
        regions: list[CropState | Refused] = []
        for part in prepared:
            if isinstance(part, Refused):
                regions.append(part)
            else:
                state = next(states)
                regions.append(CropState(part[0], state, float(part[0].surface.error(state))))
        return regions

    def _prepared_region(
        self, scene: OracleScene, cloud: FusedCloud, box: OrientedBoxes
    ) -> tuple[Crop, Float32] | Refused:
        """A crop with the points of the cloud that belong to it."""
        margin = self.config.crop_margin_m
        surface = crop_surface(scene, box, self.config)
        if surface is None:
            return Refused(Refusal.TARGET_CROP_EMPTY, f"no surface with area in the box ± {margin} m")
        row = box_row(box, margin)
        points = cloud.points[points_in(cloud.points, row)]
        if len(points) < self.config.min_current_points:
            needed = f"min_current_points is {self.config.min_current_points}"
            return Refused(Refusal.TARGET_SUPPORT_TOO_LOW, f"{len(points)} points in the box ± {margin} m; {needed}")
        return Crop(surface, row), points

    def score(self, requests: Sequence[ScoreRequest]) -> list[CandidateLabels]:
        """Labels of every request's candidates, in order.

        All candidates that share a scene go through one launch per kernel, as far as ``batch_mib`` allows; neither that
        limit nor the order or company of a candidate changes a bit of its label.
        """
        poses, owner, rows = _valid_rows(requests)
        scores = _ViewScores.empty(len(poses))
        states = [request.state for request in requests]
        for group in self._batches(states, owner):
            halved(group, lambda rows: self._score_batch(states, poses, owner, rows, scores))
        labels = []
        for index, request in enumerate(requests):
            mine = owner == index
            labels.append(_labels(request, rows[mine], scores.of(mine)))
        return labels

    def advance(self, state: OracleState, pose_world_camera: ArrayLike) -> OracleState:
        """The state after taking one view; its error equals the ``after`` that ``score`` gave this pose, to the bit."""
        return self.advance_all([state], np.asarray(pose_world_camera, np.float32).reshape(1, -1))[0]

    def advance_all(self, states: Sequence[OracleState], poses_world_camera: ArrayLike) -> list[OracleState]:
        """``advance`` of the i-th state by the i-th of the poses (n, 12); those of one scene share their launches."""
        poses = checked_poses(poses_world_camera)
        advanced: dict[int, OracleState] = {}

        def advance(rows: NDArray[np.int64]) -> None:
            after = self._advance_batch([states[row] for row in rows], poses[rows])
            advanced.update(zip(rows.tolist(), after, strict=True))

        for group in self._batches(states, np.arange(len(states))):
            halved(group, advance)
        return [advanced[row] for row in range(len(states))]

    def _advance_batch(self, states: Sequence[OracleState], poses: Float32) -> list[OracleState]:
        count = len(states)
        boxes, of_view = _region_boxes(states, np.arange(count))
        everywhere = np.full((1, count), EVERYWHERE)
        views = self._views(states, poses, np.arange(count))
        _, clouds = views.new_in_regions(boxes, np.concatenate([of_view, everywhere]))
        regions = [(index, region) for index in range(2) for region in _in_region(states, index)]
        chosen = [row + index * count for index, (row, _) in regions]
        measured = iter(
            extended([(crop.crop.surface, crop.state) for _, (_, crop) in regions], clouds.select(np.array(chosen)))
        )
        after = {
            (row, index): CropState(crop.crop, next(measured), crop.root_error_m2) for index, (row, crop) in regions
        }
        larger = grown([state.cloud for state in states], clouds[len(of_view) * count : len(clouds)])
        return [
            OracleState(state.scene, state.camera, larger[row], after[row, 0], after.get((row, 1)))
            for row, state in enumerate(states)
        ]

    def _batches(self, states: Sequence[OracleState], owner: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Rows that go through the kernels together: one scene and camera, neighbours share a surface."""
        kinds = [(id(state.scene), repr(state.camera), id(state.target.crop)) for state in states]
        ordered = sorted(range(len(owner)), key=lambda row: kinds[owner[row]])
        for _, group in groupby(ordered, key=lambda row: kinds[owner[row]][:2]):
            rows = np.fromiter(group, np.int64)
            first = states[owner[rows[0]]]
            minima = 4 * sum(region.crop.surface.face_count for region in _regions(first))
            needed = bytes_per_view(first.camera, self.config) + minima
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
        boxes, of_view = _region_boxes(mine, state_of_view)
        counts, clouds = views.new_in_regions(boxes, of_view)
        for region in range(len(of_view)):
            scores.hit_pixels[rows] = counts[region, :, 0]
            scores.seen[region, rows] = counts[region, :, 1]
            scores.new[region, rows] = counts[region, :, 2]
            own = clouds[region * len(rows) : (region + 1) * len(rows)]
            scores.after[region, rows] = self._after(mine, region, own, state_of_view)

    def _after(
        self, states: Sequence[OracleState], region: int, clouds: PointClouds, state_of_view: NDArray[np.int64]
    ) -> Float64:
        """(n,) errors of each view's points joined to its state in a region, NaN where the state has no such region."""
        crops = dict(_in_region(states, region))
        number = np.full(len(states), -1)
        number[list(crops)] = np.arange(len(crops))
        views = np.flatnonzero(number[state_of_view] >= 0)
        chosen = clouds if len(views) == len(clouds) else clouds.select(views)
        measured = [(crop.crop.surface, crop.state) for crop in crops.values()]
        of_cloud = number[state_of_view[views]]
        sums = joined(measured, chosen, of_cloud, self.config.batch_mib << 20)
        after = np.full(len(state_of_view), np.nan)
        after[views] = errors_m2(sums, np.array([surface.weight_sum for surface, _ in measured])[of_cloud])
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


def halved(rows: NDArray[np.int64], work: Callable[[NDArray[np.int64]], None]) -> None:
    """Do ``work`` on all rows at once, or on ever smaller parts while the device has too little memory for them."""
    try:
        return work(rows)
    except DeviceMemoryError:
        if len(rows) == 1:
            raise
    for half in np.array_split(rows, 2):  # only here has the error let go of what the attempt had allocated
        halved(half, work)
    return None


def points_in(points: Float32, row: Float64) -> NDArray[np.bool_]:
    """points: (n, 3) -> (n,) bool: strictly inside the box of a (15,) row, judged in double precision."""
    x, y, z = points.astype(np.float64).T
    inside = np.ones(len(points), bool)
    for axis in row.reshape(3, 5):
        inside &= np.abs(x * axis[0] + y * axis[1] + z * axis[2] - axis[3]) < axis[4]
    return inside


def _regions(state: OracleState) -> tuple[CropState, ...]:
    return (state.target,) if state.scene_region is None else (state.target, state.scene_region)


def _in_region(states: Sequence[OracleState], region: int) -> list[tuple[int, CropState]]:
    """The states that have a region (0: target, 1: scene), by their number."""
    parts = [_regions(state) for state in states]
    return [(index, part[region]) for index, part in enumerate(parts) if region < len(part)]


def _region_boxes(states: Sequence[OracleState], state_of_view: NDArray[np.int64]) -> tuple[Float64, NDArray[np.int64]]:
    """Boxes (b, 15) of the states' regions, and (r, n) the box of each view in each region that some state has."""
    regions = [r for r in range(2) if _in_region(states, r)]
    boxes = np.zeros((len(regions), len(states), 15))
    for region in regions:
        for index, crop in _in_region(states, region):
            boxes[region, index] = crop.crop.box_row
    of_view = np.arange(len(regions))[:, None] * len(states) + state_of_view
    return boxes.reshape(-1, 15), of_view


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
        region_labels(
            *(region.error_m2, region.root_error_m2, region.state.point_count, count, rows),
            *(scores.after[index], scores.seen[index], scores.new[index]),
        )
        for index, region in enumerate(_regions(request.state))
    ]
    return CandidateLabels(regions[0], regions[1] if len(regions) > 1 else None, hits)
