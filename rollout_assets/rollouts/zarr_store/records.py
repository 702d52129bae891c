"""Rows back as the typed records they came from: one chain, or one decision, with everything the engine said of it.

Numbers come back as stored: float32 where the record had Python floats, float16 depth. Row ids, unknown to the engine,
are filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.shell import CandidateDiagnostics, CandidateShell
from rollout_assets.errors import StoreDamaged, StoreError
from rollout_assets.rollouts.trace import (
    CandidateSelection,
    RolloutChain,
    RolloutLineage,
    RolloutRoot,
    RolloutStep,
    SelectedDepth,
    StepLabels,
)
from rollout_assets.rollouts.zarr_store import schema
from rollout_assets.rollouts.zarr_store.chunks.tables import Table
from rollout_assets.rollouts.zarr_store.flatten import SELECTION_COLUMNS, SHELL_COLUMNS
from rollout_assets.rollouts.zarr_store.identities import SOURCE_FIELDS, TARGET_FIELDS
from rollout_assets.rollouts.zarr_store.open_store import OpenStore


@dataclass(frozen=True, eq=False)
class StoredStep:
    """One decision as stored. ``cumulative`` is keyed by step column; ``q_train_mask`` is (k,)."""

    step_row_id: int
    rollout_row_id: int
    step_index: int
    first_candidate_row_id: int
    step: RolloutStep
    q_train_mask: NDArray[np.bool_]
    cumulative: dict[str, float]


@dataclass(frozen=True, eq=False)
class StoredRollout:
    """One kept chain as stored, with its lineage and root."""

    rollout_row_id: int
    source_row_id: int
    target_row_id: int
    lineage: RolloutLineage
    root: RolloutRoot
    horizon: int
    branch_factor: int
    beam_width: int | None
    temperature: float
    chain: RolloutChain
    first_step_row_id: int


def read_step(store: OpenStore, step_row_id: int) -> StoredStep:
    """One step; a row id that the table does not have is a ``StoreError``."""
    _require_row(store, schema.STEPS, step_row_id)
    return _steps(store, step_row_id, step_row_id + 1)[0]


def read_rollout(store: OpenStore, rollout_row_id: int) -> StoredRollout:
    """One chain; a row id that the table does not have is a ``StoreError``."""
    _require_row(store, schema.ROLLOUTS, rollout_row_id)
    row = _row(store, schema.ROLLOUTS, rollout_row_id)
    owner = store.array(schema.STEPS.path("rollout_row_id"))
    first, last = np.searchsorted(owner, [rollout_row_id, rollout_row_id + 1])
    hashes = _row(store, schema.LINEAGE, rollout_row_id)
    steps = _steps(store, int(first), int(last))
    beam = int(row["beam_width"])
    return StoredRollout(
        rollout_row_id=rollout_row_id,
        source_row_id=int(row["source_row_id"]),
        target_row_id=int(row["target_row_id"]),
        lineage=_lineage(store, row, hashes),
        root=RolloutRoot(
            row["root_pose_world"],
            int(row["root_time_ns"]),
            int(row["root_trajectory_index"]),
            int(row["root_frame_index"]),
        ),
        horizon=int(row["horizon"]),
        branch_factor=int(row["branch_factor"]),
        beam_width=None if beam == schema.ABSENT else beam,
        temperature=float(row["temperature"]),
        chain=RolloutChain(
            chain_id=int(row["chain_id"]),
            steps=tuple(stored.step for stored in steps),
            termination_reason=_string(store, schema.ROLLOUTS, "termination_reason", row) or "",  # type: ignore[arg-type]
            selection_rng_state_hash=_string(store, schema.LINEAGE, "selection_rng_state_hash_id", hashes) or "",
        ),
        first_step_row_id=int(first),
    )


def _steps(store: OpenStore, first: int, last: int) -> list[StoredStep]:
    steps = store.columns(schema.STEPS, start=first, stop=last)
    sizes = store.array(schema.STEPS.path("num_candidates"))
    starts = int(sizes[:first].sum(dtype=np.int64)) + np.concatenate([[0], np.cumsum(steps["num_candidates"])])
    begin, end = int(starts[0]), int(starts[-1])
    candidates = store.columns(schema.CANDIDATES, start=begin, stop=end)
    diagnostics = store.columns(schema.CANDIDATE_DIAGNOSTICS, start=begin, stop=end)
    if len(candidates["step_row_id"]) != end - begin:
        raise StoreDamaged("steps/num_candidates", f"says candidates {begin} to {end}, which are not all there")
    depths = _depths(store, steps["selected_candidate_row_id"], first, last)
    log_draws = steps.get("selected_draw_log_probability", np.full(last - first, np.nan))
    score_sources = store.strings("score_source")
    stored = []
    for at in range(last - first):
        rows = slice(int(starts[at]) - begin, int(starts[at + 1]) - begin)
        own = {name: values[rows] for name, values in candidates.items()}
        measured = {name: diagnostics[name][rows] for name in schema.DIAGNOSTIC_COLUMNS}
        shell = CandidateShell(
            **{field: own[column] for column, field in SHELL_COLUMNS.items()},
            diagnostics=CandidateDiagnostics(**measured),
        )
        own.setdefault("selection_inclusion_probabilities", np.full(len(shell), np.nan, np.float32))
        own.setdefault("drawn_mask", own["selected_mask"])
        draw = float(log_draws[at])
        selection = CandidateSelection(
            **{field: own[column] for column, field in SELECTION_COLUMNS.items()},
            selected_shell_index=int(steps["selected_shell_index"][at]),
            draw_log_probability=None if np.isnan(draw) else draw,
            score_source=score_sources[int(own["score_source_id"][0])],
        )
        labels = StepLabels(**{name: own[name] for name in schema.LABEL_COLUMNS})
        stored.append(
            StoredStep(
                step_row_id=first + at,
                rollout_row_id=int(steps["rollout_row_id"][at]),
                step_index=int(steps["step_index"][at]),
                first_candidate_row_id=int(starts[at]),
                step=RolloutStep(shell, labels, selection, depths[at]),
                q_train_mask=own["q_train_mask"],
                cumulative={name: float(steps[name][at]) for name in schema.CUMULATIVE_OF},
            )
        )
    return stored


def _depths(store: OpenStore, selected: NDArray[np.int64], first: int, last: int) -> list[SelectedDepth | None]:
    if not store.attributes.get("selected_depth_enabled"):
        return [None] * len(selected)
    rows = store.columns(schema.SELECTED_DEPTH, schema.SELECTED_DEPTH.names, first, last)
    return [
        None
        if selected[at] == schema.ABSENT
        else SelectedDepth(
            rows["depth_m"][at].astype(np.float32),
            rows["valid_mask"][at],
            tuple(rows["focal_px"][at].tolist()),
            tuple(rows["principal_point_px"][at].tolist()),
        )
        for at in range(len(selected))
    ]


def _lineage(store: OpenStore, row: dict[str, Any], hashes: dict[str, Any]) -> RolloutLineage:
    source_id, target_id = int(row["source_row_id"]), int(row["target_row_id"])
    source, target = _row(store, schema.SOURCES, source_id), _row(store, schema.TARGETS, target_id)
    values: dict[str, Any] = {}
    for table, fields_of, stored in (
        (schema.SOURCES, SOURCE_FIELDS, source),
        (schema.TARGETS, TARGET_FIELDS, target),
        (schema.LINEAGE, schema.LINEAGE_HASHES, hashes),
    ):
        values |= {field: _value(store, table, column, stored) for column, field in fields_of.items()}
    seed = int(row["random_seed"])
    return RolloutLineage(
        **values,
        rollout_id=_string(store, schema.ROLLOUTS, "rollout_id", row) or "",
        chain_id=int(row["chain_id"]),
        random_seed=None if seed == schema.ABSENT else seed,
        rollout_policy=_string(store, schema.ROLLOUTS, "policy_id", row) or "unknown",
        source_row_id=source_id,
        target_row_id=target_id,
        source_split=store.source_splits.get(values["source_sample_key"] or ""),
    )


def _value(store: OpenStore, table: Table, name: str, row: dict[str, Any]) -> Any:
    column, value = table[name], row[name]
    if column.dictionary is not None:
        return _string(store, table, name, row)
    if column.row_shape:
        return None if np.isnan(value).all() else tuple(value.tolist())
    if column.is_float:
        return None if np.isnan(value) else float(value)
    return None if int(value) == schema.ABSENT else int(value)


def _string(store: OpenStore, table: Table, name: str, row: dict[str, Any]) -> str | None:
    dictionary = table[name].dictionary
    assert dictionary is not None
    index = int(row[name])
    return None if index == schema.ABSENT else store.dictionaries[dictionary][index]


def _row(store: OpenStore, table: Table, index: int) -> dict[str, Any]:
    return {name: values[0] for name, values in store.columns(table, start=index, stop=index + 1).items()}


def _require_row(store: OpenStore, table: Table, index: int) -> None:
    rows = store.num_rows(table.name)
    if not 0 <= index < rows:
        raise StoreError(f"{store.location}: {table.name} has rows 0 to {rows - 1}, got {index}")
