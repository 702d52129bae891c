"""The rollout manager: several rollouts of one root at once, as a group with metrics.

The unit of work is a root (one source row with one target) under a recipe and a seed. A group holds N rollouts of it
that differ in their seed only; rollout 0 keeps the root's own seed, so a group of one equals what a campaign stores.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from weakref import WeakKeyDictionary

from rollout_assets.errors import ConfigError, RolloutFailed
from rollout_assets.metrics.summaries import Metrics
from rollout_assets.rollouts.driving import RolloutStart
from rollout_assets.rollouts.engine import Chain, EvaluatedState, Expansion
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.keys import ShellPath
from rollout_assets.rollouts.manager.batching import BatchedState, BatchLimits, EvaluationBatcher
from rollout_assets.rollouts.manager.completions import (
    GrownRollout,
    RolloutCompletion,
    RolloutGroupRecord,
    RolloutImpl,
    RolloutTask,
)
from rollout_assets.rollouts.manager.endings import RolloutLimits
from rollout_assets.rollouts.manager.gym import AsyncGymRolloutImpl, GymServerConfig


@dataclass
class _Spent:
    """What a rollout has taken so far: views by worker, and seconds per step."""

    worker_views: Counter[str] = field(default_factory=Counter)
    score_s: list[float] = field(default_factory=list)
    select_s: list[float] = field(default_factory=list)
    began: float = field(default_factory=perf_counter)

    def count(self, states: Sequence[BatchedState]) -> None:
        for batched in states:
            self.worker_views[batched.worker] += batched.state.views_scored

    def rollout(self, chains: tuple[Chain, ...]) -> GrownRollout:
        """The rollout that these chains are, now that it has ended."""
        return GrownRollout(
            chains=chains,
            views_scored=self.worker_views.total(),
            step_seconds=tuple(score + select for score, select in zip(self.score_s, self.select_s, strict=True)),
            timings_s={
                "score": sum(self.score_s),
                "select": sum(self.select_s),
                "total": perf_counter() - self.began,
            },
            worker_views=dict(+self.worker_views),
        )


class AsyncRolloutImpl(RolloutImpl):
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
        max_views_scored: int | None = None,
    ) -> None:
        super().__init__(num_generations_per_root, RolloutLimits(max_rollout_steps, max_views_scored))
        self._scorer = scorer
        self._limits = limits or BatchLimits()
        self._batchers: WeakKeyDictionary[asyncio.AbstractEventLoop, EvaluationBatcher] = WeakKeyDictionary()

    async def run_rollout(self, task: RolloutTask) -> RolloutGroupRecord:
        """N rollouts at once, in index order. One that fails cancels its siblings and names root and rollout."""
        began = perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._run_single_rollout(task, index)) for index in range(self._count)]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        completions = tuple(rollout.result() for rollout in running)
        metrics = self._aggregate_rollout_metrics(task, completions, perf_counter() - began)
        return self._group(task, completions, metrics)

    async def run_alone(self, task: RolloutTask) -> RolloutCompletion:
        """The root's first rollout, without a group and its metrics."""
        return await self._run_single_rollout(task, 0)

    async def aclose(self) -> None:
        """Finish what is under way in the running loop and stop its scoring threads."""
        batcher = self._batchers.pop(asyncio.get_running_loop(), None)
        if batcher is not None:
            await batcher.aclose()

    async def _run_single_rollout(self, task: RolloutTask, traj_idx: int) -> RolloutCompletion:
        seed = task.seed_of(traj_idx)
        try:
            grown = await self._grow(task, seed)
        except Exception as error:
            raise RolloutFailed(f"{task.root.name}: rollout {traj_idx} (seed {seed}) failed: {error}") from error
        return self._completion(task, traj_idx, grown)

    async def _grow(self, task: RolloutTask, seed: int) -> GrownRollout:
        limits = self._limits_of(task)
        start = RolloutStart(task.root, seed, limits.applied(task.recipe))
        rollout = start.expansion()
        spent = _Spent()
        paths: Sequence[ShellPath] | None = next(rollout)
        while paths is not None:
            asked = perf_counter()
            requests = [start.request(path) for path in paths]
            if not await self._fits(requests, spent.worker_views.total(), limits.max_views_scored):
                _, chains = self._select_view(rollout, {})
                break
            states = await self._batcher().evaluate(requests)
            spent.count(states)
            scored = perf_counter()
            paths, chains = self._select_view(rollout, {batched.state.path: batched.state for batched in states})
            spent.score_s.append(scored - asked)
            spent.select_s.append(perf_counter() - scored)
        return spent.rollout(chains)

    async def _fits(self, requests: Sequence[StateRequest], scored: int, budget: int | None) -> bool:
        """Whether a step still fits the budget. Its views are counted only when not all candidates would fit."""
        if budget is None:
            return True
        candidates = len(requests) * self._scorer.config.candidates.num_candidates
        return scored + candidates <= budget or scored + await self._batcher().views_to_score(requests) <= budget

    def _select_view(
        self, rollout: Expansion, states: Mapping[ShellPath, EvaluatedState]
    ) -> tuple[Sequence[ShellPath] | None, tuple[Chain, ...]]:
        """Let the recipe decide at every open state: the paths it wants next, or None and its kept chains.

        Without any states the rollout ends here.
        """
        try:
            return rollout.send(states), ()
        except StopIteration as stop:
            return None, stop.value

    def _aggregate_rollout_metrics(
        self, task: RolloutTask, completions: Sequence[RolloutCompletion], seconds: float
    ) -> Metrics:
        return self._metrics(task, completions, seconds)

    def _batcher(self) -> EvaluationBatcher:
        loop = asyncio.get_running_loop()
        if loop not in self._batchers:
            self._batchers[loop] = EvaluationBatcher(self._scorer, self._limits)
        return self._batchers[loop]


class RolloutManager:
    """Checks what it is given and delegates to the implementation that fits."""

    def __init__(
        self,
        num_generations_per_root: int,
        scorer: StateEvaluator | None = None,
        max_rollout_steps: int | None = None,
        limits: BatchLimits | None = None,
        use_gym: bool = False,
        gym: GymServerConfig | None = None,
        max_views_scored: int | None = None,
    ) -> None:
        self._impl: RolloutImpl
        if use_gym:
            self._impl = AsyncGymRolloutImpl(num_generations_per_root, gym, max_rollout_steps, max_views_scored)
        elif gym is not None:
            raise ConfigError("a rollout server is configured, but use_gym is False")
        elif scorer is None:
            raise ConfigError("the native way of running rollouts needs a scorer, got none")
        else:
            self._impl = AsyncRolloutImpl(num_generations_per_root, scorer, max_rollout_steps, limits, max_views_scored)

    async def run_rollout(self, task: RolloutTask) -> RolloutGroupRecord:
        """The root's group of rollouts."""
        return await self._impl.run_rollout(task)

    async def aclose(self) -> None:
        """Let go of the running loop's threads or connections."""
        await self._impl.aclose()
