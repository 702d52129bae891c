"""A longer store from a finished one: full files are shared by hard link, only the tails are written again.

The result equals a store written from the same records from the start, digest for digest and file for file: the writer
is put into the state in which it would be after the old rows. Every old row is read and hashed on the way, so damage is
never carried on. The old store is not changed, and none of its files is ever opened for writing.
"""

from __future__ import annotations

from pathlib import Path

from rollout_assets.errors import StoreError
from rollout_assets.rollouts.zarr_store.attributes import STORE_KIND, RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.chunks.files import LocalFiles
from rollout_assets.rollouts.zarr_store.chunks.sinks import TableSink
from rollout_assets.rollouts.zarr_store.identities import rows_of
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.rollouts.zarr_store.open_store import OpenStore
from rollout_assets.rollouts.zarr_store.schema import Q_H, SOURCES, TARGETS
from rollout_assets.rollouts.zarr_store.writer import OnStep, RolloutZarrStoreWriter, ignore_step


class RolloutZarrStoreExtender(RolloutZarrStoreWriter):
    """A writer that starts from the rows of a finished store on the same disk."""

    def __init__(
        self,
        store_dir: Path | str,
        before: OpenStore,
        config: RolloutZarrStoreConfig | None = None,
        *,
        context: RolloutStoreManifestContext | None = None,
        created_at_utc: str | None = None,
        store_kind: str = STORE_KIND,
        on_step: OnStep = ignore_step,
    ) -> None:
        super().__init__(
            store_dir,
            config,
            context=context,
            created_at_utc=created_at_utc,
            store_kind=store_kind,
            on_step=on_step,
        )
        if not isinstance(before.files, LocalFiles):
            raise StoreError(f"{before.location}: only a store on a local disk can be extended")
        self._before = before
        self._files_before = before.files.root
        self._digests_before: dict[str, str] = before.sidecar_manifest()["content_sha256"]

    def resume(self) -> None:
        """Take over every row of the finished store; call once, before anything is appended."""
        for sink in self._sinks.values():
            self._resume(sink)
        self.dictionaries.intern_store(self._before.dictionaries)
        for identities, table in ((self.sources, SOURCES), (self.targets, TARGETS)):
            for row in rows_of(self._before.columns(table), table.names):
                identities.add(row, self._before.location)
        self._horizon = int(self._before.attributes["q_h_horizon"])

    def _view_sinks(self, width: int) -> list[TableSink]:
        """The view goes on after the old states, unless a wider shell makes all of it wider."""
        sinks = super()._view_sinks(width)
        if self._before.row_array(Q_H.path("candidate_row_id")).shape[1] == width:
            for sink in sinks:
                self._resume(sink)
        return sinks

    def _resume(self, sink: TableSink) -> None:
        sink.resume(self._before.row_array, self._files_before, self._digests_before)
