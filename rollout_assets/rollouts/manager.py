"""The rollout manager: several rollouts of one root at once, as a group with metrics.

The unit of work is a root (one source row with one target) under a recipe and a seed. A group holds N rollouts of it
that differ in their seed only; rollout 0 keeps the root's own seed, so a group of one equals what a campaign stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import ConfigError, RolloutFailed
from rollout_assets.geometry.poses import Float32
from rollout_assets.randomness import key_digest
from rollout_assets.rollouts.batching import BatchLimits, EvaluationBatcher
from rollout_assets.rollouts.engine import Chain, EvaluatedState, Expansion, Path, RolloutKey, expand
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.statistics import Metrics, prefixed, rate, summary
from rollout_assets.rollouts.trace import NOT_SELECTED

HORIZON = "horizon"
STEP_LIMIT = "max_rollout_steps"


@dataclass(frozen=True, eq=False)
class ManagedRoot:
    """What a caller asks for: a root with the recipe to run and the seed to derive from."""

    index: int
    root: TargetedRoot
    recipe: RolloutRecipeConfig
    seed: int


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
    """One step of a rollout: what was offered and how long it took."""

    candidates: int
    valid_fanout: int
    entropy: float


@dataclass(frozen=True, eq=False)
class RolloutCompletion:
    """One rollout. ``step_log`` is the root, then action and observation per step, of its best chain.

    ``truncated`` says that a limit ended it (``truncation_reason``), not a dead end. ``reward`` is the best chain's
    cumulative target root gain. ``chains`` holds every kept chain, best first.
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


@dataclass(frozen=True, eq=False)
class RolloutGroupRecord:
    """N rollouts of one root, in index order."""

    root_index: int
    root: ManagedRoot
    completions: tuple[RolloutCompletion, ...]
    metadata: Mapping[str, Any]
    rollout_metrics: Metrics


class RolloutImpl(Protocol):
    """A way of running the rollouts of a root."""

    async def run_rollout(self, root: ManagedRoot) -> RolloutGroupRecord:
        """N completions of one root."""


def derived_seed(seed: int, rollout_index: int) -> int:
    """Seed of one rollout of a group; rollout 0 keeps the root's own."""
    if rollout_index == 0:
        return seed
    return int.from_bytes(key_digest(seed, rollout_index, "rollout")[:8], "big") >> 1


class AsyncRolloutImpl:
    """Runs rollouts in this process. All concurrent rollouts share one evaluator and its device launches.

    ``scorer`` evaluates states; its states are immutable, so rollouts share nothing they could change. One impl serves
    any number of concurrent ``run_rollout`` calls of an event loop.
    """

    def __init__(
        self,
        num_generations_per_root: int,
        scorer: StateEvaluator,
        max_rollout_steps: int | None = None,
        limits: BatchLimits | None = None,
    ) -> None:
        if num_generations_per_root < 1:
            raise ConfigError(f"num_generations_per_root must be >= 1, got {num_generations_per_root}")
        if max_rollout_steps is not None and max_rollout_steps < 1:
            raise ConfigError(f"max_rollout_steps must be >= 1, got {max_rollout_steps}")
        self._count = num_generations_per_root
        self._scorer = scorer
        self._max_steps = max_rollout_steps
        self._limits = limits or BatchLimits()
        self._batchers: WeakKeyDictionary[asyncio.AbstractEventLoop, EvaluationBatcher] = WeakKeyDictionary()

    async def run_rollout(self, root: ManagedRoot) -> RolloutGroupRecord:
        """N rollouts at once, in index order. One that fails cancels its siblings and names root and rollout."""
        began = perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run_single_rollout(root, index)) for index in range(self._count)]
        except BaseExceptionGroup as failures:
            raise _first_failure(failures) from failures
        completions = tuple(task.result() for task in tasks)
        metrics = self._aggregate_rollout_metrics(root, completions, perf_counter() - began)
        metadata = {"recipe": root.recipe.name, "seed": root.seed, "num_generations": self._count}
        return RolloutGroupRecord(root.index, root, completions, metadata, metrics)

    async def aclose(self) -> None:
        """Finish what is under way in the running loop and stop its scoring threads."""
        batcher = self._batchers.pop(asyncio.get_running_loop(), None)
        if batcher is not None:
            await batcher.aclose()

    async def _run_single_rollout(self, root: ManagedRoot, traj_idx: int) -> RolloutCompletion:
        seed = derived_seed(root.seed, traj_idx)
        target_id = root.root.match.target.target_id
        recipe = self._limited(root.recipe)
        rollout = expand(recipe, RolloutKey(seed, root.root.actor.identity.sample_key, target_id))
        timings = {"score": 0.0, "select": 0.0}
        views = 0
        began = perf_counter()
        try:
            paths: Sequence[Path] | None = next(rollout)
            while paths is not None:
                asked = perf_counter()
                states = await self._batcher().evaluate([StateRequest(root.root, seed, path) for path in paths])
                views += sum(int(state.shell.actor_action_mask.sum()) for state in states)
                scored = perf_counter()
                paths, chains = self._select_view(rollout, dict(zip(paths, states, strict=True)))
                timings["score"] += scored - asked
                timings["select"] += perf_counter() - scored
        except Exception as error:
            raise RolloutFailed(f"{root.root.name}: rollout {traj_idx} (seed {seed}) failed: {error}") from error
        timings["total"] = perf_counter() - began
        return _completion(root, recipe, traj_idx, seed, chains, views, timings)

    def _select_view(
        self, rollout: Expansion, states: Mapping[Path, EvaluatedState]
    ) -> tuple[Sequence[Path] | None, tuple[Chain, ...]]:
        """Let the recipe decide at every open state: the paths it wants next, or None and its kept chains."""
        try:
            return rollout.send(states), ()
        except StopIteration as stop:
            return None, stop.value

    def _aggregate_rollout_metrics(
        self, root: ManagedRoot, completions: Sequence[RolloutCompletion], seconds: float
    ) -> Metrics:
        began = perf_counter()
        metrics = group_metrics(completions)
        metrics |= prefixed(root.recipe.name, summary("total_reward", [c.reward for c in completions]))
        metrics["per_worker_view_counts"] = self._batcher().per_worker_view_counts
        metrics["timing/rollout/total"] = seconds
        for stage in ("score", "select"):
            metrics[f"timing/rollout/{stage}"] = sum(c.timings_s[stage] for c in completions)
        metrics["timing/rollout/aggregate"] = perf_counter() - began
        return metrics

    def _batcher(self) -> EvaluationBatcher:
        loop = asyncio.get_running_loop()
        if loop not in self._batchers:
            self._batchers[loop] = EvaluationBatcher(self._scorer, self._limits)
        return self._batchers[loop]

    def _limited(self, recipe: RolloutRecipeConfig) -> RolloutRecipeConfig:
        if self._max_steps is None or recipe.horizon <= self._max_steps:
            return recipe
        return recipe.model_copy(update={"horizon": self._max_steps})


