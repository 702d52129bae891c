"""Writing a rollout store in one call: built beside the destination, published by rename, or nothing left behind.

And naming a store that is not published yet as another shard of its campaign.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_assets.errors import StoreExists
from rollout_assets.files import discard_path, rename_path, replace_bytes, scratch_path
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.chunks.files import LocalFiles
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON, document_bytes, read_document
from rollout_assets.rollouts.zarr_store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    RolloutStoreManifestContext,
    read_rollout_store_manifest,
    write_rollout_store_manifest,
)
from rollout_assets.rollouts.zarr_store.writer import (
    OnStep,
    RolloutZarrStoreWriter,
    RolloutZarrWriteResult,
    ignore_step,
)


def write_rollout_zarr_store(
    store_dir: Path | str,
    records: Iterable[RolloutZarrRecord],
    config: RolloutZarrStoreConfig | None = None,
    *,
    context: RolloutStoreManifestContext | None = None,
    created_at_utc: str | None = None,
    on_step: OnStep = ignore_step,
    progress: ProgressSink = SILENT,
) -> RolloutZarrWriteResult:
    """Write rollout records into a standalone ``rollouts.zarr`` store.

    ``records`` may be a generator; it is read once. The store appears under its name complete, or not at all.
    """
    final = Path(store_dir)
    if final.exists():
        raise StoreExists(f"{final}: already there; choose another destination or remove it first")
    staged = scratch_path(final.with_name(f"{final.name}.{uuid.uuid4().hex[:12]}"))
    with RolloutZarrStoreWriter(
        staged, config, context=context, created_at_utc=created_at_utc, on_step=on_step
    ) as writer:
        for done, record in enumerate(records, start=1):
            writer.append(record)
            progress(ProgressEvent("write records", done, unit="records"))
        result = writer.finish()
    try:
        rename_path(staged, final)
    except OSError as error:
        discard_path(staged)
        raise StoreExists(f"{final}: cannot be published: {error.strerror}") from None
    return replace(result, store_dir=final, manifest_path=final / ROLLOUT_MANIFEST_FILENAME)


def record_shard(store_dir: Path, shard: Mapping[str, Any]) -> None:
    """Record another plan entry in the manifest of an unpublished store, and that manifest in its root.

    Both files are replaced, not written to, so that other stores may share them by hard links.
    """
    manifest = read_rollout_store_manifest(store_dir)
    manifest["generation"] = {**manifest["generation"], "shard": dict(shard)}
    root = read_document(LocalFiles(store_dir), "")[1]
    root["attributes"]["manifest_sha256"] = write_rollout_store_manifest(store_dir, manifest)
    replace_bytes(store_dir / ZARR_JSON, document_bytes(root))
