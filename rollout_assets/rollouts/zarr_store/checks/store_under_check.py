"""The store under examination: documents and columns are read once.

Anything that cannot be read raises ``StoreDamaged`` with the array's path; the runner reports each such array once and
goes on with the checks that do not need it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from pydantic import ValidationError

from rollout_assets.config import CampaignConfig
from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.keys import RolloutKey, ShellPath
from rollout_assets.rollouts.trace import recipe_of
from rollout_assets.rollouts.zarr_store.attributes import dead_ends_in_view
from rollout_assets.rollouts.zarr_store.chunks.arrays import RowArray
from rollout_assets.rollouts.zarr_store.chunks.files import StoreFiles
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.dictionaries import decode_strings
from rollout_assets.rollouts.zarr_store.documents import (
    ZARR_JSON,
    absence,
    consolidated_documents,
    read_document,
    root_attributes_of,
)
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows
from rollout_assets.rollouts.zarr_store.foreign.derived import SOURCE_OF_TARGET, derived_source_of_target
from rollout_assets.rollouts.zarr_store.foreign.origin import CONVERTED_FROM, Profile, extra_arrays, profile_of
from rollout_assets.rollouts.zarr_store.manifest import (
    PACKAGE,
    ROLLOUT_MANIFEST_FILENAME,
    installed_version,
    parse_manifest,
)
from rollout_assets.rollouts.zarr_store.schema import (
    ROLLOUTS,
    SOURCES,
    STEPS,
    TABLES,
    TARGETS,
    added_paths,
    array_paths,
)
from rollout_assets.rollouts.zarr_store.training_view import ROLLOUT_COLUMNS, STEP_COLUMNS, StateIndex


class StoreUnderCheck:
    """A store being validated, held to a profile; by default to the one of who wrote it.

    Of a ``deep`` validation only what belongs to steps from ``deep_from_step`` on is held deeply.
    """

    def __init__(self, files: StoreFiles, deep: bool, profile: Profile | None = None, deep_from_step: int = 0) -> None:
        self.files = files
        self.deep = deep
        self.deep_from_step = deep_from_step
        self._profile = profile
        self.sizes = files.sizes()
        self.damaged: set[str] = set()
        self._arrays: dict[str, RowArray] = {}
        self._columns: dict[str, NDArray[Any]] = {}
        self._documents: dict[str, tuple[bytes, dict[str, Any]]] = {}
        self._texts: dict[str, list[str]] = {}
        self._decoded: dict[str, list[str]] = {}
        self._start_errors: dict[str, NDArray[np.float32]] = {}

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

    @cached_property
    def profile(self) -> Profile:
        """What the store is held to; without a manifest the root's attributes alone say who wrote it."""
        if self._profile is not None:
            return self._profile
        try:
            attributes = self.attributes
        except StoreDamaged:
            return "own"
        return profile_of(attributes, self._manifest_if_any)

    @property
    def _manifest_if_any(self) -> dict[str, Any]:
        try:
            return self.manifest
        except StoreDamaged:
            return {}

    @cached_property
    def of_other_writer(self) -> bool:
        """Whether another writer made the rows, also where they were converted since."""
        return self.profile == "foreign" or CONVERTED_FROM in self._manifest_if_any

    @cached_property
    def lacking(self) -> frozenset[str]:
        """Arrays that this package adds to the schema, and that are not there because another writer made the rows."""
        absent = frozenset(path for path in added_paths() if f"{path}/{ZARR_JSON}" not in self.sizes)
        return absent if self.of_other_writer else frozenset()

    @cached_property
    def array_paths(self) -> tuple[str, ...]:
        """Every array that the store must have."""
        extra = extra_arrays(self._manifest_if_any) if self.profile == "own" else ()
        return (*(path for path in array_paths() if path not in self.lacking), *extra)

    def known_columns(self) -> Iterator[tuple[Table, str]]:
        """Every column of every table that the store must have."""
        for table in TABLES.values():
            for name in table.names:
                if table.path(name) not in self.lacking:
                    yield table, name

    @cached_property
    def files_below(self) -> Counter[str]:
        """Files with chunks by the path of their array; chunk keys begin with ``c/``, as Zarr 3 names them."""
        return Counter(key.split("/c/")[0] for key in self.sizes if "/c/" in key)

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
        except OSError as error:
            raise StoreDamaged(ROLLOUT_MANIFEST_FILENAME, absence(error)) from None

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The sidecar manifest."""
        return parse_manifest(self.manifest_bytes)

    @cached_property
    def generation(self) -> dict[str, Any]:
        """The manifest's ``generation`` section; empty when there is none."""
        section = self.manifest.get("generation")
        return section if isinstance(section, dict) else {}

    @cached_property
    def campaign(self) -> CampaignConfig | None:
        """The campaign that the manifest says made the store; None when it does not say, or not in our words."""
        try:
            return CampaignConfig.recorded(self.generation.get("writer_config"))
        except ValidationError:
            return None

    @property
    def campaign_problem(self) -> str:
        """Why a campaign that this version recorded cannot be read; "" when there is none to be read."""
        recorded, runtime = self.generation.get("writer_config"), self.generation.get("runtime")
        packages = runtime.get("packages") if isinstance(runtime, dict) else None
        own = isinstance(packages, dict) and packages.get(PACKAGE) == installed_version(PACKAGE)
        if not own or not isinstance(recorded, dict) or not {"recipes", "candidates", "oracle"} <= recorded.keys():
            return ""
        try:
            CampaignConfig.recorded(recorded)
        except ValidationError as error:
            wrong = validation_problems(error)[0]
            return f"is not a campaign of this version: {wrong.field}: {wrong.message}"
        return ""

    def array(self, path: str) -> RowArray:
        """An array from its own document, or, if that is broken, from the root's copy; or a derived one."""
        if path not in self._arrays:
            self._arrays[path] = self._open_array(path)
        return self._arrays[path]

    def _open_array(self, path: str) -> RowArray:
        if path == SOURCE_OF_TARGET and path in self.lacking:
            return derived_source_of_target(self.files, self.read)
        try:
            document = self.document(path)
        except StoreDamaged:
            if self.profile == "foreign":
                raise
            document = self.consolidated.get(path, {})
        through_zarr = (lambda: self._zarr_array(path)) if self.profile == "foreign" else None
        try:
            return RowArray(self.files, path, document, through_zarr)
        except (ValueError, AttributeError) as error:
            raise StoreDamaged(path, f"{ZARR_JSON} does not describe an array: {error}") from None

    def _zarr_array(self, path: str) -> Any:
        return zarr.open_array(self.files.backend, path=path, mode="r", zarr_format=3)

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

    def of_source(self, name: str) -> NDArray[Any]:
        """A column of the sources, one value a rollout; an id that points nowhere takes some row."""
        return _at(self.column(SOURCES, name), self.column(ROLLOUTS, "source_row_id"))

    def of_target(self, name: str) -> NDArray[Any]:
        """A column of the targets, one value a rollout; an id that points nowhere takes some row."""
        return _at(self.column(TARGETS, name), self.column(ROLLOUTS, "target_row_id"))

    @cached_property
    def recipe_of_rollout(self) -> NDArray[np.int64]:
        """(rollouts,): the place of each rollout's recipe in the campaign; -1 for one that it does not have."""
        recipes = () if self.campaign is None else self.campaign.recipes
        places = {recipe.name: index for index, recipe in enumerate(recipes)}
        names = [recipe_of(text) for text in self.decoded(ROLLOUTS, "rollout_id")]
        return np.array([places.get(name or "", -1) for name in names], np.int64)

    @cached_property
    def rollout_keys(self) -> list[RolloutKey]:
        """(rollouts,): what the randomness of each rollout derives from."""
        keys = np.array(self.decoded(SOURCES, "sample_key_id"), object)
        targets = np.array(self.decoded(TARGETS, "target_id"), object)
        seeds = self.column(ROLLOUTS, "random_seed").tolist()
        owners = (
            _at(keys, self.column(ROLLOUTS, "source_row_id")),
            _at(targets, self.column(ROLLOUTS, "target_row_id")),
        )
        return [RolloutKey(seed, key, target) for seed, key, target in zip(seeds, *owners, strict=True)]

    @cached_property
    def rollout_paths(self) -> list[ShellPath]:
        """(rollouts,): shell indices that each rollout selected, in order."""
        rollout, shell = self.column(STEPS, "rollout_row_id"), self.column(STEPS, "selected_shell_index")
        paths: list[list[int]] = [[] for _ in range(self.rows(ROLLOUTS))]
        for row, index in zip(rollout.tolist(), shell.tolist(), strict=True):
            if index >= 0 and 0 <= row < len(paths):
                paths[row].append(index)
        return [tuple(path) for path in paths]

    @cached_property
    def selected_poses(self) -> NDArray[np.float32]:
        """(steps, 12): poses of selected views, filled in by blocks as they pass; NaN elsewhere."""
        return np.full((self.rows(STEPS), 12), np.nan, np.float32)

    def start_errors(self, what: str) -> NDArray[np.float32]:
        """(steps,): errors of the target or scene that steps start from, filled in by blocks as they pass."""
        return self._start_errors.setdefault(what, np.full(self.rows(STEPS), np.nan, np.float32))


def _at(values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """values[rows], with rows outside moved inside."""
    return values[np.clip(rows, 0, max(len(values) - 1, 0))]
