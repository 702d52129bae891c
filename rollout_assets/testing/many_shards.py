"""A campaign of very many shards, made in minutes: all that planning, status and sensors look at, and no more.

The source is a real store as far as its metadata goes: manifest, index, split files, the document of every array, and a
mesh per scene. Its arrays hold no chunk, because nobody reads a row. A finished shard is a real folder with real
markers; its store is a manifest alone, because nobody but a build or a promotion reads further.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rollout_assets.campaigns import markers
from rollout_assets.campaigns.layout import (
    ROLLOUT_SHARD_OWNER_FILENAME,
    ROLLOUT_SHARD_SUCCESS_FILENAME,
    STORE_NAME,
    CampaignLayout,
)
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.config import canonical_json
from rollout_assets.files import stamp_tree
from rollout_assets.rollouts.zarr_store.chunks.row_chunks import RowLayout
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME
from rollout_assets.sources import layout
from rollout_assets.sources.layout import BlockSpec, IndexRow, ShardSpec
from rollout_assets.sources.meshes import mesh_file_name
from rollout_assets.sources.ply import write_binary_ply
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.store_files import publish_metadata, staged_store, store_manifest

ROWS_PER_SOURCE_SHARD = 1_000
"""Rows of one source shard."""

ROWS_PER_SCENE = 50
"""Snippets of one scene, about as many as recorded homes have."""

_SHAPES: dict[str, tuple[int, ...]] = {
    layout.POINTS_WORLD: (8, 4),
    layout.LENGTHS: (1,),
    layout.T_WORLD_RIG: (4, 12),
    layout.REFERENCE_POSE: (12,),
    layout.FOCAL_LENGTH: (1, 2),
    layout.PRINCIPAL_POINT: (1, 2),
    layout.IMAGE_SIZE: (1, 2),
    layout.GT_OBBS: (1, 1, 34),
    layout.DETECTED_OBBS: (1, 1, 34),
}
"""Blocks of the source, with their shapes after the row axis."""

_CAMPAIGN = """
name = "{name}"
source.store_dir = "{source}"
shards = {{ rows_per_shard = {rows_per_shard}, output_dir = "{name}" }}
"""


def write_large_campaign(folder: Path, source: Path, name: str = "many", rows_per_shard: int = 1) -> Path:
    """A campaign file over a large source."""
    path = folder / f"{name}.toml"
    path.write_text(_CAMPAIGN.format(name=name, source=source, rows_per_shard=rows_per_shard))
    return path


def build_large_source(store_dir: Path, rows: int) -> Path:
    """A source of ``rows`` rows, every tenth scene of them in ``val``."""
    with staged_store(store_dir, overwrite=False) as folder:
        specs = [_source_shard(folder, first, rows) for first in range(0, rows, ROWS_PER_SOURCE_SHARD)]
        index = [_index_row(number) for number in range(rows)]
        corners = np.eye(3, dtype=np.float32)
        for scene in dict.fromkeys(row.scene_id for row in index):
            mesh = folder / layout.MESHES_DIR / mesh_file_name(scene)
            write_binary_ply(mesh, corners * (1 + len(scene) + int(scene[-6:])), np.arange(3, dtype=np.int32)[None])
        publish_metadata(folder, store_manifest(SyntheticConfig(), {"scenes": "many"}, "testing", specs, index), index)
    return store_dir


def _index_row(number: int) -> IndexRow:
    scene, snippet = f"home-{number // ROWS_PER_SCENE:06d}", f"snippet-{number % ROWS_PER_SCENE:03d}"
    return IndexRow(
        sample_index=number,
        sample_key=f"{scene}/{snippet}",
        scene_id=scene,
        snippet_id=snippet,
        split="val" if number // ROWS_PER_SCENE % 10 == 9 else "train",
        shard_id=layout.shard_name(number // ROWS_PER_SOURCE_SHARD),
        row=number % ROWS_PER_SOURCE_SHARD,
    )


def _source_shard(folder: Path, first: int, rows: int) -> ShardSpec:
    name = layout.shard_name(first // ROWS_PER_SOURCE_SHARD)
    count = min(ROWS_PER_SOURCE_SHARD, rows - first)
    blocks = {}
    for block, shape in _SHAPES.items():
        dtype = np.dtype(layout.KNOWN_BLOCKS[block].dtype)
        array = folder / layout.shard_dir(name) / layout.zarr_path(block)
        array.mkdir(parents=True)
        (array / "zarr.json").write_text(json.dumps(RowLayout(dtype, shape, 1, 1, "rows").document(count)))
        blocks[block] = BlockSpec.of_array(block, dtype.name, (count, *shape))
    return ShardSpec(shard_id=name, relative_dir=layout.shard_dir(name), row_start=first, num_rows=count, blocks=blocks)


def finish_shards(
    layout_: CampaignLayout, entries: Iterable[RolloutShardEntry], source: VinOfflineStore, records_per_row: int = 9
) -> None:
    """Put finished, current shards in place of the entries; every one is written as a build leaves it."""
    seals: dict[str, markers.SourceShardSeal] = {}
    for entry in entries:
        owner = _owner(entry, source, seals, records_per_row)
        note = markers.validated_note(layout_.root, owner)
        note.parent.mkdir(exist_ok=True)
        note.touch()
        _write_shard(layout_.shard(entry.shard_id), owner, entry.shard_id)


def _owner(
    entry: RolloutShardEntry, source: VinOfflineStore, seals: dict[str, markers.SourceShardSeal], records: int
) -> markers.ShardOwner:
    for name, path in markers.source_folders(entry, source).items():
        if name not in seals:
            seals[name] = markers.SourceShardSeal(stamp=stamp_tree(path), sha256="0" * 64)
    content = hashlib.sha256(entry.shard_id.encode()).hexdigest()
    return markers.ShardOwner(
        shard_id=entry.shard_id,
        split=entry.split,
        entry_sha256=entry.sha256,
        writer_config_hash=entry.writer_config_hash,
        attempt=f"{entry.shard_id}.20260101T000000000000Z",
        host="host",
        process=1,
        created_at_utc="2026-01-01T00:00:00Z",
        seconds=12.5,
        rows=_outcomes(entry, records),
        stats={"rows": len(entry.rows), "rows_skipped": {}, "targets_refused": {}, "recipes_stuck": {}},
        mesh_versions=markers.mesh_versions(entry, source),
        source_shards={row.source_shard_id: seals[row.source_shard_id] for row in entry.rows},
        store=markers.SealedStore(
            content_sha256=content,
            manifest_sha256=hashlib.sha256(_manifest(content)).hexdigest(),
            files=300,
            bytes=2_500_000,
            files_sha256=content,
        ),
    )


def _outcomes(entry: RolloutShardEntry, records: int) -> Sequence[markers.RowOutcome]:
    return tuple(
        markers.RowOutcome(
            sample_index=row.sample_index, sample_key=row.sample_key, records=records, skipped=None, detail=None
        )
        for row in entry.rows
    )


def _manifest(content: str) -> bytes:
    """The manifest of a store, as long as those of real shards are."""
    return canonical_json({"content": content, "padding": "." * 20_000})


def _write_shard(folder: Path, owner: markers.ShardOwner, shard_id: str) -> None:
    """Plain writes: waiting for the disk after each of so many files would take an hour."""
    assert owner.store is not None
    store = folder / STORE_NAME
    store.mkdir(parents=True)
    (store / ROLLOUT_MANIFEST_FILENAME).write_bytes(_manifest(owner.store.content_sha256))
    text = json.dumps(owner.model_dump(mode="json"), indent=2, sort_keys=True).encode() + b"\n"
    (folder / ROLLOUT_SHARD_OWNER_FILENAME).write_bytes(text)
    success = markers.ShardSuccess(
        shard_id=shard_id, owner_sha256=hashlib.sha256(text).hexdigest(), created_at_utc="2026-01-01T00:00:00Z"
    )
    body = json.dumps(success.model_dump(mode="json"), indent=2, sort_keys=True).encode() + b"\n"
    (folder / ROLLOUT_SHARD_SUCCESS_FILENAME).write_bytes(body)
