"""Is a store worth training on? A few measures, each with what it should be, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from rollout_assets.config import ConfigSection, Count, Fraction, NonNegative
from rollout_assets.inspection.context import rollout_context
from rollout_assets.inspection.objectives import shell_statistics
from rollout_assets.inspection.suspicious import RANKING_POLICIES
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATES

Status = Literal["good", "careful", "bad"]
Verdict = Literal["ready", "ready with care", "not ready"]


class ReadinessConfig(ConfigSection):
    """What a store should have. A measure beyond its second limit is bad, between the two it needs care."""

    min_states: tuple[Count, Count] = (1_000, 1)
    min_trainable_fraction: tuple[Fraction, Fraction] = (0.2, 0.02)
    min_label_std: tuple[NonNegative, NonNegative] = (0.01, 1e-6)
    min_shell_std: tuple[NonNegative, NonNegative] = (0.005, 1e-6)
    near_tie_margin: NonNegative = 1e-4
    max_near_tie_fraction: tuple[Fraction, Fraction] = (0.5, 0.95)
    min_policy_share: tuple[Fraction, Fraction] = (0.05, 1e-6)
    min_effective_sample_fraction: tuple[Fraction, Fraction] = (0.1, 0.0)
    min_targets: tuple[Count, Count] = (10, 1)


@dataclass(frozen=True)
class ReadinessMeasure:
    """One measure: its value, the limit it is held against, and what that means."""

    name: str
    value: float
    wanted: str
    status: Status
    meaning: str


@dataclass(frozen=True, eq=False)
class TrainingReadiness:
    """The measures, the support each recipe gives, and the verdict that follows from the worst measure."""

    verdict: Verdict
    measures: tuple[ReadinessMeasure, ...]
    by_policy: pl.DataFrame

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why training should not begin right away."""
        return tuple(
            f"{measure.name} is {measure.value:.4g}, wanted {measure.wanted}: {measure.meaning}"
            for measure in self.measures
            if measure.status != "good"
        )


def training_readiness(reader: RolloutZarrStoreReader, config: ReadinessConfig | None = None) -> TrainingReadiness:
    """Label variance, mask balance, support by policy, near ties and the behaviour policy's effective sample size.

    The effective sample size is that of the drawn views when they are re-weighted towards a policy that takes every
    view alike that can be drawn: (sum w)² / sum w² with w = 1 / (such views * π), as a share of all drawn views. π is
    the stored probability of being among the drawn ones, and a state that sibling chains share counts once. What a
    ranking policy took, and a draw whose π is not known, cannot be weighted: there w is 0. Stores of other writers do
    not record π at all: the measure is left out, and null by recipe.
    """
    limits = config or ReadinessConfig()
    q_train = reader.array(CANDIDATES.path("q_train_mask"))
    gains = reader.array(CANDIDATES.path("target_root_gain"))[q_train].astype(np.float64)
    states = _states(reader, q_train)
    trainable = states.filter("trainable")
    shells = trainable.filter(pl.col("labelled") > 1)
    ties = shells["best_root_gain"] - shells["second_root_gain"] <= limits.near_tie_margin
    by_policy = _by_policy(states)
    share = by_policy["trainable_states"] / max(int(by_policy["trainable_states"].sum()), 1)
    values = {
        "min_states": trainable.height,
        "min_targets": trainable["target_row_id"].n_unique(),
        "min_trainable_fraction": _mean(q_train),
        "min_label_std": float(gains.std()) if len(gains) else 0.0,
        "min_shell_std": _mean(shells["std_root_gain"].to_numpy()),
        "max_near_tie_fraction": _mean(ties.to_numpy()),
        "min_policy_share": float(share.min() or 0.0),  # type: ignore[arg-type]
        "min_effective_sample_fraction": _effective_fraction(states),
    }
    if not reader.has(CANDIDATES.path("selection_inclusion_probabilities")):
        del values["min_effective_sample_fraction"]
        by_policy = by_policy.with_columns(pl.lit(None, pl.Float64).alias("effective_sample_fraction"))
    measures = tuple(_measure(limit, value, limits) for limit, value in values.items())
    statuses = {measure.status for measure in measures}
    verdict: Verdict = "not ready" if "bad" in statuses else "ready with care" if "careful" in statuses else "ready"
    return TrainingReadiness(verdict, measures, by_policy)


def _states(reader: RolloutZarrStoreReader, q_train: np.ndarray) -> pl.DataFrame:
    """One row per step: recipe, target, whether it can be trained on, what was on offer, weights of what was drawn."""
    steps = reader.table("steps", columns=("step_row_id", "rollout_row_id", "step_index", "selected_shell_index"))
    context = rollout_context(reader).select("rollout_row_id", "recipe", "policy", "target_row_id")
    step_of = reader.array(CANDIDATES.path("step_row_id"))
    views = pl.DataFrame({"step_row_id": step_of[q_train]}).group_by("step_row_id").len("trainable_views")
    states = (
        steps.join(context, on="rollout_row_id", how="left", maintain_order="left")
        .join(views, on="step_row_id", how="left", maintain_order="left")
        .join(shell_statistics(reader), on="step_row_id", how="left", maintain_order="left")
        .join(_draws(reader, step_of), on="step_row_id", how="left", maintain_order="left")
    )
    return states.with_columns(
        pl.col("trainable_views").fill_null(0).cast(pl.Int64),
        (pl.col("trainable_views").fill_null(0) > 0).alias("trainable"),
        *_counted_once(states),
    )


