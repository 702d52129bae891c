"""Asking policies that packages bring: all states that wait for one policy are observed and scored together."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import PolicyRefused
from rollout_assets.geometry.poses import Float64
from rollout_assets.observations.observation import Arrays, Observations
from rollout_assets.observations.policy import ViewPolicy
from rollout_assets.rollouts.engine import EvaluatedState
from rollout_assets.rollouts.evaluation import PolicyQuestion, QuestionName, StateEvaluator, StateName, StateRequest
from rollout_assets.rollouts.observing import StateObserver
from rollout_assets.rollouts.policies import PolicyProposal
from rollout_assets.rollouts.policy_registry import policy_of

Asked: TypeAlias = tuple[StateName, QuestionName | None]
"""What tells requests apart."""

AskedState: TypeAlias = tuple[StateRequest, EvaluatedState]
"""A request that comes with a question, and its state."""

STATES_PER_CALL = 256
"""States that a policy is shown at a time, so that what it computes stays small beside the observations."""


class StateProposer:
    """Evaluates states and answers the questions that come with them. Safe between threads.

    What a policy says of a state does not depend on what it was asked with, if the policy keeps its promise.
    """

    def __init__(self, evaluator: StateEvaluator) -> None:
        self._evaluator = evaluator
        self._observers: dict[str, StateObserver] = {}
        self._lock = threading.Lock()

    def evaluate(self, requests: Sequence[StateRequest]) -> list[EvaluatedState]:
        """The states of all requests, in order, each with the proposal that it asks for."""
        states = self._evaluator.evaluate(requests)
        proposals = self._proposals(
            [pair for pair in zip(requests, states, strict=True) if pair[0].question is not None]
        )
        return [
            state if request.question is None else replace(state, proposal=proposals[asked(request)])
            for request, state in zip(requests, states, strict=True)
        ]

    def _proposals(self, states: Sequence[AskedState]) -> dict[Asked, PolicyProposal]:
        """What is asked for, each once, in calls of one policy."""
        waiting: defaultdict[tuple[str, str | None], dict[Asked, AskedState]] = defaultdict(dict)
        for request, state in states:
            recipe = _question(request).recipe
            waiting[recipe.policy, recipe.checkpoint_sha256][asked(request)] = request, state
        proposals: dict[Asked, PolicyProposal] = {}
        for same_policy in waiting.values():
            names, shown = list(same_policy), list(same_policy.values())
            for start in range(0, len(shown), STATES_PER_CALL):
                part = slice(start, start + STATES_PER_CALL)
                proposals |= dict(zip(names[part], self._ask(shown[part]), strict=True))
        return proposals

    def _ask(self, asked_states: Sequence[AskedState]) -> list[PolicyProposal]:
        """Proposals of one policy for some states."""
        requests, states = [request for request, _ in asked_states], [state for _, state in asked_states]
        policy = policy_of(_question(requests[0]).recipe)
        steps_left = [_question(request).steps_left for request in requests]
        observations = self._observer(policy).observe(requests, steps_left, states)
        began = perf_counter()
        scores = checked_scores(policy, observations, requests)
        self._evaluator.times.add("policy", began)
        return [PolicyProposal(row, policy.score_source) for row in scores]

    def _observer(self, policy: ViewPolicy) -> StateObserver:
        layout = policy.observation.layout_hash
        with self._lock:
            if layout not in self._observers:
                self._observers[layout] = StateObserver(self._evaluator, policy.observation)
            return self._observers[layout]


def asked(request: StateRequest) -> Asked:
    """What tells a request apart from others."""
    return (request.key, request.path), None if request.question is None else request.question.name


def checked_scores(policy: ViewPolicy, observations: Observations[Arrays], requests: Sequence[StateRequest]) -> Float64:
    """(b, k) scores of the states observed, NaN where a view cannot be taken.

    Scores of another shape, or one that is not finite where a view can be taken, are ``PolicyRefused``: choosing
    among them would be chance.
    """
    takeable: NDArray[np.bool_] = observations.candidate_mask
    name = _question(requests[0]).recipe.policy
    scores = np.asarray(policy.scores(observations))
    if scores.shape != takeable.shape or scores.dtype.kind not in "fiu":
        raise PolicyRefused(
            f"policy {name}: scores must be numbers of shape {takeable.shape}, got {scores.dtype} of {scores.shape}"
        )
    bad = np.argwhere(takeable & ~np.isfinite(scores))
    if len(bad):
        row, view = bad[0].tolist()
        where = f"{requests[row].root.name}, path {list(requests[row].path)}"
        raise PolicyRefused(
            f"policy {name}: scores of views that can be taken must be finite, got {scores[row, view]} "
            f"for view {view} at {where}"
        )
    return np.where(takeable, scores, np.nan).astype(np.float64)


def score_source_of(recipe: RolloutRecipeConfig) -> str | None:
    """What the scores of the policy that a recipe brings are called; None for the engine's own policies."""
    return policy_of(recipe).score_source if recipe.brings_policy else None


def _question(request: StateRequest) -> PolicyQuestion:
    assert request.question is not None
    return request.question
