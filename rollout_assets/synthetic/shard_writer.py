"""One scene's snippets as one shard directory, and its mesh: the unit of work of a build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec

from rollout_assets.errors import SourceError
from rollout_assets.files import publishing
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.sources import layout
from rollout_assets.sources.meshes import content_hash, load_mesh, mesh_file_name
from rollout_assets.sources.ply import write_binary_ply
from rollout_assets.synthetic.config import SyntheticConfig, snippet_id
from rollout_assets.synthetic.furniture_files import load_furniture
from rollout_assets.synthetic.scene import SyntheticScene, build_scene
from rollout_assets.synthetic.snippet import build_snippet
from rollout_assets.synthetic.walk import walking_grid

_OWN_CHUNK_BYTES = 65_536
"""Blocks with larger rows get one chunk per row, so that a reader touches only its row; small ones share a chunk."""


@dataclass(frozen=True)
class ShardTask:
    """Snippets ``first`` to ``first + count`` (exclusive) of one scene, to be written as one shard."""

    config: SyntheticConfig
    store_dir: Path
    shard_id: str
    row_start: int
    scene_index: int
    first: int
    count: int


@dataclass(frozen=True)
class ShardResult:
    """What became of a task."""

    spec: layout.ShardSpec
    rows: tuple[layout.IndexRow, ...]
    faces: int
    points: int


def write_shard(task: ShardTask) -> ShardResult:
    """Build a scene, its mesh file and its snippets. Runs in a worker process; a shard appears whole or not at all."""
    config = task.config
    furniture = load_furniture(config.furniture_dir, config.faces_per_piece)
    scene = build_scene(config, task.scene_index, furniture)
    _write_mesh(task.store_dir / layout.MESHES_DIR, scene)
    bvh = TriangleBvh(scene.vertices, scene.faces, "cpu")
    grid = walking_grid(scene)
    numbers = range(task.first, task.first + task.count)
    rows = [build_snippet(config, task.scene_index, number, scene, bvh, grid) for number in numbers]
    spec = write_rows(task.store_dir, task.shard_id, task.row_start, rows, furniture.class_names)
    points = sum(int(row[layout.LENGTHS][0]) for row in rows)
    split = config.split_of(task.scene_index)
    return ShardResult(spec, index_rows(spec, scene.scene_id, split, task.first), len(scene.faces), points)


def write_rows(
    store_dir: Path, shard_id: str, row_start: int, rows: Sequence[Mapping[str, NDArray[Any]]], names: dict[int, str]
) -> layout.ShardSpec:
    """Write the blocks of some rows as one shard, with the class names of its boxes by semantic id."""
    with publishing(store_dir / layout.shard_dir(shard_id)) as scratch:
        blocks = _write_blocks(scratch, rows, names)
    return layout.ShardSpec(
        shard_id=shard_id,
        relative_dir=layout.shard_dir(shard_id),
        row_start=row_start,
        num_rows=len(rows),
        blocks=blocks,
    )


def index_rows(spec: layout.ShardSpec, scene_id: str, split: str, first: int) -> tuple[layout.IndexRow, ...]:
    """The index of a shard that holds the snippets of one scene from number ``first`` on."""
    return tuple(
        layout.IndexRow(
            sample_index=spec.row_start + row,
            sample_key=f"{scene_id}__{snippet_id(first + row)}",
            scene_id=scene_id,
            snippet_id=snippet_id(first + row),
            split=split,
            shard_id=spec.shard_id,
            row=row,
        )
        for row in range(spec.num_rows)
    )


def _write_mesh(folder: Path, scene: SyntheticScene) -> None:
    """Write the scene's mesh; a mesh that is already there must be the same one."""
    path = folder / mesh_file_name(scene.scene_id)
    if path.exists():
        stored, built = load_mesh(path).content_hash, content_hash(scene.vertices, scene.faces)
        if stored != built:
            raise SourceError(
                f"{path}: not the mesh that these options build ({stored[:12]}, expected {built[:12]}); "
                "the store was built by another version: build a new one"
            )
        return
    with publishing(path) as scratch:
        write_binary_ply(scratch, scene.vertices, scene.faces)


def _write_blocks(
    folder: Path, rows: Sequence[Mapping[str, NDArray[Any]]], class_names: dict[int, str]
) -> dict[str, layout.BlockSpec]:
    group = zarr.create_group(folder, zarr_format=3, overwrite=True)
    blocks = {}
    for name in rows[0]:
        stacked = np.stack([row[name] for row in rows])
        _write_array(group, name, stacked)
        blocks[name] = layout.BlockSpec.of_array(name, stacked.dtype.name, stacked.shape)
    for name in (layout.GT_NAMES, layout.DETECTED_NAMES):
        _write_records(folder, name, [class_names] * len(rows))
        blocks[name] = layout.BlockSpec.of_records(name, len(rows))
    return blocks


def _write_array(group: zarr.Group, name: str, stacked: NDArray[Any]) -> None:
    rows_per_chunk = 1 if stacked[0].nbytes > _OWN_CHUNK_BYTES else len(stacked)
    array = group.create_array(
        layout.zarr_path(name),
        shape=stacked.shape,
        dtype=stacked.dtype,
        chunks=(rows_per_chunk, *stacked.shape[1:]),
        compressors=ZstdCodec(level=3),
        fill_value=0,
    )
    array[...] = stacked


def _write_records(folder: Path, name: str, records: list[dict[int, str]]) -> None:
    payloads = [msgpack.packb(record) for record in records]
    payload_file, offsets_file = layout.record_paths(name)
    (folder / payload_file).write_bytes(b"".join(payloads))
    np.save(folder / offsets_file, np.cumsum([0, *(len(payload) for payload in payloads)], dtype=np.int64))
