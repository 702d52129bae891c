"""Stores of other writers: attributes and manifest against the tables, and one note per kind of other layout.

A store of the research code differs from ours in hundreds of documents, chunks and digests, and none of that is wrong.
So layout is counted by kind, and only what contradicts the tables is a finding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from pydantic import ValidationError

from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import StoreDamaged, counted
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.attributes import COUNTED
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.checks.structure import (
    DIGESTS,
    arrays_as_schema,
    derived_attributes,
    derived_facts,
    ids_in_dictionaries,
    schema_version,
    texts_as_schema,
)
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON
from rollout_assets.rollouts.zarr_store.findings import Findings, problem
from rollout_assets.rollouts.zarr_store.manifest import ROLLOUT_MANIFEST_FILENAME

_FROM_TABLES = (
    "source_offline_store_version",
    "split_manifest_hash",
    "source_split",
    "q_h_horizon",
    "q_h_state_count",
    "q_h_max_candidates",
    *(f"num_{name}" for name in COUNTED if name != "target_eval_crops"),
    "target_eval_crops_num_rows",
)
"""Root attributes that summarise tables: one that says something else is wrong in any layout."""

_FACTS_FROM_TABLES = ("counts",)
"""Parts of a manifest that summarise tables."""


@dataclass(frozen=True)
class LayoutNote:
    """How a store's layout differs from ours in one respect: what, how often, and what follows from it."""

    kind: str
    count: int
    text: str

    def __str__(self) -> str:
        return self.text


def attributes_match_tables(store: StoreUnderCheck) -> Findings:
    """Attributes that summarise tables say what the tables say; none that a reader needs is missing."""
    try:
        expected = derived_attributes(store)[0]
    except KeyError as error:
        yield problem(f"attribute {error}", "is missing")
        return
    except ValidationError as error:
        for wrong in validation_problems(error):
            yield problem(f"attribute {wrong.field}", wrong.message, wrong.value)
        return
    for name in _FROM_TABLES:
        stored = store.attributes.get(name)
        if stored != expected[name]:
            yield problem(f"attribute {name}", f"must be {expected[name]!r}, as the tables say", repr(stored))


def manifest_matches_tables(store: StoreUnderCheck) -> Findings:
    """The manifest is the one that the root names, and its counts are those of the tables."""
    where = ROLLOUT_MANIFEST_FILENAME
    if hashlib.sha256(store.manifest_bytes).hexdigest() != store.attributes.get("manifest_sha256"):
        yield problem(where, "its SHA-256 is not the root attribute manifest_sha256")
    facts = derived_facts(store)
    for part in _FACTS_FROM_TABLES:
        stored = store.manifest.get(part)
        for name, value in facts[part].items():
            other = stored.get(name, value) if isinstance(stored, dict) else None
            if other != value:
                yield problem(f"{where} {part} {name}", f"must be {value!r}, as the tables say", repr(other))


FOREIGN_STRUCTURE_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (
    schema_version,
    arrays_as_schema,
    texts_as_schema,
    attributes_match_tables,
    manifest_matches_tables,
    ids_in_dictionaries,
)
"""Checks of documents and attributes that hold in any layout."""


def layout_notes(store: StoreUnderCheck) -> tuple[LayoutNote, ...]:
    """One note for each way in which the layout is not ours; what cannot be read is a finding elsewhere."""
    notes = []
    for look in (_consolidated, _checksums, _absent_chunks, _columns, _digests, _attributes, _unknown_nodes):
        try:
            notes += list(look(store))
        except (StoreDamaged, KeyError, ValidationError):
            continue
    return tuple(notes)


def _consolidated(store: StoreUnderCheck) -> Iterator[LayoutNote]:
    if store.root_document.get("consolidated_metadata") is None:
        yield LayoutNote("metadata", 1, "no consolidated metadata: every array is opened by a file of its own")


def _checksums(store: StoreUnderCheck) -> Iterator[LayoutNote]:
    bare = [path for path in store.array_paths if _is_there(store, path) and store.array(path).layout is None]
    if bare:
        text = "with other codecs or chunks than ours, without checksums: altered bytes are not noticed"
        yield LayoutNote("chunks", len(bare), f"{counted(len(bare), 'array')} {text}")


def _absent_chunks(store: StoreUnderCheck) -> Iterator[LayoutNote]:
    """Writers leave out chunks that hold nothing but the fill value, so a lost chunk looks like one of these."""
    missing = sum(_missing_chunks(store, path) for path in store.array_paths if _is_there(store, path))
    if missing:
        text = f"{counted(missing, 'chunk')} not on disk, which read as the fill value: lost ones would look the same"
        yield LayoutNote("absent chunks", missing, text)


def _missing_chunks(store: StoreUnderCheck, path: str) -> int:
    grid = store.document(path).get("chunk_grid", {})
    chunk = grid.get("configuration", {}).get("chunk_shape", []) if isinstance(grid, dict) else []
    shape = store.array(path).shape
    if len(chunk) != len(shape) or not all(isinstance(size, int) and size > 0 for size in chunk):
        return 0
    expected = prod(ceil(size / part) for size, part in zip(shape, chunk, strict=True))
    return max(expected - store.files_below.get(path, 0), 0)


def _columns(store: StoreUnderCheck) -> Iterator[LayoutNote]:
    if store.lacking:
        names = ", ".join(sorted(store.lacking))
        yield LayoutNote("columns", len(store.lacking), f"columns that this package adds are not there: {names}")


def _digests(store: StoreUnderCheck) -> Iterator[LayoutNote]:
    absent = [name for name in DIGESTS if name not in store.manifest]
    if absent:
        text = f"the manifest has no {' and no '.join(absent)}: what is read cannot be compared with what was written"
        yield LayoutNote("digests", len(absent), text)


def _attributes(store: StoreUnderCheck) -> Iterator[LayoutNote]:
    root, groups = derived_attributes(store)
    expected = {"": {**root, "manifest_sha256": store.attributes.get("manifest_sha256")}} | groups
    other = []
    for path in ("", *schema.GROUPS):
        stored = store.document(path).get("attributes")
        other += _other_names(path, stored if isinstance(stored, dict) else {}, expected.get(path, {}))
    other = [name for name in other if name not in _FROM_TABLES]
    if other:
        names = f"{', '.join(other[:3])}{', …' if len(other) > 3 else ''}"
        text = f"{counted(len(other), 'attribute')} other than this package writes: {names}"
        yield LayoutNote("attributes", len(other), text)


def _other_names(path: str, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    names = [name for name in sorted({*stored, *expected}) if stored.get(name) != expected.get(name)]
    return [f"{path} {name}".strip() for name in names]


def _unknown_nodes(store: StoreUnderCheck) -> Iterator[LayoutNote]:
    known = {"", *schema.GROUPS, *schema.array_paths()}
    nodes = {key.removesuffix(ZARR_JSON).rstrip("/") for key in store.sizes if key.split("/")[-1] == ZARR_JSON}
    unknown = sorted(nodes - known)
    if unknown:
        names = f"{', '.join(unknown[:3])}{', …' if len(unknown) > 3 else ''}"
        text = f"{counted(len(unknown), 'node')} beyond the schema: {names}"
        yield LayoutNote("unknown", len(unknown), text)


def _is_there(store: StoreUnderCheck, path: str) -> bool:
    return f"{path}/{ZARR_JSON}" in store.sizes
