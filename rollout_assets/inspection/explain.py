"""One candidate, explained: where it came from, what every rule measured, what the oracle saw, what the policy did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.config import CampaignConfig, CandidateRules
from rollout_assets.inspection.audit import candidate_audit_rows, target_audit_rows
from rollout_assets.inspection.context import require_row
from rollout_assets.inspection.provenance import SECTIONS, differing_hashes, generation, recorded_campaign
from rollout_assets.rollouts.trace import RolloutLineage
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES


@dataclass(frozen=True)
class RuleVerdict:
    """What one rule measured of a view. ``limit`` is in words; None when the store does not say what it was."""

    rule: str
    reason: str
    measured: str
    limit: str | None
    passed: bool


@dataclass(frozen=True)
class ErrorTerms:
    """The oracle's numbers behind a label: errors in m², and the points they were measured on."""

    before_m2: float | None
    after_m2: float | None
    root_m2: float | None
    rri: float | None
    root_gain: float | None
    log_error_gain: float | None
    current_points: float | None
    view_points: float | None


@dataclass(frozen=True)
class Explanation:
    """Everything a store says of one candidate, back to the source row and the code that made it.

    ``row`` is its audit row, ``target`` the target's, ``source`` the source row's. ``config`` holds the campaign's
    sections as the manifest records them, by the hash that covers them; ``config_confirmed`` says whether they hash to
    what the row's lineage says (None: nothing recorded). ``story`` tells it in sentences.
    """

    candidate_row_id: int
    story: tuple[str, ...]
    row: dict[str, Any]
    rules: tuple[RuleVerdict, ...]
    errors: ErrorTerms
    target: dict[str, Any]
    source: dict[str, Any]
    hashes: dict[str, str | None]
    config: dict[str, Any]
    config_confirmed: bool | None
    made_by: dict[str, Any]


def explain(reader: RolloutZarrStoreReader, candidate_row_id: int) -> Explanation:
    """One row back to source row, mesh hash, rule with measured value and limit, error terms, config and commit."""
    require_row(reader, "candidates", candidate_row_id)
    step_row_id = int(reader.array(CANDIDATES.path("step_row_id"), candidate_row_id, candidate_row_id + 1)[0])
    shell = candidate_audit_rows(reader, step_row_id=step_row_id)
    row = shell.row(by_predicate=pl.col("candidate_row_id") == candidate_row_id, named=True)
    rollout = reader.rollout(int(row["rollout_row_id"]))
    campaign = recorded_campaign(reader)
    confirmed = None if campaign is None else not differing_hashes(rollout.lineage, campaign)
    target = target_audit_rows(reader).row(rollout.target_row_id, named=True)
    recorded = {} if campaign is None else campaign.hashable()
    rules = _verdicts(row, campaign.candidates.rules if campaign is not None and confirmed else None)
    errors = _errors(row, _root_error(reader, rollout.first_step_row_id))
    about = generation(reader)
    lineage, runtime = rollout.lineage, about.get("runtime", {})
    return Explanation(
        candidate_row_id=candidate_row_id,
        story=tuple(_story(row, rules, errors, shell["target_root_gain"].to_numpy(), rollout.lineage)),
        row=_plain(row),
        rules=rules,
        errors=errors,
        target=_plain(target),
        source={
            "sample_key": lineage.source_sample_key,
            "sample_index": lineage.source_sample_index,
            "source_shard": lineage.source_shard_id,
            "source_shard_row": lineage.source_shard_row,
            "source_manifest_hash": lineage.source_offline_store_manifest_hash,
            "split": lineage.split,
            "split_manifest_hash": lineage.split_manifest_hash,
        },
        hashes={
            "mesh": lineage.mesh_version,
            "candidate_config": lineage.candidate_config_hash,
            "oracle_config": lineage.oracle_config_hash,
            "rollout_config": lineage.rollout_config_hash,
            "selection_rng_state": lineage.selection_rng_state_hash,
            "random_seed": None if lineage.random_seed is None else str(lineage.random_seed),
        },
        config={name: {key: recorded[key] for key in keys} for name, keys in SECTIONS.items() if recorded},
        config_confirmed=confirmed,
        made_by={
            "created_at_utc": reader.attributes.get("created_at_utc"),
            "commit": runtime.get("git", {}).get("commit"),
            "dirty": runtime.get("git", {}).get("dirty"),
            "packages": runtime.get("packages"),
            "argv": about.get("invocation", {}).get("argv"),
        },
    )


_RULES: tuple[tuple[str, InvalidReason, str, str, str | None], ...] = (
    ("free space", InvalidReason.POSE_OUT_OF_EXTENT, "free_space_margin_m", ">= ", None),
    ("step", InvalidReason.SAMPLER_RULE_REJECTED, "motion_step_length_m", "<= ", "max_step_m"),
    ("height change", InvalidReason.SAMPLER_RULE_REJECTED, "motion_height_delta_m", "within ±", "max_height_delta_m"),
    ("backward step", InvalidReason.SAMPLER_RULE_REJECTED, "motion_backward_step_m", "<= ", "max_backward_m"),
    ("yaw change", InvalidReason.SAMPLER_RULE_REJECTED, "motion_yaw_delta_deg", "<= ", "max_yaw_deg"),
    ("distance to mesh", InvalidReason.CLEARANCE_TOO_SMALL, "mesh_distance_m", "> ", "min_mesh_distance_m"),
    (
        "clearance of the path",
        InvalidReason.PATH_SEGMENT_COLLISION,
        "path_min_clearance_m",
        ">= ",
        "min_path_clearance_m",
    ),
)
"""Rule, the reason it gives, what it looks at, how that is compared, and with which limit of the rules (None: 0)."""

