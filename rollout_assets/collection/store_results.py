"""A rollout store read as result lines, so that stored and collected rollouts are aggregated by the same code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from rollout_assets.inspection.objectives import rollout_step_objective_rows
from rollout_assets.metrics.columns import NO_TAKEABLE_VIEW
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader


def stored_results(reader: RolloutZarrStoreReader) -> Iterator[dict[str, Any]]:
    """One result per target and recipe: its best chain, the first one kept. A task is a target.

    The reward is the chain's cumulative target root gain, as ``RolloutResult`` has it. A recipe that could not take a
    single view has no reward and no steps, and says so as its ``end_reason``. Targets without rollouts give no lines.
    """
    steps = rollout_step_objective_rows(reader)
    best = steps.group_by("target_row_id", "recipe").agg(pl.col("rollout_row_id").min())
    taken = pl.col("selected_shell_index").is_not_null()
    chains = (
        steps.join(best.select("rollout_row_id"), on="rollout_row_id", how="semi")
        .group_by("target_row_id", "recipe", "target_id", maintain_order=True)
        .agg(
            pl.when(taken.any()).then(pl.col("marginal_target_root_gain").cast(pl.Float64).sum()).alias("reward"),
            taken.sum().cast(pl.Int64).alias("num_steps"),
            pl.when(taken.any())
            .then(pl.col("num_valid_candidates").cast(pl.Float64).mean())
            .alias("mean_valid_fanout"),
            pl.col("error_before_m2").filter(taken).cast(pl.Float64).first().alias("root_error_m2"),
            pl.col("error_after_m2").filter(taken).cast(pl.Float64).last().alias("final_error_m2"),
        )
    )
    for row in chains.iter_rows(named=True):
        task, recipe = row.pop("target_row_id"), row.pop("recipe")
        ended = {} if row["num_steps"] else {"end_reason": NO_TAKEABLE_VIEW}
        yield row | ended | {"agent_ref": {"name": recipe}, "_task_index": task, "_rollout_index": 0}