def _draws(reader: RolloutZarrStoreReader, step_of: np.ndarray) -> pl.DataFrame:
    """Per step: how many views were drawn, and the sums of their weights and of the weights' squares.

    A store from before inclusion probabilities were recorded has no weights.
    """
    drawn, known = CANDIDATES.path("drawn_mask"), CANDIDATES.path("selection_inclusion_probabilities")
    inclusion = pl.col("inclusion").cast(pl.Float64)
    weight = 1.0 / (inclusion.filter(inclusion > 0).len() * inclusion.filter("drawn"))
    return (
        pl.DataFrame(
            {
                "step_row_id": step_of,
                "inclusion": reader.array(known) if reader.has(known) else np.full(len(step_of), np.nan, np.float32),
                "drawn": reader.array(drawn if reader.has(drawn) else CANDIDATES.path("selected_mask")),
            }
        )
        .group_by("step_row_id")
        .agg(
            pl.col("drawn").sum().cast(pl.Int64),
            weight.sum().alias("weight_sum"),
            (weight**2).sum().alias("weight_sq_sum"),
        )
    )


def _counted_once(states: pl.DataFrame) -> list[pl.Expr]:
    """Draws and weights: none in repeated states, and no weight where the policy ranks or π is not known."""
    fresh = pl.Series(_first_visits(states), dtype=pl.Boolean)
    weighted = fresh & ~states["policy"].is_in(RANKING_POLICIES) & states["weight_sum"].is_finite()
    return [
        pl.when(fresh).then("drawn").otherwise(0).fill_null(0).alias("drawn"),
        *(pl.when(weighted).then(name).otherwise(0.0).alias(name) for name in ("weight_sum", "weight_sq_sum")),
    ]


def _first_visits(states: pl.DataFrame) -> list[bool]:
    """Whether a step is the first of its state: chains of one tree share the states before they part."""
    visited: set[tuple[object, ...]] = set()
    first: list[bool] = []
    path: tuple[int, ...] = ()
    columns = ("target_row_id", "recipe", "step_index", "selected_shell_index")
    for target, recipe, step, shell_index in states.select(columns).iter_rows():
        path = path[:step]
        state = (target, recipe, path)
        first.append(state not in visited)
        visited.add(state)
        path = (*path, shell_index)
    return first


def _by_policy(states: pl.DataFrame) -> pl.DataFrame:
    """Support that each recipe gives to training."""
    left = pl.col("weight_sum").sum() ** 2 / pl.col("weight_sq_sum").sum() / pl.col("drawn").sum()
    return (
        states.group_by("recipe", "policy")
        .agg(
            pl.len().cast(pl.Int64).alias("states"),
            pl.col("trainable").sum().cast(pl.Int64).alias("trainable_states"),
            pl.col("trainable_views").sum().alias("trainable_views"),
            pl.col("target_row_id").n_unique().cast(pl.Int64).alias("targets"),
            pl.col("entropy").exp().mean().alias("effective_actions"),
            left.fill_nan(0.0).alias("effective_sample_fraction"),
        )
        .sort("recipe")
    )


def _effective_fraction(states: pl.DataFrame) -> float:
    weight, square, drawn = (float(states[name].sum()) for name in ("weight_sum", "weight_sq_sum", "drawn"))
    return weight**2 / square / drawn if square else 0.0


_MEANINGS = {
    "min_states": ("trainable states", "states with at least one trainable view"),
    "min_targets": ("trainable targets", "a policy that saw few objects learns those objects"),
    "min_trainable_fraction": ("trainable share of views", "the rest of the shell is refused or unlabelled"),
    "min_label_std": ("label deviation", "labels that do not vary teach nothing"),
    "min_shell_std": ("label deviation within a shell", "a choice needs views that differ in worth"),
    "max_near_tie_fraction": ("near ties", "share of shells whose two best views differ by at most {margin:g}"),
    "min_policy_share": ("smallest recipe's share", "recipes with little data are barely represented"),
    "min_effective_sample_fraction": (
        "effective sample size",
        "how much of the drawn views is left when they are re-weighted to a uniform policy; 0 if all policies rank",
    ),
}
"""Limit in ``ReadinessConfig`` -> what it is held against, and what that means."""


def _measure(limit: str, value: float, limits: ReadinessConfig) -> ReadinessMeasure:
    name, meaning = _MEANINGS[limit]
    good, bad = getattr(limits, limit)
    at_most = limit.startswith("max_")
    passes, fails = (value <= good, value > bad) if at_most else (value >= good, value < bad)
    status: Status = "good" if passes else "bad" if fails else "careful"
    wanted = f"{'<=' if at_most else '>='} {good:g}"
    return ReadinessMeasure(name, float(value), wanted, status, meaning.format(margin=limits.near_tie_margin))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