class RolloutManager:
    """Checks what it is given and delegates to the implementation that fits."""

    def __init__(
        self,
        num_generations_per_root: int,
        scorer: StateEvaluator | None = None,
        max_rollout_steps: int | None = None,
        limits: BatchLimits | None = None,
        use_gym: bool = False,
    ) -> None:
        if use_gym:
            raise ConfigError("use_gym asks for a rollout server, and none is configured")
        if scorer is None:
            raise ConfigError("the native way of running rollouts needs a scorer, got none")
        self._impl: RolloutImpl = AsyncRolloutImpl(num_generations_per_root, scorer, max_rollout_steps, limits)

    async def run_rollout(self, root: ManagedRoot) -> RolloutGroupRecord:
        """The root's group of rollouts."""
        return await self._impl.run_rollout(root)


def group_metrics(completions: Sequence[RolloutCompletion]) -> Metrics:
    """Metrics of completions, wherever they were run."""
    steps = [float(len(c.steps)) for c in completions]
    return {
        **summary("total_reward", [c.reward for c in completions]),
        **summary("steps_per_rollout", steps, percentiles=(95, 99)),
        "total_steps": int(sum(steps)),
        **summary("views_scored_per_rollout", [float(c.views_scored) for c in completions]),
        **summary("valid_fanout_per_step", [float(step.valid_fanout) for c in completions for step in c.steps]),
        "truncation_rate": rate(c.truncated for c in completions),
        "natural_termination_rate": rate(not c.truncated for c in completions),
        "max_steps_reached_rate": rate(c.truncation_reason in (HORIZON, STEP_LIMIT) for c in completions),
    }


def _completion(
    root: ManagedRoot,
    recipe: RolloutRecipeConfig,
    traj_idx: int,
    seed: int,
    chains: tuple[Chain, ...],
    views: int,
    timings: Mapping[str, float],
) -> RolloutCompletion:
    best = chains[0]
    reason = None
    if best.termination(recipe.horizon) == "fixed_horizon":
        reason = STEP_LIMIT if recipe.horizon < root.recipe.horizon else HORIZON
    log = _step_log(root, best)
    observed = [entry for entry in log if isinstance(entry, Observation)]
    start = root.root.oracle_state.target.root_error_m2
    return RolloutCompletion(
        rollout_index=traj_idx,
        seed=seed,
        step_log=log,
        chains=chains,
        final_error_m2=observed[-1].error_after_m2 if observed else start,
        truncated=reason is not None,
        truncation_reason=reason,
        reward=float(np.sum([entry.root_gain for entry in observed])),
        steps=tuple(
            StepMetrics(
                candidates=len(step.state.shell),
                valid_fanout=int(step.state.shell.actor_action_mask.sum()),
                entropy=step.decision.entropy,
            )
            for step in best.steps
        ),
        views_scored=views,
        timings_s=timings,
    )


def _step_log(root: ManagedRoot, chain: Chain) -> tuple[LogEntry, ...]:
    actor, target_id = root.root.actor, root.root.match.target.target_id
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


def _first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that a task group's siblings were cancelled for."""
    for error in failures.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first_failure(error)
        return error
    return failures
