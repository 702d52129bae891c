"""A store of another writer, rewritten as one of ours: the same rows, in our chunks, with checksums and digests.

Rows are copied block by block, so memory stays bounded. The training view is rebuilt from the tables and compared with
theirs. What our layout has no place for stays in the manifest, under ``converted_from``, or is named there as left
behind. The store is built beside its destination, validated deeply, and appears under its name complete or not at all.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import StoreDamaged, StoreError, StoreExists, counted
from rollout_assets.files import discard_path, now_utc, rename_path, scratch_path, sync_tree
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.attributes import STORE_KIND, RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.checks.structure import stored_config
from rollout_assets.rollouts.zarr_store.chunks.sinks import TableSink
from rollout_assets.rollouts.zarr_store.chunks.tables import Column, Table
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON, read_document
from rollout_assets.rollouts.zarr_store.findings import differs
from rollout_assets.rollouts.zarr_store.foreign.derived import SOURCE_OF_TARGET
from rollout_assets.rollouts.zarr_store.foreign.origin import CONVERTED_FROM, EXTRA_ARRAYS, profile_of
from rollout_assets.rollouts.zarr_store.identities import rows_of
from rollout_assets.rollouts.zarr_store.manifest import manifest_json_bytes, runtime_provenance
from rollout_assets.rollouts.zarr_store.merge import table_blocks
from rollout_assets.rollouts.zarr_store.open_store import OpenStore, StoreLocation
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.writer import RolloutZarrStoreWriter, RolloutZarrWriteResult

_BLOCK_ROWS = 1 << 17
_RASTER_BLOCK_ROWS = 64
_VIEW_BLOCK_ROWS = 1 << 14
_EXTRA_BLOCK_BYTES = 1 << 24

_COPIED = (
    schema.SOURCES,
    schema.TARGETS,
    schema.ROLLOUTS,
    schema.LINEAGE,
    schema.STEPS,
    schema.CANDIDATES,
    schema.CANDIDATE_DIAGNOSTICS,
    schema.SELECTED_DEPTH,
    schema.TARGET_EVAL_CROPS,
)
"""Tables that are copied; the training view is derived from them."""


@dataclass(frozen=True)
class Conversion:
    """A store that was made from another writer's.

    ``derived`` are columns that theirs lacks and ours has, ``absent`` those that neither has; ``view_differences`` says
    where their training view is not what their tables make; ``extra_arrays`` are arrays beyond the schema that were
    carried over; ``kept_in_manifest`` names what our layout has no place for, ``left_behind`` what is in neither.
    """

    written: RolloutZarrWriteResult
    source: str
    derived: tuple[str, ...]
    absent: tuple[str, ...]
    view_differences: tuple[str, ...]
    extra_arrays: tuple[str, ...]
    kept_in_manifest: tuple[str, ...]
    left_behind: tuple[str, ...]


def convert_store(source: StoreLocation, destination: Path | str, *, progress: ProgressSink = SILENT) -> Conversion:
    """Rewrite a store of another writer as one of this package at ``destination``, which must not exist.

    A store of this package, and one whose rows break the rules, is a ``StoreError``.
    """
    final = Path(destination)
    if final.exists():
        raise StoreExists(f"{final}: already there; choose another destination or remove it first")
    store = RolloutZarrStoreReader(source)
    config = _convertible(store)
    staged = scratch_path(final.with_name(f"{final.name}.{uuid.uuid4().hex[:12]}"))
    try:
        with _Converter(staged, config, store) as writer:
            writer.copy(progress)
            written = writer.finish()
        validate_rollout_zarr_store(staged, deep=True, profile="own").raise_if_wrong()
        differences = tuple(_view_differences(store, OpenStore(staged)))
        sync_tree(staged)
        rename_path(staged, final)
    except BaseException:
        discard_path(staged)
        raise
    return Conversion(
        written=replace(written, store_dir=final, manifest_path=final / written.manifest_path.name),
        source=store.location,
        derived=() if _is_stored(store, SOURCE_OF_TARGET) else (SOURCE_OF_TARGET,),
        absent=tuple(path for path in schema.added_paths() if not store.has(path)),
        view_differences=differences,
        extra_arrays=writer.extra_arrays,
        kept_in_manifest=writer.kept,
        left_behind=writer.left_behind,
    )


def _convertible(store: RolloutZarrStoreReader) -> RolloutZarrStoreConfig:
    """The config of the new store; a store that is ours already, or whose rows break the rules, is refused."""
    if profile_of(store.attributes, store.sidecar_manifest()) == "own":
        raise StoreError(f"{store.location}: was written by this package already; there is nothing to convert")
    result = store.validate(profile="foreign")
    wrong = [finding for finding in result.findings if not finding.where.startswith(f"{schema.Q_H.name}/")]
    if wrong:
        more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        way = "'rollout-assets store validate' lists what is wrong"
        raise StoreError(f"{store.location}: cannot be converted: {wrong[0]}{more}; {way}")
    try:
        config = stored_config(store.attributes)
    except (KeyError, ValidationError) as error:
        said = str(error) if isinstance(error, KeyError) else validation_problems(error)[0].message
        raise StoreError(f"{store.location}: cannot be converted: attributes: {said}") from None
    return config.model_copy(update={"chunk_states": RolloutZarrStoreConfig().chunk_states})


class _Converter(RolloutZarrStoreWriter):
    """A writer that takes over the rows, strings and attributes of one store of another writer."""

    def __init__(self, store_dir: Path, config: RolloutZarrStoreConfig, store: RolloutZarrStoreReader) -> None:
        self._store = store
        self._manifest = store.sidecar_manifest()
        self.kept: tuple[str, ...] = ()
        self.left_behind: tuple[str, ...] = ()
        self.extra_arrays: tuple[str, ...] = ()
        kind = str(self._manifest.get("store_kind", STORE_KIND))
        super().__init__(store_dir, config, created_at_utc=str(store.attribute("created_at_utc")), store_kind=kind)

    def copy(self, progress: ProgressSink) -> None:
        """Take over every row and string."""
        store = self._store
        self.dictionaries.intern_store(store.dictionaries)
        self._crop_policies = store.text(schema.CROP_POLICIES_PATH)
        for row in rows_of(store.columns(schema.SOURCES), schema.SOURCES.names):
            self.sources.add(row, store.location)
        self._horizon = int(store.array(schema.ROLLOUTS.path("horizon")).max(initial=0))
        for name, table, rows in self._parts():
            total = store.num_rows(table.name)
            for columns in table_blocks(store, table, rows):
                self._sinks[name].append(columns)
                progress(ProgressEvent(f"copy {name}", self._sinks[name].rows, total, unit="rows"))
        self.extra_arrays = tuple(path for path in _unknown_nodes(store) if self._copy_extra(path))

    def _copy_extra(self, path: str) -> bool:
        """Carry over an array beyond the schema; False if it cannot be: no array of numbers, or in no known group."""
        group, _, name = path.partition("/")
        try:
            array = self._store.row_array(path)
        except StoreDamaged:
            return False
        if group not in schema.GROUPS or "/" in name:
            return False
        codec = schema.TABLES[group].codec if group in schema.TABLES else "rows"
        table = Table(group, (Column(name, array.dtype.name, array.shape[1:]),), key=None, codec=codec)
        rows = min(max(_EXTRA_BLOCK_BYTES // max(array.row_bytes, 1), 1), self.config.chunk_rows)
        sink = self._sinks[path] = super()._sink(table, rows)
        for start in range(0, len(array), rows):
            sink.append({name: array.read(start, start + rows)})
        return True

    def _parts(self) -> Iterator[tuple[str, Table, int]]:
        """Name of a sink, the columns that go into it, and how many rows of them at a time."""
        depth = schema.SELECTED_DEPTH
        for table in _COPIED:
            part = self._present(table)
            yield table.name, part.without_rasters if table is depth else part, _rows_at_once(part)
        yield "rasters", depth.part(depth.rasters), _RASTER_BLOCK_ROWS

    def _present(self, table: Table) -> Table:
        names = [name for name in table.names if not table[name].added or self._store.has(table.path(name))]
        return table.part(names)

    def _sink(self, table: Table, chunk_rows: int | None = None, chunks_per_file: int = 1, **dims: int) -> TableSink:
        return super()._sink(self._present(table), chunk_rows, chunks_per_file, **dims)

    def _generation(self) -> dict[str, Any]:
        """What their manifest says of how the rows were made, word for word."""
        theirs = self._manifest.get("generation")
        return theirs if isinstance(theirs, dict) else super()._generation()

    def _origin(self, facts: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Where the rows come from, with everything that the new attributes and manifest do not say."""
        store, extra = self._store, self.extra_arrays
        beside = {
            "attributes": self._other_attributes(facts["root_attrs"], groups),
            "manifest": self._other_facts(facts),
        }
        kept = {kind: _json_only(values) for kind, values in beside.items()}
        lost = [f"{kind} {name}" for kind, values in beside.items() for name in values if name not in kept[kind]]
        self.kept = tuple(f"{kind} {name}" for kind, values in kept.items() for name in values)
        self.left_behind = tuple(sorted({*_unknown_nodes(store), *lost} - {*extra}))
        record = {
            "store": Path(store.location.rstrip("/")).name,
            "manifest_sha256": store.attributes.get("manifest_sha256"),
            "root_sha256": store.root_sha256,
            "converted_at_utc": now_utc(),
            "converted_by": runtime_provenance(),
            EXTRA_ARRAYS: list(extra),
            "left_behind": list(self.left_behind),
            **kept,
        }
        return {CONVERTED_FROM: record}

    def _other_attributes(self, root: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Path of a node, a space, and name of an attribute -> its value, where the new store has another or none."""
        new = {"": {**root, "manifest_sha256": self._store.attributes.get("manifest_sha256")}} | dict(groups)
        other = {}
        for path in ("", *_node_paths(self._store)):
            stored = read_document(self._store.files, path)[1].get("attributes")
            for name, value in (stored if isinstance(stored, dict) else {}).items():
                if name not in new.get(path, {}) or new[path][name] != value:
                    other[f"{path} {name}".strip()] = value
        return other

    def _other_facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Parts of their manifest that the new one does not repeat; its attributes are kept apart."""
        ours = {**facts, **{name: self._manifest.get(name) for name in ("root_attrs", "store_kind", "generation")}}
        return {name: value for name, value in self._manifest.items() if name not in ours or ours[name] != value}


def _rows_at_once(table: Table) -> int:
    return _RASTER_BLOCK_ROWS if table.name == schema.TARGET_EVAL_CROPS.name else _BLOCK_ROWS


def _json_only(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without values that a manifest cannot hold, such as NaN."""
    return {name: value for name, value in values.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        manifest_json_bytes({"value": value})
    except ValueError:
        return False
    return True


def _is_stored(store: OpenStore, path: str) -> bool:
    return path in _node_paths(store)


def _node_paths(store: OpenStore) -> list[str]:
    """Every node below the root that has a document of its own."""
    ending = f"/{ZARR_JSON}"
    return sorted(key.removesuffix(ending) for key in store.files.sizes() if key.endswith(ending))


def _unknown_nodes(store: OpenStore) -> list[str]:
    return sorted(set(_node_paths(store)) - {*schema.GROUPS, *schema.array_paths()})


def _view_differences(theirs: OpenStore, ours: OpenStore) -> Iterator[str]:
    """One line for each column of their training view that is not what their tables make."""
    for name in schema.Q_H.names:
        path = schema.Q_H.path(name)
        try:
            stored, rebuilt = theirs.row_array(path), ours.row_array(path)
            if stored.shape != rebuilt.shape:
                yield f"{path}: shape is {stored.shape}, {rebuilt.shape} follows from the tables"
                continue
            rows = _rows_apart(stored.read, rebuilt.read, len(stored))
        except StoreDamaged as error:
            yield str(error)
            continue
        if len(rows):
            yield f"{path}: {counted(len(rows), 'state')} other than the tables make, first state {rows[0]}"


def _rows_apart(theirs: Callable[..., Any], ours: Callable[..., Any], count: int) -> np.ndarray:
    parts = [np.zeros(0, np.int64)]
    for start in range(0, count, _VIEW_BLOCK_ROWS):
        stop = min(start + _VIEW_BLOCK_ROWS, count)
        apart = differs(theirs(start, stop), ours(start, stop)).reshape(stop - start, -1).any(axis=1)
        parts.append(start + np.flatnonzero(apart))
    return np.concatenate(parts)
