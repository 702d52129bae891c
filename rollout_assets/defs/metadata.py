"""What Dagster shows about an asset: verdict, counts and pictures first, then tables, and hashes last."""

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

PICTURES = "pictures"
"""Name of the large picture, which the UI shows after a click."""

PLOTTED_STAGES = ("actor_valid", "oracle_label", "q_train")
"""Stages whose share of all views is a number of its own, so that it can be plotted over versions."""

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


def page(metadata: Metadata) -> Metadata:
    """Metadata in the order in which it is read: first what is short, then tables, and hashes last.

    Within each of the three the order stays as it is. What is empty is not shown at all.
    """
    shown = {name: value for name, value in metadata.items() if not _is_empty(value)}
    tables = {name for name, value in shown.items() if isinstance(value, dg.TableMetadataValue) or name == PICTURES}
    return dict(sorted(shown.items(), key=lambda item: 2 if _is_hash(item[0]) else int(item[0] in tables)))


def _is_empty(value: Any) -> bool:
    return value == "" or (isinstance(value, dg.TableMetadataValue) and not value.records)


def _is_hash(name: str) -> bool:
    return "_hash" in name or name.endswith("sha256")


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
    """What a finished shard holds: counts, what was lost on the way, speed, size, path and hashes."""
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
        "split": owner.split,
        "dagster/row_count": int(stats["candidates"]),
        "source_rows": len(entry.rows),
        "source_rows_with_records": sum(row.records > 0 for row in owner.rows),
        **{name: int(stats[name]) for name in ("targets", "rollouts", "steps", "candidates", "views_scored")},
        "source_rows_skipped": table(skipped),
        **_absent_targets(stats.get("targets_absent", {})),
        "lost_on_the_way": counts_table(lost),
        "views_per_second": round(stats["views_scored"] / seconds, 1) if seconds else 0.0,
        "seconds": round(owner.seconds, 3),
        "seconds_per_stage": table(
            [{"stage": name, "seconds": round(float(took), 3)} for name, took in stats["seconds_per_stage"].items()]
        ),
        "bytes": 0 if owner.store is None else owner.store.bytes,
        "files": 0 if owner.store is None else owner.store.files,
        "path": dg.MetadataValue.path("none: every row was skipped" if store is None else str(store)),
        **entry_hashes(config, entry),
        "content_sha256": owner.content_sha256 or "",
    }


def shard_verdict(outcome: str, owner: ShardOwner) -> str:
    """What became of a shard, in one sentence."""
    used = sum(row.records > 0 for row in owner.rows)
    counted = f"{used} of {len(owner.rows)} source rows gave {int(owner.stats['rollouts'])} rollouts"
    return f"{outcome.replace('_', ' ')}: {counted} with {int(owner.stats['candidates'])} views"


def _absent_targets(absent: Mapping[str, str]) -> Metadata:
    """Explicit targets that their rows do not have; nothing for a campaign whose targets are all there."""
    if not absent:
        return {}
    return {"targets_absent": table([{"target": target, "sample": sample} for target, sample in absent.items()])}


def store_metadata(readers: Sequence[RolloutZarrStoreReader]) -> Metadata:
    """What is left of the views of some stores together: a picture, shares and gains as numbers, and tables."""
    sketch = StoreSketch.of(readers)
    shell = max(sketch.shell, 1)
    percents = {stage: round(100 * count / shell, 2) for stage, count in sketch.waterfall.items()}
    rows = [
        {"stage": stage, "count": count, "percent of shell": percents[stage]}
        for stage, count in sketch.waterfall.items()
    ]
    return {
        "views": image(sketch.small_svg()),
        **{f"{stage}_percent": percents[stage] for stage in PLOTTED_STAGES},
        **({"first_step_mean_root_gain": round(sketch.gains[0][0], 6)} if 0 in sketch.gains else {}),
        "validity_waterfall": table(rows),
        "refused_views": counts_table(sketch.reasons),
        PICTURES: image(sketch.svg()),
    }


def image(svg: bytes) -> dg.MarkdownMetadataValue:
    """A picture inside the metadata. The UI draws one of less than 1,000 characters at once, others after a click."""
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
