"""What looks wrong: heuristics over a whole store, each of which names the rows it means.

The validator says whether a store keeps the rules; this says whether what it holds is plausible. Every kind is one
function in ``KINDS`` that returns its rows; a finding names the narrowest row it is about and leaves the rest null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from rollout_assets.config import BUILT_IN_POLICIES, OracleConfig, RolloutSuspiciousQueryConfig, SuspiciousKind
from rollout_assets.inspection.audit import selected_rows
from rollout_assets.inspection.context import rollout_context
from rollout_assets.inspection.decode import decode_invalid_reason, named
from rollout_assets.inspection.depth import selected_depth_extremes
from rollout_assets.inspection.near_duplicates import near_duplicate_pairs
from rollout_assets.inspection.objectives import shell_statistics
from rollout_assets.inspection.provenance import recorded_campaign
from rollout_assets.rollouts.zarr_store.label_rules import SMALLEST_ERROR
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import DIAGNOSTIC_COLUMNS

Severity = Literal["error", "warning", "info"]

GREEDY_POLICY = "oracle_greedy"
"""The policy that promises the best labelled view."""

RANKING_POLICIES = (GREEDY_POLICY, "farthest_from_history", "farthest_from_reference")
"""Policies that draw nothing: of a tree that branches, every branch is certain, though only the first has p = 1."""

EXACT_CROP_POLICY = OracleConfig(crop_policy="clipped_surface").crop_policy_name
"""The crop policy under which a view that adds points on the true surface cannot make the error worse."""

FEATURES = (*(name for name in DIAGNOSTIC_COLUMNS if not name.endswith("_mask")), "target_rri", "target_root_gain")
"""Candidate columns a learner looks at; one that never varies says nothing."""

MOTION = ("motion_step_length_m", "motion_height_delta_m", "motion_backward_step_m", "motion_yaw_delta_deg")
"""How far a view is from where the actor stands."""

GAINS = ("target_root_gain", "target_rri", "scene_root_gain", "scene_rri")
"""Labels that are shares of an error; beyond [-1, 1] a view more than doubled it, or made it negative."""

MEASURED = ("target_pm_dist_before", "target_pm_dist_after", "target_candidate_support")
"""What the oracle measured: a target's error before and after a view, and the view's pixels on it."""


@dataclass(frozen=True, eq=False)
class _Subject:
    """A store with the frames that several kinds need, each read once."""

    reader: RolloutZarrStoreReader
    config: RolloutSuspiciousQueryConfig
    weights: pl.DataFrame | None

    @cached_property
    def context(self) -> pl.DataFrame:
        return rollout_context(self.reader)

    @cached_property
    def steps(self) -> pl.DataFrame:
        return self.reader.table("steps")

    @cached_property
    def candidates(self) -> pl.DataFrame:
        masks = ("actor_action_mask", "oracle_label_mask")
        ids = ("candidate_row_id", "step_row_id", "rollout_row_id")
        return self.reader.table("candidates", columns=(*ids, *masks, "primary_invalid_reason", *GAINS, *MEASURED))

    @cached_property
    def selected(self) -> pl.DataFrame:
        return selected_rows(self.reader, labels=("target_root_gain", "selection_probabilities"), measures=MOTION)

    @cached_property
    def shells(self) -> pl.DataFrame:
        return shell_statistics(self.reader)

    @cached_property
    def commonest_reasons(self) -> pl.DataFrame:
        """Per step that refuses views: its commonest reason, how many views it refuses, and of how many."""
        refused = self.candidates.filter(~pl.col("actor_action_mask"))
        counts = refused.group_by("step_row_id", "primary_invalid_reason").len("count")
        counts = counts.with_columns(pl.col("count").sum().over("step_row_id").alias("refused"))
        first = counts.sort("step_row_id", "count", "primary_invalid_reason", descending=[False, True, False])
        first = first.unique("step_row_id", keep="first", maintain_order=True)
        first = first.with_columns(named(first["primary_invalid_reason"], decode_invalid_reason).alias("reason"))
        shells = self.steps.select("step_row_id", "num_candidates")
        return first.join(shells, on="step_row_id", how="left", maintain_order="left")

    @cached_property
    def depths(self) -> pl.DataFrame:
        return selected_depth_extremes(self.reader, self.config.max_depth_images)


def suspicious_rollout_rows(
    reader: RolloutZarrStoreReader,
    config: RolloutSuspiciousQueryConfig | None = None,
    weights: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return heuristic anomaly rows for rollout-store QA triage.

    Columns: kind, severity, rollout_row_id, step_row_id, candidate_row_id, target_row_id, message. Errors first, then
    in the order of ``KINDS`` and of the store. ``config`` defaults to the thresholds of the campaign that the store
    records. A store does not hold the weights of surfaces: without ``weights``, which
    ``surface_weights.surface_weights`` recomputes from the source, ``weight_concentrated`` is not looked for.
    """
    subject = _Subject(reader, config or recorded_thresholds(reader), weights)
    frames = [_framed(kind, severity, query(subject)) for kind, (severity, query) in KINDS.items()]
    rows = pl.concat([_with_owners(frame, subject) for frame in frames])
    raised = pl.when(pl.col("kind").is_in(subject.config.errors)).then(pl.lit("error")).otherwise("severity")
    rows = rows.with_columns(raised.alias("severity"))
    order = pl.Enum(["error", "warning", "info"])
    return rows.sort(pl.col("severity").cast(order), maintain_order=True)


