"""One consistent look at a VIN store's metadata, with every disagreement found in it.

Reads the manifest first and the index and split files after it: an append replaces the manifest last, so whatever is
there beyond the manifest belongs to an append under way and is left out. A file that is absent is a problem of the
store; one that the system does not let us read is an ``OSError``, because it says nothing about the store.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import NotRegularFile, SourceDamaged, SourceError, SourceVersionUnknown
from rollout_assets.parsing import parse_json, read_regular
from rollout_assets.sources import layout
from rollout_assets.sources.array_files import read_array_file
from rollout_assets.sources.layout import BlockSpec, IndexRow, KnownBlock, Manifest, ShardSpec
from rollout_assets.sources.versions import name_problems, unsupported_version
from rollout_assets.sources.zarr_files import chunk_shape

LARGEST_READ_BYTES = 1 << 32
"""Decoded bytes of the largest row and chunk; a document can promise any number."""

MetadataCheck = Callable[["StoreSnapshot"], Iterator[str]]
"""Gives every problem that it finds in a store's metadata."""


@dataclass(frozen=True, eq=False)
class StoreSnapshot:
    """A store's committed metadata. ``rows`` are in sample order; ``manifest_json`` is the manifest as parsed."""

    root: Path
    manifest_json: dict[str, Any]
    manifest: Manifest
    rows: tuple[IndexRow, ...]

    @cached_property
    def shards(self) -> dict[str, ShardSpec]:
        """The manifest's shards by id."""
        return {shard.shard_id: shard for shard in self.manifest.shards}

    def manifest_hashes(self) -> Iterator[str]:
        """The hash of the manifest, then those that it had before its shards were appended, latest first."""
        yield layout.source_manifest_hash(self.manifest_json)
        for shards in range(len(self.manifest.shards) - 1, 0, -1):
            yield layout.source_manifest_hash(self._earlier_manifest(shards))

    def _earlier_manifest(self, shards: int) -> dict[str, Any]:
        """The manifest when the store had only its first shards: an append changes nothing but shards and counts."""
        samples = sum(shard.num_rows for shard in self.manifest.shards[:shards])
        splits = Counter(row.own_split for row in self.rows[:samples])
        counts = {"num_samples": samples, "num_shards": shards, "num_train": splits["train"], "num_val": splits["val"]}
        stats = self.manifest_json["stats"] | counts
        return self.manifest_json | {"shards": self.manifest_json["shards"][:shards], "stats": stats}

    @cached_property
    def rows_by_key(self) -> dict[str, IndexRow]:
        """The rows by sample key."""
        return {row.sample_key: row for row in self.rows}


def read_snapshot(root: Path, checks: Sequence[MetadataCheck] | None = None) -> StoreSnapshot:
    """Read and check a store's metadata; ``SourceDamaged`` lists everything that is wrong with it.

    ``checks`` are those of ``METADATA_CHECKS`` unless others are given.
    """
    snapshot, problems = examine(root, checks=checks)
    if problems or snapshot is None:
        raise SourceDamaged(str(root), problems)
    return snapshot


def examine(
    root: Path, manifest_file: str = layout.MANIFEST_FILE, *, checks: Sequence[MetadataCheck] | None = None
) -> tuple[StoreSnapshot | None, list[str]]:
    """The snapshot, as far as it can be read, and all problems.

    A place that is no store is a ``SourceError``, a store of a version that cannot be read a ``SourceVersionUnknown``.
    ``manifest_file`` lets a writer examine what it is about to commit.
    """
    path = root / manifest_file
    if not path.is_file():
        raise SourceError(f"{root}: not a VIN offline store (no {layout.MANIFEST_FILE}); 'source build' makes one")
    raw, problems = _read_json(path)
    if raw is None:
        return None, problems
    if problem := unsupported_version(raw.get("version")):
        raise SourceVersionUnknown(f"{root}: {problem}")
    try:
        manifest = Manifest.model_validate(raw)
    except ValidationError as error:
        return None, [f"{path.name}: {problem}" for problem in validation_problems(error)]
    rows, problems = _read_index(root / layout.INDEX_FILE, manifest)
    snapshot = StoreSnapshot(root=root, manifest_json=raw, manifest=manifest, rows=rows)
    for check in METADATA_CHECKS if checks is None else checks:
        problems.extend(check(snapshot))
    return snapshot, problems


def counts_agree(snapshot: StoreSnapshot) -> Iterator[str]:
    """The manifest's counts against shards and index."""
    stats, shards = snapshot.manifest.stats, snapshot.manifest.shards
    splits = Counter(row.split for row in snapshot.rows)
    expected = {"num_samples": len(snapshot.rows), "num_shards": len(shards)}
    for name, count in (expected | {f"num_{split}": splits[split] for split in layout.SPLITS}).items():
        if getattr(stats, name) != count:
            yield f"manifest.json: stats.{name} is {getattr(stats, name)}, but the store has {count}"
    in_shards = sum(shard.num_rows for shard in shards)
    if in_shards != len(snapshot.rows):
        yield f"manifest.json: shards hold {in_shards} rows, but the index has {len(snapshot.rows)}"


