"""What is asked of a rollout manager and what it answers: roots, completions, groups, and their metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import ConfigError
from rollout_assets.geometry.poses import Float32
from rollout_assets.metrics.summaries import Metrics, rate, summary
from rollout_assets.randomness import key_digest
from rollout_assets.rollouts.engine import Chain
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.trace import NOT_SELECTED

HORIZON = "horizon"
STEP_LIMIT = "max_rollout_steps"


@dataclass(frozen=True, eq=False)
class RolloutTask:
    """What a caller asks for: a root with the recipe to run, the seed to derive from, and how many steps at most."""

    index: int
    root: TargetedRoot
    recipe: RolloutRecipeConfig
    seed: int
    max_rollout_steps: int | None = None

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
    """What one state of a rollout offered."""

    candidates: int
    valid_fanout: int
    entropy: float


@dataclass(frozen=True, eq=False)
class RolloutCompletion:
    """One rollout. ``step_log`` is the root, then action and observation per step, of its best chain.

    ``truncated`` says that a limit ended it (``truncation_reason``), not a dead end. ``reward`` is the best chain's
    cumulative target root gain. ``chains`` holds every kept chain, best first. ``steps`` has one entry per state in
    which views were offered, a dead end included.
    """

    rollout_index: int
    seed: int
    step_log: tuple[LogEntry, ...]
    chains: tuple[Chain, ...]
    final_error_m2: float
    truncated: bool
    truncation_reason: str | None
    reward: float
    steps: tuple[StepMetrics, ...]
    views_scored: int
    timings_s: Mapping[str, float]

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
    """A way of running the rollouts of a root: N of them, each of at most ``max_rollout_steps`` steps."""

    def __init__(self, num_generations_per_root: int, max_rollout_steps: int | None) -> None:
        if num_generations_per_root < 1:
            raise ConfigError(f"num_generations_per_root must be >= 1, got {num_generations_per_root}")
        if max_rollout_steps is not None and max_rollout_steps < 1:
            raise ConfigError(f"max_rollout_steps must be >= 1, got {max_rollout_steps}")
        self._count, self._max_steps = num_generations_per_root, max_rollout_steps

    @abstractmethod
    async def run_rollout(self, task: RolloutTask) -> RolloutGroupRecord:
        """N rollouts at once, in index order. One that fails ends the group with an error that names it."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the running loop's threads or connections."""

    def _limited(self, task: RolloutTask) -> RolloutRecipeConfig:
        """The recipe as it is run."""
        return step_limited(task.recipe, self._max_steps, task.max_rollout_steps)

    def _completion(
        self, task: RolloutTask, traj_idx: int, chains: tuple[Chain, ...], views: int, timings: Mapping[str, float]
    ) -> RolloutCompletion:
        """The completion that kept chains amount to."""
        horizon = self._limited(task).horizon
        best, reason = chains[0], None
        if best.termination(horizon) == "fixed_horizon":
            reason = STEP_LIMIT if horizon < task.recipe.horizon else HORIZON
        log = _step_log(task, best)
        observed = [entry for entry in log if isinstance(entry, Observation)]
        start = task.root.oracle_state.target.root_error_m2
        return RolloutCompletion(
            rollout_index=traj_idx,
            seed=task.seed_of(traj_idx),
            step_log=log,
            chains=chains,
            final_error_m2=observed[-1].error_after_m2 if observed else start,
            truncated=reason is not None,
            truncation_reason=reason,
            reward=float(np.sum([entry.root_gain for entry in observed])),
            steps=tuple(
                StepMetrics(len(step.state.shell), int(step.state.shell.actor_action_mask.sum()), step.decision.entropy)
                for step in best.steps
            ),
            views_scored=views,
            timings_s=timings,
        )

    def _metrics(
        self, task: RolloutTask, completions: Sequence[RolloutCompletion], worker_views: dict[str, int], seconds: float
    ) -> Metrics:
        """Metrics of a group, wherever it was run: its wall time, scoring and selecting summed over its rollouts."""
        began = perf_counter()
        timings = {stage: sum(c.timings_s[stage] for c in completions) for stage in ("score", "select")}
        return {
            **group_metrics(task.recipe.name, completions),
            "per_worker_view_counts": worker_views,
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


def step_limited(recipe: RolloutRecipeConfig, *limits: int | None) -> RolloutRecipeConfig:
    """The recipe as it is run: its horizon, or the smallest limit below it."""
    horizon = min(recipe.horizon, *(limit for limit in (recipe.horizon, *limits) if limit is not None))
    return recipe if horizon == recipe.horizon else recipe.model_copy(update={"horizon": horizon})


def group_metrics(recipe_name: str, completions: Sequence[RolloutCompletion]) -> Metrics:
    """What a group's completions brought."""
    steps = [float(c.num_steps) for c in completions]
    reward = summary("total_reward", [c.reward for c in completions])
    return {
        **reward,
        **summary("steps_per_rollout", steps, percentiles=(95, 99)),
        "total_steps": int(sum(steps)),
        **summary("views_scored_per_rollout", [float(c.views_scored) for c in completions]),
        **summary("valid_fanout_per_step", [float(step.valid_fanout) for c in completions for step in c.steps]),
        "truncation_rate": rate(c.truncated for c in completions),
        "natural_termination_rate": rate(not c.truncated for c in completions),
        "max_steps_reached_rate": rate(c.truncation_reason in (HORIZON, STEP_LIMIT) for c in completions),
        **{f"{recipe_name}/{name}": value for name, value in reward.items()},
    }


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
