"""What is unusual about a store that works, and what in it nobody knows: two of the three answers of `source check`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel

from rollout_assets.errors import counted
from rollout_assets.sources import layout
from rollout_assets.sources.layout import IndexRow, ShardSpec
from rollout_assets.sources.sample import VinSample
from rollout_assets.sources.versions import UNDESCRIBED_VERSIONS, UNUSED_BLOCKS, is_unknown
from rollout_assets.sources.vin_store import VinOfflineStore

NO_TRUE_BOX = "no true boxes", "their targets and views are kept without labels (unmatched_gt)"
NO_DETECTION = "no detections", "they are skipped (NO_ACTOR_VISIBLE_SOURCE)"
NO_EVIDENCE = "no evidence of the backbone", "only semi-dense points support their targets"
PADDED_WALK = "a trajectory that ends in NaN", "the last finite pose is the root"
LISTED_NAMES = "class names as a list instead of a map", "the place in the list is the class id"
TEXT_IDS = "class ids as text instead of numbers", "they are read as numbers"
UNNAMED_CLASS = "boxes of a class without a name", "they are matched by class id"

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "backbone": (layout.EVIDENCE_POINTS, layout.EVIDENCE_COUNTS),
    "gt_obbs": (layout.GT_OBBS,),
    "detected_obbs": (layout.DETECTED_OBBS,),
    "trajectory": (layout.TIME_NS, layout.GRAVITY_IN_WORLD),
}
"""Flag of the manifest -> blocks of which at least one is there when it is set."""


class RowOddities:
    """Counts what is unusual row by row, so that each kind is told once, with how many rows and the first of them."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._total = 0

    def add(self, store: VinOfflineStore, row: IndexRow, sample: VinSample) -> None:
        """Look at one row."""
        self._total += 1
        for kind in _row_kinds(store, row, sample):
            self._rows[kind].append(row.sample_key)

    def findings(self) -> Iterator[str]:
        """One sentence per kind."""
        for (what, consequence), keys in self._rows.items():
            share = (
                "every row" if len(keys) == self._total else f"{len(keys)} of {self._total} rows, first in {keys[0]}"
            )
            yield f"{what} in {share}; {consequence}"


def _row_kinds(store: VinOfflineStore, row: IndexRow, sample: VinSample) -> Iterator[tuple[str, str]]:
    actor, truth = sample.actor, sample.truth
    if not len(truth.gt_boxes):
        yield NO_TRUE_BOX
    if actor.detected is None or not len(actor.detected):
        yield NO_DETECTION
    if actor.evidence is None or not len(actor.evidence.counts):
        yield NO_EVIDENCE
    if len(actor.trajectory_world_camera) < store.padded_poses(row):
        yield PADDED_WALK
    records = [store.record(row, name) for name in (layout.GT_NAMES, layout.DETECTED_NAMES)]
    if any(isinstance(record, list) for record in records):
        yield LISTED_NAMES
    if any(isinstance(key, str) for record in records if isinstance(record, dict) for key in record):
        yield TEXT_IDS
    names = (*truth.gt_boxes.class_names, *(actor.detected.class_names if actor.detected else ()))
    if any(name.startswith("class_") for name in names):
        yield UNNAMED_CLASS


def store_oddities(store: VinOfflineStore) -> Iterator[str]:
    """What is unusual about the store as a whole, as far as its metadata tells."""
    manifest = store.manifest
    if manifest.version in UNDESCRIBED_VERSIONS:
        yield f"format version {manifest.version} is not described in public; it is read like its neighbours"
    if manifest.stats.interrupted:
        yield "the program that wrote the store was interrupted; it may lack rows"
    yield from _shape_oddities(manifest.shards)
    yield from _flag_oddities(manifest)
    unused = sorted({name for shard in manifest.shards for name in shard.blocks} & UNUSED_BLOCKS)
    if unused:
        yield f"{counted(len(unused), 'block')} of the research code that nothing here reads: {', '.join(unused)}"
    yield from _scene_oddities(store)


