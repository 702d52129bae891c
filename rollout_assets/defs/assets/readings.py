"""What people read about a promoted store: a report per split, and metrics per recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.publishing import publish_folder
from rollout_assets.campaigns.objects.working_copy import fetch_folder
from rollout_assets.campaigns.versions import PromotedVersion, current_version
from rollout_assets.collection.aggregation import aggregate_file
from rollout_assets.collection.result_files import collected_files
from rollout_assets.collection.store_results import stored_results
from rollout_assets.defs.metadata import Metadata, data_version, store_metadata, table
from rollout_assets.defs.step import CampaignStep
from rollout_assets.inspection.stored_opinion import read_opinion
from rollout_assets.metrics.results import aggregate_results
from rollout_assets.reports.store_report import write_store_report
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

KEY_METRICS = ("reward/mean", "success@1")
"""Metrics shown with their bootstrap interval."""


def rollout_report(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Write one page per split, with the second opinion that the check of that name has kept."""
    version = current_version(step.config)
    readers = {child.name: RolloutZarrStoreReader(child) for child in version.children}
    pages = {split: _page(step, split, reader) for split, reader in readers.items()}
    return dg.MaterializeResult(
        metadata={
            **{f"report_{split}": dg.MetadataValue.path(str(page)) for split, page in pages.items()},
            "version": version.name,
            "bytes": sum(page.stat().st_size for page in pages.values()),
            **store_metadata(list(readers.values())),
        },
        data_version=_data_version(version),
    )


def _page(step: CampaignStep, split: str, reader: RolloutZarrStoreReader) -> Path:
    layout = CampaignLayout.of(step.config)
    fetch_folder(layout, layout.reports)
    opinion = read_opinion(layout.second_opinion(split), reader)
    page = write_store_report(reader, layout.reports / f"{split}.html", campaign=step.config, opinion=opinion)
    publish_folder(layout, layout.reports)
    return page


def rollout_metrics(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Measure every recipe in the promoted store and in every collected file."""
    version = current_version(step.config)
    rows = [
        _row(child.name, entry)
        for child in version.children
        for entry in aggregate_results(stored_results(RolloutZarrStoreReader(child)))
    ]
    metadata: Metadata = {
        "version": version.name,
        "per_recipe": table(rows),
        "dagster/row_count": sum(row["rollouts"] for row in rows),
    }
    folder = CampaignLayout.of(step.config).collected
    files = collected_files(folder) if folder.is_dir() else ()
    collected = [_row(path.name, entry) for path in files for entry in aggregate_file(path)]
    if collected:
        metadata["collected"] = table(collected)
    return dg.MaterializeResult(metadata=metadata, data_version=_data_version(version, collected))


def _row(where: str, entry: dict[str, Any]) -> Metadata:
    """One line of a table; the most important columns come first because the UI's tables are narrow."""
    counts, metrics = entry["counts"], entry["agent_metrics"]
    row = {"recipe": entry["agent_ref"]["name"], "where": where, "rollouts": counts["done"]}
    for name in KEY_METRICS:
        metric = entry["key_metrics"].get(name, {"value": None, "interval": None})
        bounds = metric["interval"] and " to ".join(_short(bound) for bound in metric["interval"])
        row[name] = _short(metric["value"]) + (f" ({bounds})" if bounds else "")
    row |= {f"reward {kind}": _short(metrics.get(f"reward/{kind}")) for kind in ("median", "min", "max", "std")}
    row |= {name: "" if counts[name] is None else str(counts[name]) for name in ("missing", "refused", "failed")}
    return row | {"tasks": counts["tasks"]}


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _data_version(version: PromotedVersion, collected: Any = None) -> dg.DataVersion:
    return dg.DataVersion(data_version({"record": version.record.model_dump(mode="json"), "more": collected}))
