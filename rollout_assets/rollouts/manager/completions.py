"""What is asked of a rollout manager and what it answers: roots, completions, groups, and their metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import ConfigError
from rollout_assets.geometry.poses import Float32
from rollout_assets.metrics.columns import NO_TAKEABLE_VIEW
from rollout_assets.metrics.summaries import Metrics, rate, summary
from rollout_assets.randomness import key_digest
from rollout_assets.rollouts.engine import Chain, StepDecision
from rollout_assets.rollouts.manager.endings import (
    NATURAL,
    STEP_LIMIT,
    TRUNCATING,
    FinalOracleState,
    RolloutLimits,
    end_reason,
    final_oracle_state,
    offered_steps,
)
from rollout_assets.rollouts.remote.messages import EndReason
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.trace import NOT_SELECTED


@dataclass(frozen=True, eq=False)
class RolloutTask:
    """What a caller asks for: a root with the recipe to run, the seed to derive from, and limits of each rollout."""

    index: int
    root: TargetedRoot
    recipe: RolloutRecipeConfig
    seed: int
    max_rollout_steps: int | None = None
    max_views_scored: int | None = None

    @property
    def limits(self) -> RolloutLimits:
        """Both limits; one below 1 is a ``ConfigError``."""
        return RolloutLimits(self.max_rollout_steps, self.max_views_scored)

    def seed_of(self, rollout_index: int) -> int:
        """Seed of one rollout of the group."""
        return derived_seed(self.seed, rollout_index)


@dataclass(frozen=True, eq=False)
class Action:
    """The view a rollout took. pose_world_camera: (12,) float32."""

    step_index: int
    shell_index: int
    pose_world_camera: Float32
    log_probability: float


@dataclass(frozen=True)
class Observation:
    """What taking the view brought, as the oracle measured it."""

    step_index: int
    root_gain: float
    rri: float
    error_after_m2: float
    candidate_support: float


@dataclass(frozen=True, eq=False)
class RootView:
    """Where the rollout began. pose_world_camera: (12,) float32."""

    sample_key: str
    target_id: str
    pose_world_camera: Float32


LogEntry = RootView | Action | Observation


@dataclass(frozen=True)
class StepMetrics:
    """What one state of a rollout offered, and how long its step took: waiting for the oracle, and deciding.

    All chains of a rollout take a step together, so ``seconds`` is that of all states of the same depth.
    """

    candidates: int
    valid_fanout: int
    entropy: float
    seconds: float


@dataclass(frozen=True, eq=False)
class GrownRollout:
    """A rollout as it was grown, here or on a server: everything that a completion is derived from.

    ``step_seconds`` has at least one entry per step of the longest chain.
    """

    chains: tuple[Chain, ...]
    views_scored: int
    step_seconds: tuple[float, ...]
    timings_s: Mapping[str, float]
    worker_views: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class RolloutCompletion:
    """One rollout. ``step_log`` is the root, then action and observation per step, of its best chain.

    ``oracle_state`` is what the oracle knew at the end of that chain. ``end_reason`` says why the rollout ended.
    ``reward`` is the best chain's cumulative target root gain; None when not a single view was taken. ``chains`` holds
    every kept chain, best first. ``steps`` has one entry per state in which views were offered, a dead end included,
    and none for a root without a takeable view. ``worker_views`` counts scored views by the worker that scored them.
    """

    rollout_index: int
    seed: int
    step_log: tuple[LogEntry, ...]
    chains: tuple[Chain, ...]
    oracle_state: FinalOracleState
    end_reason: EndReason
    reward: float | None
    steps: tuple[StepMetrics, ...]
    timings_s: Mapping[str, float]
    worker_views: Mapping[str, int]

    @property
    def truncated(self) -> bool:
        """Whether a limit that is not the recipe's own ended the rollout."""
        return self.end_reason in TRUNCATING

    @property
    def truncation_reason(self) -> EndReason | None:
        """The limit that ended the rollout, if one did."""
        return self.end_reason if self.truncated else None

    @property
    def views_scored(self) -> int:
        """Views that the oracle looked at for this rollout."""
        return self.oracle_state.views_scored

    @property
    def num_steps(self) -> int:
        """Views that the best chain took; a dead end takes none."""
        return sum(isinstance(entry, Action) for entry in self.step_log)


@dataclass(frozen=True, eq=False)
class RolloutGroupRecord:
    """N rollouts of one root, in index order."""

    root_index: int
    root: RolloutTask
    completions: tuple[RolloutCompletion, ...]
    metadata: Mapping[str, Any]
    rollout_metrics: Metrics


