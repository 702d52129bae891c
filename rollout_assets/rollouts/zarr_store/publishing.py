"""Writing a rollout store in one call: built beside the destination, published by rename, or nothing left behind."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rollout_assets.errors import StoreExists
from rollout_assets.files import discard_path, rename_path, scratch_path
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME, RolloutStoreManifestContext
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
