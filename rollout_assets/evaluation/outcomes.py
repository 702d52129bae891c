"""What became of every root under every contestant: one row per draw, read from the promoted stores of an evaluation.

A chain that ended early keeps the gain that it had, a chain without any view has none, and both are counted. A target
that got no label has no outcome; it is counted by its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from rollout_assets.evaluation.roster import GREEDY, Contestant
from rollout_assets.inspection.context import rollout_context
from rollout_assets.inspection.decode import decode_target_invalid_reason, named
from rollout_assets.inspection.objectives import rollout_step_objective_rows
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

ROOT = ("seed", "sample_key", "target_id")
"""What names a root of an evaluation; all contestants start from it with the same views on offer."""

PAIR = ("policy", "draw", *ROOT)
"""What names an outcome."""

ABOUT_ROOT = ("scene", "target_class", "root_error_m2", "valid_views", "root_headroom")
"""What is known of a root before any view is taken, the same for every contestant."""


@dataclass(frozen=True)
class TargetCounts:
    """Targets of an evaluation: those with outcomes, and those that were refused a label, by reason."""

    targets: int
    refused: Mapping[str, int]

    @property
    def evaluated(self) -> int:
        """Targets with outcomes, which are the roots."""
        return self.targets - sum(self.refused.values())


def gain_columns(horizon: int) -> list[str]:
    """``gain_1``, ``gain_2``, …: what a chain has gained once so many views are taken."""
    return [f"gain_{view}" for view in range(1, horizon + 1)]


def read_outcomes(
    reader: RolloutZarrStoreReader, seed: int, contestants: Sequence[Contestant], horizon: int
) -> pl.DataFrame:
    """One row per contestant, draw and root of one store; of several chains of a rollout, the one that gained most.

    ``gain_n`` is the cumulative root gain after n views and ``gain`` that at the end. ``root_headroom`` is the best
    view on offer at the root minus the mean of all that have a label.
    """
    chains = _chains(reader).join(_recipes(contestants), on="recipe", how="inner")
    steps = rollout_step_objective_rows(reader)
    rows = chains.join(_gains(steps, horizon), on="rollout_row_id", how="left").join(
        _roots(steps), on="rollout_row_id", how="left"
    )
    gains = gain_columns(horizon)
    rows = rows.with_columns(pl.col("views").fill_null(0), *(pl.col(name).fill_null(0.0) for name in gains))
    labelled = rows.filter(pl.col("recipe") == GREEDY).select("target_row_id").unique()
    best = pl.col(gains[-1]).rank("ordinal", descending=True).over("recipe", "target_row_id") == 1
    outcomes = rows.join(labelled, on="target_row_id", how="semi").filter(best)
    return outcomes.with_columns(
        pl.lit(seed, pl.Int64).alias("seed"),
        pl.col(gains[-1]).alias("gain"),
        (pl.col("termination_reason") == "terminated_early").alias("ended_early"),
    ).select(*PAIR, *ABOUT_ROOT, "gain", *gains, "views", "ended_early", "rollout_row_id")


def count_targets(reader: RolloutZarrStoreReader) -> TargetCounts:
    """Targets of one store, refused ones by the name of their reason."""
    targets = reader.table("targets", columns=("target_row_id", "target_primary_invalid_reason"))
    rolled_out = rollout_context(reader).filter(pl.col("recipe") == GREEDY).select("target_row_id").unique()
    refused = targets.join(rolled_out, on="target_row_id", how="anti")
    reasons = named(refused["target_primary_invalid_reason"], decode_target_invalid_reason)
    return TargetCounts(targets.height, dict(sorted(Counter(reasons.to_list()).items())))


def _chains(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    keys = reader.table("sources", decode=True, columns=("source_row_id", "sample_key_id"))
    return (
        rollout_context(reader)
        .join(keys.rename({"sample_key_id": "sample_key"}), on="source_row_id", how="left")
        .select(
            "rollout_row_id",
            "recipe",
            "sample_key",
            "scene",
            "target_row_id",
            "target_id",
            pl.col("target_class").fill_null("unknown"),
            "termination_reason",
        )
    )


def _recipes(contestants: Sequence[Contestant]) -> pl.DataFrame:
    """Recipe -> the contestant that it runs, and which of its draws."""
    return pl.DataFrame(
        [
            (recipe.name, contestant.name, draw)
            for contestant in contestants
            for draw, recipe in enumerate(contestant.recipes)
        ],
        schema={"recipe": pl.String, "policy": pl.String, "draw": pl.Int64},
        orient="row",
    )


def _gains(steps: pl.DataFrame, horizon: int) -> pl.DataFrame:
    """Per chain with a view: how many it took, and its cumulative gain after each; an ended chain keeps its last."""
    taken = steps.filter(pl.col("selected_candidate_row_id").is_not_null()).sort("rollout_row_id", "step_index")
    gain = pl.col("cumulative_target_root_gain").cast(pl.Float64)
    last = pl.col("step_index").max()
    after = [
        gain.filter(pl.col("step_index") == pl.min_horizontal(pl.lit(view), last)).first().alias(name)
        for view, name in enumerate(gain_columns(horizon))
    ]
    return taken.group_by("rollout_row_id", maintain_order=True).agg(pl.len().cast(pl.Int64).alias("views"), *after)


def _roots(steps: pl.DataFrame) -> pl.DataFrame:
    """Per chain: error at the root, views that can be taken there, and what the best of them is above their mean."""
    first = steps.filter(pl.col("step_index") == 0)
    headroom = pl.col("best_root_gain").cast(pl.Float64) - pl.col("mean_root_gain")
    return first.select(
        "rollout_row_id",
        pl.col("error_before_m2").cast(pl.Float64).alias("root_error_m2"),
        pl.col("num_valid_candidates").cast(pl.Int64).alias("valid_views"),
        headroom.alias("root_headroom"),
    )
