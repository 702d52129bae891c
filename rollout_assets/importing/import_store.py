"""Importing a directory of scenes as a source store.

Every scene stands alone: one that cannot be understood is named and left out, and the others go on. The store is built
in a directory beside its destination and renamed into place, so that an interrupted import leaves nothing behind.
Nothing is written where the scenes lie.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rollout_assets.config import canonical_hash
from rollout_assets.errors import ImportRefused, SourceError, counted
from rollout_assets.files import remove_path
from rollout_assets.importing.config import ImportConfig
from rollout_assets.importing.scene_folder import find_scenes
from rollout_assets.importing.scene_rows import (
    ROWS_DIR,
    LeftOutScene,
    SceneReport,
    SceneTask,
    import_scene,
    load_rows,
)
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.randomness import key_digest
from rollout_assets.sources import layout
from rollout_assets.synthetic.furniture import CLASS_IDS, CLASS_NAMES
from rollout_assets.synthetic.furniture_files import FIRST_OWN_CLASS
from rollout_assets.synthetic.shard_writer import index_rows, write_rows
from rollout_assets.synthetic.store_files import publish_metadata, staged_store, store_manifest
from rollout_assets.workers import run_tasks

WRITER = "rollout_assets.importing"
"""Stored in every manifest."""


@dataclass(frozen=True)
class ImportSummary:
    """What an import wrote, what it understood of every scene, and which scenes it left out."""

    store_dir: Path
    scenes: tuple[SceneReport, ...]
    left_out: tuple[LeftOutScene, ...]
    num_samples: int
    num_train: int
    num_val: int
    source_manifest_hash: str
    seconds: float


def import_scenes(
    scenes_dir: Path,
    store_dir: Path,
    config: ImportConfig,
    progress: ProgressSink = SILENT,
    *,
    overwrite: bool = False,
) -> ImportSummary:
    """Import every scene of a directory that can be imported; it is an error when none can."""
    started = time.monotonic()
    scenes_dir, store_dir = Path(scenes_dir).absolute(), Path(store_dir).absolute()
    folders = find_scenes(scenes_dir)
    if store_dir.is_relative_to(scenes_dir):
        raise SourceError(f"{store_dir}: lies within {scenes_dir}; nothing is written where the scenes are")
    with staged_store(store_dir, overwrite) as building:
        (building / ROWS_DIR).mkdir()
        tasks = {folder.scene_id: SceneTask(config, folder, building) for folder in folders}
        results = _run(tasks, config.effective_workers, progress)
        reports = [result for result in results if isinstance(result, SceneReport)]
        left_out = tuple(result for result in results if isinstance(result, LeftOutScene))
        if not reports:
            problems = [f"{scene.scene_id}: {scene.reason}" for scene in left_out]
            raise ImportRefused(f"{scenes_dir}: none of {counted(len(folders), 'scene')} can be imported", problems)
        manifest = _write_store(building, config, reports)
    return ImportSummary(
        store_dir=store_dir,
        scenes=tuple(reports),
        left_out=left_out,
        num_samples=manifest.stats.num_samples,
        num_train=manifest.stats.num_train,
        num_val=manifest.stats.num_val,
        source_manifest_hash=layout.source_manifest_hash(manifest.model_dump(mode="json")),
        seconds=time.monotonic() - started,
    )


def _run(tasks: dict[str, SceneTask], workers: int, progress: ProgressSink) -> list[SceneReport | LeftOutScene]:
    """Results in the order of tasks; every task stands alone, so the number of processes changes nothing."""
    progress(ProgressEvent("import", 0, len(tasks), unit="scenes"))

    def report(scene_id: str, result: SceneReport | LeftOutScene, finished: int) -> None:
        text = f"{result.faces:,} faces" if isinstance(result, SceneReport) else "left out"
        progress(ProgressEvent("import", finished, len(tasks), f"{scene_id}: {text}", unit="scenes"))

    return list(run_tasks(_importer, tasks, workers, on_result=report).values())


def _importer() -> Callable[[SceneTask, ProgressSink], SceneReport | LeftOutScene]:
    return lambda task, _progress: import_scene(task)


def _write_store(building: Path, config: ImportConfig, reports: Sequence[SceneReport]) -> layout.Manifest:
    """Shards, index, split files and manifest from the rows that wait; then the waiting rows are removed."""
    class_names = _class_names(reports)
    numbers = {name: number for number, name in class_names.items()}
    splits = _splits(config, reports)
    specs: list[layout.ShardSpec] = []
    index: list[layout.IndexRow] = []
    for number, report in enumerate(reports):
        own = np.array([numbers[name] for name in report.classes], np.int64)
        rows = load_rows(building, report.scene_id, own)
        spec = write_rows(building, layout.shard_name(number), len(index), rows, class_names)
        specs.append(spec)
        index += index_rows(spec, report.scene_id, splits[report.scene_id], 0)
    remove_path(building / ROWS_DIR)
    options = config.hashable()
    understood = {report.scene_id: asdict(report) for report in reports}
    source = {
        "dataset_config": options,
        "dataset_signature": canonical_hash({"options": options, "scenes": understood}),
        "scenes": understood,
    }
    manifest = store_manifest(config, source, WRITER, specs, index)
    publish_metadata(building, manifest, index)
    return manifest


def _class_names(reports: Sequence[SceneReport]) -> dict[int, str]:
    """Names by semantic id: those of the built-in kinds, and then the others in alphabetical order."""
    own = sorted({name for report in reports for name in report.classes} - CLASS_IDS.keys())
    return dict(CLASS_NAMES) | {FIRST_OWN_CLASS + number: name for number, name in enumerate(own)}


def _splits(config: ImportConfig, reports: Sequence[SceneReport]) -> dict[str, str]:
    """Split by scene: the share with the least digests is val, at least one of several unless the share is 0.

    Scenes with the same mesh are one scene under several names, so they share a split.
    """
    namesakes: dict[str, str] = {}
    for report in reports:
        namesakes.setdefault(report.mesh_hash, report.scene_id)
    count = round(config.val_share * len(namesakes))
    if config.val_share > 0 and len(namesakes) > 1:
        count = min(max(count, 1), len(namesakes) - 1)
    ordered = sorted(namesakes.values(), key=lambda scene_id: key_digest("import split", config.seed, scene_id))
    return {
        report.scene_id: "val" if ordered.index(namesakes[report.mesh_hash]) < count else "train" for report in reports
    }