def recorded_thresholds(reader: RolloutZarrStoreReader) -> RolloutSuspiciousQueryConfig:
    """``[suspicious]`` of the campaign that made the store; the defaults when it records none."""
    campaign = recorded_campaign(reader)
    return RolloutSuspiciousQueryConfig() if campaign is None else campaign.suspicious


def _accuracy_worsens(subject: _Subject) -> pl.DataFrame:
    """A view adds points on the true surface, and a clipped surface holds all of it: the error can only shrink."""
    before, after = pl.col("target_pm_dist_before").clip(SMALLEST_ERROR), pl.col("target_pm_dist_after")
    exact = pl.col("crop_policy") == EXACT_CROP_POLICY
    worse = subject.candidates.filter(
        after.is_not_nan() & (after > before * (1 + subject.config.worsening_tolerance))
    ).join(_crop_policies(subject), on="rollout_row_id", how="left", maintain_order="left")
    inexact = pl.format("crop policy {} measures some points against surface that they are not on", "crop_policy")
    reason = pl.when(exact).then(pl.lit("although its points are exact")).otherwise(inexact)
    growth = ((after / before - 1) * 100).round_sig_figs(3)
    return worse.select(
        "candidate_row_id",
        "step_row_id",
        message=pl.format("the error grows by {} %: {}", growth, reason),
        severity=pl.when(exact).then(pl.lit("error")).otherwise(pl.lit("warning")),
    )


def _crop_policies(subject: _Subject) -> pl.DataFrame:
    """rollout_row_id and crop_policy of every chain."""
    lineage = subject.reader.table("lineage", columns=("rollout_row_id", "target_crop_policy_id"), decode=True)
    return lineage.select("rollout_row_id", crop_policy=pl.col("target_crop_policy_id").fill_null("(not recorded)"))


def _label_unstable_under_noise(subject: _Subject) -> pl.DataFrame:
    """A gain that rests on so few pixels that one of them decides it.

    Noise far below a millimetre moves single pixels: a ray at a silhouette hits or misses, a point at the border of a
    voxel joins or is left out. A label that one or two pixels make moves by a half or all of itself then.
    """
    config, gain, seen = subject.config, pl.col("target_root_gain"), pl.col("target_candidate_support")
    thin = subject.candidates.filter(
        gain.is_not_nan() & (gain.abs() > config.unstable_gain) & (seen <= config.unstable_support_px)
    )
    message = pl.format("gain {} rests on {} pixel(s) of the target", gain.round(4), seen.cast(pl.Int64))
    return thin.select("candidate_row_id", "step_row_id", message=message)


def _weight_concentrated(subject: _Subject) -> pl.DataFrame:
    """Half of a surface's weight on a few pieces, or on a small part of its area: the rest hardly counts."""
    if subject.weights is None:
        return pl.DataFrame(schema={"target_row_id": pl.Int64, "message": pl.String})
    few = pl.col("half_weight_pieces") < subject.config.min_half_weight_pieces
    small = pl.col("half_weight_area") < subject.config.min_half_weight_area
    said = [
        pl.when(few).then(pl.format("on {} of {} pieces", "half_weight_pieces", "pieces")),
        pl.when(small).then(pl.format("on {} % of its area", (pl.col("half_weight_area") * 100).round(2))),
    ]
    message = "half of the surface's weight lies " + pl.concat_str(said, separator=" and ", ignore_nulls=True)
    return subject.weights.filter(few | small).select("target_row_id", message=message)


