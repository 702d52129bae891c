"""Counts: from the full shell down to what was selected, by any category, and along the rollout trees."""

from __future__ import annotations

from typing import Literal, get_args

import polars as pl

from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.errors import ConfigError
from rollout_assets.inspection.context import rollout_context
from rollout_assets.inspection.decode import decode_invalid_reason, decode_position_id, decode_strategy_id, named
from rollout_assets.inspection.mixtures import mixture_series
from rollout_assets.inspection.objectives import CAMERA, RECIPE_PARAMETERS, decision_rows
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.summary import CANDIDATE_STAGES, count_candidates

GroupBy = Literal[
    "position",
    "strategy",
    "mixture",
    "mixture_id",
    "reason",
    "step_index",
    "policy",
    "recipe",
    "scene",
    "split",
    "target",
    "target_class",
    "target_id",
    "target_row_id",
    "score_source",
]

_OF_CANDIDATE = {
    "position": ("position_id", decode_position_id),
    "strategy": ("strategy_id", decode_strategy_id),
    "reason": ("primary_invalid_reason", decode_invalid_reason),
}
_STORED = {"mixture_id": "mixture_id", "step_index": "step_index", "score_source": "score_source_id"}


def validity_waterfall_rows(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """Return full-shell to selected counts for one rollout store.

    Per stage: ``count``, its share of the shell and of the stage before (null where that is empty).
    """
    stages = count_candidates([reader]).stages
    count = pl.col("count")
    bases = {"fraction_of_shell": count.first(), "fraction_of_previous": count.shift(1).fill_null(count.first())}
    frame = pl.DataFrame({"stage": list(stages), "count": pl.Series(list(stages.values()), dtype=pl.Int64)})
    return frame.with_columns(pl.when(base > 0).then(count / base).alias(name) for name, base in bases.items())


def candidate_group_summary_rows(reader: RolloutZarrStoreReader, group_by: GroupBy = "position") -> pl.DataFrame:
    """Summarize candidate validity and labels by a decoded categorical field.

    Per group: counts of every stage, fractions, and mean, deviation, quartiles and extremes of ``target_root_gain``
    over labelled rows (null where there are none). Largest group first.
    """
    if group_by not in get_args(GroupBy):
        raise ConfigError(f"group_by must be one of {', '.join(get_args(GroupBy))}, got {group_by!r}")
    masks = {stage: mask for stage, mask in CANDIDATE_STAGES.items() if mask is not None}
    columns = ["rollout_row_id", *masks.values(), "target_root_gain", "target_rri"]
    frame = reader.table("candidates", columns=columns).with_columns(_group_column(reader, group_by))
    if group_by not in frame.columns:
        context = rollout_context(reader).select("rollout_row_id", _named_target(group_by))
        frame = frame.join(context, on="rollout_row_id", how="left", maintain_order="left")
    labelled = pl.col("oracle_label_mask")
    gain, rri = pl.col("target_root_gain").filter(labelled), pl.col("target_rri").filter(labelled)
    return (
        frame.group_by(group_by)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            *(pl.col(mask).sum().cast(pl.Int64).alias(stage) for stage, mask in masks.items()),
            gain.cast(pl.Float64).mean().alias("root_gain_mean"),
            gain.cast(pl.Float64).std(ddof=0).alias("root_gain_std"),
            *(
                gain.quantile(q, interpolation="linear").cast(pl.Float64).alias(f"root_gain_{name}")
                for name, q in (("min", 0.0), ("q25", 0.25), ("median", 0.5), ("q75", 0.75), ("max", 1.0))
            ),
            rri.cast(pl.Float64).mean().alias("rri_mean"),
        )
        .with_columns((pl.col(*masks) / pl.col("count")).name.suffix("_fraction"))
        .sort("count", group_by, descending=[True, False], nulls_last=True)
    )


def rollout_tree_summary_rows(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """Summarize selected rollout-tree provenance by policy, step, and family.

    One row per recipe, its parameters, policy, step, and position, gaze and component that something was selected from:
    how often, by how many chains, targets and sources, from how many distinct views, and the mean gain and probability
    of what was taken. ``valid_fanout_mean``, ``invalid_fraction_mean`` and ``entropy_mean`` (nats) are means over the
    shells that it was taken from, ``fanout_mean`` counts the different views by which chains left those states.
    ``share`` is of all selections of the recipe at that step. ``distinct_views`` counts a view that several chains of
    one tree share once: branches of a tree have the same first steps.
    """
    taken = (
        decision_rows(reader)
        .filter(pl.col("selected_shell_index").is_not_null())
        .rename({f"selected_{name}": name for name in _FAMILY})
    )
    return (
        taken.group_by([*_TREE_STEP, *RECIPE_PARAMETERS, *_FAMILY])
        .agg(
            pl.len().cast(pl.Int64).alias("selected"),
            *(pl.struct(parts).n_unique().cast(pl.Int64).alias(name) for name, parts in _DISTINCT.items()),
            *(pl.col(column).cast(pl.Float64).mean().alias(name) for name, column in _MEANS.items()),
        )
        .with_columns((pl.col("selected") / pl.col("selected").sum().over(_TREE_STEP)).alias("share"))
        .sort([*_TREE_STEP, *_FAMILY, *RECIPE_PARAMETERS])
    )


_TREE_STEP = ("recipe", "policy", "step_index")
_FAMILY = ("position", "strategy", "mixture")
_DISTINCT = {
    "chains": ("rollout_row_id",),
    "targets": ("target_row_id",),
    "sources": ("source_row_id",),
    "distinct_views": ("target_row_id", *CAMERA),
}
_MEANS = {
    "root_gain_mean": "marginal_target_root_gain",
    "rri_mean": "marginal_target_rri",
    "probability_mean": "selected_probability",
    "valid_fanout_mean": "num_valid_candidates",
    "invalid_fraction_mean": "invalid_fraction",
    "entropy_mean": "entropy",
    "fanout_mean": "fanout",
}


def candidate_result_diagnostic_counts(shell: CandidateShell) -> pl.DataFrame:
    """Return live CandidateSamplingResult counts by position and invalid reason.

    For a shell in memory, before it is stored: one row per position family and primary reason (``VALID`` included).
    """
    position = pl.Series("position", shell.position_id)
    reason = pl.Series("reason", shell.primary_invalid_reason)
    frame = pl.DataFrame(
        {"position": named(position, decode_position_id), "reason": named(reason, decode_invalid_reason)}
    )
    total = pl.col("count").sum().over("position")
    return (
        frame.group_by("position", "reason")
        .agg(pl.len().cast(pl.Int64).alias("count"))
        .with_columns((pl.col("count") / total).alias("fraction_of_position"))
        .sort("position", "count", "reason", descending=[False, True, False])
    )


def _group_column(reader: RolloutZarrStoreReader, group_by: str) -> list[pl.Series]:
    if group_by == "mixture":
        return [
            mixture_series(reader, reader.table("candidates", columns=["mixture_id"])["mixture_id"]).alias(group_by)
        ]
    if group_by in _OF_CANDIDATE:
        stored, decode = _OF_CANDIDATE[group_by]
        return [named(reader.table("candidates", columns=[stored])[stored], decode).alias(group_by)]
    if group_by in _STORED:
        stored = _STORED[group_by]
        return [reader.table("candidates", columns=[stored], decode=True)[stored].alias(group_by)]
    return []


def _named_target(group_by: str) -> pl.Expr:
    """A column of the context; ``target`` is the target's id."""
    return pl.col("target_id").alias("target") if group_by == "target" else pl.col(group_by)
