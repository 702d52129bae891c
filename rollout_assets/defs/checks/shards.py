"""Checks of one shard: four that stop promotion, and three that show evidence for a person to look at."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import dagster as dg
import polars as pl

from rollout_assets.campaigns.check_names import (
    INTEGRITY_CHECKS,
    LABEL_YIELD,
    QUALITY_CHECKS,
    SUSPICIOUS_ROWS,
    VALID_FANOUT,
)
from rollout_assets.campaigns.derived import ShardResult
from rollout_assets.campaigns.integrity import examine_shard, open_shard, shard_result
from rollout_assets.campaigns.markers import mesh_versions
from rollout_assets.defs.checks.every_shard import CheckOutcome, every_shard
from rollout_assets.defs.checks.verdict import evaluation, verdict
from rollout_assets.defs.keys import ROLLOUT_SHARDS, VALIDATED_SHARDS
from rollout_assets.defs.metadata import Metadata, evidence, findings_table, frame_table
from rollout_assets.defs.step import CampaignStep

CHECKED_AT = "checked_at"
"""Metadata of a kept result: when its content was examined."""

SKIPPED = "weight_concentrated_skipped"
"""Metadata of a result without the weights of surfaces: why they could not be computed."""


def integrity(step: CampaignStep) -> Iterator[CheckOutcome]:
    """Everything that must hold before the shard may be promoted; of every shard, if the run names none."""
    if step.partition is None:
        yield from every_shard(step, ROLLOUT_SHARDS, INTEGRITY_CHECKS, integrity)
        return
    found = examine_shard(step.config, step.entry, anew=step.measures_anew, allow_fewer=step.allow_fewer)
    kept = kept_since(found.examined_at) if found.kept else {}
    for check, findings in found.findings.items():
        yield verdict(
            check,
            passed=not findings,
            metadata={"shard": step.shard_id, "findings": len(findings), **evidence(findings_table(findings)), **kept},
            description="; ".join(str(finding) for finding in findings[:3]) or None,
        )


def kept_since(examined_at: str) -> Metadata:
    """What says that a result is of the same content, which was examined earlier."""
    return {
        "kept": "every byte was compared and is the same; this is the result of the examination then",
        CHECKED_AT: dg.MetadataValue.timestamp(datetime.fromisoformat(examined_at)),
    }


def quality(step: CampaignStep) -> Iterator[CheckOutcome]:
    """What a person should look at in a shard that is otherwise in order; in every shard, if the run names none."""
    if step.partition is None:
        yield from every_shard(step, VALIDATED_SHARDS, QUALITY_CHECKS, quality)
        return
    before = _quality_result(step)
    if before is not None and not step.measures_anew and (found := before.find()) is not None:
        kept = kept_since(found[1])
        for known in dg.deserialize_value(found[0].decode(), list):
            yield verdict(known.check_name, known.passed, {**known.metadata, **kept}, warns=True)
        return
    results = list(_measured_quality(step))
    yield from results
    if before is not None and all(_only_of_content(result) for result in results) and _quality_result(step) == before:
        key = step.keys.key(VALIDATED_SHARDS)
        before.publish(dg.serialize_value([evaluation(key, result) for result in results]).encode())


def _quality_result(step: CampaignStep) -> ShardResult | None:
    """What the quality checks made of the shard and of the meshes of its scenes."""
    meshes = mesh_versions(step.entry, step.source)
    source = step.source.source_manifest_hash
    return shard_result(step.config, step.entry, "quality", source=source, meshes=meshes)


def _only_of_content(result: dg.AssetCheckResult) -> bool:
    """Whether a result may be kept: an error is looked at again, and so is what could not be computed."""
    errors = not result.passed and result.severity == dg.AssetCheckSeverity.ERROR
    return not errors and SKIPPED not in (result.metadata or {})


def _measured_quality(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    from rollout_assets.inspection.surface_weights import surface_weights, weights_or_reason  # loads Warp
    from rollout_assets.inspection.suspicious import suspicious_rollout_rows

    reader = open_shard(step.config, step.shard_id)
    if reader is None:
        for check in QUALITY_CHECKS:
            yield verdict(check, True, {"note": "every row of this shard was skipped"}, warns=True)
        return
    views = reader.table("candidates", columns=("step_row_id", "actor_action_mask", "oracle_label_mask"))
    weights, not_looked_for = weights_or_reason(lambda: surface_weights(reader, step.config, step.source))
    yield suspicious_verdict(suspicious_rollout_rows(reader, step.config.suspicious, weights), not_looked_for)
    yield _valid_fanout(views, step.config.quality.min_valid_fanout)
    yield _label_yield(views, step.config.quality.min_label_yield)


def suspicious_verdict(rows: pl.DataFrame, not_looked_for: str = "") -> dg.AssetCheckResult:
    """Fails with severity ERROR when one finding is an error, otherwise with WARN when one is a warning.

    ``not_looked_for``: why the weights of the surfaces could not be recomputed.
    """
    serious = rows.filter(pl.col("severity") != "info")
    kinds = rows.group_by("kind", "severity").len("rows")
    metadata = {
        "rows": len(serious),
        "info_rows": len(rows) - len(serious),
        **_kinds(kinds.sort("severity", "rows", "kind", descending=[False, True, False])),
        **({SKIPPED: not_looked_for} if not_looked_for else {}),
        **evidence(frame_table(serious)),
    }
    warns = not (rows["severity"] == "error").any()
    return verdict(SUSPICIOUS_ROWS, serious.is_empty(), metadata, warns=warns)


def _kinds(kinds: pl.DataFrame) -> Metadata:
    """How many rows of each kind; nothing where nothing is suspicious."""
    return {} if kinds.is_empty() else {"kinds": frame_table(kinds)}


def _valid_fanout(views: pl.DataFrame, minimum: int) -> dg.AssetCheckResult:
    """Whether every step offers enough valid views. ``views``: one row per candidate."""
    fanout = views.group_by("step_row_id").agg(
        pl.col("actor_action_mask").sum().cast(pl.Int64).alias("valid"), pl.len().cast(pl.Int64).alias("offered")
    )
    narrow = fanout.filter(pl.col("valid") < minimum).sort("valid", "step_row_id")
    metadata = {
        "steps": len(fanout),
        "steps_below_minimum": len(narrow),
        "minimum": minimum,
        "mean_valid": round(fanout["valid"].sum() / max(len(fanout), 1), 2),
        **evidence(frame_table(narrow)),
    }
    return verdict(VALID_FANOUT, narrow.is_empty(), metadata, warns=True)


def _label_yield(views: pl.DataFrame, minimum: float) -> dg.AssetCheckResult:
    """Whether almost every valid view has a label. ``views``: one row per candidate."""
    valid = int(views["actor_action_mask"].sum())
    labelled = int(views["oracle_label_mask"].sum())
    share = labelled / valid if valid else 0.0
    without = views.filter(pl.col("actor_action_mask") & ~pl.col("oracle_label_mask"))
    metadata = {
        "valid_views": valid,
        "labelled_views": labelled,
        "yield": round(share, 4),
        "minimum": minimum,
        **evidence(frame_table(without.group_by("step_row_id").len("without_label").sort("step_row_id"))),
    }
    return verdict(LABEL_YIELD, share >= minimum, metadata, warns=True)