def _chosen_with_probability_near_zero(subject: _Subject) -> pl.DataFrame:
    """A later branch of a ranking policy is as certain as the first, whose probability of 1 leaves it 0.

    Whether a policy that a package brought ranks is told by the probability of the draw.
    """
    least, probability = subject.config.min_selection_probability, pl.col("selection_probabilities")
    policies = subject.context.select("rollout_row_id", "policy", "branch_factor")
    chosen = subject.selected.join(policies, on="rollout_row_id", how="left", maintain_order="left")
    ranks = pl.col("policy").is_in(RANKING_POLICIES)
    if "selected_draw_log_probability" in subject.steps.columns:
        certain = subject.steps.select("step_row_id", certain=pl.col("selected_draw_log_probability") == 0)
        chosen = chosen.join(certain, on="step_row_id", how="left", maintain_order="left")
        ranks |= ~pl.col("policy").is_in(BUILT_IN_POLICIES) & pl.col("certain")
    ranked_branch = ranks & (pl.col("branch_factor") > 1)
    improbable = chosen.filter(~(probability >= least) & ~ranked_branch.fill_null(False))
    text = f"policy {{}} chose it with probability {{}}; expected at least {least:g}"
    return improbable.select("candidate_row_id", "step_row_id", message=pl.format(text, "policy", probability))


def _low_valid_fanout(subject: _Subject) -> pl.DataFrame:
    least = subject.config.min_valid_candidates
    few = subject.steps.filter(pl.col("num_valid_candidates") < least)
    text = f"{{}} of {{}} views can be taken; expected at least {least}"
    return few.select("step_row_id", message=pl.format(text, "num_valid_candidates", "num_candidates"))


def _dominant_invalid_reason(subject: _Subject) -> pl.DataFrame:
    """Most refused views of a step have one reason, as ARIA-NBV asks it. Common where few views are refused."""
    limit = subject.config.dominant_invalid_fraction
    found = subject.commonest_reasons.filter(pl.col("count") >= limit * pl.col("refused"))
    message = pl.format("{} refuses {} of the {} refused views", "reason", "count", "refused")
    return found.select("step_row_id", message=message)


def _dominant_reason_of_shell(subject: _Subject) -> pl.DataFrame:
    """One reason refuses most of a step's views, whatever becomes of the others."""
    limit = subject.config.dominant_shell_fraction
    found = subject.commonest_reasons.filter(pl.col("count") >= limit * pl.col("num_candidates"))
    message = pl.format("{} refuses {} of {} views", "reason", "count", "num_candidates")
    return found.select("step_row_id", message=message)


def _valid_candidate_missing_label(subject: _Subject) -> pl.DataFrame:
    """Takeable views without a label, of targets that have a ground truth to label them by."""
    bare = subject.candidates.filter(pl.col("actor_action_mask") & ~pl.col("oracle_label_mask"))
    owners = subject.reader.table("rollouts", columns=("rollout_row_id", "target_row_id"))
    targets = subject.reader.table("targets", columns=("target_row_id", "gt_label_valid_mask"))
    labelled = owners.join(targets.filter("gt_label_valid_mask"), on="target_row_id", how="semi")
    bare = bare.join(labelled, on="rollout_row_id", how="semi", maintain_order="left")
    return bare.select("candidate_row_id", "step_row_id", pl.lit("can be taken, but has no label").alias("message"))


def _high_score_invalid_gt_target(subject: _Subject) -> pl.DataFrame:
    columns = ("target_row_id", "target_selection_score", "gt_match_status_id", "gt_label_valid_mask")
    score, status = pl.col("target_selection_score"), pl.col("gt_match_status_id").fill_null("no match status")
    high = subject.reader.table("targets", columns=columns, decode=True).filter(
        (score >= subject.config.high_target_score) & ~pl.col("gt_label_valid_mask")
    )
    message = pl.format("scores {}, but its ground truth is no label: {}", score.round(3), status)
    return high.select("target_row_id", message=message)


