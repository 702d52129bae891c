"""Documents, attributes, manifest, chunks: is this a store of the schema, and is every byte of it accounted for?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from pydantic import ValidationError

from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import StoreDamaged
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.attributes import (
    DEAD_ENDS_IN_VIEW,
    RolloutZarrStoreConfig,
    SmallTables,
    group_attributes,
    manifest_facts,
    root_attributes,
    store_counts,
)
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.chunks.arrays import decoding_threads
from rollout_assets.rollouts.zarr_store.chunks.inventory import take_inventory
from rollout_assets.rollouts.zarr_store.documents import (
    ZARR_JSON,
    document_bytes,
    group_document,
    nodes_in_order,
    root_document,
)
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows, problem
from rollout_assets.rollouts.zarr_store.foreign.origin import CONVERTED_FROM
from rollout_assets.rollouts.zarr_store.foreign.schema_versions import schema_problem
from rollout_assets.rollouts.zarr_store.manifest import (
    ROLLOUT_MANIFEST_FILENAME,
    RUNTIME_PARTS,
    SOURCE_SPLITS,
    RolloutStoreManifestContext,
    manifest_json_bytes,
)

DIGESTS = ("content_sha256", "stored_crc32c")
"""Manifest keys with one digest per array."""

_HASH_BLOCK_BYTES = 1 << 26


def schema_version(store: StoreUnderCheck) -> Findings:
    """The root names the schema this package knows."""
    text = schema_problem(store.attributes)
    if text is not None:
        other = store.attributes.get("schema_id") != schema.ROLLOUT_ZARR_SCHEMA_ID
        yield problem(f"attribute {'schema_id' if other else 'schema_version'}", text)


def documents_agree(store: StoreUnderCheck) -> Findings:
    """Every node has its document; the root's copy of it is the same; all are written the canonical way."""
    shape = {"attributes", "zarr_format", "node_type", "consolidated_metadata"}
    section = store.root_document.get("consolidated_metadata")
    root_is_plain = (
        set(store.root_document) == shape
        and store.root_document["zarr_format"] == 3
        and store.root_document["node_type"] == "group"
        and isinstance(section, dict)
        and {key: value for key, value in section.items() if key != "metadata"}
        == {"kind": "inline", "must_understand": False}
    )
    if not root_is_plain:
        yield problem(ZARR_JSON, "the root must be a Zarr v3 group with inline consolidated metadata")
    copies = store.consolidated
    expected = (*schema.GROUPS, *store.array_paths)
    for path in expected:
        if f"{path}/{ZARR_JSON}" not in store.sizes:
            yield problem(path, f"is missing: the store has no {path}/{ZARR_JSON}")
            continue
        if path not in copies:
            yield problem(path, "is missing in the root's consolidated metadata")
        try:
            document = store.document(path)
        except StoreDamaged as error:
            yield problem(error.where, error.problem)
            continue
        if path in copies and copies[path] != document:
            yield problem(path, f"{ZARR_JSON} differs from the root's copy of it")
        elif store.document_bytes(path) != document_bytes(_expected_document(store, path)):
            yield problem(path, f"{ZARR_JSON} is not, byte for byte, what is written for this {_kind(path)}")
        if document.get("node_type") != _kind(path):
            yield problem(path, "is not the kind of node the schema says", repr(document.get("node_type")))
    for path in sorted(set(copies) - set(expected)):
        yield problem(path, "is in the root's consolidated metadata, but not in the schema")
    nodes = {path: copies[path] for path in nodes_in_order(store.array_paths) if path in copies}
    if store.document_bytes("") != document_bytes(root_document(store.attributes, nodes)):
        yield problem(ZARR_JSON, "the root's document is not, byte for byte, what is written for these nodes")


