"""The streaming writer: records or whole stores in, columns out, memory flat."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import RecordRefused, StoreExists
from rollout_assets.files import discard_path, name_written, now_utc
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.admission import refuse_unfit, refuse_unfit_rows
from rollout_assets.rollouts.zarr_store.attributes import (
    STORE_KIND,
    RolloutZarrStoreConfig,
    SmallTables,
    group_attributes,
    manifest_facts,
    root_attributes,
    store_counts,
)
from rollout_assets.rollouts.zarr_store.chunks.row_chunks import RowLayout
from rollout_assets.rollouts.zarr_store.chunks.sinks import ColumnSink, TableSink, WrittenArray
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.dictionaries import Dictionaries, encode_strings
from rollout_assets.rollouts.zarr_store.documents import write_metadata
from rollout_assets.rollouts.zarr_store.flatten import (
    EncodedRecord,
    Owner,
    RowCounts,
    depth_columns,
    encode_record,
    flatten_records,
)
from rollout_assets.rollouts.zarr_store.identities import (
    SOURCE_FIELDS,
    SOURCE_KEY,
    TARGET_FIELDS,
    TARGET_KEY,
    IdentityTable,
    Row,
    source_row,
    target_row,
)
from rollout_assets.rollouts.zarr_store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    SOURCE_SPLITS,
    RolloutStoreManifestContext,
    write_rollout_store_manifest,
)
from rollout_assets.rollouts.zarr_store.merge import (
    Rebasing,
    rebased_blocks,
    rebased_rows,
    refuse_other_settings,
    shifts_after,
)
from rollout_assets.rollouts.zarr_store.open_store import OpenStore
from rollout_assets.rollouts.zarr_store.training_view import (
    CANDIDATE_COLUMNS,
    ROLLOUT_COLUMNS,
    STEP_COLUMNS,
    VIEW_OF,
    StateIndex,
    build_view,
)
from rollout_assets.rollouts.zarr_store.written import WrittenArrays

OnStep = Callable[[str], None]

_VIEW_BLOCK_ROWS = 1 << 19
_BATCH_ROWS = 1 << 13
_CROP_ROWS = 64


@dataclass(frozen=True)
class RolloutZarrWriteResult:
    """Summary of one rollout Zarr write. Counts are rows of the store's tables."""

    store_dir: Path
    num_sources: int
    num_targets: int
    num_rollouts: int
    num_steps: int
    num_candidates: int
    manifest_path: Path
    manifest_sha256: str


def ignore_step(step: str) -> None:
    """The hook that does nothing."""


