"""What a VIN store holds, scene by scene."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.sources.layout import SPLITS
from rollout_assets.sources.sample import BoxSet
from rollout_assets.sources.vin_store import VinOfflineStore


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
    source_manifest_hash: str
    rows_per_split: dict[str, int]
    num_shards: int
    scenes: tuple[SceneSummary, ...]


def summarise_store(store: VinOfflineStore, progress: ProgressSink = SILENT) -> StoreSummary:
    """Reads every row once; meshes are loaded one at a time."""
    rows_of: dict[tuple[str, str], list[tuple[int, int, int | None, int]]] = {}
    for done, row in enumerate(store.rows(), start=1):
        sample = store.sample(row)
        rows_of.setdefault((row.scene_id, row.split), []).append(
            (
                len(sample.actor.points_world),
                _eligible(sample.truth.gt_boxes),
                None if sample.actor.detected is None else _eligible(sample.actor.detected),
                len(sample.actor.trajectory_world_camera),
            )
        )
        progress(ProgressEvent("reading rows", done, len(store), note=row.sample_key, unit="rows"))
    scenes = tuple(
        SceneSummary(
            scene_id=scene_id,
            split=split,
            rows=len(facts),
            faces=None if store.meshes.find(scene_id) is None else len(store.meshes.load(scene_id).faces),
            points=_mean(fact[0] for fact in facts),
            gt_boxes=_mean(fact[1] for fact in facts),
            detected_boxes=None if facts[0][2] is None else _mean(fact[2] or 0 for fact in facts),
            poses=_mean(fact[3] for fact in facts),
        )
        for (scene_id, split), facts in rows_of.items()
    )
    splits: dict[str, int] = {split: len(store.rows(split)) for split in SPLITS}
    return StoreSummary(str(store.root), store.source_manifest_hash, splits, len(store.manifest.shards), scenes)


def _eligible(boxes: BoxSet) -> int:
    extents = boxes.boxes.extents_m
    return int((np.isfinite(extents).all(axis=1) & (extents > 0).all(axis=1)).sum())


def _mean(values: Iterable[int]) -> float:
    return float(np.mean(list(values)))