def _selected_motion_outlier(subject: _Subject) -> pl.DataFrame:
    config = subject.config
    limits = (
        ("step", pl.col("motion_step_length_m"), config.max_step_distance_m, "m"),
        ("height change", pl.col("motion_height_delta_m").abs(), config.max_height_delta_m, "m"),
        ("backward step", pl.col("motion_backward_step_m"), config.max_backward_step_m, "m"),
        ("yaw change", pl.col("motion_yaw_delta_deg"), config.max_yaw_delta_deg, "deg"),
    )
    said = [
        pl.when(value.is_not_nan() & (value > limit)).then(
            pl.format(f"{name} {{}} {unit} > {limit:g} {unit}", value.round(3))
        )
        for name, value, limit, unit in limits
    ]
    message = pl.concat_str(said, separator="; ", ignore_nulls=True).alias("message")
    return subject.selected.select("candidate_row_id", "step_row_id", message).filter(pl.col("message") != "")


def _equal_labels_in_step(subject: _Subject) -> pl.DataFrame:
    alike = subject.shells.filter((pl.col("labelled") > 1) & (pl.col("best_root_gain") == pl.col("worst_root_gain")))
    message = pl.format("all {} labelled views gain {}", "labelled", pl.col("best_root_gain"))
    return alike.select("step_row_id", message.alias("message"))


def _gain_out_of_range(subject: _Subject) -> pl.DataFrame:
    limit = subject.config.max_abs_gain
    beyond = {name: pl.col(name).is_not_nan() & (pl.col(name).abs() > limit) for name in GAINS}
    said = [pl.when(is_so).then(pl.format(f"{name} {{}}", pl.col(name).round(4))) for name, is_so in beyond.items()]
    message = pl.concat_str(said, separator=", ", ignore_nulls=True) + f" beyond ±{limit:g}"
    wild = subject.candidates.filter(pl.any_horizontal(beyond.values()))
    return wild.select("candidate_row_id", "step_row_id", message=message)


def _greedy_choice_not_best(subject: _Subject) -> pl.DataFrame:
    """A tree that branches b times takes its b best views, so the b-th best is still greedy."""
    greedy = subject.context.filter(pl.col("policy") == GREEDY_POLICY).select("rollout_row_id", "branch_factor")
    chosen = (
        subject.selected.select("step_row_id", "rollout_row_id", "candidate_row_id", "target_root_gain")
        .filter(pl.col("target_root_gain").is_not_nan())
        .join(greedy, on="rollout_row_id", how="inner", maintain_order="left")
    )
    offered = subject.candidates.filter("oracle_label_mask").select(
        "step_row_id", pl.col("target_root_gain").alias("offered")
    )
    better = (
        offered.join(chosen, on="step_row_id", how="inner")
        .filter(pl.col("offered") > pl.col("target_root_gain"))
        .group_by("step_row_id")
        .agg(pl.len().alias("better"), pl.col("offered").max().alias("best"))
    )
    missed = chosen.join(better, on="step_row_id", how="inner", maintain_order="left").filter(
        pl.col("better") >= pl.col("branch_factor")
    )
    message = pl.format(
        "gains {}, the best view {}; {} are better and the tree branches {}",
        pl.col("target_root_gain").round(5),
        pl.col("best").round(5),
        "better",
        "branch_factor",
    )
    return missed.select("candidate_row_id", "step_row_id", message.alias("message"))


def _zero_variance_feature(subject: _Subject) -> pl.DataFrame:
    lines = []
    varied = subject.context["target_row_id"].n_unique() >= subject.config.min_variance_targets
    for name in FEATURES if varied else ():
        table = "candidate_diagnostics" if name in DIAGNOSTIC_COLUMNS else "candidates"
        values = subject.reader.array(f"{table}/{name}")
        finite = values[np.isfinite(values)]
        if len(finite) > 1 and finite.min() == finite.max():
            lines.append(f"{table}/{name} is {finite[0]:g} in all {len(finite)} rows that have it")
    return pl.DataFrame({"message": pl.Series(lines, dtype=pl.String)})


def _near_duplicate_views(subject: _Subject) -> pl.DataFrame:
    pairs = near_duplicate_pairs(subject.reader, subject.config.near_duplicate_m, subject.config.near_duplicate_deg)
    message = pl.format(
        "{} mm and {} deg from candidate {}",
        (pl.col("distance_m") * 1000).round(2),
        pl.col("angle_deg").round(3),
        "other_candidate_row_id",
    )
    return pairs.select("candidate_row_id", "step_row_id", message.alias("message"))


