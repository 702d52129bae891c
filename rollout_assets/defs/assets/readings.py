"""What people read about a promoted store: a report per split, and metrics per recipe."""

from __future__ import annotations

from typing import Any

import dagster as dg

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.versions import PromotedVersion, current_version
from rollout_assets.collection.aggregation import aggregate_file
from rollout_assets.collection.result_files import collected_files
from rollout_assets.collection.store_results import stored_results
from rollout_assets.defs.metadata import Metadata, data_version, page, store_metadata, table
from rollout_assets.defs.splits import PromotedSplit, side_by_side
from rollout_assets.defs.step import CampaignStep
from rollout_assets.metrics.results import aggregate_results
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

KEY_METRICS = ("reward/mean", "success@1")
"""Metrics shown with their bootstrap interval."""


def rollout_report(step: CampaignStep) -> dg.MaterializeResult[None]:
    """Write one page per split, with the second opinion that the check of that name has kept.

    A page whose store, campaign, source and second opinion are the same stays as it is.
    """
    version = current_version(step.config)
    splits = PromotedSplit.of_version(step.config, version)
    kept_since = {split.name: "" if step.measures_anew else split.known_page() for split in splits}
    missing = {split: split.page_inputs() for split in splits if not kept_since[split.name]}
    side_by_side(PromotedSplit.write_page, missing)
    verdict = "written" if missing else f"unchanged since {min(kept_since.values())}"
    return dg.MaterializeResult(
        metadata=page(
            {
                "verdict": verdict,
                **{f"report_{split.name}": dg.MetadataValue.path(str(split.page)) for split in splits},
                "version": version.name,
                **store_metadata([split.reader for split in splits]),
                "bytes": sum(split.page.stat().st_size for split in splits),
            }
        ),
        data_version=_data_version(version),
    )


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
