"""The files of a store around its shards: the staging directory, index, split files and manifest."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollout_assets.errors import SourceDamaged, SourceError
from rollout_assets.files import (
    file_lock,
    is_locked,
    naming,
    publish_bytes,
    publish_path,
    publishing,
    remove_path,
    rename_path,
)
from rollout_assets.sources import layout
from rollout_assets.sources.snapshot import examine
from rollout_assets.synthetic.config import SnippetConfig

CREATED_AT = "2000-01-01T00:00:00+00:00"
"""Manifests made here carry a fixed time, so that equal options give an equal manifest hash."""


@contextmanager
def staged_store(store_dir: Path, overwrite: bool) -> Iterator[Path]:
    """A directory beside ``store_dir`` to fill; it takes the store's place at the end, and only if all went well."""
    refuse_existing(store_dir, overwrite)
    building = store_dir.with_name(f".building-{store_dir.name}")
    if is_locked(building):
        raise SourceError(f"{store_dir}: is being built by another process; wait for it or choose another place")
    remove_path(building)
    building.mkdir(parents=True)
    with file_lock(building, str(store_dir), busy=SourceError):
        try:
            for name in (layout.SHARDS_DIR, layout.SPLITS_DIR, layout.MESHES_DIR):
                (building / name).mkdir()
            with naming(store_dir):
                yield building
            _put_in_place(building, store_dir, overwrite)
        except BaseException:
            remove_path(building)
            raise


def publish_metadata(store_dir: Path, manifest: layout.Manifest, rows: Sequence[layout.IndexRow]) -> None:
    """Index, split files, and the manifest last: it is the commit point, reached only if the store then opens."""
    publish_bytes(store_dir / layout.INDEX_FILE, b"".join(row.to_json() for row in rows))
    for split in layout.SPLIT_FILES:
        members = [row.sample_index for row in rows if split in (layout.ALL, row.split)]
        publish_bytes(store_dir / layout.split_file(split), _npy(members))
    with publishing(store_dir / layout.MANIFEST_FILE) as scratch:
        scratch.write_bytes(manifest.to_json())
        problems = examine(store_dir, scratch.name)[1]
        if problems:
            raise SourceDamaged(f"{store_dir}: not committed, because the store would not open afterwards", problems)


def _npy(values: list[int]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(values, np.int64), allow_pickle=False)
    return stream.getvalue()


def store_manifest(
    config: SnippetConfig,
    source: Mapping[str, Any],
    writer: str,
    specs: Sequence[layout.ShardSpec],
    rows: Sequence[layout.IndexRow],
) -> layout.Manifest:
    """The manifest of a store whose splits are by scene."""
    train = sum(row.split == "train" for row in rows)
    return layout.Manifest(
        version=layout.FORMAT_VERSION,
        created_at=CREATED_AT,
        source=dict(source),
        oracle={},
        vin={
            "pad_points": config.max_points,
            "semidense_max_points": config.max_points,
            "include_inv_dist_std": True,
            "include_obs_count": False,
        },
        materialized_blocks=layout.MaterializedBlocks(
            backbone=config.evidence,
            depths=False,
            candidate_pcs=False,
            gt_obbs=True,
            detected_obbs=True,
            trajectory=True,
        ),
        stats=layout.StoreStats(
            num_samples=len(rows), num_shards=len(specs), num_train=train, num_val=len(rows) - train
        ),
        provenance={"writer": writer, "split_policy": "scene"},
        shards=tuple(specs),
    )


def refuse_existing(store_dir: Path, overwrite: bool) -> None:
    """Only an empty place may be built on, or, when asked to, another store."""
    if not store_dir.exists() or (store_dir.is_dir() and not any(store_dir.iterdir())):
        return
    if not overwrite:
        raise SourceError(f"{store_dir}: already exists and is not empty; choose another place or overwrite it")
    if not (store_dir / layout.MANIFEST_FILE).is_file():
        raise SourceError(f"{store_dir}: is not a source store; refusing to overwrite it")


def _put_in_place(building: Path, store_dir: Path, overwrite: bool) -> None:
    """Rename the finished store to its place; an old one steps aside first and is removed afterwards."""
    refuse_existing(store_dir, overwrite)
    old = store_dir.with_name(f".replaced-{store_dir.name}")
    remove_path(old)
    if store_dir.exists():
        rename_path(store_dir, old)
    publish_path(building, store_dir)
    remove_path(old)
