"""Who a row is about: every chain with its scene, split, recipe, policy and target, and where its candidates lie."""

from __future__ import annotations

import numpy as np
import polars as pl

from rollout_assets.errors import StoreDamaged, StoreError
from rollout_assets.rollouts.trace import ROLLOUT_ID_PATTERN
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import STEPS


def rollout_context(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """One row per kept chain, decoded, with the facts about its target that every other table wants."""
    rollouts = reader.table(
        "rollouts",
        decode=True,
        columns=(
            "rollout_row_id",
            "rollout_id",
            "chain_id",
            "source_row_id",
            "scene_id",
            "snippet_id",
            "split_id",
            "target_row_id",
            "policy_id",
            "horizon",
            "branch_factor",
            "beam_width",
            "temperature",
            "termination_reason",
            "final_cumulative_target_root_gain",
        ),
    ).rename({"scene_id": "scene", "snippet_id": "snippet", "split_id": "split", "policy_id": "policy"})
    targets = reader.table(
        "targets",
        decode=True,
        columns=("target_row_id", "target_id", "target_class_name_id", "target_valid_mask", "gt_label_valid_mask"),
    ).rename({"target_class_name_id": "target_class"})
    recipe = pl.col("rollout_id").str.extract(ROLLOUT_ID_PATTERN).fill_null(pl.col("policy")).alias("recipe")
    return rollouts.with_columns(recipe).join(targets, on="target_row_id", how="left", maintain_order="left")


def candidate_span(
    reader: RolloutZarrStoreReader,
    rollout_row_id: int | None = None,
    step_row_id: int | None = None,
    limit: int | None = None,
) -> range:
    """Rows of the candidate table that belong to a chain, or a step, or both; at most ``limit`` of them."""
    if limit is not None and limit < 0:
        raise StoreError(f"limit must be >= 0, got {limit}")
    start, stop = 0, reader.num_rows("candidates")
    if rollout_row_id is not None or step_row_id is not None:
        steps = step_span(reader, rollout_row_id, step_row_id)
        ends = np.cumsum(reader.array(STEPS.path("num_candidates")), dtype=np.int64)
        starts = np.concatenate([[0], ends])
        start, stop = int(starts[steps.start]), int(starts[steps.stop])
    return range(start, stop if limit is None else min(stop, start + limit))


def step_span(
    reader: RolloutZarrStoreReader, rollout_row_id: int | None = None, step_row_id: int | None = None
) -> range:
    """Rows of the step table that belong to a chain, or the one step, or both; all by default."""
    if rollout_row_id is not None:
        require_row(reader, "rollouts", rollout_row_id)
    if step_row_id is not None:
        require_row(reader, "steps", step_row_id)
    if rollout_row_id is None:
        return range(reader.num_rows("steps")) if step_row_id is None else range(step_row_id, step_row_id + 1)
    owner = reader.array(STEPS.path("rollout_row_id"))
    if step_row_id is not None:
        if owner[step_row_id] != rollout_row_id:
            raise StoreError(f"step {step_row_id} belongs to rollout {owner[step_row_id]}, not {rollout_row_id}")
        return range(step_row_id, step_row_id + 1)
    mine = np.flatnonzero(owner == rollout_row_id)
    if len(mine) and mine[-1] - mine[0] + 1 != len(mine):
        raise StoreDamaged(STEPS.path("rollout_row_id"), f"steps of rollout {rollout_row_id} are not contiguous")
    return range(int(mine[0]), int(mine[-1]) + 1) if len(mine) else range(0)


def require_row(reader: RolloutZarrStoreReader, table: str, row: int) -> None:
    """Refuse a row id that a table does not have."""
    rows = reader.num_rows(table)
    if not 0 <= row < rows:
        have = f"rows 0 to {rows - 1}" if rows else "no rows"
        raise StoreError(f"{reader.location}: {table} has {have}, got {row}")
