"""The VIN offline store: names, shapes, paths, metadata models and hashes.

The synthetic writer and the reader both take every name from here, so that the format is written down once. Which block
belongs to which format version is in ``versions``.

    store/manifest.json                     which shards count, and what is in them
          sample_index.jsonl                one ``IndexRow`` a line
          splits/{all,train,val}.npy        int64 sample indices
          shards/shard-000000/              a Zarr v3 group: block ``vin.lengths`` is the array ``vin/lengths``
              gt__obb_sem_id_to_name.msgpack + gt__obb_sem_id_to_name.offsets.npy
          meshes/                           only beside a synthetic store

The manifest is the commit point of an append. It is replaced last, so rows of a shard that it does not name and split
entries at or above ``stats.num_samples`` belong to an append under way, or to one that died: readers ignore them at the
tail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rollout_assets.config import Natural, Split, canonical_hash, canonical_json
from rollout_assets.geometry.boxes import BOX_WIDTH

FORMAT_VERSION = 7
"""The format version that this package writes; ``versions.SUPPORTED_VERSIONS`` are those that it reads."""

MANIFEST_FILE = "manifest.json"
INDEX_FILE = "sample_index.jsonl"
SPLITS_DIR = "splits"
SHARDS_DIR = "shards"
MESHES_DIR = "meshes"

ALL = "all"
"""The split file that names every sample, whatever its split."""

SPLITS: tuple[Split, ...] = get_args(Split)
"""The splits a sample can belong to."""

SPLIT_FILES = (ALL, *SPLITS)

MAX_BOXES = 128
"""Box slots per time slice of synthetic stores; unused ones are all -1. Stores of others may have another number."""

EVIDENCE_SIDE = 48
"""Voxels along each side of the evidence grid of synthetic stores; those of others have any size."""

HASH_DIGITS = 16
"""Hex digits kept of a manifest hash."""

ZARR_ARRAY: Literal["zarr_array"] = "zarr_array"
MSGPACK_RECORDS: Literal["msgpack_indexed_records"] = "msgpack_indexed_records"
BlockKind = Literal["zarr_array", "msgpack_indexed_records"]

POINTS_WORLD = "vin.points_world"
LENGTHS = "vin.lengths"
T_WORLD_RIG = "vin.t_world_rig"
T_WORLD_SNIPPET = "vin.t_world_snippet"
TIME_NS = "vin.trajectory.time_ns"
GRAVITY_IN_WORLD = "vin.trajectory.gravity_in_world"
REFERENCE_POSE = "oracle.reference_pose_world_rig"
VIN_REFERENCE_POSE = "vin.reference_pose_world_rig"
FOCAL_LENGTH = "oracle.p3d.focal_length"
PRINCIPAL_POINT = "oracle.p3d.principal_point"
IMAGE_SIZE = "oracle.p3d.image_size"
IN_NDC = "oracle.p3d.in_ndc"
EVIDENCE_POINTS = "backbone.pts_world"
EVIDENCE_COUNTS = "backbone.counts"
GT_OBBS = "gt.obbs"
GT_NAMES = "gt.obb_sem_id_to_name"
DETECTED_OBBS = "detected.obbs"
DETECTED_NAMES = "detected.obb_sem_id_to_name"

_SHARD_ID = re.compile(r"shard-(\d{6,})")


@dataclass(frozen=True)
class KnownBlock:
    """One block of the format.

    ``shapes`` are the shapes that it may have after the row axis: a number is fixed, a letter is free and must be the
    same wherever the same letter stands in one shard (``T`` poses and ``T`` times). Records have no dtype and no shape.
    ``optional`` is how a writer marks the block in the manifest; what a version requires is in ``versions``.
    """

    name: str
    dtype: str | None
    shapes: tuple[tuple[int | str, ...], ...] = ()
    optional: bool = False

    @property
    def kind(self) -> BlockKind:
        """How the block is stored."""
        return MSGPACK_RECORDS if self.dtype is None else ZARR_ARRAY

    def fitting(self, trailing: Sequence[int]) -> tuple[int | str, ...] | None:
        """Which of the shapes an array of this shape after the row axis has; None when it cannot be this block."""
        return next((shape for shape in self.shapes if _fits(shape, trailing)), None)

    def describe(self, rows: int | str = "R") -> str:
        """``float32 (R, N, 4) or (R, N, 5)``, for messages."""
        if self.dtype is None:
            return f"{rows} records"
        shapes = (", ".join(str(part) for part in (rows, *shape)) for shape in self.shapes)
        return f"{self.dtype} {' or '.join(f'({shape})' for shape in shapes)}"


def _fits(shape: Sequence[int | str], trailing: Sequence[int]) -> bool:
    pairs = zip(shape, trailing, strict=False)
    return len(shape) == len(trailing) and all(isinstance(part, str) or part == size for part, size in pairs)


_PER_CANDIDATE = (("C", 2),)

KNOWN_BLOCKS: dict[str, KnownBlock] = {
    block.name: block
    for block in (
        KnownBlock(POINTS_WORLD, "float32", (("N", 4), ("N", 5))),
        KnownBlock(LENGTHS, "int64", ((1,),)),
        KnownBlock(T_WORLD_RIG, "float32", (("T", 12),)),
        KnownBlock(T_WORLD_SNIPPET, "float32", ((1, 12), (12,))),
        KnownBlock(TIME_NS, "int64", (("T",),), optional=True),
        KnownBlock(GRAVITY_IN_WORLD, "float32", ((3,),), optional=True),
        KnownBlock(REFERENCE_POSE, "float32", ((12,),)),
        KnownBlock(VIN_REFERENCE_POSE, "float32", ((12,),)),
        KnownBlock(FOCAL_LENGTH, "float32", _PER_CANDIDATE),
        KnownBlock(PRINCIPAL_POINT, "float32", _PER_CANDIDATE),
        KnownBlock(IMAGE_SIZE, "float32", _PER_CANDIDATE),
        KnownBlock(IN_NDC, "bool", ((),), optional=True),
        KnownBlock(EVIDENCE_POINTS, "float32", ((1, "K", 3),), optional=True),
        KnownBlock(EVIDENCE_COUNTS, "int64", ((1, "X", "Y", "Z"),), optional=True),
        KnownBlock(GT_OBBS, "float32", (("S", "G", BOX_WIDTH),)),
        KnownBlock(GT_NAMES, None, optional=True),
        KnownBlock(DETECTED_OBBS, "float32", ((1, "D", BOX_WIDTH),), optional=True),
        KnownBlock(DETECTED_NAMES, None, optional=True),
    )
}
"""Every block this package understands, by name. Stores may hold others."""

Text = Annotated[str, Field(min_length=1)]


class StoreModel(BaseModel):
    """Base of the metadata models: frozen, and what the real format adds is kept, not refused."""

    model_config = ConfigDict(extra="allow", frozen=True)

    def to_json(self) -> bytes:
        """One line of canonical JSON, newline included, so that equal models are equal bytes."""
        return canonical_json(self.model_dump(mode="json")) + b"\n"


def _inside(path: str) -> str:
    """A path that stays inside the directory it is relative to."""
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"must be a relative path inside the store, got {path!r}")
    return path


InsidePath = Annotated[str, AfterValidator(_inside)]


class BlockSpec(StoreModel):
    """What one shard says about one of its blocks. ``shape`` includes the row axis; records have shape ``(R,)``."""

    name: Text
    kind: BlockKind
    paths: tuple[InsidePath, ...] = Field(min_length=1)
    dtype: str | None = None
    shape: tuple[Natural, ...] | None = None
    optional: bool = False

    @classmethod
    def of_array(cls, name: str, dtype: str, shape: Sequence[int]) -> BlockSpec:
        """The entry of a Zarr array."""
        optional = name in KNOWN_BLOCKS and KNOWN_BLOCKS[name].optional
        paths = (zarr_path(name),)
        return cls(name=name, kind=ZARR_ARRAY, paths=paths, dtype=dtype, shape=tuple(shape), optional=optional)

    @classmethod
    def of_records(cls, name: str, num_rows: int) -> BlockSpec:
        """The entry of per-row msgpack records."""
        return cls(name=name, kind=MSGPACK_RECORDS, paths=record_paths(name), shape=(num_rows,), optional=True)


class ShardSpec(StoreModel):
    """One immutable directory of rows ``row_start`` to ``row_start + num_rows`` (exclusive) of the sample index."""

    shard_id: Text
    relative_dir: InsidePath
    row_start: Natural
    num_rows: Natural
    blocks: dict[str, BlockSpec]


class MaterializedBlocks(StoreModel):
    """Which optional families of blocks the store has."""

    backbone: bool
    depths: bool
    candidate_pcs: bool
    gt_obbs: bool = False
    detected_obbs: bool = False
    trajectory: bool = False


class StoreStats(StoreModel):
    """Counts the manifest promises."""

    num_samples: Natural
    num_shards: Natural
    num_train: Natural
    num_val: Natural
    interrupted: bool = False


class Manifest(StoreModel):
    """``manifest.json``. The free-form parts stay as they are."""

    version: Annotated[int, Field(strict=True)]
    created_at: str
    source: dict[str, Any]
    oracle: dict[str, Any]
    vin: dict[str, Any]
    materialized_blocks: MaterializedBlocks
    stats: StoreStats
    provenance: dict[str, Any] = Field(default_factory=dict)
    shards: tuple[ShardSpec, ...]


class IndexRow(StoreModel):
    """One line of ``sample_index.jsonl``: where sample ``sample_index`` lies. ``sample_key`` is unique in a store."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    sample_index: Natural
    sample_key: Text
    scene_id: Text
    snippet_id: Text
    split: Split
    shard_id: Text
    row: Natural

    @property
    def own_split(self) -> Split:
        """The split that the source itself gives the row."""
        return self.split

    def in_split(self, split: Split) -> IndexRow:
        """This row in a campaign's split; its own split stays known."""
        if split == self.split:
            return self
        facts = {name: getattr(self, name) for name in IndexRow.model_fields} | {"split": split}
        if split == self.own_split:
            return IndexRow.model_construct(**facts)
        return MovedRow.model_construct(**facts, source_split=self.own_split)


