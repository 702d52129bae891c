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
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

GROUP_FILE = "zarr.json"
"""What makes a directory a Zarr group."""

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

    Newest first. A match that is no group itself, such as a promoted ``rollouts.zarr`` with one store per split, gives
    the groups directly below it. Stores inside stores are left out.
    """
    base = expand_path(base_dir)
    if not base.is_dir():
        raise StoreError(f"{base}: no such directory")
    modified: dict[Path, float] = {}
    for match in sorted({base, *base.glob(pattern)} if base.suffix == ".zarr" else base.glob(pattern)):
        if not match.is_dir() or any(part in modified for part in match.parents):
            continue
        for store in [match] if (match / GROUP_FILE).is_file() else sorted(match.iterdir()):
            if (store / GROUP_FILE).is_file():
                modified[store] = (store / GROUP_FILE).stat().st_mtime
    return sorted(modified, key=lambda store: (-modified[store], str(store)))


def rollout_store_inventory_rows(
    paths: Iterable[Path | str], *, validate: bool = True, progress: ProgressSink = SILENT
) -> pl.DataFrame:
    """Return schema, validation, count, lineage, and storage rows for stores.

    ``status`` is ``current``, ``stale`` (another schema or version of it) or ``unreadable``, with the ``problem``.
    ``valid`` is the validator's word on a current store, null when it was not asked.
    """
    names = [str(path) for path in paths]
    rows = []
    for done, path in enumerate(names, start=1):
        rows.append(_row(path, validate))
        progress(ProgressEvent("inventory", done, len(names), note=path, unit="stores"))
    return pl.DataFrame(rows, schema=COLUMNS)


def _row(path: str, validate: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"path": path}
    try:
        reader = RolloutZarrStoreReader(path)
        sizes = reader.files.sizes()
        row |= {"bytes": sum(sizes.values()), "files": len(sizes)} | _schema(reader)
        if row["status"] == "current":
            row |= _validation(reader) if validate else {}
            row |= _contents(reader)
    except Exception as error:  # whatever lies on a disk, the inventory goes on
        row |= {"status": "unreadable", "problem": _one_line(error)}
    return row


def _schema(reader: RolloutZarrStoreReader) -> dict[str, Any]:
    name, version = reader.attributes.get("schema_id"), reader.attributes.get("schema_version")
    row: dict[str, Any] = {"schema_id": _text(name), "schema_version": _text(version), "status": "current"}
    if name != schema.ROLLOUT_ZARR_SCHEMA_ID:
        row |= {"status": "stale", "problem": f"schema is {name!r}, not {schema.ROLLOUT_ZARR_SCHEMA_ID!r}"}
    elif version != schema.ROLLOUT_ZARR_SCHEMA_VERSION:
        current = schema.ROLLOUT_ZARR_SCHEMA_VERSION
        row |= {"status": "stale", "problem": f"schema version is {version!r}, not {current!r}"}
    return row


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