def arrays_as_schema(store: StoreUnderCheck) -> Findings:
    """Each array has the dtype, row shape and number of rows that schema and attributes say."""
    attributes = store.attributes
    dims = {
        "H": attributes.get("selected_depth_height_px"),
        "W": attributes.get("selected_depth_width_px"),
        "P": attributes.get("target_eval_crops_max_points"),
        "A": attributes.get("q_h_max_candidates"),
    }
    for table, name in store.known_columns():
        path, column = table.path(name), table[name]
        try:
            array = store.array(path)
            rows = store.rows(table)
        except StoreDamaged as error:
            yield problem(error.where, error.problem)
            continue
        row_shape = tuple(dims[part] if isinstance(part, str) else part for part in column.row_shape)
        if array.dtype != column.numpy_dtype:
            yield problem(path, f"must be {column.dtype}", str(array.dtype))
        if array.shape != (rows, *row_shape):
            yield problem(path, f"must have shape {(rows, *row_shape)}", str(array.shape))
        if array.layout is None and store.profile == "own":
            yield problem(path, "must be chunked by whole rows, with one compressor and crc32c")
    for path in schema.TEXT_ARRAYS:
        expected = np.dtype(np.uint16 if path == schema.REASON_BITS_PATH else np.uint8)
        array = store.array(path)
        other_layout = array.layout is None and store.profile == "own"
        if array.dtype != expected or len(array.shape) != 1 or other_layout:
            yield problem(path, f"must be one row-chunked dimension of {expected} with crc32c", str(array.dtype))


def every_file_accounted_for(store: StoreUnderCheck) -> Findings:
    """Every chunk is there, also inside shards, matches its checksum, and is the one that was written."""
    expected = {
        ZARR_JSON,
        ROLLOUT_MANIFEST_FILENAME,
        *(f"{path}/{ZARR_JSON}" for path in (*schema.GROUPS, *store.array_paths)),
    }
    written = store.manifest.get("stored_crc32c")
    written = written if isinstance(written, dict) else {}
    arrays = []
    for path in store.array_paths:
        try:
            arrays.append(store.array(path))
        except StoreDamaged:
            store.damaged.add(path)

    def look(array: Any) -> Any:
        return take_inventory(store.files, store.sizes, array.path, array.layout, len(array), verify=True)

    plain = [array for array in arrays if array.layout is not None]
    for inventory in decoding_threads().map(look, plain):
        path = inventory.path
        expected.update(inventory.files)
        for text in inventory.problems:
            store.damaged.add(path)
            yield problem(path, text)
        if not inventory.problems and written.get(path) != inventory.stored_crc32c:
            yield problem(path, "its chunks are not the ones that were written (manifest stored_crc32c differs)")
    for key in sorted(set(store.sizes) - expected):
        yield problem(key, "is a file that belongs to no array of the schema")
    parents = {str(parent) for key in expected for parent in PurePosixPath(key).parents}
    for folder in sorted(store.files.folders() - parents):
        yield problem(folder, "is a folder that holds nothing of the schema")


def attributes_as_derived(store: StoreUnderCheck) -> Findings:
    """Every attribute of root and groups is what config and tables make it."""
    try:
        derived, groups = derived_attributes(store)
    except KeyError as error:
        yield problem(f"attribute {error}", "is missing")
        return
    except ValidationError as error:
        for wrong in validation_problems(error):
            yield problem(f"attribute {wrong.field}", wrong.message, wrong.value)
        return
    expected = derived | {"manifest_sha256": hashlib.sha256(store.manifest_bytes).hexdigest()}
    yield from _compare_in_order("attribute", store.attributes, expected)
    for group in schema.GROUPS:
        stored = store.document(group).get("attributes", {})
        yield from _compare_in_order(f"{group} attribute", stored, groups.get(group, {}))


def derived_attributes(store: StoreUnderCheck) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Attributes of the root, without the manifest's digest, and of groups, as config and tables make them."""
    attributes = store.attributes
    config, counts = stored_config(attributes), store_counts(lambda path: store.array(path).shape)
    horizons = store.column(schema.ROLLOUTS, "horizon")
    horizon = int(horizons.max()) if len(horizons) else 1
    tables = small_tables(store)
    derived = root_attributes(config, tables, counts, horizon, str(attributes.get("created_at_utc")))
    if DEAD_ENDS_IN_VIEW not in attributes:
        del derived[DEAD_ENDS_IN_VIEW]  # stores of other writers do not say
    return derived, group_attributes(config, counts, horizon)


def derived_facts(store: StoreUnderCheck) -> dict[str, Any]:
    """What the manifest must say of the store's attributes and tables."""
    root = {name: value for name, value in store.attributes.items() if name != "manifest_sha256"}
    return manifest_facts(root, store_counts(lambda path: store.array(path).shape), small_tables(store))


