"""Stores on a disk: where they are, whether they are ours, whole and current, and what they hold.

A store that cannot be read is a row that says why; nothing found on a disk ends an inventory.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from rollout_assets.errors import StoreError
from rollout_assets.parsing import expand_path
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.chunks.files import LocalFiles
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON, promoted_splits, read_document, root_attributes_of
from rollout_assets.rollouts.zarr_store.foreign.schema_versions import schema_problem
from rollout_assets.rollouts.zarr_store.open_store import OpenStore
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

COLUMNS: dict[str, Any] = {
    "path": pl.String,
    "status": pl.String,
    "problem": pl.String,
    "schema_id": pl.String,
    "schema_version": pl.String,
    "valid": pl.Boolean,
    "findings": pl.Int64,
    "first_finding": pl.String,
    "created_at_utc": pl.String,
    "split": pl.String,
    "target_protocol": pl.String,
    "sources": pl.Int64,
    "targets": pl.Int64,
    "rollouts": pl.Int64,
    "steps": pl.Int64,
    "candidates": pl.Int64,
    "actor_valid_fraction": pl.Float64,
    "oracle_label_fraction": pl.Float64,
    "q_train_fraction": pl.Float64,
    "policies": pl.String,
    "horizons": pl.String,
    "candidate_config_hash": pl.String,
    "oracle_config_hash": pl.String,
    "rollout_config_hash": pl.String,
    "source_manifest_hash": pl.String,
    "commit": pl.String,
    "bytes": pl.Int64,
    "files": pl.Int64,
}
"""Columns of an inventory row; what a store does not tell is null."""


def discover_rollout_store_paths(base_dir: Path | str, pattern: str = "**/*.zarr") -> list[Path]:
    """Return rollout Zarr store candidates under a cache directory.

    Newest first. A promoted ``rollouts.zarr`` gives its stores, one per split; a match that is no Zarr group gives the
    groups directly below it. Stores inside stores are left out. A directory that is a Zarr group is the only match.
    """
    base = expand_path(base_dir)
    if not base.is_dir():
        raise StoreError(f"{base}: no such directory")
    modified: dict[Path, float] = {}
    for match in _matches(base, pattern):
        if not match.is_dir() or any(part in modified for part in match.parents):
            continue
        below = split_stores(match) if (match / ZARR_JSON).is_file() else _groups_below(match)
        modified |= {store: _modified_s(store / ZARR_JSON) for store in below}
    return sorted(modified, key=lambda store: (-modified[store], str(store)))


def _matches(base: Path, pattern: str) -> list[Path]:
    if (base / ZARR_JSON).is_file():
        return [base]
    return sorted({base, *base.glob(pattern)} if base.suffix == ".zarr" else base.glob(pattern))


def _groups_below(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if (path / ZARR_JSON).is_file()]


def _modified_s(file: Path) -> float:
    return file.stat().st_mtime if file.is_file() else 0.0


def split_stores(path: Path) -> list[Path]:
    """The stores below the root of a promoted store, one per split; any other place is itself the only one."""
    try:
        splits = promoted_splits(root_attributes_of(read_document(LocalFiles(path), "")[1]))
    except StoreError:
        return [path]
    return [path / split for split in splits] if splits else [path]


def rollout_store_inventory_rows(
    paths: Iterable[Path | str], *, validate: bool = True, progress: ProgressSink = SILENT
) -> pl.DataFrame:
    """Return schema, validation, count, lineage, and storage rows for stores.

    ``status`` is ``current``, ``stale`` (another schema or version of it) or ``unreadable``, with the ``problem``.
    ``valid`` is the validator's word on a current store, null when it was not asked. The root of a promoted store gives
    a row for each of its splits.
    """
    names = [name for path in paths for name in _store_names(str(path))]
    rows = []
    for done, path in enumerate(names, start=1):
        rows.append(_row(path, validate))
        progress(ProgressEvent("inventory", done, len(names), note=path, unit="stores"))
    return pl.DataFrame(rows, schema=COLUMNS)


def _store_names(path: str) -> list[str]:
    return [path] if "://" in path else [str(store) for store in split_stores(Path(path).expanduser())]


def _row(path: str, validate: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"path": path}
    try:
        store = OpenStore(path)
        sizes = store.files.sizes()
        row |= {"bytes": sum(sizes.values()), "files": len(sizes)} | _schema(store)
        if row["status"] == "current":
            reader = RolloutZarrStoreReader(path)
            row |= _validation(reader) if validate else {}
            row |= _contents(reader)
    except Exception as error:  # whatever lies on a disk, the inventory goes on
        row |= {"status": "unreadable", "problem": _one_line(error)}
    return row


def _schema(store: OpenStore) -> dict[str, Any]:
    problem = schema_problem(store.attributes)
    names = {name: _text(store.attributes.get(name)) for name in ("schema_id", "schema_version")}
    return {**names, "status": "stale" if problem else "current", "problem": problem}


def _validation(reader: RolloutZarrStoreReader) -> dict[str, Any]:
    result = reader.validate()
    first = _one_line(result.errors[0]) if result.errors else None
    return {"valid": result.ok, "findings": len(result.findings), "first_finding": first}


def _contents(reader: RolloutZarrStoreReader) -> dict[str, Any]:
    """Counts and lineage; a part that is damaged leaves its columns null, and the row says which part it is."""
    row: dict[str, Any] = {
        "created_at_utc": _text(reader.attributes.get("created_at_utc")),
        "split": _text(reader.attributes.get("source_split")),
        "target_protocol": _text(reader.attributes.get("target_protocol_version")),
    }
    try:
        for table in ("sources", "targets", "rollouts", "steps", "candidates"):
            row[table] = reader.num_rows(table)
        for column, mask in _MASKS.items():
            values = reader.array(schema.CANDIDATES.path(mask))
            row[column] = float(values.mean()) if len(values) else None
        policies = reader.table("rollouts", columns=("policy_id",), decode=True)["policy_id"]
        row["policies"] = ", ".join(sorted(policies.unique().drop_nulls().to_list()))
        horizons = pl.Series(reader.array(schema.ROLLOUTS.path("horizon"))).unique().sort()
        row["horizons"] = ", ".join(str(horizon) for horizon in horizons.to_list())
        row |= _lineage(reader.sidecar_manifest())
    except StoreError as error:
        row["problem"] = _one_line(error)
    return row


def _lineage(manifest: dict[str, Any]) -> dict[str, Any]:
    hashes = manifest.get("config_hashes", {})
    git = manifest.get("generation", {}).get("runtime", {}).get("git", {})
    columns = {f"{name}_config_hash": name for name in ("candidate", "oracle", "rollout")}
    columns["source_manifest_hash"] = "source_manifest"
    return {column: ", ".join(hashes.get(name, [])) for column, name in columns.items()} | {"commit": git.get("commit")}


_MASKS = {
    "actor_valid_fraction": "actor_action_mask",
    "oracle_label_fraction": "oracle_label_mask",
    "q_train_fraction": "q_train_mask",
}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _one_line(error: Exception | str) -> str:
    return " ".join(str(error).split()) or type(error).__name__
