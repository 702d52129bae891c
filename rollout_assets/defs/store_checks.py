"""Checks of the promoted store: whole, without leaks, complete, and up to date."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from rollout_assets.campaigns.check_names import (
    NO_LEAKAGE,
    ROWS_ADD_UP,
    SECOND_OPINION,
    SECOND_OPINION_CHECK,
    STORE_CHECKS,
    STORES_VALID,
    UP_TO_DATE,
)
from rollout_assets.defs.campaign import ROLLOUTS_ZARR, CampaignKeys, CampaignStep
from rollout_assets.defs.faults import RETRIES, failures_for_dagster
from rollout_assets.defs.metadata import evidence, findings_table, frame_table, table

SECOND_OPINIONS = 1
"""Candidates of each split whose labels are measured again; every promoted version draws others."""

TABLES = ("sources", "targets", "rollouts", "steps", "candidates")
"""Tables whose promoted rows are counted against the shards'."""


def store_checks(place: CampaignKeys) -> list[dg.AssetChecksDefinition]:
    """All checks of ``rollouts_zarr``: one step that opens each store once, and one for the slow second opinion."""
    return [
        _checks(place, "checks", STORE_CHECKS, _evaluate),
        _checks(place, SECOND_OPINION, SECOND_OPINION_CHECK, _again),
    ]


Verdict = tuple[bool, dg.AssetCheckSeverity, dict[str, Any]]


def _checks(
    place: CampaignKeys, name: str, promises: dict[str, str], evaluate: Callable[[CampaignStep], dict[str, Verdict]]
) -> dg.AssetChecksDefinition:
    key = place.key(ROLLOUTS_ZARR)
    specs = [dg.AssetCheckSpec(check, asset=key, description=promise) for check, promise in promises.items()]

    @dg.multi_asset_check(
        name=f"{place.name}__{ROLLOUTS_ZARR}_{name}",
        specs=specs,
        required_resource_keys={place.resource_key},
        retry_policy=RETRIES,
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with failures_for_dagster():
            step = CampaignStep.of(place, context)
            for check, (passed, severity, metadata) in evaluate(step).items():
                yield dg.AssetCheckResult(
                    passed=passed, asset_key=key, check_name=check, severity=severity, metadata=metadata
                )

    return checks


def _evaluate(step: CampaignStep) -> dict[str, Verdict]:
    from rollout_assets.campaigns.versions import current_version

    version = current_version(step.config)
    return {
        STORES_VALID: _stores_valid(version),
        NO_LEAKAGE: _no_leakage(step, version),
        ROWS_ADD_UP: _rows_add_up(step, version),
        UP_TO_DATE: _up_to_date(step),
    }


def _stores_valid(version: Any) -> Verdict:
    from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store

    results = {child.name: validate_rollout_zarr_store(child, deep=True) for child in version.children}
    findings = [finding for result in results.values() for finding in result.findings]
    splits = table([{"split": name, "findings": len(result.findings)} for name, result in results.items()])
    return (
        not findings,
        dg.AssetCheckSeverity.ERROR,
        {"version": version.name, "splits": splits, **evidence(findings_table(findings))},
    )


def _no_leakage(step: CampaignStep, version: Any) -> Verdict:
    from rollout_assets.campaigns.layout import CampaignLayout
    from rollout_assets.campaigns.leakage import find_leaks
    from rollout_assets.campaigns.markers import read_owner
    from rollout_assets.campaigns.plan import read_rollout_shard_manifest

    layout = CampaignLayout(step.config.shards.output_dir)
    inside = set(version.shard_ids)
    entries = [entry for entry in read_rollout_shard_manifest(step.config) if entry.shard_id in inside]
    found = list(find_leaks((entry, read_owner(layout.shard(entry.shard_id))) for entry in entries))
    return (
        not found,
        dg.AssetCheckSeverity.ERROR,
        {"leaks": len(found), **evidence(table([{"leak": line} for line in found]))},
    )


def _rows_add_up(step: CampaignStep, version: Any) -> Verdict:
    from rollout_assets.campaigns.integrity import open_shard
    from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

    rows = []
    for split, shards in version.record.splits.items():
        readers = [open_shard(step.config, shard.shard_id) for shard in shards]
        sums: Counter[str] = Counter()
        for reader in readers:
            if reader is not None:
                sums.update({name: reader.num_rows(name) for name in TABLES})
        child = version.path / split
        promoted = RolloutZarrStoreReader(child) if child.is_dir() else None
        for name in TABLES:
            here = promoted.num_rows(name) if promoted is not None else 0
            rows.append({"split": split, "table": name, "shards": sums[name], "promoted": here})
    wrong = [row for row in rows if row["shards"] != row["promoted"]]
    return not wrong, dg.AssetCheckSeverity.ERROR, {"rows": table(rows), **evidence(table(wrong))}


def _up_to_date(step: CampaignStep) -> Verdict:
    from rollout_assets.defs.staleness import stale_parts

    stale = stale_parts(step)
    shown = [{"what": part.what, "why": part.why, "to go on": part.remedy} for part in stale]
    return not stale, dg.AssetCheckSeverity.WARN, {"stale": len(stale), **evidence(table(shown))}


def _again(step: CampaignStep) -> dict[str, Verdict]:
    import polars as pl

    from rollout_assets.campaigns.versions import current_version
    from rollout_assets.inspection.second_opinion import second_opinion
    from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

    version = current_version(step.config)
    seed = int(version.name.removeprefix("v"))
    asked = {
        child.name: second_opinion(
            RolloutZarrStoreReader(child), 1.0, seed, step.config, source=step.source, limit=SECOND_OPINIONS
        )
        for child in version.children
    }
    labels = pl.concat([found.labels.select(pl.lit(split).alias("split"), pl.all()) for split, found in asked.items()])
    wrong = labels.filter(~pl.col("agrees"))
    metadata = {
        "candidates": sum(found.candidates for found in asked.values()),
        "labelled": sum(found.labelled for found in asked.values()),
        "labels": frame_table(labels),
        **evidence(frame_table(wrong)),
    }
    return {SECOND_OPINION: (wrong.is_empty(), dg.AssetCheckSeverity.ERROR, metadata)}