def unknown_parts(store: VinOfflineStore) -> Iterator[str]:
    """Blocks and keys of the manifest that no format version which can be read about has."""
    manifest = store.manifest
    shards = Counter(name for shard in manifest.shards for name in shard.blocks if is_unknown(name))
    for name, count in sorted(shards.items()):
        yield f"block {name} in {counted(count, 'shard')}: ignored"
    parts: dict[str, Sequence[BaseModel]] = {
        "": [manifest],
        "stats.": [manifest.stats],
        "materialized_blocks.": [manifest.materialized_blocks],
        "shards[].": manifest.shards,
        "shards[].blocks[].": [block for shard in manifest.shards for block in shard.blocks.values()],
    }
    for place, models in parts.items():
        for key in sorted(_extra_keys(models)):
            yield f"key {place}{key} of manifest.json: ignored"


def _extra_keys(models: Sequence[BaseModel]) -> set[str]:
    return {key for model in models for key in model.model_extra or ()}


def _shape_oddities(shards: Sequence[ShardSpec]) -> Iterator[str]:
    shapes = {name: _shapes_of(name, shards) for name in layout.KNOWN_BLOCKS}
    if any(shape[-1] == 5 for shape in shapes[layout.POINTS_WORLD]):
        yield f"{layout.POINTS_WORLD} has 5 columns; the fifth, the number of observations, is not read"
    usual = (layout.EVIDENCE_SIDE,) * 3
    for grid in sorted({shape[2:] for shape in shapes[layout.EVIDENCE_COUNTS]} - {usual}):
        yield f"{layout.EVIDENCE_COUNTS} is a grid of {' × '.join(map(str, grid))} voxels"
    for name in (layout.GT_OBBS, layout.DETECTED_OBBS):
        for slots in sorted({shape[2] for shape in shapes[name]} - {layout.MAX_BOXES}):
            yield f"{name} has {counted(slots, 'box slot')} per time slice"
    if any(_disagree(shard) for shard in shards):
        yield f"{layout.GT_OBBS} has another number of time slices than {layout.T_WORLD_RIG} has poses"


def _shapes_of(name: str, shards: Sequence[ShardSpec]) -> set[tuple[int, ...]]:
    return {shape for shard in shards if (shape := _shape_of(name, shard))}


def _shape_of(name: str, shard: ShardSpec) -> tuple[int, ...] | None:
    """Shape of a block as the manifest says; None when it says none that the block can have."""
    spec = shard.blocks.get(name)
    if spec is None or not spec.shape or layout.KNOWN_BLOCKS[name].fitting(spec.shape[1:]) is None:
        return None
    return spec.shape


def _disagree(shard: ShardSpec) -> bool:
    boxes, poses = _shape_of(layout.GT_OBBS, shard), _shape_of(layout.T_WORLD_RIG, shard)
    return bool(boxes and poses and boxes[1] != poses[1])


def _flag_oddities(manifest: layout.Manifest) -> Iterator[str]:
    """The manifest's flags against the blocks; which blocks there are is what counts."""
    for flag, names in _FAMILIES.items():
        said = getattr(manifest.materialized_blocks, flag)
        there = any(name in shard.blocks for shard in manifest.shards for name in names)
        if said != there:
            blocks = f"{'a' if there else 'no'} shard lists {' or '.join(names)}"
            yield f"materialized_blocks.{flag} is {str(said).lower()}, but {blocks}"


def _scene_oddities(store: VinOfflineStore) -> Iterator[str]:
    splits: dict[str, set[str]] = defaultdict(set)
    for row in store.rows():
        splits[row.scene_id].add(row.split)
    for scene_id, of_scene in splits.items():
        if len(of_scene) > 1:
            yield f"scene {scene_id} lies in several splits: {', '.join(sorted(of_scene))}"
        if store.meshes.find(scene_id) is None:
            yield f"scene {scene_id} has no mesh; its rows get no labels"