def manifest_matches(store: StoreUnderCheck) -> Findings:
    """The manifest is canonical, named by the root, and says what the tables say."""
    where = ROLLOUT_MANIFEST_FILENAME
    manifest = store.manifest
    try:
        if manifest_json_bytes(manifest) != store.manifest_bytes:
            yield problem(where, "is not written the canonical way")
    except ValueError as error:
        yield problem(where, f"holds a value that is not JSON: {error}")
    if hashlib.sha256(store.manifest_bytes).hexdigest() != store.attributes.get("manifest_sha256"):
        yield problem(where, "its SHA-256 is not the root attribute manifest_sha256")
    facts = derived_facts(store)
    for name, value in facts.items():
        stored = manifest.get(name)
        if isinstance(value, dict) and isinstance(stored, dict):
            yield from _compare(f"{where} {name}", stored, value)
        elif stored != value:
            yield problem(f"{where} {name}", f"must be {value!r}", repr(stored))
    known = {*facts, "store_kind", "generation", SOURCE_SPLITS, CONVERTED_FROM, *DIGESTS}
    yield from _unknown_keys(where, manifest, known)
    for name in DIGESTS:
        digests = manifest.get(name)
        digests = digests if isinstance(digests, dict) else {}
        missing = sorted(set(store.array_paths) - set(digests))
        if missing:
            yield problem(f"{where} {name}", f"names no digest of {', '.join(missing[:3])}", f"{len(missing)} missing")
        yield from _unknown_keys(f"{where} {name}", digests, store.array_paths)


def generation_as_recorded(store: StoreUnderCheck) -> Findings:
    """The manifest's account of how the store was made has the parts that are recorded, and no others."""
    where = f"{ROLLOUT_MANIFEST_FILENAME} generation"
    if not isinstance(store.manifest.get("generation"), dict):
        yield problem(where, "must be an object")
        return
    recorded = RolloutStoreManifestContext().to_jsonable()
    invocation, runtime = (store.generation.get(name) for name in ("invocation", "runtime"))
    for place, part, known in (
        (where, store.generation, recorded),
        (f"{where}.invocation", invocation, recorded["invocation"]),
        (f"{where}.runtime", runtime, RUNTIME_PARTS),
    ):
        if isinstance(part, dict) and not store.of_other_writer:
            yield from _unknown_keys(place, part, known)
    text = invocation.get("raw_toml_text") if isinstance(invocation, dict) else None
    if isinstance(invocation, dict) and isinstance(text, str):
        expected = hashlib.sha256(text.encode()).hexdigest()
        if invocation.get("raw_toml_sha256") != expected:
            yield problem(f"{where}.invocation.raw_toml_sha256", f"must be {expected!r}, that of raw_toml_text")


def texts_as_schema(store: StoreUnderCheck) -> Findings:
    """Dictionaries hold distinct, non-empty strings; the texts that the schema fixes say what it says."""
    for name in schema.DICTIONARIES:
        try:
            strings = store.strings(name)
        except StoreDamaged as error:
            yield problem(error.where, error.problem)
            continue
        if len(set(strings)) != len(strings) or "" in strings:
            yield problem(f"dictionaries/{name}", "must hold distinct, non-empty strings")
    for path, expected in (
        (schema.REASON_NAMES_PATH, [name for name, _ in schema.REASONS_BY_BIT]),
        (schema.ROLE_NAMES_PATH, list(schema.SOURCE_ROLES)),
        (schema.PROTOCOL_PATH, [store.attributes.get("target_protocol_version")]),
        (schema.RETENTION_PATH, [store.attributes.get("field_retention_policy")]),
    ):
        if store.text(path) != expected:
            yield problem(path, f"must be {expected!r}", store.text(path))
    bits = store.read(schema.REASON_BITS_PATH)
    if bits.tolist() != [bit for _, bit in schema.REASONS_BY_BIT]:
        yield problem(schema.REASON_BITS_PATH, "must list the bit positions in order", bits)


def ids_in_dictionaries(store: StoreUnderCheck) -> Findings:
    """Every dictionary id of the small tables points into its dictionary, or is -1."""
    for table, name in store.known_columns():
        column = table[name]
        if column.dictionary is None or table is schema.CANDIDATES:
            continue
        if table is schema.TARGET_EVAL_CROPS and store.of_other_writer:
            continue  # another writer numbers the policies of its crops by crop_policy_dictionary
        try:
            ids, size = store.column(table, name), len(store.strings(column.dictionary))
        except StoreDamaged as error:
            yield problem(error.where, error.problem)
            continue
        wrong = (ids < -1) | (ids >= size)
        yield from bad_rows(table.path(name), wrong, f"must be -1 or an id of dictionary {column.dictionary}", ids)


