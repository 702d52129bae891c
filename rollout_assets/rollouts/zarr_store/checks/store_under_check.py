"""The store under examination: documents and columns are read once.

Anything that cannot be read raises ``StoreDamaged`` with the array's path; the runner reports each such array once and
goes on with the checks that do not need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store.attributes import dead_ends_in_view
from rollout_assets.rollouts.zarr_store.chunks.arrays import RowArray
from rollout_assets.rollouts.zarr_store.chunks.files import StoreFiles
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.dictionaries import decode_strings
from rollout_assets.rollouts.zarr_store.documents import (
    ZARR_JSON,
    consolidated_documents,
    read_document,
    root_attributes_of,
)
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME, parse_manifest
from rollout_assets.rollouts.zarr_store.schema import CANDIDATE_DIAGNOSTICS, CANDIDATES, Q_H, ROLLOUTS, STEPS, TABLES
from rollout_assets.rollouts.zarr_store.training_view import ROLLOUT_COLUMNS, STEP_COLUMNS, StateIndex

BLOCK_ROWS = 1 << 20
"""Candidate rows examined together, about."""


class StoreUnderCheck:
    """A store being validated."""

    def __init__(self, files: StoreFiles, deep: bool) -> None:
        self.files = files
        self.deep = deep
        self.sizes = files.sizes()
        self.damaged: set[str] = set()
        self._arrays: dict[str, RowArray] = {}
        self._columns: dict[str, NDArray[Any]] = {}
        self._documents: dict[str, tuple[bytes, dict[str, Any]]] = {}
        self._texts: dict[str, list[str]] = {}
        self._decoded: dict[str, list[str]] = {}

    @cached_property
    def root_document(self) -> dict[str, Any]:
        """The root's ``zarr.json``."""
        return self.document("")

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Root attributes."""
        return root_attributes_of(self.root_document)

    @cached_property
    def consolidated(self) -> dict[str, Any]:
        """Documents of all nodes as the root repeats them."""
        return consolidated_documents(self.root_document)

    def document(self, path: str) -> dict[str, Any]:
        """The ``zarr.json`` of a node."""
        return self._document(path)[1]

    def document_bytes(self, path: str) -> bytes:
        """The bytes of a node's ``zarr.json``."""
        return self._document(path)[0]

    def _document(self, path: str) -> tuple[bytes, dict[str, Any]]:
        if path not in self._documents:
            self._documents[path] = read_document(self.files, path)
        return self._documents[path]

    @cached_property
    def manifest_bytes(self) -> bytes:
        """The bytes of the sidecar manifest."""
        try:
            return self.files.read(ROLLOUT_MANIFEST_FILENAME)
        except OSError:
            raise StoreDamaged(ROLLOUT_MANIFEST_FILENAME, "is missing") from None

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The sidecar manifest."""
        return parse_manifest(self.manifest_bytes)

    def array(self, path: str) -> RowArray:
        """An array from its own document, or, if that is broken, from the root's copy."""
        if path not in self._arrays:
            try:
                document = self.document(path)
            except StoreDamaged:
                document = self.consolidated.get(path, {})
            try:
                self._arrays[path] = RowArray(self.files, path, document)
            except (ValueError, AttributeError) as error:
                raise StoreDamaged(path, f"{ZARR_JSON} does not describe an array: {error}") from None
        return self._arrays[path]

    def rows(self, table: Table) -> int:
        """Rows of a table, by its first column."""
        return len(self.array(table.path(table.names[0])))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows of an array that is not known to be damaged."""
        if path in self.damaged:
            raise StoreDamaged(path, "is damaged")
        return self.array(path).read(start, stop)

    def column(self, table: Table, name: str) -> NDArray[Any]:
        """A whole column of a small table, read once; one of another length than its table is ``StoreDamaged``."""
        path = table.path(name)
        if path not in self._columns:
            values = self.read(path)
            column = table[name]
            if values.dtype != column.numpy_dtype or values.ndim != 1 + len(column.row_shape):
                raise StoreDamaged(path, f"cannot be used: {values.dtype} with shape {values.shape}")
            if len(values) != self.rows(table):
                raise StoreDamaged(path, f"has {len(values)} rows, its table has {self.rows(table)}")
            self._columns[path] = values
        return self._columns[path]

    def bad_rows(self, table: Table, name: str, wrong: NDArray[np.bool_], expectation: str) -> Findings:
        """One finding, with the first value, for all rows of a column of a small table where ``wrong`` is true."""
        return bad_rows(table.path(name), wrong, expectation, self.column(table, name))

    def strings(self, dictionary: str) -> list[str]:
        """A dictionary's strings."""
        return self.text(f"dictionaries/{dictionary}")

    def text(self, path: str) -> list[str]:
        """The strings of an array that holds a JSON list."""
        if path not in self._texts:
            self._texts[path] = decode_strings(path, self.read(path))
        return self._texts[path]

    def decoded(self, table: Table, name: str) -> list[str]:
        """A column's strings; "" where the id is not given or points nowhere."""
        dictionary = table[name].dictionary
        assert dictionary is not None
        path = table.path(name)
        if path not in self._decoded:
            strings = self.strings(dictionary)
            ids = self.column(table, name).tolist()
            self._decoded[path] = [strings[index] if 0 <= index < len(strings) else "" for index in ids]
        return self._decoded[path]

    @cached_property
    def states(self) -> StateIndex:
        """Where each step's candidates lie."""
        return StateIndex.build(
            {name: self.column(STEPS, name) for name in STEP_COLUMNS},
            {name: self.column(ROLLOUTS, name) for name in ROLLOUT_COLUMNS},
            dead_ends_in_view(self.attributes),
        )

    def blocks(self) -> Iterator[Block]:
        """Candidates, diagnostics and training view in blocks of whole steps."""
        for start, stop in self.states.blocks(BLOCK_ROWS):
            yield Block(self, start, stop)


