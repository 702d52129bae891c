"""Building a synthetic source store, and appending snippets to one.

A build is made in a directory beside its destination and renamed into place. An append writes new shards and meshes,
then the index and the split files, and the manifest last: until that one rename a reader sees the old store, because
it ignores rows of shards that the manifest does not name. What would be committed is opened first, the way a reader
opens it: no commit leaves a store that nothing opens. What a dead append left behind is removed by the next one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rollout_assets.config import canonical_hash
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ConfigError, SourceError
from rollout_assets.files import (
    file_lock,
    is_scratch,
    naming,
    remove_path,
)
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.sources import layout
from rollout_assets.sources.snapshot import StoreSnapshot, read_snapshot
from rollout_assets.synthetic.config import SyntheticConfig, snippet_number
from rollout_assets.synthetic.furniture_files import load_furniture
from rollout_assets.synthetic.furniture_repair import FurnitureFile
from rollout_assets.synthetic.shard_writer import ShardResult, ShardTask, write_shard
from rollout_assets.synthetic.store_files import publish_metadata, staged_store, store_manifest
from rollout_assets.workers import run_tasks

WRITER = "rollout_assets.sources.synthetic"
"""Stored in every manifest, so it stays what it was although the room has moved."""

_FEW_TASKS = 2
"""Up to so many scenes are built in this process, because starting others would take longer."""


@dataclass(frozen=True)
class SyntheticSummary:
    """What a build or an append wrote, the store's totals afterwards, and what a build did to the user's furniture."""

    store_dir: Path
    new_samples: int
    new_shards: int
    new_scenes: int
    num_samples: int
    num_train: int
    num_val: int
    faces_per_scene: tuple[int, ...]
    points_per_sample: float
    source_manifest_hash: str
    seconds: float
    furniture: tuple[FurnitureFile, ...] = ()


def build_synthetic_store(
    store_dir: Path, config: SyntheticConfig, progress: ProgressSink = SILENT, *, overwrite: bool = False
) -> SyntheticSummary:
    """Build a whole store at ``store_dir``; a non-empty destination is refused unless ``overwrite``.

    More than two scenes are built in fresh processes: a script that calls this needs the usual ``__main__`` guard, or
    ``workers=1``.
    """
    started = time.monotonic()
    store_dir = Path(store_dir).absolute()
    furniture = load_furniture(config.furniture_dir, config.faces_per_piece)
    with staged_store(store_dir, overwrite) as folder:
        manifest, results = _fill(folder, config, furniture.digest, progress)
    return _summary(store_dir, manifest, results, started, config.scenes, furniture.files)


def append_synthetic_snippets(
    store_dir: Path,
    snippets: int = 1,
    new_scenes: int = 0,
    progress: ProgressSink = SILENT,
    *,
    scene_ids: Sequence[str] | None = None,
    furniture_dir: Path | None = None,
    workers: int | None = None,
) -> SyntheticSummary:
    """Add ``snippets`` to every scene (or to ``scene_ids``), and ``new_scenes`` with as many as those of the build.

    Readers see all of it or nothing. Rows equal those that a build with more snippets or scenes would have had.
    """
    started = time.monotonic()
    store_dir = Path(store_dir).absolute()
    if snippets < 0 or new_scenes < 0 or snippets + new_scenes == 0:
        raise ConfigError(f"append needs snippets >= 1 or new_scenes >= 1, got {snippets} and {new_scenes}")
    _refuse_repeated(scene_ids or ())
    if not store_dir.is_dir():
        raise SourceError(f"{store_dir}: no such store")
    with file_lock(store_dir, str(store_dir), busy=SourceError):
        snapshot = read_snapshot(store_dir)
        manifest = snapshot.manifest
        config = _config_of(store_dir, manifest, furniture_dir, workers)
        tasks = _append_tasks(config, snapshot, snippets, new_scenes, scene_ids)
        _remove_leftovers(store_dir, manifest)
        with naming(store_dir):
            results = _run(tasks, config.effective_workers, "append", progress)
        rows = (*snapshot.rows, *(row for result in results for row in result.rows))
        specs = [*manifest.shards, *(result.spec for result in results)]
        grown = _manifest(config, manifest.source.get("furniture_digest"), specs, rows)
        publish_metadata(store_dir, grown, rows)
    return _summary(store_dir, grown, results, started, new_scenes)


def _fill(
    folder: Path, config: SyntheticConfig, furniture_digest: str | None, progress: ProgressSink
) -> tuple[layout.Manifest, list[ShardResult]]:
    """Write a whole store into an empty directory."""
    count = config.snippets_per_scene
    tasks = [
        ShardTask(config, folder, layout.shard_name(scene), scene * count, scene, 0, count)
        for scene in range(config.scenes)
    ]
    results = _run(tasks, config.effective_workers, "build", progress)
    rows = tuple(row for result in results for row in result.rows)
    manifest = _manifest(config, furniture_digest, [result.spec for result in results], rows)
    publish_metadata(folder, manifest, rows)
    return manifest, results


def _run(tasks: list[ShardTask], workers: int, name: str, progress: ProgressSink) -> list[ShardResult]:
    """Results in the order of tasks; every task stands alone, so the number of processes changes nothing."""
    progress(ProgressEvent(name, 0, len(tasks), unit="scenes"))

    def report(shard_id: str, result: ShardResult, finished: int) -> None:
        progress(ProgressEvent(name, finished, len(tasks), f"{shard_id}: {result.faces:,} faces", unit="scenes"))

    few = len(tasks) <= _FEW_TASKS
    named = {task.shard_id: task for task in tasks}
    return list(run_tasks(_shard_writer, named, 1 if few else workers, on_result=report).values())


def _shard_writer() -> Callable[[ShardTask, ProgressSink], ShardResult]:
    return lambda task, _progress: write_shard(task)


def _refuse_repeated(scene_ids: Sequence[str]) -> None:
    repeated = [scene for scene, times in Counter(scene_ids).items() if times > 1]
    if repeated:
        listed = ", ".join(repeated)
        raise ConfigError(f"append needs every scene once, got {listed} more than once; ask for more snippets instead")


def _append_tasks(
    config: SyntheticConfig,
    snapshot: StoreSnapshot,
    snippets: int,
    new_scenes: int,
    scene_ids: Sequence[str] | None,
) -> list[ShardTask]:
    """New snippets of old scenes first, then new scenes; shard and sample numbers go on where the store ends."""
    present: dict[int, int] = {}
    for row in snapshot.rows:
        scene = int(row.scene_id.rsplit("-", 1)[1])
        present[scene] = max(present.get(scene, 0), snippet_number(row.snippet_id) + 1)
    number_of = {config.scene_id(scene): scene for scene in sorted(present)}
    for name in scene_ids or ():
        if name not in number_of:
            raise SourceError(f"no scene {name} in the store; it has {len(present)} scenes")
    chosen = [number_of[name] for name in (number_of if scene_ids is None else scene_ids)]
    batches = [(scene, present[scene], snippets) for scene in chosen] if snippets else []
    beyond = max(present, default=-1) + 1
    batches += [(scene, 0, config.snippets_per_scene) for scene in range(beyond, beyond + new_scenes)]
    numbers = [layout.shard_number(spec.shard_id) for spec in snapshot.manifest.shards]
    shard = 1 + max((number for number in numbers if number is not None), default=-1)
    tasks = []
    row_start = len(snapshot.rows)
    for offset, (scene, first, count) in enumerate(batches):
        shard_id = layout.shard_name(shard + offset)
        tasks.append(ShardTask(config, snapshot.root, shard_id, row_start, scene, first, count))
        row_start += count
    return tasks


def _manifest(
    config: SyntheticConfig,
    furniture_digest: str | None,
    specs: Sequence[layout.ShardSpec],
    rows: Sequence[layout.IndexRow],
) -> layout.Manifest:
    options = config.hashable()
    source = {
        "dataset_config": options,
        "dataset_signature": canonical_hash({"options": options, "furniture": furniture_digest}),
        "furniture_digest": furniture_digest,
    }
    return store_manifest(config, source, WRITER, specs, rows)


def _config_of(
    store_dir: Path, manifest: layout.Manifest, furniture_dir: Path | None, workers: int | None
) -> SyntheticConfig:
    """The options a store was built with, which its own rows and the appended ones share."""
    if manifest.provenance.get("writer") != WRITER:
        raise SourceError(f"{store_dir}: not a synthetic store of version {layout.FORMAT_VERSION}; cannot append to it")
    options = dict(manifest.source.get("dataset_config", {}))
    try:
        config = SyntheticConfig.model_validate(options | {"furniture_dir": furniture_dir, "workers": workers})
    except ValidationError as error:
        problems = problems_text(error, SyntheticConfig)
        raise SourceError(f"{store_dir}: built with options this version does not know: {problems}") from None
    digest = load_furniture(furniture_dir, config.faces_per_piece).digest
    if digest != manifest.source.get("furniture_digest"):
        given = furniture_dir or "the built-in kinds"
        raise SourceError(f"{store_dir}: built with other furniture than {given}; give the same furniture directory")
    return config


def _remove_leftovers(store_dir: Path, manifest: layout.Manifest) -> None:
    """Shards that no manifest names and half-written files; only called by the one writer."""
    named = {spec.relative_dir for spec in manifest.shards}
    for path in (store_dir / layout.SHARDS_DIR).iterdir():
        if is_scratch(path) or f"{layout.SHARDS_DIR}/{path.name}" not in named:
            remove_path(path)
    for folder in (store_dir, store_dir / layout.SPLITS_DIR, store_dir / layout.MESHES_DIR):
        for path in folder.iterdir():
            if is_scratch(path):
                remove_path(path)


def _summary(
    store_dir: Path,
    manifest: layout.Manifest,
    results: list[ShardResult],
    started: float,
    new_scenes: int,
    furniture: tuple[FurnitureFile, ...] = (),
) -> SyntheticSummary:
    samples = sum(result.spec.num_rows for result in results)
    return SyntheticSummary(
        store_dir=store_dir,
        new_samples=samples,
        new_shards=len(results),
        new_scenes=new_scenes,
        num_samples=manifest.stats.num_samples,
        num_train=manifest.stats.num_train,
        num_val=manifest.stats.num_val,
        faces_per_scene=tuple(result.faces for result in results),
        points_per_sample=sum(result.points for result in results) / max(samples, 1),
        source_manifest_hash=layout.source_manifest_hash(manifest.model_dump(mode="json")),
        seconds=time.monotonic() - started,
        furniture=furniture,
    )
