"""What is read off a promoted store for people: a report per split, and metrics per recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg

from rollout_assets.config import canonical_hash
from rollout_assets.defs.campaign import CampaignStep
from rollout_assets.defs.metadata import store_metadata, table

if TYPE_CHECKING:
    from rollout_assets.campaigns.versions import PromotedVersion

KEY_METRICS = ("reward/mean", "success@1")
"""Metrics shown with their bootstrap interval."""


def rollout_report(step: CampaignStep) -> dg.MaterializeResult[None]:
    """One HTML page per split of the promoted store: funnel, refusals, gains, depth, what looks wrong, and lineage.

    The pages need no network and no server: open them in a browser, or send them to somebody.
    """
    from rollout_assets.campaigns.layout import CampaignLayout
    from rollout_assets.campaigns.versions import current_version
    from rollout_assets.reports.store_report import write_store_report
    from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

    version = current_version(step.config)
    folder = CampaignLayout(step.config.shards.output_dir).reports
    readers = {child.name: RolloutZarrStoreReader(child) for child in version.children}
    pages = {split: write_store_report(reader, folder / f"{split}.html") for split, reader in readers.items()}
    return dg.MaterializeResult(
        metadata={
            **{f"report_{split}": dg.MetadataValue.path(str(page)) for split, page in pages.items()},
            "version": version.name,
            "bytes": sum(page.stat().st_size for page in pages.values()),
            **store_metadata(list(readers.values())),
        },
        data_version=_version_of(version),
    )


def rollout_metrics(step: CampaignStep) -> dg.MaterializeResult[None]:
    """How well each recipe does: rewards of the promoted store's rollouts, and of every result file collected for it.

    Collected files lie in the campaign's folder ``collected``; what is missing or refused there is counted, never zero.
    """
    from rollout_assets.campaigns.versions import current_version
    from rollout_assets.collection.store_results import stored_results
    from rollout_assets.metrics.results import aggregate_results
    from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

    version = current_version(step.config)
    metadata: dict[str, Any] = {"version": version.name}
    rows = []
    for child in version.children:
        found = aggregate_results(stored_results(RolloutZarrStoreReader(child)))
        rows += [_row(child.name, entry) for entry in found]
    metadata |= {"per_recipe": table(rows), "dagster/row_count": sum(row["rollouts"] for row in rows)}
    collected = _collected(step)
    if collected:
        metadata["collected"] = table(collected)
    return dg.MaterializeResult(metadata=metadata, data_version=_version_of(version, collected))


def _collected(step: CampaignStep) -> list[dict[str, Any]]:
    """Rows for every agent of every collected file, by file."""
    from rollout_assets.campaigns.layout import CampaignLayout

    folder = CampaignLayout(step.config.shards.output_dir).collected
    if not folder.is_dir():
        return []
    from rollout_assets.collection.aggregation import aggregate_file
    from rollout_assets.collection.result_files import collected_files

    return [_row(path.name, entry) for path in collected_files(folder) for entry in aggregate_file(path)]


def _row(where: str, entry: dict[str, Any]) -> dict[str, Any]:
    """One line of a table; what matters most comes first, for the UI's tables are narrow."""
    counts, metrics = entry["counts"], entry["agent_metrics"]
    row = {"recipe": entry["agent_ref"]["name"], "where": where, "rollouts": counts["done"]}
    for name in KEY_METRICS:
        found = entry["key_metrics"].get(name, {"value": None, "interval": None})
        bounds = found["interval"] and " to ".join(_short(bound) for bound in found["interval"])
        row[name] = _short(found["value"]) + (f" ({bounds})" if bounds else "")
    row |= {f"reward {kind}": _short(metrics.get(f"reward/{kind}")) for kind in ("median", "min", "max", "std")}
    row |= {name: "" if counts[name] is None else str(counts[name]) for name in ("missing", "refused", "failed")}
    return row | {"tasks": counts["tasks"]}


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _version_of(version: PromotedVersion, more: Any = None) -> dg.DataVersion:
    return dg.DataVersion(canonical_hash({"record": version.record.model_dump(mode="json"), "more": more})[:16])
