"""The gym way: the rollouts of a root are run by a server, and come back as if they had been run here."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence
from time import perf_counter

from rollout_assets.errors import AnswerRefused, ConfigError, RolloutFailed, ServerUnavailable
from rollout_assets.metrics.summaries import Metrics
from rollout_assets.rollouts.engine import Chain
from rollout_assets.rollouts.manager.completions import (
    RolloutCompletion,
    RolloutGroupRecord,
    RolloutTask,
    completion_of,
    derived_seed,
    group_metrics,
    step_limited,
    timing_metrics,
)
from rollout_assets.rollouts.remote.client import GymClient, GymServerConfig, RowFailure
from rollout_assets.rollouts.remote.codec import from_text, unpack
from rollout_assets.rollouts.remote.messages import RolloutParams, RolloutRequest, RolloutResult

__all__ = ["AsyncGymRolloutImpl", "GymServerConfig"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Before asking a server again; doubled each time."""

WORKER = "0"
"""Whom views are counted for: one server is one worker."""


class AsyncGymRolloutImpl:
    """Runs rollouts on a server. A group equals ``AsyncRolloutImpl``'s to the bit, apart from its timings.

    Chains travel whole, and everything else of a completion is derived from them here, as in the native way. What the
    server says of the root and the reward must agree with that to the bit. A rollout that fails, or does not come in
    time, is an error that names root and rollout; it never becomes a reward.
    """

    def __init__(
        self, num_generations_per_root: int, gym: GymServerConfig | None, max_rollout_steps: int | None = None
    ) -> None:
        self._count, self._max_steps = num_generations_per_root, max_rollout_steps
        self._client = GymClient(self._validate_init_params(gym))
        self._views = 0

    async def run_rollout(self, root: RolloutTask) -> RolloutGroupRecord:
        """N rollouts at once, in index order."""
        began = perf_counter()
        results = await self._run_rollouts(root, self._build_inputs(root))
        completions = tuple(self._result_to_completion(root, result) for result in results)
        metrics = self._compute_rollout_metrics(root, completions, perf_counter() - began)
        metadata = {"recipe": root.recipe.name, "seed": root.seed, "num_generations": self._count}
        return RolloutGroupRecord(root.index, root, completions, metadata, metrics)

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        await self._client.aclose()

    def _validate_init_params(self, gym: GymServerConfig | None) -> GymServerConfig:
        if self._count < 1:
            raise ConfigError(f"num_generations_per_root must be >= 1, got {self._count}")
        if self._max_steps is not None and self._max_steps < 1:
            raise ConfigError(f"max_rollout_steps must be >= 1, got {self._max_steps}")
        if gym is None:
            raise ConfigError("use_gym asks for a rollout server, and none is configured; give gym=GymServerConfig(…)")
        return gym

    def _build_inputs(self, root: RolloutTask) -> list[RolloutRequest]:
        """N rows that differ in index and seed; the recipe goes in full, so the server need not know its name."""
        run = step_limited(root.recipe, self._max_steps, root.max_rollout_steps)
        limit = None if run.horizon == root.recipe.horizon else run.horizon
        return [
            RolloutRequest(
                sample_key=root.root.actor.identity.sample_key,
                target=root.root.match.target.target_id,
                recipe=root.recipe,
                seed=derived_seed(root.seed, index),
                params=RolloutParams(max_rollout_steps=limit),
                include=("chains",),
                row_index=index,
            )
            for index in range(self._count)
        ]

    async def _run_rollouts(self, root: RolloutTask, inputs: Sequence[RolloutRequest]) -> list[RolloutResult]:
        """Results in index order. Rows that are missing are asked for again, a few times, under one deadline."""
        gym, found = self._client.config, dict[int, RolloutResult]()
        key, why = uuid.uuid4().hex, "nothing was heard from the server"
        try:
            async with asyncio.timeout(gym.deadline_s):
                for attempt in range(gym.attempts):
                    missing = [row for row in inputs if row.row_index not in found]
                    why, wait_s = await self._collect(root, missing, key, found)
                    if len(found) == len(inputs):
                        return [found[index] for index in range(len(inputs))]
                    await asyncio.sleep(max(wait_s, min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)))
        except TimeoutError:
            why = f"the deadline of {gym.deadline_s:g} s has passed; before that: {why}"
        late = ", ".join(str(row.row_index) for row in inputs if row.row_index not in found)
        raise ServerUnavailable(f"{root.root.name}: no answer for rollout {late} of {len(inputs)}: {why}")

    async def _collect(
        self, root: RolloutTask, asked: Sequence[RolloutRequest], key: str, found: dict[int, RolloutResult]
    ) -> tuple[str, float]:
        """Add the results of one request to ``found``; returns why rows are missing and how long to wait."""
        url, wanted = self._client.config.url, {row.row_index for row in asked}
        why = f"{url} ended its answer before all rows were told"
        try:
            async for answer in self._client.answers(asked, key):
                index = -1 if answer.row_index is None else answer.row_index
                if index not in wanted:
                    problem = "twice" if 0 <= index < self._count else f"of 0 to {self._count - 1}"
                    raise AnswerRefused(f"{root.root.name}: {url} answered for rollout {index} {problem}")
                wanted.discard(index)
                if isinstance(answer, RolloutResult):
                    found[index] = answer
                elif answer.transient:
                    why = f"rollout {index}: {answer.error_class}: {answer.message}"
                else:
                    raise self._failed(root, answer)
        except ServerUnavailable as error:
            return str(error), error.retry_after_s
        return why, 0.0

    def _failed(self, root: RolloutTask, failure: RowFailure) -> RolloutFailed:
        seed = derived_seed(root.seed, failure.row_index)
        where = f"{root.root.name}: rollout {failure.row_index} (seed {seed}) failed on {self._client.config.url}"
        return RolloutFailed(f"{where}: {failure.error_class}: {failure.message}")

    def _result_to_completion(self, root: RolloutTask, result: RolloutResult) -> RolloutCompletion:
        index = result.row_index or 0
        where = f"{root.root.name}: rollout {index} of {self._client.config.url}"
        if result.status == "refused":
            raise RolloutFailed(f"{where}: the target gets no rollout there: {result.refused_reason}")
        seed = derived_seed(root.seed, index)
        there = (result.sample_key, result.target_id, result.agent_ref.name, result.seed, result.root_error_m2)
        target = root.root.match.target.target_id
        error = root.root.oracle_state.target.root_error_m2
        _refuse_other(where, there, (root.root.actor.identity.sample_key, target, root.recipe.name, seed, error))
        chains: tuple[Chain, ...] = unpack(tuple[Chain, ...], from_text(result.chains or ""))
        if not chains:
            raise AnswerRefused(f"{where}: there is no chain in it")
        recipe = step_limited(root.recipe, self._max_steps, root.max_rollout_steps)
        timings = {"score": 0.0, "select": 0.0} | result.timings_s
        completion = completion_of(root, recipe, index, seed, chains, result.views_scored, timings)
        reward = completion.reward if math.isfinite(completion.reward) else None
        _refuse_other(where, (result.reward,), (reward,))
        return completion

    def _compute_rollout_metrics(
        self, root: RolloutTask, completions: Sequence[RolloutCompletion], seconds: float
    ) -> Metrics:
        began = perf_counter()
        self._views += sum(completion.views_scored for completion in completions)
        metrics = group_metrics(root.recipe.name, completions)
        metrics["per_worker_view_counts"] = {WORKER: self._views}
        metrics |= timing_metrics(completions, seconds, began)
        return metrics


def _refuse_other(where: str, there: tuple[object, ...], here: tuple[object, ...]) -> None:
    """What both sides know must agree to the bit; else the server has another campaign, source or device."""
    for theirs, ours in zip(there, here, strict=True):
        if theirs != ours:
            raise AnswerRefused(f"{where}: {theirs!r} there, {ours!r} here; compare its /health with the campaign")
