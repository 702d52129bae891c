"""Random labels measured again from the source and the stored poses, by code that shares nothing with the kernels.

Rays and distances come from other libraries where they are installed, else from brute force (``other_rays``,
``other_distances``); unprojection, fusion and crop are those of ``oracle.naive``, in double precision. The current
points are rebuilt by fusing the root's points and every view that the chain selected before.

Fusion is not continuous: a point that rounding moves across the border of a voxel changes which points are kept. Where
a label is off by more than its tolerance, it is measured twice more with voxels and box moved by the size of single
precision's rounding, to either side; what that moves is allowed too, and shown as ``rounding``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, ReplayRefused
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.voxels import VoxelGrid
from rollout_assets.inspection.other_distances import distances_of
from rollout_assets.inspection.other_rays import Rays, library, rays_of
from rollout_assets.inspection.provenance import refuse_other_campaign
from rollout_assets.inspection.replay import source_of
from rollout_assets.inspection.stored_opinion import COLUMNS, SecondOpinion
from rollout_assets.oracle import naive
from rollout_assets.oracle.fusion import fusion_grid
from rollout_assets.oracle.raycast import depth_on_host
from rollout_assets.oracle.scorer import ERROR_FLOOR_M2
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.randomness import rng_for
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.records import StoredRollout
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES
from rollout_assets.sources.sample import VinSample
from rollout_assets.sources.vin_store import VinOfflineStore

ERROR_TOLERANCE = 1e-5
"""Relative tolerance of errors before and after."""

GAIN_TOLERANCE = 1e-5
"""Absolute tolerance of gains."""

DEPTH_TOLERANCE = 1e-4
"""Relative tolerance of one pixel's depth."""

GRAZING_FRACTION = 0.01
"""Share of pixels whose ray may graze an edge, where rounding decides which surface it hits."""

COMPARED = {
    "target_pm_dist_before": ("before_m2", True),
    "target_pm_dist_after": ("after_m2", True),
    "target_rri": ("rri", False),
    "target_root_gain": ("root_gain", False),
    "target_log_error_gain": ("log_error_gain", False),
}
"""Stored label -> the naive oracle's name for it, and whether its tolerance is relative."""

ROUNDING = 2.0**-22
"""How far a point may be rounded, as a share of its largest coordinate: twice single precision's step."""


def second_opinion(
    reader: RolloutZarrStoreReader,
    fraction: float,
    seed: int,
    campaign: CampaignConfig,
    *,
    source: VinOfflineStore | None = None,
    limit: int | None = None,
    budget_s: float | None = None,
    progress: ProgressSink = SILENT,
) -> SecondOpinion:
    """Re-score a random ``fraction`` of the labelled candidates, at most ``limit``, with the naive oracle.

    The same seed draws the same candidates in the same order; once ``budget_s`` seconds are over no further one is
    begun, and the result says so. A campaign that did not make the store is ``ReplayRefused``, and so is a store whose
    ground-truth box or mesh is not the source's any more.
    """
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(f"fraction must be > 0 and <= 1, got {fraction}")
    labelled = np.flatnonzero(reader.array(CANDIDATES.path("oracle_label_mask")))
    count = min(math.ceil(fraction * len(labelled)), len(labelled) if limit is None else limit)
    chosen = rng_for(seed, "second opinion").choice(labelled, size=count, replace=False)
    expert = _Naive(reader, campaign, source or source_of(campaign))
    lines: list[dict[str, Any]] = []
    judged, begun = 0, time.monotonic()
    for row in chosen.tolist():
        if budget_s is not None and judged and time.monotonic() - begun > budget_s:
            break
        lines.extend(expert.judge(row))
        judged += 1
        progress(ProgressEvent("second opinion", judged, count, unit="candidates"))
    labels = pl.DataFrame(lines, schema=COLUMNS).sort("candidate_row_id", maintain_order=True)
    seconds = time.monotonic() - begun
    libraries = (library(), expert.distances.name)
    return SecondOpinion(labels, judged, len(labelled), count, *libraries, campaign.quality.noise_m, seconds)


@dataclass(frozen=True)
class _Doubt:
    """What a label is measured under: noise on the points of views, and voxels and box moved to one side."""

    noise_m: float = 0.0
    side: int = 0


_PLAIN = _Doubt()
_SIDES = (_Doubt(side=-1), _Doubt(side=1))


