"""Checks of one shard partition: four that stop promotion, and three that point at what a human should look at."""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from rollout_assets.campaigns.check_names import (
    INTEGRITY_CHECKS,
    LABEL_YIELD,
    QUALITY_CHECKS,
    SUSPICIOUS_ROWS,
    VALID_FANOUT,
)
from rollout_assets.defs.campaign import ROLLOUT_SHARDS, VALIDATED_SHARDS, CampaignKeys, CampaignStep
from rollout_assets.defs.faults import RETRIES, failures_for_dagster
from rollout_assets.defs.metadata import evidence, findings_table, frame_table

MIN_VALID_VIEWS = 3
"""Views a step must offer for a choice to mean anything."""

MIN_LABEL_YIELD = 0.95
"""Share of takeable views that must have a label."""


def shard_checks(place: CampaignKeys) -> list[dg.AssetChecksDefinition]:
    """Integrity of ``rollout_shards``, blocking, and quality of ``validated_shards``, warning."""
    return [
        _checks(place, "integrity", ROLLOUT_SHARDS, INTEGRITY_CHECKS, _integrity, blocking=True),
        _checks(place, "quality", VALIDATED_SHARDS, QUALITY_CHECKS, _quality, blocking=False),
    ]


def _checks(
    place: CampaignKeys,
    name: str,
    asset: str,
    promises: dict[str, str],
    compute: Callable[[CampaignStep, dg.AssetKey], Iterator[dg.AssetCheckResult]],
    *,
    blocking: bool,
) -> dg.AssetChecksDefinition:
    """Checks of one asset that share one reading of the shard."""
    key = place.key(asset)
    specs = [
        dg.AssetCheckSpec(check, asset=key, description=promise, blocking=blocking, partitions_def=place.partitions)
        for check, promise in promises.items()
    ]

    @dg.multi_asset_check(
        name=f"{place.name}__{asset}_{name}",
        specs=specs,
        required_resource_keys={place.resource_key},
        retry_policy=RETRIES,
    )
    def checks(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with failures_for_dagster():
            yield from compute(CampaignStep.of(place, context), key)

    return checks


def _integrity(step: CampaignStep, key: dg.AssetKey) -> Iterator[dg.AssetCheckResult]:
    from rollout_assets.campaigns.integrity import examine_shard

    found = examine_shard(step.config, step.entry)
    for check, findings in found.findings.items():
        yield dg.AssetCheckResult(
            passed=not findings,
            asset_key=key,
            check_name=check,
            severity=dg.AssetCheckSeverity.ERROR,
            description="; ".join(str(finding) for finding in findings[:3]) or None,
            metadata={"shard": step.shard_id, "findings": len(findings), **evidence(findings_table(findings))},
        )


def _quality(step: CampaignStep, key: dg.AssetKey) -> Iterator[dg.AssetCheckResult]:
    import polars as pl

    from rollout_assets.campaigns.integrity import open_shard
    from rollout_assets.inspection.suspicious import suspicious_rollout_rows

    reader = open_shard(step.config, step.shard_id)
    if reader is None:
        for check in QUALITY_CHECKS:
            yield _warning(key, check, True, {"note": "every row of this shard was skipped"})
        return
    rows = suspicious_rollout_rows(reader)
    serious = rows.filter(pl.col("severity") != "info")
    kinds = (
        rows.group_by("kind", "severity").len("rows").sort("severity", "rows", "kind", descending=[False, True, False])
    )
    yield _warning(
        key,
        SUSPICIOUS_ROWS,
        serious.is_empty(),
        {
            "rows": len(serious),
            "info_rows": len(rows) - len(serious),
            "kinds": frame_table(kinds),
            **evidence(frame_table(serious)),
        },
    )
    views = reader.table("candidates", columns=("step_row_id", "actor_action_mask", "oracle_label_mask"))
    fanout = views.group_by("step_row_id").agg(
        pl.col("actor_action_mask").sum().cast(pl.Int64).alias("valid"), pl.len().cast(pl.Int64).alias("offered")
    )
    narrow = fanout.filter(pl.col("valid") < MIN_VALID_VIEWS).sort("valid", "step_row_id")
    yield _warning(
        key,
        VALID_FANOUT,
        narrow.is_empty(),
        {
            "steps": len(fanout),
            "steps_below_minimum": len(narrow),
            "minimum": MIN_VALID_VIEWS,
            "mean_valid": round(_mean(fanout["valid"]), 2),
            **evidence(frame_table(narrow)),
        },
    )
    valid = int(views["actor_action_mask"].sum())
    labelled = int(views["oracle_label_mask"].sum())
    without = views.filter(pl.col("actor_action_mask") & ~pl.col("oracle_label_mask"))
    share = labelled / valid if valid else 0.0
    yield _warning(
        key,
        LABEL_YIELD,
        share >= MIN_LABEL_YIELD,
        {
            "valid_views": valid,
            "labelled_views": labelled,
            "yield": round(share, 4),
            "minimum": MIN_LABEL_YIELD,
            **evidence(frame_table(without.group_by("step_row_id").len("without_label").sort("step_row_id"))),
        },
    )


def _mean(values: object) -> float:
    import polars as pl

    assert isinstance(values, pl.Series)
    return float(values.cast(pl.Float64).mean() or 0.0)  # type: ignore[arg-type]


def _warning(key: dg.AssetKey, check: str, passed: bool, metadata: dict[str, Any]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=passed, asset_key=key, check_name=check, severity=dg.AssetCheckSeverity.WARN, metadata=metadata
    )
