"""The steps of a record as plain rows, for a table or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.rollouts.trace import NOT_SELECTED, RolloutStep, RolloutZarrRecord


@dataclass(frozen=True)
class StepRow:
    """One decision of one chain. Gains and errors are None where nothing could be taken."""

    rollout_id: str
    target: str
    step: int
    candidates: int
    valid: int
    reasons: dict[str, int]
    chosen: int | None
    probability: float | None
    rri: float | None
    root_gain: float | None
    cumulative_root_gain: float | None
    best_root_gain: float | None
    mean_root_gain: float | None
    error_before_m2: float | None
    error_after_m2: float | None
    ended: str


def step_rows(record: RolloutZarrRecord) -> Iterator[StepRow]:
    """Every step of every kept chain, in order."""
    target = f"{record.lineage.target_class_name or 'target'} #{record.lineage.target_source_index}"
    for chain in record.chains:
        gained = 0.0
        for index, step in enumerate(chain.steps):
            chosen = step.selection.selected_shell_index
            selected = chosen != NOT_SELECTED
            gains = step.labels.target_root_gain[step.oracle_label_mask]
            gained += float(step.labels.target_root_gain[chosen]) if selected else 0.0
            yield StepRow(
                rollout_id=record.rollout_id(chain),
                target=target,
                step=index,
                candidates=len(step.shell),
                valid=int(step.shell.actor_action_mask.sum()),
                reasons=_reasons(step),
                chosen=chosen if selected else None,
                probability=float(step.selection.probabilities[chosen]) if selected else None,
                rri=float(step.labels.target_rri[chosen]) if selected else None,
                root_gain=float(step.labels.target_root_gain[chosen]) if selected else None,
                cumulative_root_gain=gained if selected else None,
                best_root_gain=float(gains.max()) if len(gains) else None,
                mean_root_gain=float(gains.mean()) if len(gains) else None,
                error_before_m2=float(step.labels.target_pm_dist_before[chosen]) if selected else None,
                error_after_m2=float(step.labels.target_pm_dist_after[chosen]) if selected else None,
                ended=chain.termination_reason if index == len(chain.steps) - 1 else "",
            )


def _reasons(step: RolloutStep) -> dict[str, int]:
    """Primary reasons of the views that cannot be taken, most frequent first."""
    codes, counts = np.unique(step.shell.primary_invalid_reason[~step.shell.actor_action_mask], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {InvalidReason(int(codes[i])).name: int(counts[i]) for i in order}
