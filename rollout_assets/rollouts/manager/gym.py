"""The gym way: the rollouts of a root are run by a server, and come back as if they had been run here."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from time import perf_counter

from pydantic import ConfigDict, SecretStr

from rollout_assets.config import ConfigSection, Count, Positive, ServerUrl
from rollout_assets.errors import AnswerRefused, ConfigError, RolloutFailed, ServerUnavailable
from rollout_assets.metrics.summaries import Metrics
from rollout_assets.rollouts.engine import Chain
from rollout_assets.rollouts.manager.completions import (
    GrownRollout,
    RolloutCompletion,
    RolloutGroupRecord,
    RolloutImpl,
    RolloutTask,
)
from rollout_assets.rollouts.manager.endings import RolloutLimits, offered_steps
from rollout_assets.rollouts.remote.client import RolloutClient
from rollout_assets.rollouts.remote.codec import from_text, unpack
from rollout_assets.rollouts.remote.messages import RolloutParams, RolloutRequest, RolloutResult
from rollout_assets.rollouts.remote.retries import Retries

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Before asking a server again; doubled each time."""

WORKER = "0"
"""The worker that views are counted for: one server is one worker."""


class GymServerConfig(ConfigSection):
    """Where rollouts are run, and how long and how often to ask.

    ``deadline_s`` holds for a whole group, further attempts included. A server that says nothing for ``silence_s``, not
    even a heartbeat, counts as gone.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    url: ServerUrl
    token: SecretStr | None = None
    deadline_s: Positive = 600.0
    attempts: Count = 4
    connect_s: Positive = 5.0
    silence_s: Positive = 30.0


class AsyncGymRolloutImpl(RolloutImpl):
    """Runs rollouts on a server. A group equals ``AsyncRolloutImpl``'s to the bit, apart from its timings.

    Chains travel whole, and everything else of a completion is derived from them here, as in the native way. What the
    server says of the root and the reward must agree with that to the bit. A rollout that fails, or does not come in
    time, is an error that names root and rollout; it never becomes a reward.
    """

    def __init__(
        self,
        num_generations_per_root: int,
        gym: GymServerConfig | None,
        max_rollout_steps: int | None = None,
        max_views_scored: int | None = None,
    ) -> None:
        super().__init__(num_generations_per_root, RolloutLimits(max_rollout_steps, max_views_scored))
        self._gym = gym = self._validate_init_params(gym)
        token = None if gym.token is None else gym.token.get_secret_value()
        self._client = RolloutClient(gym.url, token, connect_s=gym.connect_s, silence_s=gym.silence_s)

    async def run_rollout(self, task: RolloutTask) -> RolloutGroupRecord:
        """N rollouts at once, in index order."""
        began = perf_counter()
        results = await self._run_rollouts(task, self._build_inputs(task))
        completions = tuple(self._result_to_completion(task, result) for result in results)
        metrics = self._compute_rollout_metrics(task, completions, perf_counter() - began)
        return self._group(task, completions, metrics)

    async def aclose(self) -> None:
        """Close the running loop's connections."""
        await self._client.aclose()

    def _validate_init_params(self, gym: GymServerConfig | None) -> GymServerConfig:
        if gym is None:
            raise ConfigError("use_gym asks for a rollout server, and none is configured; give gym=GymServerConfig(…)")
        return gym

    def _build_inputs(self, task: RolloutTask) -> list[RolloutRequest]:
        """N rows that differ in index and seed; the recipe goes in full, so the server need not know its name."""
        limits = self._limits_of(task)
        params = RolloutParams(max_rollout_steps=limits.max_rollout_steps, max_views_scored=limits.max_views_scored)
        return [
            RolloutRequest(
                sample_key=task.root.actor.identity.sample_key,
                target=task.root.match.target.target_id,
                recipe=task.recipe,
                seed=task.seed_of(index),
                params=params,
                include=("chains",),
                row_index=index,
            )
            for index in range(self._count)
        ]

    async def _run_rollouts(self, task: RolloutTask, inputs: Sequence[RolloutRequest]) -> list[RolloutResult]:
        """Results in index order. What is missing is asked for again, a few times, under one deadline."""
        results: dict[int, RolloutResult] = {}
        key = uuid.uuid4().hex
        retries = Retries((key,), self._gym.attempts, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        why = "nothing was heard from the server"
        try:
            async with asyncio.timeout(self._gym.deadline_s):
                while True:
                    missing = [request for request in inputs if request.row_index not in results]
                    why, retry_after_s = await self._collect(task, missing, key, results)
                    if len(results) == len(inputs):
                        return [results[index] for index in range(len(inputs))]
                    if not await retries.pause(why, retry_after_s):
                        break
        except TimeoutError:
            why = f"the deadline of {self._gym.deadline_s:g} s has passed; before that: {why}"
        late = ", ".join(str(request.row_index) for request in inputs if request.row_index not in results)
        raise ServerUnavailable(f"{task.root.name}: no answer for rollout {late} of {len(inputs)}: {why}")

    async def _collect(
        self, task: RolloutTask, asked: Sequence[RolloutRequest], key: str, results: dict[int, RolloutResult]
    ) -> tuple[str, float]:
        """Add what the server answers to ``results``; returns why some are missing and how long to wait."""
        url, open_indices = self._client.url, {request.row_index for request in asked}
        why = f"{url} ended its answer before all rollouts were reported"
        try:
            async with aclosing(self._client.stream(asked, key)) as answers:
                async for answer in answers:
                    index = -1 if answer.row_index is None else answer.row_index
                    if index not in open_indices:
                        problem = "twice" if 0 <= index < self._count else f"of 0 to {self._count - 1}"
                        raise AnswerRefused(f"{task.root.name}: {url} answered for rollout {index} {problem}")
                    open_indices.discard(index)
                    if isinstance(answer, RolloutResult):
                        results[index] = answer
                    elif answer.transient:
                        why = f"rollout {index}: {answer.error_class}: {answer.message}"
                    else:
                        where = f"{task.root.name}: rollout {index} (seed {task.seed_of(index)}) failed on {url}"
                        raise RolloutFailed(f"{where}: {answer.error_class}: {answer.message}")
        except ServerUnavailable as error:
            return str(error), error.retry_after_s
        return why, 0.0

    def _result_to_completion(self, task: RolloutTask, result: RolloutResult) -> RolloutCompletion:
        index = result.row_index or 0
        where = f"{task.root.name}: rollout {index} of {self._client.url}"
        if result.status == "refused":
            raise RolloutFailed(f"{where}: the target gets no rollout there: {result.refused_reason}")
        seed = task.seed_of(index)
        there = (result.sample_key, result.target_id, result.agent_ref.name, result.seed, result.root_error_m2)
        target = task.root.match.target.target_id
        error = task.root.oracle_state.target.root_error_m2
        _refuse_difference(where, there, (task.root.actor.identity.sample_key, target, task.recipe.name, seed, error))
        chains: tuple[Chain, ...] = unpack(tuple[Chain, ...], from_text(result.chains or ""))
        if not chains:
            raise AnswerRefused(f"{where}: there is no chain in it")
        _refuse_difference(where, (len(result.step_timings_s),), (len(offered_steps(chains[0])),))
        completion = self._completion(task, index, _grown(result, chains))
        _refuse_difference(where, _measured_there(result), _measured_here(completion))
        return completion

    def _compute_rollout_metrics(
        self, task: RolloutTask, completions: Sequence[RolloutCompletion], seconds: float
    ) -> Metrics:
        return self._metrics(task, completions, seconds)


def _grown(result: RolloutResult, chains: tuple[Chain, ...]) -> GrownRollout:
    return GrownRollout(
        chains=chains,
        views_scored=result.views_scored,
        step_seconds=result.step_timings_s,
        timings_s={"score": 0.0, "select": 0.0} | result.timings_s,
        worker_views={WORKER: result.views_scored} if result.views_scored else {},
    )


def _measured_there(result: RolloutResult) -> tuple[object, ...]:
    """What the server says of a rollout that follows from its chains as well."""
    return result.reward, result.end_reason, result.root_points, result.final_points


def _measured_here(completion: RolloutCompletion) -> tuple[object, ...]:
    reward, oracle = completion.reward, completion.oracle_state
    finite = reward if reward is not None and math.isfinite(reward) else None
    return finite, completion.end_reason, oracle.root_points, oracle.points


def _refuse_difference(where: str, there: tuple[object, ...], here: tuple[object, ...]) -> None:
    """Raise unless both sides agree to the bit; otherwise the server has another campaign, source or device."""
    for theirs, ours in zip(there, here, strict=True):
        if theirs != ours:
            raise AnswerRefused(f"{where}: {theirs!r} there, {ours!r} here; compare its /health with the campaign")
