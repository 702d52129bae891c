"""The step loop: one recipe's tree of decisions, as a pure function of evaluated states.

``expand`` is a generator that asks for states by their path and is sent their evaluations, so it neither computes nor
waits: the dataset writer drives many of them in lockstep, the manager drives them concurrently, and both get the same
bits. A path is the shell indices selected so far; the root's path is empty. What a state holds depends on its path
alone, never on the recipe, so recipes that reach the same state share its evaluation. A recipe that brings its policy
is sent states with that policy's proposal.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.candidates.shell import CandidateShell
from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.geometry.poses import Float32, Float64, translation
from rollout_assets.rollouts.keys import RolloutKey, ShellPath
from rollout_assets.rollouts.policies import ORACLE_SCORE, Decision, PolicyProposal, PolicyView, decide
from rollout_assets.rollouts.recipes import branch_count
from rollout_assets.rollouts.trace import NOT_SELECTED, StepLabels, TerminationReason


@dataclass(frozen=True, eq=False)
class EvaluatedState:
    """A state with its offered views and their labels. pose_world_camera: (12,) where the actor stands.

    target_points_after: (k,) float32, how many points of the target are known once each view is taken; NaN where there
    is no label. ``proposal`` is what the recipe's own policy says of the views, if it brings one.
    """

    path: ShellPath
    pose_world_camera: Float32
    shell: CandidateShell
    labels: StepLabels
    target_points_after: Float32
    proposal: PolicyProposal | None = None

    @property
    def views_scored(self) -> int:
        """Views that the oracle looked at: the takeable ones, and those that were so until they hit nothing."""
        blind = self.shell.invalid_reason_bitset == 1 << InvalidReason.DEPTH_NO_HIT
        return int((self.shell.actor_action_mask | blind).sum())

    @property
    def scores(self) -> Float64:
        """(k,) what oracle policies rank by, NaN where there is no label."""
        values: Float32 = getattr(self.labels, ORACLE_SCORE)
        return values.astype(np.float64)


@dataclass(frozen=True, eq=False)
class StepDecision:
    """What one chain did at one state; ``selected_shell_index`` is ``NOT_SELECTED`` at a dead end."""

    state: EvaluatedState
    decision: Decision
    selected_shell_index: int

    @property
    def draw_log_probability(self) -> float | None:
        """Log-probability of the selected view given those drawn before it; None at a dead end."""
        if self.selected_shell_index == NOT_SELECTED:
            return None
        return self.decision.draw_log_probabilities[self.decision.selected.index(self.selected_shell_index)]


@dataclass(frozen=True, eq=False)
class Chain:
    """A sequence of decisions from the root, with the sum of the selected views' policy scores."""

    steps: tuple[StepDecision, ...] = ()
    summed_score: float = 0.0
    dead_end: bool = False

    @property
    def path(self) -> ShellPath:
        """Shell indices selected so far."""
        return tuple(step.selected_shell_index for step in self.steps if step.selected_shell_index != NOT_SELECTED)

    def termination(self, horizon: int) -> TerminationReason:
        """Why the chain is as long as it is."""
        if self.dead_end:
            return "terminated_early"
        return "fixed_horizon" if len(self.steps) == horizon else "incomplete_rollout"


Expansion: TypeAlias = Generator[tuple[ShellPath, ...], Mapping[ShellPath, EvaluatedState], tuple[Chain, ...]]


def expand(recipe: RolloutRecipeConfig, key: RolloutKey) -> Expansion:
    """Grow a recipe's chains to its horizon. Yields the paths it needs next; returns the kept chains, best first.

    At every depth each open chain decides once and branches; then the ``beam_width`` best by summed score stay, dead
    ends among them. Equal sums keep the order in which they were taken. Sending no states ends the growth: the chains
    are returned as they are, and those that were still open are ``incomplete_rollout``.
    """
    chains: tuple[Chain, ...] = (Chain(),)
    for depth in range(recipe.horizon):
        open_paths = tuple(chain.path for chain in chains if not chain.dead_end)
        if not open_paths:
            break
        states = yield open_paths
        if not states:
            break
        grown: list[Chain] = []
        for chain in chains:
            grown.extend([chain] if chain.dead_end else _branch(chain, states, recipe, key, depth))
        chains = _keep_best(grown, recipe.beam_width)
    return chains


def offered_chain(
    shell: CandidateShell, pose_world_camera: Float32, recipe: RolloutRecipeConfig, score_source: str | None = None
) -> Chain:
    """One state without labels, at which nothing was taken: no policy is asked, because no choice could be judged.

    ``score_source`` is what the scores of a policy that the recipe brings would be called.
    """
    count = len(shell)
    unscored = np.full(count, np.nan)
    view = PolicyView(
        takeable=np.zeros(count, bool),
        centers_world=translation(shell.pose_world_camera),
        history_world=translation(pose_world_camera[None]),
        scores=unscored,
        proposal=None if score_source is None else PolicyProposal(unscored, score_source),
    )
    decision = decide(recipe, view, 1, np.random.default_rng(0))
    labels = StepLabels.unlabelled(count)
    state = EvaluatedState((), pose_world_camera, shell, labels, unscored.astype(np.float32))
    return Chain(steps=(StepDecision(state, decision, NOT_SELECTED),), dead_end=True)


def _branch(
    chain: Chain, states: Mapping[ShellPath, EvaluatedState], recipe: RolloutRecipeConfig, key: RolloutKey, depth: int
) -> Sequence[Chain]:
    state = states[chain.path]
    rng = key.selection_rng(recipe, chain.path)
    count = branch_count(recipe, depth, rng)
    decision = decide(recipe, _view(chain, state), count, rng)
    if not decision.selected:
        stuck = StepDecision(state, decision, NOT_SELECTED)
        return [replace(chain, steps=(*chain.steps, stuck), dead_end=True)]
    return [
        Chain(
            steps=(*chain.steps, StepDecision(state, decision, shell_index)),
            summed_score=chain.summed_score + float(decision.scores[shell_index]),
        )
        for shell_index in decision.selected
    ]


def _view(chain: Chain, state: EvaluatedState) -> PolicyView:
    visited = [step.state.pose_world_camera for step in chain.steps] + [state.pose_world_camera]
    return PolicyView(
        takeable=state.shell.actor_action_mask,
        centers_world=translation(state.shell.pose_world_camera),
        history_world=translation(np.stack(visited)),
        scores=state.scores,
        proposal=state.proposal,
    )


def _keep_best(chains: Sequence[Chain], beam_width: int | None) -> tuple[Chain, ...]:
    best_first = sorted(chains, key=lambda chain: -chain.summed_score)
    return tuple(best_first if beam_width is None else best_first[:beam_width])