@dataclass(eq=False)
class Block:
    """Consecutive steps with all rows that belong to them; columns are read when first asked for."""

    store: StoreUnderCheck
    start: int
    stop: int
    _loaded: dict[str, NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def rows(self) -> slice:
        """Candidate rows of this block."""
        return self.store.states.rows(self.start, self.stop)

    @cached_property
    def state_of_row(self) -> NDArray[np.int64]:
        """(n,): which step, counted from ``start``, each row belongs to."""
        return np.repeat(np.arange(self.stop - self.start), self.store.states.shell_sizes[self.start : self.stop])

    @cached_property
    def shell_starts(self) -> NDArray[np.int64]:
        """(steps,): first row of each step, counted from the block's first row."""
        return self.store.states.shell_starts[self.start : self.stop] - self.rows.start

    def step(self, name: str) -> NDArray[Any]:
        """A step column, one value a step."""
        return self.store.column(STEPS, name)[self.start : self.stop]

    def candidate(self, name: str) -> NDArray[Any]:
        """A candidate column."""
        return self._load(CANDIDATES, name, self.rows.start, self.rows.stop)

    def diagnostic(self, name: str) -> NDArray[Any]:
        """A column of the diagnostics."""
        return self._load(CANDIDATE_DIAGNOSTICS, name, self.rows.start, self.rows.stop)

    def view(self, name: str) -> NDArray[Any]:
        """A column of the stored training view."""
        states = self.store.states.states(self.start, self.stop)
        return self._load(Q_H, name, states.start, states.stop)

    def bad_steps(self, name: str, wrong: NDArray[np.bool_], expectation: str) -> Findings:
        """One finding, with the first value, for all steps where ``wrong`` is true."""
        return bad_rows(STEPS.path(name), wrong, expectation, self.step(name), self.start)

    def bad_candidates(self, name: str, wrong: NDArray[np.bool_], expectation: str) -> Findings:
        """One finding, with the first value, for all candidates where ``wrong`` is true."""
        return bad_rows(CANDIDATES.path(name), wrong, expectation, self.candidate(name), self.rows.start)

    def bad_diagnostics(self, name: str, wrong: NDArray[np.bool_], expectation: str) -> Findings:
        """One finding, with the first value, for the diagnostics of all candidates where ``wrong`` is true."""
        return bad_rows(CANDIDATE_DIAGNOSTICS.path(name), wrong, expectation, self.diagnostic(name), self.rows.start)

    def _load(self, table: Table, name: str, start: int, stop: int) -> NDArray[Any]:
        path = table.path(name)
        if path not in self._loaded:
            values = self.store.read(path, start, stop)
            if values.dtype != table[name].numpy_dtype or len(values) != stop - start:
                raise StoreDamaged(path, f"cannot be used: {values.dtype} with shape {self.store.array(path).shape}")
            self._loaded[path] = values
        return self._loaded[path]


def known_arrays() -> Iterator[tuple[Table, str]]:
    """Every column of every table."""
    for table in TABLES.values():
        for name in table.names:
            yield table, name
