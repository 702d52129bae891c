"""What a VIN store holds, scene by scene."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.sources.layout import SPLITS
from rollout_assets.sources.sample import BoxSet
from rollout_assets.sources.vin_store import VinOfflineStore

_KEYS = {"scene_id": pl.String, "split": pl.String}
_MEASURES = ("points", "gt_boxes", "detected_boxes", "poses")


@dataclass(frozen=True)
class SceneSummary:
    """One scene of one split. Points and boxes are means over its rows; ``faces`` is None without a mesh."""

    scene_id: str
    split: str
    rows: int
    faces: int | None
    points: float
    gt_boxes: float
    detected_boxes: float | None
    poses: float


@dataclass(frozen=True)
class StoreSummary:
    """A whole store."""

    path: str
    format_version: int
    source_manifest_hash: str
    rows_per_split: dict[str, int]
    num_shards: int
    scenes: tuple[SceneSummary, ...]


def summarise_store(store: VinOfflineStore, progress: ProgressSink = SILENT) -> StoreSummary:
    """Reads every row once; meshes are loaded one at a time."""
    lines = []
    for done, row in enumerate(store.rows(), start=1):
        sample = store.sample(row)
        detected = sample.actor.detected
        measures = (
            len(sample.actor.points_world),
            _eligible(sample.truth.gt_boxes),
            None if detected is None else _eligible(detected),
            len(sample.actor.trajectory_world_camera),
        )
        lines.append((row.scene_id, row.split, *measures))
        progress(ProgressEvent("reading rows", done, len(store), note=row.sample_key, unit="rows"))
    frame = pl.DataFrame(lines, schema=_KEYS | dict.fromkeys(_MEASURES, pl.Int64), orient="row")
    means = frame.group_by(*_KEYS, maintain_order=True).agg(pl.len().alias("rows"), pl.col(*_MEASURES).mean())
    scenes = tuple(SceneSummary(faces=_faces(store, row["scene_id"]), **row) for row in means.iter_rows(named=True))
    splits: dict[str, int] = {split: len(store.rows(split)) for split in SPLITS}
    num_shards = len(store.manifest.shards)
    return StoreSummary(str(store.location), store.version, store.source_manifest_hash, splits, num_shards, scenes)


def _eligible(boxes: BoxSet) -> int:
    extents = boxes.boxes.extents_m
    return int((np.isfinite(extents).all(axis=1) & (extents > 0).all(axis=1)).sum())


def _faces(store: VinOfflineStore, scene_id: str) -> int | None:
    return None if store.meshes.find(scene_id) is None else len(store.meshes.load(scene_id).faces)