def index_is_dense(snapshot: StoreSnapshot) -> Iterator[str]:
    """Sample indices are 0, 1, 2, ... in order, and keys are unique."""
    for line, row in enumerate(snapshot.rows, start=1):
        if row.sample_index != line - 1:
            yield f"sample_index.jsonl:{line}: sample_index is {row.sample_index}, expected {line - 1}"
    for name in ("sample_key", "sample_index"):
        values = Counter(getattr(row, name) for row in snapshot.rows)
        for value in (value for value, times in values.items() if times > 1):
            yield f"sample_index.jsonl: {name} {json.dumps(value)} appears {values[value]} times"


def rows_lie_in_their_shards(snapshot: StoreSnapshot) -> Iterator[str]:
    """Each index row points at one row of its shard, and no two at the same."""
    seen: dict[tuple[str, int], str] = {}
    for line, row in enumerate(snapshot.rows, start=1):
        shard = snapshot.shards[row.shard_id]
        where = f"sample_index.jsonl:{line}"
        if row.row >= shard.num_rows:
            yield f"{where}: row {row.row} is out of range, {row.shard_id} has {shard.num_rows} rows"
        elif shard.row_start + row.row != row.sample_index:
            yield f"{where}: {row.shard_id} row {row.row} is sample {shard.row_start + row.row}, not {row.sample_index}"
        if (row.shard_id, row.row) in seen:
            other = seen[row.shard_id, row.row]
            yield f"{where}: {row.shard_id} row {row.row} is already taken by {json.dumps(other)}"
        seen.setdefault((row.shard_id, row.row), row.sample_key)


def split_files_equal_index(snapshot: StoreSnapshot) -> Iterator[str]:
    """Every split file holds exactly the sample indices of its split, in index order."""
    for split in layout.SPLIT_FILES:
        name = layout.split_file(split)
        path = snapshot.root / name
        try:
            stored = read_array_file(path)
        except FileNotFoundError:
            yield f"{name}: missing"
            continue
        except (ValueError, NotRegularFile) as error:
            yield f"{name}: cannot be read: {error}"
            continue
        if stored.dtype != np.int64 or stored.ndim != 1:
            yield f"{name}: must be a 1-D int64 array, got {stored.dtype} with shape {stored.shape}"
            continue
        committed = stored[stored < snapshot.manifest.stats.num_samples]
        expected = [row.sample_index for row in snapshot.rows if split in (layout.ALL, row.split)]
        if committed.tolist() != expected:
            yield f"{name}: {_first_difference(committed.tolist(), expected)}"


def shards_hold_their_blocks(snapshot: StoreSnapshot) -> Iterator[str]:
    """Each shard has its directory and its blocks, of the declared dtype and shape."""
    known_ids = Counter(shard.shard_id for shard in snapshot.manifest.shards)
    for shard_id in (shard_id for shard_id, times in known_ids.items() if times > 1):
        yield f"manifest.json: {shard_id} is listed {known_ids[shard_id]} times"
    version = snapshot.manifest.version
    for shard in snapshot.manifest.shards:
        folder = snapshot.root / shard.relative_dir
        if not folder.is_dir():
            yield f"{shard.shard_id}: directory {shard.relative_dir} is missing"
        else:
            yield from (f"{shard.shard_id}: {problem}" for problem in shard_problems(folder, shard, version))


METADATA_CHECKS: tuple[MetadataCheck, ...] = (
    counts_agree,
    index_is_dense,
    rows_lie_in_their_shards,
    split_files_equal_index,
    shards_hold_their_blocks,
)
"""Everything that can be checked without reading an array's values."""


def shard_problems(folder: Path, shard: ShardSpec, version: int) -> Iterator[str]:
    """What is wrong with the blocks of one shard."""
    yield from name_problems(version, shard.blocks)
    sizes: dict[str, tuple[int, str]] = {}
    for known in (known for name, known in layout.KNOWN_BLOCKS.items() if name in shard.blocks):
        problems = _block_problems(folder, shard.blocks[known.name], known, shard.num_rows, sizes)
        yield from (f"{known.name}: {problem}" for problem in problems)


def _block_problems(
    folder: Path, spec: BlockSpec, known: KnownBlock, rows: int, sizes: dict[str, tuple[int, str]]
) -> Iterator[str]:
    """What is wrong with one block; ``sizes`` holds the size of every letter seen in the shard so far, and where."""
    if spec.kind != known.kind:
        yield f"kind is {spec.kind}, expected {known.kind}"
    elif spec.kind == layout.MSGPACK_RECORDS:
        yield from _record_problems(folder, spec, rows)
    else:
        shape, problems = _array_shape(folder / spec.paths[0], spec, known, rows)
        yield from problems
        yield from _same_letters(sizes, known, shape[1:])


