"""Every candidate and every target as one wide, decoded row: what it is, what was measured, what came of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from rollout_assets.inspection import decode
from rollout_assets.inspection.context import candidate_span, rollout_context
from rollout_assets.inspection.decode import absent_as_null, named
from rollout_assets.inspection.mixtures import mixture_series
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATE_DIAGNOSTICS, CANDIDATES, DIAGNOSTIC_COLUMNS, TARGETS

_CONTEXT = ("scene", "snippet", "split", "rollout_id", "recipe", "policy", "target_row_id", "target_id", "target_class")
_SHOWN = [name for name in CANDIDATES.names if name != "pose_relative_root"]

_IDS = ("candidate_row_id", "step_row_id", "rollout_row_id", "step_index", "shell_index")
_SELECTED_LABELS = (
    "position_id",
    "strategy_id",
    "mixture_id",
    "sampler_probability",
    "primary_invalid_reason",
    "pose_world_cam",
    "scene_rri",
    "scene_root_gain",
    "target_rri",
    "target_root_gain",
    "target_pm_dist_before",
    "target_pm_dist_after",
    "selection_probabilities",
)


def candidate_audit_rows(
    reader: RolloutZarrStoreReader,
    rollout_row_id: int | None = None,
    step_row_id: int | None = None,
    limit: int | None = None,
) -> pl.DataFrame:
    """Return candidate rows joined with candidate-generation diagnostics.

    Ids first, then context (scene, split, recipe, policy, target), decoded names, masks, labels, selection, measures
    and ``camera_{x,y,z}_m``, the view's centre in the world. Only the rows asked for are read. What was not measured or
    labelled is null.
    """
    span = candidate_span(reader, rollout_row_id, step_row_id, limit)
    candidates = reader.table("candidates", columns=_SHOWN, decode=True, start=span.start, stop=span.stop)
    diagnostics = reader.table("candidate_diagnostics", columns=DIAGNOSTIC_COLUMNS, start=span.start, stop=span.stop)
    candidates = candidates.with_columns(
        named(candidates["primary_invalid_reason"], decode.decode_invalid_reason).alias("reason"),
        named(candidates["invalid_reason_bitset"], decode.decode_reason_bitset).alias("all_reasons"),
        mixture_series(reader, candidates["mixture_id"]).alias("mixture"),
        *camera_centre("pose_world_cam"),
    ).rename({"score_source_id": "score_source"})
    context = rollout_context(reader).select("rollout_row_id", *_CONTEXT)
    joined = with_names(candidates).join(context, on="rollout_row_id", how="left", maintain_order="left")
    rows = joined.hstack(diagnostics.get_columns()).select(*_ORDER, *DIAGNOSTIC_COLUMNS, *_CENTRE)
    return absent_as_null(rows)


def target_audit_rows(reader: RolloutZarrStoreReader) -> pl.DataFrame:
    """Return stored target rows with actor-visible and GT-audit fields.

    Decoded, with the source row's scene and key, and ``num_rollouts``: a target that was refused has none. What is not
    given, such as the match of a target without ground truth, is null.
    """
    targets = reader.table("targets", columns=TARGETS.names, decode=True)
    targets = targets.with_columns(
        named(targets["target_primary_invalid_reason"], decode.decode_target_invalid_reason).alias("reason"),
        named(targets["target_invalid_reason_bitset"], decode.decode_target_reason_bitset).alias("all_reasons"),
    ).rename({name: name.removesuffix("_id") for name in _DECODED_TARGET_COLUMNS})
    sources = reader.table(
        "sources", columns=("source_row_id", "sample_index", "sample_key_id", "scene_id", "split_id"), decode=True
    ).rename({"sample_key_id": "sample_key", "scene_id": "scene", "split_id": "split"})
    counts = reader.table("rollouts", columns=("target_row_id",)).group_by("target_row_id").len("num_rollouts")
    rows = (
        targets.join(sources, on="source_row_id", how="left", maintain_order="left")
        .join(counts, on="target_row_id", how="left", maintain_order="left")
        .with_columns(pl.col("num_rollouts").fill_null(0).cast(pl.Int64))
    )
    return absent_as_null(rows)


def selected_rows(
    reader: RolloutZarrStoreReader,
    labels: Sequence[str] = _SELECTED_LABELS,
    measures: Sequence[str] = DIAGNOSTIC_COLUMNS,
) -> pl.DataFrame:
    """One row per step that took a view: ids of the selected candidate and the asked columns, as stored."""
    rows = np.flatnonzero(reader.array(CANDIDATES.path("selected_mask")))
    columns = [(CANDIDATES, name) for name in (*_IDS, *labels)] + [(CANDIDATE_DIAGNOSTICS, name) for name in measures]
    return pl.DataFrame([pl.Series(name, reader.array(table.path(name))[rows]) for table, name in columns])


def with_names(frame: pl.DataFrame) -> pl.DataFrame:
    """Position and orientation ids replaced by ``position`` and ``strategy``."""
    return frame.with_columns(
        named(frame["position_id"], decode.decode_position_id).alias("position"),
        named(frame["strategy_id"], decode.decode_strategy_id).alias("strategy"),
    ).drop("position_id", "strategy_id")


def camera_centre(pose: str) -> list[pl.Expr]:
    """The translation of a pose column as three columns in metres."""
    return [pl.col(pose).arr.get(9 + axis).alias(name) for axis, name in enumerate(_CENTRE)]


_CENTRE = ("camera_x_m", "camera_y_m", "camera_z_m")
_DECODED_TARGET_COLUMNS = tuple(
    column.name
    for column in TARGETS.columns
    if column.dictionary is not None and column.name not in ("target_id", "matched_gt_target_id")
)
_REPLACED = {
    "position_id": ("position", "strategy"),
    "strategy_id": (),
    "mixture_id": ("mixture_id", "mixture"),
    "score_source_id": ("score_source",),
    "primary_invalid_reason": ("reason",),
    "invalid_reason_bitset": ("all_reasons", "invalid_reason_bitset"),
    "pose_world_cam": _CONTEXT,
}
"""Stored column -> what stands in its place in an audit row."""

_ORDER = [shown for name in _SHOWN for shown in _REPLACED.get(name, (name,))]