def content_digests(store: StoreUnderCheck) -> Findings:
    """With ``deep``: each array decodes to the bytes that were written; whoever extends a store hashes old ones."""
    if not store.deep or store.deep_from_step:
        return
    written = store.manifest.get("content_sha256")
    if not isinstance(written, dict):
        yield problem(ROLLOUT_MANIFEST_FILENAME, "has no content_sha256")
        return
    paths = [path for path in store.array_paths if path not in store.damaged]
    for path, digest in zip(
        paths, decoding_threads().map(lambda path: _content_digest(store, path), paths), strict=True
    ):
        if isinstance(digest, StoreDamaged):
            yield problem(digest.where, digest.problem)
        elif digest != written.get(path):
            yield problem(path, "its content is not what was written (manifest content_sha256 differs)")


STRUCTURE_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (
    schema_version,
    documents_agree,
    arrays_as_schema,
    every_file_accounted_for,
    texts_as_schema,
    attributes_as_derived,
    manifest_matches,
    generation_as_recorded,
    ids_in_dictionaries,
    content_digests,
)
"""Checks of documents and files."""


def _content_digest(store: StoreUnderCheck, path: str) -> str | StoreDamaged:
    try:
        array = store.array(path)
        chunk = array.layout.file_rows if array.layout is not None else 1
        block = max(_HASH_BLOCK_BYTES // max(array.row_bytes, 1) // chunk, 1) * chunk
        digest = hashlib.sha256()
        for start in range(0, len(array), block):
            rows = array.read(start, start + block, threads=False)
            digest.update(rows.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()
    except StoreDamaged as error:
        return error


def _compare(where: str, stored: Any, expected: dict[str, Any]) -> Findings:
    if not isinstance(stored, dict):
        yield problem(where, "must be an object", type(stored).__name__)
        return
    for name, value in expected.items():
        if name not in stored:
            yield problem(f"{where} {name}", "is missing")
        elif stored[name] != value or type(stored[name]) is not type(value):
            yield problem(f"{where} {name}", f"must be {value!r}", repr(stored[name]))
    yield from _unknown_keys(where, stored, expected)


def _compare_in_order(where: str, stored: Any, expected: dict[str, Any]) -> Findings:
    yield from _compare(where, stored, expected)
    if isinstance(stored, dict) and set(stored) == set(expected) and list(stored) != list(expected):
        yield problem(where, "the order of the keys is not the one in which they are written")


def _unknown_keys(where: str, stored: dict[str, Any], known: Collection[str]) -> Findings:
    for name in sorted(set(stored) - set(known)):
        yield problem(f"{where} {name}", "is not part of the schema")


def _kind(path: str) -> str:
    return "group" if path in schema.GROUPS else "array"


def _expected_document(store: StoreUnderCheck, path: str) -> dict[str, Any]:
    """The document that is written for a node with these attributes or rows; empty for one that cannot be ours."""
    if path in schema.GROUPS:
        attributes = store.document(path).get("attributes")
        return group_document(attributes if isinstance(attributes, dict) else {})
    try:
        array = store.array(path)
    except StoreDamaged:
        return {}
    table, _, column = path.partition("/")
    is_column = table in schema.TABLES and path not in schema.TEXT_ARRAYS
    codec = schema.TABLES[table].codec_of(column) if is_column else "rows"
    if array.layout is None:
        return {}
    return replace(array.layout, codec=codec).fitted(len(array)).document(len(array))


def stored_config(attributes: dict[str, Any]) -> RolloutZarrStoreConfig:
    """The config behind a store's root attributes; one that is missing is a ``KeyError``."""

    def named(prefix: str, *names: str) -> dict[str, Any]:
        return {name: attributes[f"{prefix}{name}"] for name in names}

    rendered = named("selected_depth_", "renderer", "znear_m", "zfar_m")
    return RolloutZarrStoreConfig.model_validate(
        {
            **named("", "discount_gamma", "return_semantics", "target_protocol_version", "reason_code_version"),
            **named("", "field_retention_policy"),
            "chunk_states": attributes["q_h_chunk_states"],
            DEAD_ENDS_IN_VIEW: attributes.get(DEAD_ENDS_IN_VIEW, True),
            "selected_depth": named("selected_depth_", "enabled", "width_px", "height_px", "chunk_steps"),
            **{f"depth_{name}": value for name, value in rendered.items()},
            "target_eval_max_points": attributes["target_eval_crops_max_points"],
        },
        strict=True,
    )


def small_tables(store: StoreUnderCheck) -> SmallTables:
    """What attributes and manifest summarise."""
    return SmallTables(store.column, {name: store.strings(name) for name in schema.DICTIONARIES})