def _array_shape(path: Path, spec: BlockSpec, known: KnownBlock, rows: int) -> tuple[tuple[int, ...], list[str]]:
    """Shape of an array as its own metadata says, and what is wrong with it."""
    if not (path / "zarr.json").is_file():
        return (), ["the array is missing (no zarr.json)"]
    meta, problems = _read_json(path / "zarr.json")
    if meta is None:
        return (), problems
    try:
        shape = tuple(int(size) for size in meta["shape"])
        dtype = np.dtype(meta["data_type"])
    except (KeyError, TypeError, ValueError) as error:
        return (), [f"zarr.json is not an array's metadata: {error!r}"]
    description = known.describe(rows)
    if dtype != np.dtype(known.dtype):
        problems.append(f"dtype is {dtype}, expected {description}")
    if shape[:1] != (rows,) or known.fitting(shape[1:]) is None:
        problems.append(f"shape is {shape}, expected {description}")
    try:
        refuse_oversize(shape, chunk_shape(meta), dtype.itemsize)
    except ValueError as error:
        problems.append(str(error))
    if spec.dtype is not None and spec.dtype != str(dtype):
        problems.append(f"the manifest says dtype {spec.dtype}, the array is {dtype}")
    if spec.shape is not None and spec.shape != shape:
        problems.append(f"the manifest says shape {spec.shape}, the array has {shape}")
    return shape, problems


def refuse_oversize(shape: Sequence[int], chunk: Sequence[int], item_bytes: int) -> None:
    """Raise ``ValueError`` for an array of whose rows or chunks a single one is larger than any that is read."""
    for what, sizes in (("row", shape[1:]), ("chunk", chunk)):
        size = math.prod(sizes) * item_bytes
        if size > LARGEST_READ_BYTES:
            raise ValueError(f"one {what} has {size:,} bytes by its shape, at most {LARGEST_READ_BYTES:,} are read")


def _same_letters(sizes: dict[str, tuple[int, str]], known: KnownBlock, trailing: tuple[int, ...]) -> Iterator[str]:
    for letter, size in zip(known.fitting(trailing) or (), trailing, strict=False):
        if not isinstance(letter, str):
            continue
        first, block = sizes.setdefault(letter, (size, known.name))
        if first != size:
            yield f"{letter} is {size}, but {block} has {first}"


def _record_problems(folder: Path, spec: BlockSpec, rows: int) -> Iterator[str]:
    if len(spec.paths) != 2:
        yield f"records need a payload and an offsets file, the manifest lists {list(spec.paths)}"
        return
    payload, offsets_path = (folder / name for name in spec.paths)
    for path in (payload, offsets_path):
        if not path.is_file():
            yield f"{path.name} is missing"
            return
    try:
        offsets = read_array_file(offsets_path)
    except (ValueError, NotRegularFile) as error:
        yield f"{offsets_path.name} cannot be read: {error}"
        return
    if offsets.dtype != np.int64 or offsets.shape != (rows + 1,):
        yield f"{offsets_path.name} must be int64 ({rows + 1},), got {offsets.dtype} {offsets.shape}"
    elif offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != payload.stat().st_size:
        yield f"{offsets_path.name} does not divide the {payload.stat().st_size} bytes of {payload.name}"


def _read_index(path: Path, manifest: Manifest) -> tuple[tuple[IndexRow, ...], list[str]]:
    """The committed rows, and the lines that are none. Rows of unknown shards count as an append only at the tail."""
    try:
        lines = read_regular(path).decode("utf-8").splitlines()
    except FileNotFoundError:
        return (), [f"{path.name}: missing"]
    except (UnicodeDecodeError, NotRegularFile) as error:
        return (), [f"{path.name}: cannot be read: {error}"]
    shard_ids = {shard.shard_id for shard in manifest.shards}
    rows: list[IndexRow] = []
    problems: list[str] = []
    beyond = 0
    for number, line in enumerate(lines, start=1):
        try:
            row = IndexRow.model_validate_json(line)
        except ValidationError as error:
            problems.extend(f"{path.name}:{number}: {problem}" for problem in validation_problems(error))
            continue
        if row.shard_id not in shard_ids:
            beyond = beyond or number
            continue
        if beyond:
            problems.append(f"{path.name}:{beyond}: shard of this row is not in the manifest")
            beyond = 0
        rows.append(row)
    return tuple(rows), problems


def _read_json(path: Path) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        value = parse_json(read_regular(path))
    except NotRegularFile as error:
        return None, [str(error)]
    except ValueError as error:
        return None, [f"{path.name}: unreadable JSON: {error}"]
    if not isinstance(value, dict):
        return None, [f"{path.name}: must hold a JSON object, got {type(value).__name__}"]
    return value, []


def _first_difference(stored: list[int], expected: list[int]) -> str:
    if len(stored) != len(expected):
        return f"has {len(stored)} entries, the index has {len(expected)}"
    at = next(i for i, (a, b) in enumerate(zip(stored, expected, strict=True)) if a != b)
    return f"entry {at} is {stored[at]}, the index says {expected[at]}"