_UNMEASURED = {
    "finite pose": InvalidReason.POSE_NONFINITE,
    "no duplicate": InvalidReason.CANDIDATE_DUPLICATE,
    "hits something": InvalidReason.DEPTH_NO_HIT,
}


def _verdicts(row: dict[str, Any], rules: CandidateRules | None) -> tuple[RuleVerdict, ...]:
    """Every rule with its measure. Of the four motion rules that share a bit, the measure decides which one failed."""
    bits = int(row["invalid_reason_bitset"])
    verdicts = []
    for name, reason, column, relation, field in _RULES:
        failed = bool(bits >> reason & 1)
        unit = column.rsplit("_", 1)[1]
        limit = None
        if rules is not None:
            value = getattr(rules, field) if field else 0.0
            limit = f"{relation}{value:g} {unit}"
            if failed and reason == InvalidReason.SAMPLER_RULE_REJECTED:
                failed = row[column] is None or not np.abs(np.float32(row[column])) <= np.float32(value)
        verdicts.append(RuleVerdict(name, reason.name, _measured(row[column], ".4f", unit), limit, not failed))
    for name, reason in _UNMEASURED.items():
        failed = bool(bits >> reason & 1)
        verdicts.append(RuleVerdict(name, reason.name, "no" if failed else "yes", "yes", not failed))
    return tuple(verdicts)


def _root_error(reader: RolloutZarrStoreReader, first_step_row_id: int) -> float | None:
    first = reader.step(first_step_row_id).step.labels.target_pm_dist_before
    finite = first[np.isfinite(first)]
    return float(finite[0]) if len(finite) else None


def _errors(row: dict[str, Any], root_m2: float | None) -> ErrorTerms:
    return ErrorTerms(
        before_m2=row["target_pm_dist_before"],
        after_m2=row["target_pm_dist_after"],
        root_m2=root_m2,
        rri=row["target_rri"],
        root_gain=row["target_root_gain"],
        log_error_gain=row["target_log_error_gain"],
        current_points=row["target_current_support"],
        view_points=row["target_candidate_support"],
    )


def _story(
    row: dict[str, Any], rules: tuple[RuleVerdict, ...], errors: ErrorTerms, gains: Any, lineage: RolloutLineage
) -> list[str]:
    lines = [
        f"View {row['shell_index']} of step {row['step_index']} of {row['rollout_id']}: "
        f"{row['position']}, looking by {row['strategy']}, "
        f"{_measured(row['target_distance_m'], '.2f', 'm')} from the {row['target_class'] or 'target'}."
    ]
    failed = [rule for rule in rules if not rule.passed]
    for rule in failed:
        limit = "" if rule.limit is None else f", must be {rule.limit}"
        lines.append(f"Refused by {rule.reason}: {rule.rule} is {rule.measured}{limit}.")
    if not failed:
        lines.append("Every rule passed, so the actor may take it.")
    if errors.root_gain is not None and errors.before_m2 is not None and errors.after_m2 is not None:
        better = int((gains > errors.root_gain).sum())
        lines.append(
            f"It would change the target's error from {errors.before_m2:.4g} to {errors.after_m2:.4g} m²: "
            f"a root gain of {errors.root_gain:.4f}, with {better} better view(s) on offer."
        )
    elif not failed:
        lines.append("It has no label.")
    taken = "taken" if row["selected_mask"] else "not taken"
    probability = _measured(row["selection_probabilities"], ".3f")
    lines.append(f"{taken.capitalize()} by {row['policy']} with probability {probability}.")
    lines.append("It may be trained on." if row["q_train_mask"] else "It is not trained on.")
    if lineage.mesh_version:
        lines.append(f"Measured against mesh {lineage.mesh_version[:12]} of {lineage.scene_id}.")
    return lines


def _measured(value: float | None, form: str, unit: str = "") -> str:
    return "unknown" if value is None else f"{value:{form}} {unit}".rstrip()


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """NaN and infinities as None, so that a row is valid JSON."""
    return {key: None if isinstance(value, float) and not np.isfinite(value) else value for key, value in row.items()}


def config_rows(campaign: CampaignConfig) -> list[tuple[str, str]]:
    """A campaign's hashed values as dotted keys, for a table."""
    return list(_flat("", campaign.hashable()))


def _flat(path: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [line for key, part in value.items() for line in _flat(f"{path}.{key}" if path else key, part)]
    if isinstance(value, list):
        return [line for index, part in enumerate(value) for line in _flat(f"{path}[{index}]", part)]
    return [(path, str(value))]
