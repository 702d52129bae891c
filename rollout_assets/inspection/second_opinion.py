"""Random labels measured again by the naive oracle: brute force in double precision.

Everything comes from the source and the stored poses: the current points are rebuilt by fusing the root's points and
every view that the chain selected before, the crop is the matched ground-truth box, and each error is measured from
scratch.

Depth is judged on its own, pixel by pixel, against brute-force ray casting; the labels are then measured on the
rendered depth. Fusion is not continuous: a point that rounding moves across the face of a voxel changes which points
are kept, so two oracles that agree on every depth to seven digits may still differ in a label's fifth. The one shortcut
is exact: a triangle that lies outside the pyramid of a tile of pixels is not tried against its rays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, ReplayRefused
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64, inverse, transform
from rollout_assets.inspection.provenance import refuse_other_campaign
from rollout_assets.inspection.replay import source_of
from rollout_assets.oracle import naive
from rollout_assets.oracle.fusion import fusion_grid
from rollout_assets.oracle.raycast import render_depth
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

_TILE_PX = 6


@dataclass(frozen=True, eq=False)
class SecondOpinion:
    """One row per label of each re-scored candidate: stored, naive, gap, tolerance and ``agrees``.

    ``depth_pixels`` is no stored label: it is the share of the view's pixels whose depth brute force confirms.
    """

    labels: pl.DataFrame
    candidates: int
    labelled: int

    @property
    def findings(self) -> pl.DataFrame:
        """Labels that the naive oracle does not confirm."""
        return self.labels.filter(~pl.col("agrees"))

    @property
    def agrees(self) -> bool:
        """Whether every label is confirmed."""
        return self.findings.is_empty()


def second_opinion(
    reader: RolloutZarrStoreReader,
    fraction: float,
    seed: int,
    campaign: CampaignConfig,
    *,
    source: VinOfflineStore | None = None,
    limit: int | None = None,
    progress: ProgressSink = SILENT,
) -> SecondOpinion:
    """Re-score a random ``fraction`` of the labelled candidates, at most ``limit``, with the naive oracle.

    The same seed draws the same candidates. Slow on purpose: seconds a candidate. A campaign that did not make the
    store is ``ReplayRefused``, and so is a store whose ground-truth box or mesh is not the source's any more.
    """
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(f"fraction must be > 0 and <= 1, got {fraction}")
    labelled = np.flatnonzero(reader.array(CANDIDATES.path("oracle_label_mask")))
    count = min(math.ceil(fraction * len(labelled)), len(labelled) if limit is None else limit)
    chosen = np.sort(rng_for(seed, "second opinion").choice(labelled, size=count, replace=False))
    expert = _Naive(reader, campaign, source or source_of(campaign))
    lines: list[dict[str, Any]] = []
    for done, row in enumerate(chosen.tolist(), start=1):
        lines.extend(expert.judge(row))
        progress(ProgressEvent("second opinion", done, count, unit="candidates"))
    return SecondOpinion(pl.DataFrame(lines, schema=_COLUMNS), count, len(labelled))


_COLUMNS = {
    "candidate_row_id": pl.Int64,
    "rollout_id": pl.String,
    "step_index": pl.Int64,
    "shell_index": pl.Int64,
    "label": pl.String,
    "stored": pl.Float64,
    "naive": pl.Float64,
    "gap": pl.Float64,
    "tolerance": pl.Float64,
    "agrees": pl.Boolean,
}


class _Naive:
    """The naive oracle over one store; remembers scenes, clouds and errors that several candidates share."""

    def __init__(self, reader: RolloutZarrStoreReader, campaign: CampaignConfig, source: VinOfflineStore) -> None:
        self.reader, self.campaign, self.source = reader, campaign, source
        self.oracle = campaign.oracle
        self.rollout = lru_cache(maxsize=8)(self._rollout)
        self.sample: Callable[[str], VinSample] = lru_cache(maxsize=4)(lambda key: source.sample(source.row(key)))
        self._scenes = SceneLoader(source.meshes, campaign.oracle.device)
        self._clouds: dict[tuple[str, bytes], Float32] = {}
        self._errors: dict[tuple[str, str, bytes], float] = {}
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
        pose = row["pose_world_cam"][0]
        about = {
            "candidate_row_id": candidate_row_id,
            "rollout_id": stored.lineage.rollout_id,
            "step_index": step_index,
            "shell_index": int(row["shell_index"][0]),
        }
        yield about | _line("depth_pixels", 1.0, 1.0 - self._wrong_depth(stored, pose), GRAZING_FRACTION)
        labels = self._labels(stored, earlier, pose)
        for label, (name, relative) in COMPARED.items():
            ours = float(getattr(labels, name))
            tolerance = ERROR_TOLERANCE * max(abs(ours), 1e-12) if relative else GAIN_TOLERANCE
            yield about | _line(label, float(row[label][0]), ours, tolerance)

    def _labels(self, stored: StoredRollout, earlier: list[Float32], pose: Float32) -> naive.NaiveLabels:
        sample = self.sample(stored.lineage.source_sample_key or "")
        current = self._cloud(sample, earlier)
        joined = naive.fuse(current, self._seen(sample, pose), fusion_grid(self.oracle))
        root = self._error(stored, sample, [], self._cloud(sample, []))
        before = self._error(stored, sample, earlier, current)
        after = self._error(stored, sample, [*earlier, pose], joined)
        return naive.NaiveLabels.of(before, after, root)

    def _cloud(self, sample: VinSample, earlier: list[Float32]) -> Float32:
        """P_t: the root's points and those of every earlier view, each voxel's first point only."""
        key = (sample.actor.identity.sample_key, b"".join(pose.tobytes() for pose in earlier))
        if key not in self._clouds:
            grid = fusion_grid(self.oracle)
            if earlier:
                cloud = naive.fuse(self._cloud(sample, earlier[:-1]), self._seen(sample, earlier[-1]), grid)
            else:
                cloud = naive.fuse(np.zeros((0, 3), np.float32), sample.actor.points_world, grid)
            self._clouds[key] = cloud
        return self._clouds[key]

    def _error(self, stored: StoredRollout, sample: VinSample, earlier: list[Float32], cloud: Float32) -> float:
        views = b"".join(pose.tobytes() for pose in earlier)
        key = (sample.actor.identity.sample_key, stored.lineage.target_id or "", views)
        if key not in self._errors:
            box = self._box(stored, sample)
            surface = self._crop(key[:2], sample.actor.identity.scene_id, box)
            self._errors[key] = surface.error(cloud[box.contains(cloud, self.oracle.crop_margin_m)[0]])
        return self._errors[key]

    def _crop(self, key: tuple[str, str], scene_id: str, box: OrientedBoxes) -> naive.NaiveCrop:
        if key not in self._crops:
            mesh = self.source.meshes.load(scene_id)
            self._crops[key] = naive.crop(mesh.vertices, mesh.faces, box, self.oracle)
        return self._crops[key]

    def _seen(self, sample: VinSample, pose: Float32) -> Float32:
        return naive.back_project(self._rendered(sample, pose), pose, self._camera(sample), self.oracle.pixel_stride)

    def _wrong_depth(self, stored: StoredRollout, pose: Float32) -> float:
        """Share of pixels where rendered and brute-force depth disagree."""
        sample = self.sample(stored.lineage.source_sample_key or "")
        mesh = self.source.meshes.load(sample.actor.identity.scene_id)
        limits = self.oracle.znear_m, self.oracle.zfar_m
        slow = tiled_depth(mesh.vertices, mesh.faces, pose, self._camera(sample), *limits)
        fast = self._rendered(sample, pose)
        return float((np.abs(fast - slow) > DEPTH_TOLERANCE * np.maximum(slow, ERROR_FLOOR_M2)).mean())

    def _rendered(self, sample: VinSample, pose: Float32) -> Float32:
        loaded = self._scenes.find(sample.actor.identity.scene_id)
        assert loaded is not None, "a rollout whose mesh is not there is refused before"
        limits = self.oracle.znear_m, self.oracle.zfar_m
        return render_depth(loaded[0].bvh, pose[None], self._camera(sample), *limits).depth_m[0].cpu().numpy()

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
        if meshes.find(scene) is None or meshes.content_hash(scene) != version:
            raise ReplayRefused(f"{stored.lineage.rollout_id}: the mesh of {scene} is not {version}")
        return stored


def _line(label: str, stored: float, ours: float, tolerance: float) -> dict[str, Any]:
    gap = abs(stored - ours)
    values = {"stored": stored, "naive": ours, "gap": gap, "tolerance": tolerance}
    return {"label": label, **values, "agrees": gap <= tolerance}


def tiled_depth(
    vertices: Float32,
    faces: NDArray[np.int32],
    pose_world_camera: Float32,
    camera: PinholeCamera,
    znear_m: float,
    zfar_m: float,
) -> Float64:
    """``naive.depth``, tile by tile, each with the faces that reach into its pyramid: the same image, much sooner.

    A face is left out only when all its corners lie beyond one side plane of the tile, or behind the camera.
    """
    corners = transform(inverse(pose_world_camera), vertices).astype(np.float64)[faces]
    x, y, z = corners[..., 0], corners[..., 1], corners[..., 2]
    slack = 1e-4
    ahead = (z > -slack).any(axis=1)
    image = np.zeros((camera.height_px, camera.width_px))
    for top in range(0, camera.height_px, _TILE_PX):
        bottom = min(top + _TILE_PX, camera.height_px)
        above, below = (camera.cy_px - top) / camera.fy_px, (camera.cy_px - bottom) / camera.fy_px
        band = ahead & (y - above * z < slack).any(axis=1) & (y - below * z > -slack).any(axis=1)
        for left in range(0, camera.width_px, _TILE_PX):
            right = min(left + _TILE_PX, camera.width_px)
            near, far = (camera.cx_px - left) / camera.fx_px, (camera.cx_px - right) / camera.fx_px
            inside = band & (x - near * z < slack).any(axis=1) & (x - far * z > -slack).any(axis=1)
            if inside.any():
                principal = {"cx_px": camera.cx_px - left, "cy_px": camera.cy_px - top}
                tile = replace(camera, height_px=bottom - top, width_px=right - left, **principal)
                seen = naive.depth(vertices, faces[inside], pose_world_camera, tile, znear_m, zfar_m)
                image[top:bottom, left:right] = seen
    return image
