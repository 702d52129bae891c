"""From a finished rollout to its result: the record that a store would take, its digest, and the figures."""

from __future__ import annotations

import math
from typing import Any

from rollout_assets.rollouts.engine import Chain
from rollout_assets.rollouts.evaluation import StateEvaluator
from rollout_assets.rollouts.manager.completions import Action, Observation, RolloutCompletion
from rollout_assets.rollouts.records import SourceProvenance, refused_record, rollout_record
from rollout_assets.rollouts.remote.codec import content_sha256, pack, to_text
from rollout_assets.rollouts.remote.messages import AgentRef, RolloutResult
from rollout_assets.rollouts.roots import PreparedSample, RefusedTarget, TargetedRoot
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.serving.request_plans import RequestPlan

Chains = tuple[Chain, ...]

NO_ROLLOUT: dict[str, Any] = {
    **dict.fromkeys(("reward", "mean_valid_fanout", "root_error_m2", "final_error_m2", "root_points", "final_points")),
    **dict.fromkeys(("truncation_reason", "end_reason")),
    "num_steps": 0,
    "views_scored": 0,
    "truncated": False,
    "steps": (),
    "timings_s": {},
    "step_timings_s": (),
}
"""What a target without a rollout has measured: nothing."""


class ResultBuilder:
    """Makes results of one campaign and source; the same rollout gives the same bits whatever runs beside it."""

    def __init__(self, evaluator: StateEvaluator, provenance: SourceProvenance) -> None:
        self._evaluator, self._provenance = evaluator, provenance

    def completed(
        self, plan: RequestPlan, prepared: PreparedSample, root: TargetedRoot, done: RolloutCompletion
    ) -> RolloutResult:
        """The result of a rollout. Renders the depth of every view that was taken, when the campaign retains it.

        A rollout whose view budget did not suffice for a single step has a record without chains.
        """
        chains = tuple(chain for chain in done.chains if chain.steps)
        depths = self._evaluator.selected_depths([(root, chains)]).get(root, {})
        mesh = prepared.mesh_version or ""
        record = rollout_record(
            root.actor, root.match, plan.recipe_run, plan.config, self._provenance, mesh, chains, depths
        )
        oracle = done.oracle_state
        fanouts = [step.valid_fanout for step in done.steps]
        return _result(
            plan,
            record,
            status="completed",
            reward=None if done.reward is None else _finite(done.reward),
            num_steps=done.num_steps,
            views_scored=done.views_scored,
            mean_valid_fanout=sum(fanouts) / len(fanouts) if fanouts else None,
            root_error_m2=_finite(oracle.root_error_m2),
            final_error_m2=_finite(oracle.error_m2),
            root_points=oracle.root_points,
            final_points=oracle.points,
            truncated=done.truncated,
            truncation_reason=done.truncation_reason,
            end_reason=done.end_reason,
            steps=_steps(done),
            timings_s=dict(done.timings_s),
            step_timings_s=tuple(step.seconds for step in done.steps),
            chains=to_text(pack(Chains, done.chains)) if "chains" in plan.request.include else None,
        )

    def refused(self, plan: RequestPlan, prepared: PreparedSample, target: RefusedTarget) -> RolloutResult:
        """The result of a target without a label: the record that a shard would have of it."""
        mesh = prepared.mesh_version or ""
        record = refused_record(prepared.actor, target.match, target.shell, plan.config, self._provenance, mesh)
        return _result(plan, record, **NO_ROLLOUT, status="refused", refused_reason=target.reason)


def _result(plan: RequestPlan, record: RolloutZarrRecord, **figures: Any) -> RolloutResult:
    """Figures with what every result says: which rollout it is, its record's digest, and the client's own stamps."""
    packed = pack(RolloutZarrRecord, record)
    lineage, request = record.lineage, plan.request
    return RolloutResult(
        sample_key=lineage.source_sample_key,
        source_row=lineage.source_sample_index,
        split=lineage.split,
        target_id=lineage.target_id,
        target_rank=lineage.target_selection_rank,
        agent_ref=AgentRef(name=plan.recipe.name),
        seed=plan.config.seed,
        content_sha256=content_sha256(packed),
        record=to_text(packed) if "record" in request.include else None,
        task_index=request.task_index,
        rollout_index=request.rollout_index,
        row_index=request.row_index,
        **figures,
    )


def _steps(done: RolloutCompletion) -> tuple[dict[str, Any], ...]:
    """One entry per state of the best chain. A dead end is the last one, with null for what was chosen and brought;
    it is no step, so ``num_steps`` does not count it.
    """
    actions = {entry.step_index: entry for entry in done.step_log if isinstance(entry, Action)}
    observations = {entry.step_index: entry for entry in done.step_log if isinstance(entry, Observation)}
    steps = []
    for index, offered in enumerate(done.steps):
        action, observed = actions.get(index), observations.get(index)
        steps.append(
            {
                "step": index,
                "candidates": offered.candidates,
                "valid_fanout": offered.valid_fanout,
                "entropy": _finite(offered.entropy),
                "shell_index": action and action.shell_index,
                "pose_world_camera": action and action.pose_world_camera.tolist(),
                "log_probability": action and _finite(action.log_probability),
                "root_gain": observed and _finite(observed.root_gain),
                "rri": observed and _finite(observed.rri),
                "error_after_m2": observed and _finite(observed.error_after_m2),
                "candidate_support": observed and _finite(observed.candidate_support),
            }
        )
    return tuple(steps)


def _finite(value: float) -> float | None:
    """JSON has no NaN: what is not a number is null, never zero."""
    return float(value) if math.isfinite(value) else None