class MovedRow(IndexRow):
    """A row that a campaign puts into another split than the source does."""

    source_split: Split

    @property
    def own_split(self) -> Split:
        """The split that the source itself gives the row."""
        return self.source_split


def zarr_path(block: str) -> str:
    """Path of a block's array inside its shard's group: ``vin.lengths`` -> ``vin/lengths``."""
    return block.replace(".", "/")


def record_paths(block: str) -> tuple[str, str]:
    """File names of a record block inside its shard directory: payload and offsets."""
    stem = block.replace("/", "__").replace(".", "__")
    return f"{stem}.msgpack", f"{stem}.offsets.npy"


def shard_name(number: int) -> str:
    """``shard-000003``."""
    return f"shard-{number:06d}"


def shard_number(shard_id: str) -> int | None:
    """The inverse of ``shard_name``; None for another naming."""
    match = _SHARD_ID.fullmatch(shard_id)
    return int(match[1]) if match else None


def shard_dir(shard_id: str) -> str:
    """Directory of a shard relative to the store."""
    return f"{SHARDS_DIR}/{shard_id}"


def split_file(split: str) -> str:
    """Split file relative to the store."""
    return f"{SPLITS_DIR}/{split}.npy"


def source_manifest_hash(manifest: Mapping[str, Any]) -> str:
    """First 16 hex digits of SHA-256 over the canonical bytes of the manifest as parsed from JSON, extras included."""
    return canonical_hash(manifest)[:HASH_DIGITS]


def split_manifest_hash(source_hash: str, split: str, rows: Sequence[IndexRow]) -> str:
    """First 16 hex digits of SHA-256 over the source manifest's hash, the split's name and its rows in order."""
    members = [row.model_dump(mode="json") for row in rows]
    return canonical_hash({"source_manifest_hash": source_hash, "split": split, "rows": members})[:HASH_DIGITS]