class RolloutImpl(ABC):
    """A way of running the rollouts of a root: N of them, each within the limits given here and in its task."""

    def __init__(self, num_generations_per_root: int, limits: RolloutLimits) -> None:
        if num_generations_per_root < 1:
            raise ConfigError(f"num_generations_per_root must be >= 1, got {num_generations_per_root}")
        self._count, self._rollout_limits = num_generations_per_root, limits

    @abstractmethod
    async def run_rollout(self, task: RolloutTask) -> RolloutGroupRecord:
        """N rollouts at once, in index order. One that fails ends the group with an error that names it."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the running loop's threads or connections."""

    def _limits_of(self, task: RolloutTask) -> RolloutLimits:
        return self._rollout_limits.tightened(task.limits)

    def _completion(self, task: RolloutTask, traj_idx: int, grown: GrownRollout) -> RolloutCompletion:
        """The completion that a grown rollout amounts to."""
        best = grown.chains[0]
        reason = end_reason(grown.chains, task.recipe, self._limits_of(task).applied(task.recipe))
        log = _step_log(task, best)
        gains = [entry.root_gain for entry in log if isinstance(entry, Observation)]
        return RolloutCompletion(
            rollout_index=traj_idx,
            seed=task.seed_of(traj_idx),
            step_log=log,
            chains=grown.chains,
            oracle_state=final_oracle_state(task.root, best, grown.views_scored),
            end_reason=reason,
            reward=float(np.sum(gains)) if gains else None,
            steps=_step_metrics(offered_steps(best), grown.step_seconds),
            timings_s=grown.timings_s,
            worker_views=grown.worker_views,
        )

    def _metrics(self, task: RolloutTask, completions: Sequence[RolloutCompletion], seconds: float) -> Metrics:
        """Metrics of a group, wherever it was run: its wall time, scoring and selecting summed over its rollouts."""
        began = perf_counter()
        measured = group_metrics(completions)
        timings = {stage: sum(c.timings_s[stage] for c in completions) for stage in ("score", "select")}
        worker_views = sum((Counter(c.worker_views) for c in completions), Counter[str]())
        return {
            **measured,
            **{f"{task.recipe.name}/{name}": value for name, value in measured.items()},
            "per_worker_view_counts": dict(sorted(worker_views.items())),
            "timing/rollout/total": seconds,
            **{f"timing/rollout/{stage}": spent for stage, spent in timings.items()},
            "timing/rollout/aggregate": perf_counter() - began,
        }

    def _group(
        self, task: RolloutTask, completions: tuple[RolloutCompletion, ...], metrics: Metrics
    ) -> RolloutGroupRecord:
        metadata = {"recipe": task.recipe.name, "seed": task.seed, "num_generations": self._count}
        return RolloutGroupRecord(task.index, task, completions, metadata, metrics)


def derived_seed(seed: int, rollout_index: int) -> int:
    """Seed of one rollout of a group; rollout 0 keeps the root's own."""
    if rollout_index == 0:
        return seed
    return int.from_bytes(key_digest(seed, rollout_index, "rollout")[:8], "big") >> 1


def group_metrics(completions: Sequence[RolloutCompletion]) -> Metrics:
    """What a group's completions brought.

    A rollout was truncated, or ended naturally, or could not take a view at its root: the three rates add up to 1.
    ``max_steps_reached_rate`` counts those of the truncated that the step limit cut; the view budget cut the others.
    """
    steps = [float(c.num_steps) for c in completions]
    return {
        **summary("total_reward", [c.reward for c in completions if c.reward is not None]),
        **summary("steps_per_rollout", steps, percentiles=(95, 99)),
        "total_steps": int(sum(steps)),
        **summary("views_scored_per_rollout", [float(c.views_scored) for c in completions]),
        **summary("valid_fanout_per_step", [float(step.valid_fanout) for c in completions for step in c.steps]),
        "truncation_rate": rate(c.truncated for c in completions),
        "natural_termination_rate": rate(c.end_reason in NATURAL for c in completions),
        "no_takeable_view_rate": rate(c.end_reason == NO_TAKEABLE_VIEW for c in completions),
        "max_steps_reached_rate": rate(c.end_reason == STEP_LIMIT for c in completions),
    }


def _step_metrics(steps: Sequence[StepDecision], step_seconds: Sequence[float]) -> tuple[StepMetrics, ...]:
    return tuple(
        StepMetrics(
            candidates=len(step.state.shell),
            valid_fanout=int(step.state.shell.actor_action_mask.sum()),
            entropy=step.decision.entropy,
            seconds=seconds,
        )
        for step, seconds in zip(steps, step_seconds[: len(steps)], strict=True)
    )


def _step_log(task: RolloutTask, chain: Chain) -> tuple[LogEntry, ...]:
    actor, target_id = task.root.actor, task.root.match.target.target_id
    log: list[LogEntry] = [RootView(actor.identity.sample_key, target_id, actor.reference_pose_world_camera)]
    for index, step in enumerate(chain.steps):
        chosen = step.selected_shell_index
        if chosen == NOT_SELECTED:
            continue
        labels = step.state.labels
        probability = float(step.decision.log_probabilities[chosen])
        log.append(Action(index, chosen, step.state.shell.pose_world_camera[chosen], probability))
        log.append(
            Observation(
                step_index=index,
                root_gain=float(labels.target_root_gain[chosen]),
                rri=float(labels.target_rri[chosen]),
                error_after_m2=float(labels.target_pm_dist_after[chosen]),
                candidate_support=float(labels.target_candidate_support[chosen]),
            )
        )
    return tuple(log)
