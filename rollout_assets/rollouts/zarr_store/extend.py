"""A longer store from a finished one: full files are shared by hard link, only the tails are written again.

The result equals a store written from the same records from the start, digest for digest and file for file: the writer
is put into the state in which it would be after the old rows. Every old row is read and hashed on the way, so damage is
never carried on. The old store is not changed, and none of its files is ever opened for writing.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollout_assets.errors import StoreError
from rollout_assets.rollouts.zarr_store.attributes import dead_ends_in_view
from rollout_assets.rollouts.zarr_store.chunks.files import LocalFiles
from rollout_assets.rollouts.zarr_store.chunks.sinks import TableSink
from rollout_assets.rollouts.zarr_store.identities import rows_of
from rollout_assets.rollouts.zarr_store.open_store import OpenStore
from rollout_assets.rollouts.zarr_store.schema import Q_H
from rollout_assets.rollouts.zarr_store.writer import RolloutZarrStoreWriter


class RolloutZarrStoreExtender(RolloutZarrStoreWriter):
    """A writer that can start from the rows of a finished store on the same disk."""

    _before: OpenStore | None = None
    _digests: Mapping[str, str]

    def resume(self, before: OpenStore) -> None:
        """Take over every row of a finished store; call once, before anything is appended."""
        self._before, self._digests = before, before.sidecar_manifest()["content_sha256"]
        for sink in self._sinks.values():
            self._resume(sink, before)
        self.dictionaries.intern_store(before.dictionaries)
        for identities in (self.sources, self.targets):
            for row in rows_of(before.columns(identities.table), identities.table.names):
                identities.add(row, before.location)
        self._source_splits |= before.source_splits
        self._horizon = int(before.attributes["q_h_horizon"])

    def _view_sinks(self, width: int) -> list[TableSink]:
        """The view goes on after the old states, unless a wider shell or the dead ends change all of it."""
        sinks, before = super()._view_sinks(width), self._before
        if before is None or dead_ends_in_view(before.attributes) != self.config.dead_ends_in_training_view:
            return sinks
        if before.row_array(Q_H.path("candidate_row_id")).shape[1] == width:
            for sink in sinks:
                self._resume(sink, before)
        return sinks

    def _resume(self, sink: TableSink, before: OpenStore) -> None:
        if not isinstance(before.files, LocalFiles):
            raise StoreError(f"{before.location}: only a store on a local disk can be extended")
        sink.resume(before.row_array, before.files.root, self._digests)