class _Naive:
    """The naive oracle over one store; remembers scenes, depth, clouds and errors that several candidates share."""

    def __init__(self, reader: RolloutZarrStoreReader, campaign: CampaignConfig, source: VinOfflineStore) -> None:
        self.reader, self.campaign, self.source = reader, campaign, source
        self.oracle, self.distances = campaign.oracle, distances_of(campaign.oracle)
        self.rollout = lru_cache(maxsize=8)(self._rollout)
        self.sample: Callable[[str], VinSample] = lru_cache(maxsize=4)(lambda key: source.sample(source.row(key)))
        self._rays = lru_cache(maxsize=4)(self._rays_of)
        self._scenes = SceneLoader(source.meshes, campaign.oracle)
        self._depths: dict[tuple[str, bytes], Float64] = {}
        self._clouds: dict[tuple[str, bytes, _Doubt], Float64] = {}
        self._errors: dict[tuple[str, str, bytes, _Doubt], float] = {}
        self._crops: dict[tuple[str, str], naive.NaiveCrop] = {}

    def judge(self, candidate_row_id: int) -> Iterator[dict[str, Any]]:
        """Every label of one candidate beside the naive oracle's."""
        row = self.reader.columns(CANDIDATES, start=candidate_row_id, stop=candidate_row_id + 1)
        stored = self.rollout(int(row["rollout_row_id"][0]))
        step_index = int(row["step_index"][0])
        earlier = [
            step.shell.pose_world_camera[step.selection.selected_shell_index]
            for step in stored.chain.steps[:step_index]
        ]
        about = {
            "candidate_row_id": candidate_row_id,
            "rollout_id": stored.lineage.rollout_id,
            "step_index": step_index,
            "shell_index": int(row["shell_index"][0]),
        }
        pose = row["pose_world_cam"][0]
        confirmed = 1.0 - self._wrong_depth(stored, pose)
        yield about | _line("depth_pixels", 1.0, confirmed, GRAZING_FRACTION, None, None)
        values = {label: float(row[label][0]) for label in COMPARED}
        yield from (about | line for line in self._compared(stored, [*earlier, pose], values))

    def _compared(self, stored: StoredRollout, poses: list[Float32], values: dict[str, float]) -> list[dict[str, Any]]:
        ours, noisy = (self._labels(stored, poses, doubt) for doubt in (_PLAIN, _Doubt(self.campaign.quality.noise_m)))
        tolerances = {
            label: ERROR_TOLERANCE * max(abs(ours[label]), 1e-12) if relative else GAIN_TOLERANCE
            for label, (_, relative) in COMPARED.items()
        }
        within = all(abs(values[label] - ours[label]) <= tolerances[label] for label in COMPARED)
        sides = [] if within else [self._labels(stored, poses, doubt) for doubt in _SIDES]
        return [
            _line(
                label,
                values[label],
                ours[label],
                tolerances[label],
                sum(abs(side[label] - ours[label]) for side in sides) if sides else None,
                abs(noisy[label] - ours[label]),
            )
            for label in COMPARED
        ]

    def _labels(self, stored: StoredRollout, poses: list[Float32], doubt: _Doubt) -> dict[str, float]:
        """Labels of the last view, by their stored names."""
        sample = self.sample(stored.lineage.source_sample_key or "")
        at_root = _Doubt(side=doubt.side)  # its points are stored: there is no view to be noisy
        root = self._error(stored, sample, [], at_root)
        before = self._error(stored, sample, poses[:-1], doubt if len(poses) > 1 else at_root)
        after = self._error(stored, sample, poses, doubt)
        labels = asdict(naive.NaiveLabels.of(before, after, root))
        return {label: float(labels[name]) for label, (name, _) in COMPARED.items()}

    def _cloud(self, sample: VinSample, views: list[Float32], doubt: _Doubt) -> Float64:
        """The root's points and those of every view, each voxel's first point only."""
        key = (sample.actor.identity.sample_key, _bytes(views), doubt)
        if key not in self._clouds:
            if views:
                current, new = self._cloud(sample, views[:-1], doubt), self._seen(sample, views[-1], doubt)
            else:
                current, new = np.zeros((0, 3)), np.asarray(sample.actor.points_world, np.float64)
            self._clouds[key] = naive.fuse(current, new, self._grid(new, doubt))
        return self._clouds[key]

    def _grid(self, points: Float64, doubt: _Doubt) -> VoxelGrid:
        grid = fusion_grid(self.oracle)
        return VoxelGrid(grid.size_m, grid.origin_m + doubt.side * _rounding_m(points))

    def _error(self, stored: StoredRollout, sample: VinSample, views: list[Float32], doubt: _Doubt) -> float:
        key = (sample.actor.identity.sample_key, stored.lineage.target_id or "", _bytes(views), doubt)
        if key not in self._errors:
            box, cloud = self._box(stored, sample), self._cloud(sample, views, doubt)
            surface = self._crop(key[:2], sample.actor.identity.scene_id, box)
            margin_m = self.oracle.crop_margin_m + doubt.side * _rounding_m(cloud)
            self._errors[key] = self.distances.error_m2(surface, cloud[naive.inside(cloud, box, margin_m)])
        return self._errors[key]

    def _crop(self, key: tuple[str, str], scene_id: str, box: OrientedBoxes) -> naive.NaiveCrop:
        if key not in self._crops:
            mesh = self.source.meshes.load(scene_id)
            self._crops[key] = naive.crop(mesh.vertices, mesh.faces, box, self.oracle)
        return self._crops[key]

    def _seen(self, sample: VinSample, pose: Float32, doubt: _Doubt) -> Float64:
        camera = self._camera(sample)
        points = naive.unprojected(self._depth(sample, pose), pose, camera, self.oracle.pixel_stride)
        rng = rng_for(self.campaign.seed, "noise on points", pose.tobytes().hex())
        return points + rng.uniform(-doubt.noise_m, doubt.noise_m, points.shape)

    def _depth(self, sample: VinSample, pose: Float32) -> Float64:
        key = (sample.actor.identity.sample_key, pose.tobytes())
        if key not in self._depths:
            rays, limits = self._rays(sample.actor.identity.scene_id), (self.oracle.znear_m, self.oracle.zfar_m)
            self._depths[key] = rays.depth(pose, self._camera(sample), *limits)
        return self._depths[key]

    def _rays_of(self, scene_id: str) -> Rays:
        mesh = self.source.meshes.load(scene_id)
        return rays_of(mesh.vertices, mesh.faces)

    def _wrong_depth(self, stored: StoredRollout, pose: Float32) -> float:
        """Share of pixels where the renderer's depth and the other rays' disagree."""
        sample = self.sample(stored.lineage.source_sample_key or "")
        fast, slow = self._rendered(sample, pose), self._depth(sample, pose)
        return float((np.abs(fast - slow) > DEPTH_TOLERANCE * np.maximum(slow, ERROR_FLOOR_M2)).mean())

    def _rendered(self, sample: VinSample, pose: Float32) -> Float32:
        loaded = self._scenes.find(sample.actor.identity.scene_id)
        assert loaded is not None, "a rollout whose mesh is not there is refused before"
        limits = self.oracle.znear_m, self.oracle.zfar_m
        return depth_on_host(loaded[0].bvh, pose[None], self._camera(sample), *limits)[0]

    def _camera(self, sample: VinSample) -> PinholeCamera:
        return sample.actor.camera.resized(self.oracle.height_px, self.oracle.width_px)

    def _box(self, stored: StoredRollout, sample: VinSample) -> OrientedBoxes:
        number = stored.lineage.matched_gt_target_row_id
        rows = np.flatnonzero(sample.truth.gt_boxes.source_index == number)
        if len(rows) != 1:
            raise ReplayRefused(f"{stored.lineage.rollout_id}: the source has no ground-truth box {number} any more")
        return sample.truth.gt_boxes.boxes[int(rows[0]) : int(rows[0]) + 1]

    def _rollout(self, rollout_row_id: int) -> StoredRollout:
        stored = self.reader.rollout(rollout_row_id)
        refuse_other_campaign(self.reader, stored.lineage, self.campaign)
        scene = stored.lineage.scene_id or ""
        meshes, version = self.source.meshes, stored.lineage.mesh_version
        if meshes.find(scene) is None or meshes.load(scene).content_hash != version:
            raise ReplayRefused(f"{stored.lineage.rollout_id}: the mesh of {scene} is not {version}")
        return stored


def _line(
    label: str, stored: float, ours: float, tolerance: float, rounding: float | None, moved: float | None
) -> dict[str, Any]:
    gap = abs(stored - ours)
    values = {"stored": stored, "naive": ours, "gap": gap, "tolerance": tolerance, "rounding": rounding}
    return {"label": label, **values, "agrees": gap <= tolerance + (rounding or 0.0), "moved": moved}


def _bytes(poses: list[Float32]) -> bytes:
    return b"".join(pose.tobytes() for pose in poses)


def _rounding_m(points: Float64) -> float:
    return ROUNDING * float(np.abs(points).max(initial=0.0))
