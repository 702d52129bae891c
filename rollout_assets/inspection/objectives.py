"""Every decision as one row: what was on offer, what was taken, what it gained, and how the tree branched there."""

from __future__ import annotations

import polars as pl

from rollout_assets.inspection.audit import camera_centre, selected_rows, with_names
from rollout_assets.inspection.context import rollout_context, step_span
from rollout_assets.inspection.decode import absent_as_null, decode_invalid_reason, named
from rollout_assets.inspection.mixtures import mixture_series
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import ABSENT, CUMULATIVE_OF, STEPS

_OF_SELECTED = {
    "shell_index": "selected_shell_index",
    "position": "selected_position",
    "strategy": "selected_strategy",
    "mixture_id": "selected_mixture_id",
    "mixture": "selected_mixture",
    "reason": "selected_reason",
    "sampler_probability": "selected_sampler_probability",
    "target_root_gain": "marginal_target_root_gain",
    "target_rri": "marginal_target_rri",
    "scene_root_gain": "marginal_scene_root_gain",
    "scene_rri": "marginal_scene_rri",
    "target_pm_dist_before": "error_before_m2",
    "target_pm_dist_after": "error_after_m2",
    "selection_probabilities": "selected_probability",
    "target_distance_m": "selected_target_distance_m",
    "mesh_distance_m": "selected_mesh_distance_m",
    "motion_step_length_m": "selected_step_length_m",
    "motion_yaw_delta_deg": "selected_yaw_delta_deg",
}
"""Column of the selected candidate -> its name in a step's row."""


RECIPE_PARAMETERS = ("horizon", "branch_factor", "beam_width", "temperature")
"""What a recipe was run with, as every chain of it records; ``beam_width`` is null without a beam."""

_OF_CHAIN = ("rollout_id", "chain_id", "recipe", "policy", *RECIPE_PARAMETERS, "scene", "split")

CAMERA = ("camera_x_m", "camera_y_m", "camera_z_m")
"""Where the selected view stands, in ``decision_rows`` only."""


def rollout_step_objective_rows(
    reader: RolloutZarrStoreReader, rollout_row_id: int | None = None, step_row_id: int | None = None
) -> pl.DataFrame:
    """Return per-step objective, branching, and selected-action audit rows.

    ``marginal_*`` is what the step itself added, ``cumulative_*`` what the chain had gained by then. ``best_`` and
    ``mean_root_gain`` are those of all labelled views on offer, ``regret`` is best minus taken. ``entropy`` (nats) is
    the policy's over the shell. ``chains_here`` of the same tree stand in this state, and leave it by ``fanout``
    different views. A step that took nothing has null in ``fanout``, ``regret``, ``selected_*`` and ``marginal_*``.
    All steps by default, or those of a chain, or one.
    """
    steps = step_span(reader, rollout_row_id, step_row_id)
    return decision_rows(reader).select(*_ORDER).slice(steps.start, len(steps))


