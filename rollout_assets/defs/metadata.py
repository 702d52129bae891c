"""What Dagster shows about an asset: versions, hashes, counts, tables and pictures."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from rollout_assets.campaigns.markers import ShardOwner
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.config import CampaignConfig, canonical_hash
from rollout_assets.reports.shard_picture import StoreSketch
from rollout_assets.rollouts.zarr_store.findings import Finding
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

Metadata = dict[str, Any]

SHOWN_ROWS = 25
"""Rows that a table in the UI holds; the store has them all."""

DATA_VERSION_DIGITS = 16
"""Hexadecimal digits of a data version, enough to tell versions apart and short enough for the UI."""


def data_version(payload: Any) -> str:
    """A data version: a digest of everything that decides what the asset holds."""
    return canonical_hash(payload)[:DATA_VERSION_DIGITS]


def config_hashes(config: CampaignConfig) -> Metadata:
    """The four digests of a campaign's config."""
    return {f"{name}_config_hash": digest for name, digest in config.hashes().items()}


def entry_hashes(config: CampaignConfig, entry: RolloutShardEntry) -> Metadata:
    """All six digests behind a shard: the config's, and the source's as it was planned."""
    source = {"source_manifest_hash": entry.source_manifest_hash, "split_manifest_hash": entry.split_manifest_hash}
    return config_hashes(config) | source


def table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """The first rows as a table. Values that are neither numbers nor booleans are shown as text."""
    records = [dg.TableRecord({name: _plain(value) for name, value in row.items()}) for row in rows[:SHOWN_ROWS]]
    columns = [dg.TableColumn(name, _column_type(rows, name)) for name in (rows[0] if rows else ())]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=columns))


def frame_table(frame: pl.DataFrame) -> dg.TableMetadataValue:
    """The first rows of a frame as a table."""
    return table(frame.head(SHOWN_ROWS).to_dicts())


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> dg.MarkdownMetadataValue:
    """All rows as a table in Markdown, which the UI shows as it is read."""
    names = list(rows[0]) if rows else []
    cells = [names, ["---"] * len(names), *([_shown(row[name]) for name in names] for row in rows)]
    return dg.MetadataValue.md("\n".join(f"| {' | '.join(line)} |" for line in cells))


def findings_table(findings: Iterable[Finding]) -> dg.TableMetadataValue:
    """Findings as a table that names check, array and row."""
    return table([vars(finding) for finding in findings])


def evidence(rows: dg.TableMetadataValue) -> Metadata:
    """The rows behind a check that did not pass; without rows no table is shown at all."""
    return {"evidence": rows} if rows.records else {}


def counts_table(counts: Mapping[str, int]) -> dg.TableMetadataValue:
    """Counts by reason, largest first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return table([{"reason": reason, "count": count} for reason, count in ordered])


def shard_metadata(config: CampaignConfig, entry: RolloutShardEntry, owner: ShardOwner, store: Path | None) -> Metadata:
    """What a finished shard holds: hashes, counts, skipped rows, speed, size and path."""
    stats = owner.stats
    skipped = [
        {"sample": row.sample_key, "reason": row.skipped, "detail": row.detail or ""}
        for row in owner.rows
        if row.skipped
    ]
    lost: Counter[str] = Counter()
    for group in ("rows_skipped", "targets_refused", "boxes_ineligible", "targets_passed_over", "recipes_stuck"):
        lost.update({f"{group}: {reason}": count for reason, count in stats.get(group, {}).items()})
    seconds = float(stats["seconds"])
    return {
        **entry_hashes(config, entry),
        "dagster/row_count": int(stats["candidates"]),
        "split": owner.split,
        "rows_planned": len(entry.rows),
        "rows_with_records": sum(row.records > 0 for row in owner.rows),
        **{name: int(stats[name]) for name in ("targets", "rollouts", "steps", "candidates", "views_scored")},
        "views_per_second": round(stats["views_scored"] / seconds, 1) if seconds else 0.0,
        "seconds": round(owner.seconds, 3),
        "seconds_per_stage": table(
            [{"stage": name, "seconds": round(float(took), 3)} for name, took in stats["seconds_per_stage"].items()]
        ),
        "rows_skipped": table(skipped),
        **_absent_targets(stats.get("targets_absent", {})),
        "skip_reasons": counts_table(lost),
        "bytes": 0 if owner.store is None else owner.store.bytes,
        "files": 0 if owner.store is None else owner.store.files,
        "content_sha256": owner.content_sha256 or "",
        "path": dg.MetadataValue.path("none: every row was skipped" if store is None else str(store)),
    }


def _absent_targets(absent: Mapping[str, str]) -> Metadata:
    """Explicit targets that their rows do not have; nothing for a campaign whose targets are all there."""
    if not absent:
        return {}
    return {"targets_absent": table([{"target": target, "sample": sample} for target, sample in absent.items()])}


def store_metadata(readers: Sequence[RolloutZarrStoreReader]) -> Metadata:
    """The validity waterfall of some stores together, as a table, and its picture with gains and refusals."""
    sketch = StoreSketch.of(readers)
    rows = [
        {"stage": stage, "count": count, "percent of shell": round(100 * count / max(sketch.shell, 1), 2)}
        for stage, count in sketch.waterfall.items()
    ]
    return {
        "validity_waterfall": table(rows),
        "invalid_reasons": counts_table(sketch.reasons),
        "pictures": image(sketch.svg()),
    }


def image(svg: bytes) -> dg.MarkdownMetadataValue:
    """A small picture that the UI shows inside the metadata."""
    return dg.MetadataValue.md(f"![](data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')})")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(_plain(value)).replace("|", "\\|")


def _plain(value: Any) -> str | int | float | bool:
    if value is None:
        return ""
    return value if isinstance(value, str | int | float | bool) else str(value)


def _column_type(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    value = next((row[name] for row in rows if row[name] is not None), "")
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and all(isinstance(row[name], int) for row in rows):
        return "int"
    return "float" if isinstance(value, float) else "string"