def _empty_depth(subject: _Subject) -> pl.DataFrame:
    least = subject.config.min_valid_depth_fraction
    empty = subject.depths.filter(pl.col("valid_fraction") < least)
    message = pl.format("{} % of the selected view's pixels have depth", (pl.col("valid_fraction") * 100).round(2))
    return empty.select("step_row_id", message.alias("message"))


def _saturated_depth(subject: _Subject) -> pl.DataFrame:
    most = subject.config.saturated_depth_fraction
    far = subject.depths.filter(
        (pl.col("far_fraction") >= most) & (pl.col("valid_fraction") >= subject.config.min_valid_depth_fraction)
    )
    message = pl.format("{} % of the pixels with depth lie at the far limit", (pl.col("far_fraction") * 100).round(1))
    return far.select("step_row_id", message.alias("message"))


def _chain_loses_ground(subject: _Subject) -> pl.DataFrame:
    final = pl.col("final_cumulative_target_root_gain")
    lost = subject.context.filter(final.is_not_nan() & (final < subject.config.min_final_root_gain))
    message = pl.format("ends {} of the root error worse than it began", (-final).round_sig_figs(3))
    return lost.select("rollout_row_id", message.alias("message"))


KINDS: dict[SuspiciousKind, tuple[Severity, Callable[[_Subject], pl.DataFrame]]] = {
    "valid_candidate_missing_label": ("error", _valid_candidate_missing_label),
    "accuracy_worsens": ("error", _accuracy_worsens),
    "low_valid_fanout": ("warning", _low_valid_fanout),
    "dominant_reason_of_shell": ("warning", _dominant_reason_of_shell),
    "high_score_invalid_gt_target": ("warning", _high_score_invalid_gt_target),
    "selected_motion_outlier": ("warning", _selected_motion_outlier),
    "greedy_choice_not_best": ("warning", _greedy_choice_not_best),
    "chosen_with_probability_near_zero": ("warning", _chosen_with_probability_near_zero),
    "gain_out_of_range": ("warning", _gain_out_of_range),
    "equal_labels_in_step": ("warning", _equal_labels_in_step),
    "label_unstable_under_noise": ("warning", _label_unstable_under_noise),
    "weight_concentrated": ("warning", _weight_concentrated),
    "zero_variance_feature": ("warning", _zero_variance_feature),
    "empty_depth": ("warning", _empty_depth),
    "saturated_depth": ("warning", _saturated_depth),
    "dominant_invalid_reason": ("info", _dominant_invalid_reason),
    "chain_loses_ground": ("info", _chain_loses_ground),
    "near_duplicate_views": ("info", _near_duplicate_views),
}
"""Kind -> its severity, unless a row says otherwise or ``errors`` raises it, and the query that finds it."""

COLUMNS = {
    "kind": pl.String,
    "severity": pl.String,
    "rollout_row_id": pl.Int64,
    "step_row_id": pl.Int64,
    "candidate_row_id": pl.Int64,
    "target_row_id": pl.Int64,
    "message": pl.String,
}
"""Columns of a finding."""


def _framed(kind: str, severity: Severity, rows: pl.DataFrame) -> pl.DataFrame:
    """A query's rows with every column of a finding."""
    given = {"kind": pl.lit(kind)} | ({} if "severity" in rows.columns else {"severity": pl.lit(severity)})
    missing = {name: pl.lit(None, dtype) for name, dtype in COLUMNS.items() if name not in rows.columns}
    columns = {name: pl.col(name) for name in COLUMNS} | missing | given
    return rows.select(expr.cast(COLUMNS[name]).alias(name) for name, expr in columns.items())


def _with_owners(rows: pl.DataFrame, subject: _Subject) -> pl.DataFrame:
    """Fill in the chain of a step and the target of a chain where a query named only the narrower row."""
    chain_of = subject.steps.select("step_row_id", pl.col("rollout_row_id").alias("chain"))
    target_of = subject.context.select("rollout_row_id", pl.col("target_row_id").alias("owner"))
    return (
        rows.join(chain_of, on="step_row_id", how="left", maintain_order="left")
        .with_columns(pl.coalesce("rollout_row_id", "chain").alias("rollout_row_id"))
        .join(target_of, on="rollout_row_id", how="left", maintain_order="left")
        .with_columns(pl.coalesce("target_row_id", "owner").alias("target_row_id"))
        .select(*COLUMNS)
    )