def decision_rows(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """Every step with all that is known about its decision: the objective rows, with source row and camera."""
    steps = reader.table("steps").drop("selected_compact_valid_index")
    context = rollout_context(reader).select(
        "rollout_row_id", *_OF_CHAIN, "target_row_id", "target_id", "source_row_id"
    )
    rows = (
        steps.drop("selected_shell_index")
        .join(context, on="rollout_row_id", how="left", maintain_order="left")
        .join(_chosen(reader), on="step_row_id", how="left", maintain_order="left")
        .join(shell_statistics(reader), on="step_row_id", how="left", maintain_order="left")
        .join(_branching(steps, context), on="step_row_id", how="left", maintain_order="left")
        .with_columns(
            (1.0 - pl.col("num_valid_candidates") / pl.col("num_candidates")).alias("invalid_fraction"),
            (pl.col("best_root_gain") - pl.col("marginal_target_root_gain")).alias("regret"),
        )
    )
    return absent_as_null(rows)


def _chosen(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """The selected view of every step that took one, under its names in a step's row, and where it stands."""
    views = with_names(selected_rows(reader))
    views = views.with_columns(
        named(views["primary_invalid_reason"], decode_invalid_reason).alias("reason"),
        mixture_series(reader, views["mixture_id"]).alias("mixture"),
        *camera_centre("pose_world_cam"),
    )
    return views.select("step_row_id", *_OF_SELECTED, *CAMERA).rename(_OF_SELECTED)


def shell_statistics(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """Per step: labelled views, their best, second best, mean and spread of root gain, and the policy's entropy."""
    frame = reader.table(
        "candidates", columns=("step_row_id", "oracle_label_mask", "target_root_gain", "selection_probabilities")
    )
    p = pl.col("selection_probabilities").cast(pl.Float64)
    labelled = (
        frame.filter("oracle_label_mask")
        .group_by("step_row_id")
        .agg(
            pl.len().cast(pl.Int64).alias("labelled"),
            pl.col("target_root_gain").max().alias("best_root_gain"),
            pl.col("target_root_gain").top_k(2).min().alias("second_root_gain"),
            pl.col("target_root_gain").min().alias("worst_root_gain"),
            pl.col("target_root_gain").cast(pl.Float64).mean().alias("mean_root_gain"),
            pl.col("target_root_gain").cast(pl.Float64).std(ddof=0).alias("std_root_gain"),
        )
    )
    drawn = (
        frame.filter(pl.col("selection_probabilities") > 0)
        .select("step_row_id", (-p * p.log()).alias("entropy"))
        .group_by("step_row_id")
        .agg(pl.col("entropy").sum().abs())
    )
    every = reader.table("steps", columns=("step_row_id",))
    return (
        every.join(labelled, on="step_row_id", how="left", maintain_order="left")
        .join(drawn, on="step_row_id", how="left", maintain_order="left")
        .with_columns(
            pl.col("labelled").fill_null(0),
            pl.when(pl.col("labelled") > 1).then("second_root_gain").alias("second_root_gain"),
        )
    )


def _branching(steps: pl.DataFrame, context: pl.DataFrame) -> pl.DataFrame:
    """Per step: chains of the same tree in the same state, and how many different views they took from it.

    A state is the path of shell indices from the root, so its identity is its parent's and the last index. A step that
    took nothing left its state by no view.
    """
    tree = pl.struct("target_row_id", "recipe").rank("dense").cast(pl.Int64)
    trees = context.select("rollout_row_id", tree.alias("tree"))
    frame = steps.select("step_row_id", "rollout_row_id", "step_index", "selected_shell_index").join(
        trees, on="rollout_row_id", how="left", maintain_order="left"
    )
    took = pl.col("selected_shell_index") != ABSENT
    views = pl.col("selected_shell_index").filter(took).n_unique().over("state").cast(pl.Int64)
    levels = []
    reached = frame.select("rollout_row_id", pl.col("tree").alias("state")).unique()
    for depth in range(int(frame["step_index"].to_numpy().max(initial=-1)) + 1):
        level = frame.filter(pl.col("step_index") == depth).join(reached, on="rollout_row_id", how="inner")
        levels.append(
            level.with_columns(
                pl.len().over("state").cast(pl.Int64).alias("chains_here"),
                pl.when(took).then(views).alias("fanout"),
            )
        )
        following = pl.struct("state", "selected_shell_index").rank("dense").cast(pl.Int64)
        reached = level.select("rollout_row_id", following.alias("state"))
    columns = ("step_row_id", "chains_here", "fanout")
    if not levels:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.Int64))
    return pl.concat(levels).select(columns)


_ORDER = (
    "step_row_id",
    "rollout_row_id",
    "step_index",
    *_OF_CHAIN,
    "target_row_id",
    "target_id",
    "num_candidates",
    "num_valid_candidates",
    "invalid_fraction",
    "labelled",
    "chains_here",
    "fanout",
    "entropy",
    "selected_candidate_row_id",
    *_OF_SELECTED.values(),
    "best_root_gain",
    "second_root_gain",
    "worst_root_gain",
    "mean_root_gain",
    "std_root_gain",
    "regret",
    *(name for name in STEPS.names if name in CUMULATIVE_OF),
)