class RolloutZarrStoreWriter:
    """Streams records into one store directory.

    The directory must not exist yet. ``append`` and ``append_store`` may be mixed; ``finish`` completes the store: the
    manifest before the root ``zarr.json``, so that a directory without a root is not a store. Leaving the ``with``
    block without ``finish`` removes the directory. ``on_step`` is called at named points (``flush/<table>``, ``view``,
    ``manifest/before``, ``manifest/after``, ``metadata``, ``root``), so that tests can kill a build there.
    """

    def __init__(
        self,
        store_dir: Path | str,
        config: RolloutZarrStoreConfig | None = None,
        *,
        context: RolloutStoreManifestContext | None = None,
        created_at_utc: str | None = None,
        store_kind: str = STORE_KIND,
        on_step: OnStep = ignore_step,
    ) -> None:
        self.store_dir = Path(store_dir)
        self.config = config or RolloutZarrStoreConfig()
        self._context = context
        self._created_at_utc = created_at_utc
        self._store_kind = store_kind
        self._on_step = on_step
        self.dictionaries = Dictionaries()
        self.sources = IdentityTable(schema.SOURCES, "source", SOURCE_KEY)
        self.targets = IdentityTable(schema.TARGETS, "target", TARGET_KEY)
        self._source_splits: dict[str, str] = {}
        self._last: tuple[Any, Any, Owner] | None = None
        self._crop_policies: list[str] = []
        self._horizon = 0
        self._waiting: list[EncodedRecord] = []
        self._waiting_rows = 0
        if self.store_dir.exists():
            raise StoreExists(f"{self.store_dir}: already there; choose another destination or remove it first")
        self.store_dir.mkdir(parents=True)
        self._workers = ThreadPoolExecutor(max(os.cpu_count() or 1, 1), thread_name_prefix="rollout-store-writer")
        self._sinks = self._make_sinks()
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        name_written(error, self.store_dir)
        self._workers.shutdown(wait=True, cancel_futures=True)
        if not self._finished:
            discard_path(self.store_dir)

    @property
    def counts(self) -> RowCounts:
        """Rows written so far, records still waiting to be flattened left out."""
        sinks = self._sinks
        return RowCounts(sinks["rollouts"].rows, sinks["steps"].rows, sinks["candidates"].rows)

    def append(self, record: RolloutZarrRecord) -> None:
        """Add one record; one that does not fit is ``RecordRefused`` and ends the build."""
        refuse_unfit(record, self.config)
        owner = self._owner(record)
        if not record.chains:
            return
        self._refuse_known(record.rollout_id_prefix, map(record.rollout_id, record.chains))
        encoded = encode_record(record, owner, self.dictionaries)
        self._waiting.append(encoded)
        self._waiting_rows += encoded.num_candidates
        self._horizon = max(self._horizon, record.horizon)
        if self._waiting_rows >= _BATCH_ROWS:
            self._flatten_waiting()

    def append_store(self, store: OpenStore) -> None:
        """Add every row of a finished store, re-based; the result equals one store of all records in order."""
        self._flatten_waiting()
        refuse_other_settings(self.config, store)
        known = len(self.dictionaries["rollout"])
        strings = self.dictionaries.intern_store(store.dictionaries)
        owners: dict[str, NDArray[np.int64]] = {}
        for column, identities in (("source_row_id", self.sources), ("target_row_id", self.targets)):
            rows = rebased_rows(store, identities.table, Rebasing(strings, owners))
            owners[column] = np.array([self._add(identities, row, store.location) for row in rows], np.int64)
        for number in np.flatnonzero(strings["rollout"] < known).tolist():
            raise _known_already(store.location, store.dictionaries["rollout"][number])
        self._source_splits |= store.source_splits
        rebasing = Rebasing(strings, owners, shifts_after(self.counts))
        for name, columns in rebased_blocks(store, rebasing, self.config.selected_depth.enabled):
            if name == schema.ROLLOUTS.name:
                self._horizon = max(self._horizon, int(columns["horizon"].max(initial=0)))
            self._sinks[name].append(columns)

    def finish(self) -> RolloutZarrWriteResult:
        """Derive the training view, write metadata and manifest; the root comes last."""
        if not len(self.sources):
            raise RecordRefused("no records: a store needs at least one source row")
        self._flatten_waiting()
        written = WrittenArrays(self.store_dir)
        for sink in self._sinks.values():
            written.add(sink.finish())
        self._write_view(written)
        self._on_step("view")
        written.add(self._write_texts())
        counts = store_counts(written.shape)
        tables = SmallTables(written.column, self.dictionaries.values())
        horizon = self._horizon or 1
        groups = group_attributes(self.config, counts, horizon)
        root = root_attributes(self.config, tables, counts, horizon, self._created_at_utc or now_utc())
        self._on_step("manifest/before")
        facts = manifest_facts(root, counts, tables)
        payload = facts | {
            "store_kind": self._store_kind,
            "generation": self._generation(),
            "content_sha256": written.content_sha256,
            "stored_crc32c": written.stored_checksums(),
            **self._origin(facts, groups),
        }
        if self._source_splits:
            payload[SOURCE_SPLITS] = self._source_splits
        root["manifest_sha256"] = write_rollout_store_manifest(self.store_dir, payload)
        self._on_step("manifest/after")
        write_metadata(self.store_dir, written.documents, groups, root, self._on_step)
        self._on_step("root")
        self._finished = True
        return RolloutZarrWriteResult(
            store_dir=self.store_dir,
            num_sources=counts["sources"],
            num_targets=counts["targets"],
            num_rollouts=counts["rollouts"],
            num_steps=counts["steps"],
            num_candidates=counts["candidates"],
            manifest_path=self.store_dir / ROLLOUT_MANIFEST_FILENAME,
            manifest_sha256=root["manifest_sha256"],
        )

    def _origin(self, facts: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Where rows of another store are from, for the manifest, given its other facts and attributes of groups."""
        return {}

    def _generation(self) -> dict[str, Any]:
        """How the rows were made, for the manifest."""
        return (self._context or RolloutStoreManifestContext.here()).to_jsonable()

    def _refuse_known(self, where: str, rollout_ids: Iterable[str]) -> None:
        """Raise ``RecordRefused`` if a rollout id is already in the store, or comes twice."""
        known, seen = self.dictionaries["rollout"], set[str]()
        for name in rollout_ids:
            if name in known or name in seen:
                raise _known_already(f"record {where!r}", name)
            seen.add(name)

    def _add(self, identities: IdentityTable, row: Row, where: str) -> int:
        """The row id of a source or target; a source of a second split is refused."""
        split_id = int(row.get("split_id", 0))
        if split_id != 0:
            splits = self.dictionaries["split"].values
            raise RecordRefused(f"{where}: one store holds one split: {splits[0]!r} so far, got {splits[split_id]!r}")
        row_id, is_new = identities.add(row, where)
        if is_new:
            self._sinks[identities.table.name].append(identities.block(row_id, row))
        return row_id

    def _flatten_waiting(self) -> None:
        records, self._waiting, self._waiting_rows = self._waiting, [], 0
        if not records:
            return
        flat = flatten_records(records, self.counts)
        refuse_unfit_rows(records, flat["candidates"])
        if self.config.selected_depth.enabled:
            depth = depth_columns(records, flat["steps"], self.config.dims["H"], self.config.dims["W"])
            self._sinks["selected_depth"].append(depth)
            self._sinks["rasters"].append(depth)
        for name, columns in flat.items():
            self._sinks[name].append(columns)

    def _owner(self, record: RolloutZarrRecord) -> Owner:
        lineage = record.lineage
        source_facts = tuple(getattr(lineage, field) for field in SOURCE_FIELDS.values())
        target_facts = tuple(getattr(lineage, field) for field in TARGET_FIELDS.values())
        if self._last is not None and self._last[:2] == (source_facts, target_facts):
            return self._last[2]
        where = f"record {record.rollout_id_prefix!r}"
        source_id = self._add(self.sources, source_row(lineage, self.dictionaries), where)
        if lineage.source_split is not None:
            self._source_splits[lineage.source_sample_key or ""] = lineage.source_split
        row = target_row(lineage, source_id, self.dictionaries, self.config.target_protocol_version)
        trainable = bool(row["target_valid_mask"] and row["gt_label_valid_mask"])
        owner = Owner(source_id, self._add(self.targets, row, where), trainable)
        self._last = (source_facts, target_facts, owner)
        return owner

    def _make_sinks(self) -> dict[str, TableSink]:
        config, depth = self.config, self.config.selected_depth
        tables = (
            schema.SOURCES,
            schema.TARGETS,
            schema.ROLLOUTS,
            schema.LINEAGE,
            schema.STEPS,
            schema.SELECTED_DEPTH.without_rasters,
        )
        rasters = schema.SELECTED_DEPTH.part(schema.SELECTED_DEPTH.rasters)
        return {table.name: self._sink(table) for table in tables} | {
            "candidates": self._sink(schema.CANDIDATES, chunks_per_file=config.chunks_per_shard),
            "candidate_diagnostics": self._sink(schema.CANDIDATE_DIAGNOSTICS, chunks_per_file=config.chunks_per_shard),
            "rasters": self._sink(rasters, depth.chunk_steps, config.depth_chunks_per_shard),
            "target_eval_crops": self._sink(schema.TARGET_EVAL_CROPS, _CROP_ROWS),
        }

    def _sink(self, table: Table, chunk_rows: int | None = None, chunks_per_file: int = 1, **dims: int) -> TableSink:
        rows = chunk_rows or self.config.chunk_rows
        sizes = self.config.dims | dims
        return TableSink(self.store_dir, table, sizes, rows, chunks_per_file, self._workers, self._on_step)

    def _write_view(self, written: WrittenArrays) -> None:
        steps = written.columns(schema.STEPS, STEP_COLUMNS)
        rollouts = written.columns(schema.ROLLOUTS, ROLLOUT_COLUMNS)
        index = StateIndex.build(steps, rollouts, self.config.dead_ends_in_training_view)
        sinks = self._view_sinks(index.width)
        for first, stop in index.blocks(_VIEW_BLOCK_ROWS):
            start = max(first, index.step_after(sinks[0].rows))
            if start >= stop:
                continue  # an extended store already has these states
            candidates = written.columns(schema.CANDIDATES, CANDIDATE_COLUMNS, index.rows(start, stop))
            view = build_view(index, candidates, start, stop, self.config.discount_gamma)
            for sink in sinks:
                sink.append(view)
        for sink in sinks:
            written.add(sink.finish())

    def _view_sinks(self, width: int) -> list[TableSink]:
        states = self.config.chunk_states
        dense = self._sink(schema.Q_H.part(VIEW_OF), states, max(self.config.states_per_shard // states, 1), A=width)
        return [dense, self._sink(schema.Q_H.part(set(schema.Q_H.names) - set(VIEW_OF)))]

    def _write_texts(self) -> list[WrittenArray]:
        texts = {f"dictionaries/{name}": values for name, values in self.dictionaries.values().items()}
        texts |= {
            schema.REASON_NAMES_PATH: [name for name, _ in schema.REASONS_BY_BIT],
            schema.RETENTION_PATH: [self.config.field_retention_policy],
            schema.PROTOCOL_PATH: [self.config.target_protocol_version],
            schema.ROLE_NAMES_PATH: list(schema.SOURCE_ROLES),
            schema.CROP_POLICIES_PATH: self._crop_policies,
        }
        arrays: dict[str, NDArray[Any]] = {path: encode_strings(values) for path, values in texts.items()}
        arrays[schema.REASON_BITS_PATH] = np.array([bit for _, bit in schema.REASONS_BY_BIT], np.uint16)
        return list(self._workers.map(lambda path: self._write_whole(path, arrays[path]), arrays))

    def _write_whole(self, path: str, values: NDArray[Any]) -> WrittenArray:
        column = ColumnSink(self.store_dir, path, RowLayout(values.dtype, (), max(len(values), 1), 1, "rows"))
        if len(values):
            column.write(values)
        return column.finish()


def _known_already(where: str, rollout_id: str) -> RecordRefused:
    return RecordRefused(f"{where}: rollout {rollout_id!r} is in the store already; leave one of the two out")
