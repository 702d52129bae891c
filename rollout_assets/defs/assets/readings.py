"""What people read about a promoted store: a report per split, and metrics per recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from rollout_assets.campaigns.derived import DerivedFiles, derived_record, inputs_digest
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.publishing import publish_folder
from rollout_assets.campaigns.objects.working_copy import fetch_folder
from rollout_assets.campaigns.versions import PromotedVersion, current_version
from rollout_assets.collection.aggregation import aggregate_file
from rollout_assets.collection.result_files import collected_files
from rollout_assets.collection.store_results import stored_results
from rollout_assets.defs.metadata import Metadata, data_version, page, store_metadata, table
from rollout_assets.defs.step import CampaignStep
from rollout_assets.files import file_sha256
from rollout_assets.inspection.stored_opinion import read_opinion
from rollout_assets.metrics.results import aggregate_results
from rollout_assets.reports.store_report import pictures_folder, write_store_report
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

KEY_METRICS = ("reward/mean", "success@1")
"""Metrics shown with their bootstrap interval."""


def rollout_report(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Write one page per split, with the second opinion that the check of that name has kept.

    A page whose store, campaign, source and second opinion are the same stays as it is.
    """
    version = current_version(step.config)
    readers = {child.name: RolloutZarrStoreReader(child) for child in version.children}
    written = {split: _page(step, split, reader) for split, reader in readers.items()}
    pages = {split: path for split, (path, _) in written.items()}
    kept_since = sorted(made_at for _, made_at in written.values() if made_at)
    verdict = f"unchanged since {kept_since[0]}" if len(kept_since) == len(written) else "written"
    return dg.MaterializeResult(
        metadata=page(
            {
                "verdict": verdict,
                **{f"report_{split}": dg.MetadataValue.path(str(path)) for split, path in pages.items()},
                "version": version.name,
                **store_metadata(list(readers.values())),
                "bytes": sum(path.stat().st_size for path in pages.values()),
            }
        ),
        data_version=_data_version(version),
    )


def _page(step: CampaignStep, split: str, reader: RolloutZarrStoreReader) -> tuple[Path, str]:
    """Path of the page of a split, and since when it is unchanged; the latter is empty if it was written just now."""
    layout = CampaignLayout.of(step.config)
    fetch_folder(layout, layout.reports)
    path, stored = layout.reports / f"{split}.html", layout.second_opinion(split)
    inputs = inputs_digest(step.config, reader, opinion=file_sha256(stored) if stored.exists() else None)
    record = derived_record(layout, f"{split}_report")
    found = None if step.measures_anew else DerivedFiles.find(record, inputs)
    if found is not None:
        return path, found.made_at
    write_store_report(reader, path, campaign=step.config, opinion=read_opinion(stored, reader))
    pictures = pictures_folder(path)
    DerivedFiles.publish(record, inputs, [path, *sorted(pictures.iterdir() if pictures.is_dir() else ())])
    publish_folder(layout, layout.reports)
    return path, ""


def rollout_metrics(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Measure every recipe in the promoted store and in every collected file."""
    version = current_version(step.config)
    entries = [
        (child.name, entry)
        for child in version.children
        for entry in aggregate_results(stored_results(RolloutZarrStoreReader(child)))
    ]
    rows = [_row(where, entry) for where, entry in entries]
    metadata: Metadata = {
        "version": version.name,
        "per_recipe": table(rows),
        **{name: value for where, entry in entries for name, value in _plotted(where, entry).items()},
        "dagster/row_count": sum(row["rollouts"] for row in rows),
    }
    folder = CampaignLayout.of(step.config).collected
    files = collected_files(folder) if folder.is_dir() else ()
    collected = [_row(path.name, entry) for path in files for entry in aggregate_file(path)]
    if collected:
        metadata["collected"] = table(collected)
    return dg.MaterializeResult(metadata=page(metadata), data_version=_data_version(version, collected))


def _row(where: str, entry: dict[str, Any]) -> Metadata:
    """One line of a table; the most important columns come first because the UI's tables are narrow."""
    counts, metrics = entry["counts"], entry["agent_metrics"]
    row = {"recipe": entry["agent_ref"]["name"], "where": where, "rollouts": counts["done"]}
    for name in KEY_METRICS:
        metric = entry["key_metrics"].get(name, {"value": None, "interval": None})
        bounds = metric["interval"] and " to ".join(f"{bound:.3f}" for bound in metric["interval"])
        row |= {name: _rounded(metric["value"]), f"{name} interval": bounds or ""}
    row |= {f"reward {kind}": _rounded(metrics.get(f"reward/{kind}")) for kind in ("median", "min", "max", "std")}
    row |= {name: counts[name] for name in ("missing", "refused", "failed")}
    return row | {"tasks": counts["tasks"]}


def _plotted(where: str, entry: dict[str, Any]) -> Metadata:
    """The mean reward of a recipe as a number of its own, so that it can be plotted over versions."""
    value = entry["key_metrics"].get("reward/mean", {"value": None})["value"]
    return {} if value is None else {f"reward_mean {entry['agent_ref']['name']} {where}": round(value, 6)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _data_version(version: PromotedVersion, collected: Any = None) -> dg.DataVersion:
    return dg.DataVersion(data_version({"record": version.record.model_dump(mode="json"), "more": collected}))
