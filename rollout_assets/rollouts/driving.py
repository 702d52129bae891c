"""Driving expansions: many recipes' trees grow in lockstep, so that what they ask for goes to the device together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.rollouts.engine import Chain, Expansion, expand
from rollout_assets.rollouts.evaluation import StateEvaluator, StateRequest
from rollout_assets.rollouts.keys import RolloutKey, ShellPath
from rollout_assets.rollouts.proposing import StateProposer
from rollout_assets.rollouts.roots import TargetedRoot


@dataclass(frozen=True, eq=False)
class RolloutStart:
    """A rollout that is to be grown: a root under a seed, by a recipe."""

    root: TargetedRoot
    seed: int
    recipe: RolloutRecipeConfig

    def expansion(self) -> Expansion:
        """The generator that grows its chains."""
        identity, target = self.root.actor.identity, self.root.match.target
        return expand(self.recipe, RolloutKey(self.seed, identity.sample_key, target.target_id))

    def request(self, path: ShellPath) -> StateRequest:
        """The state at a path, as the recipe needs it."""
        return StateRequest.of(self.root, self.seed, path, self.recipe)


def drive(starts: Sequence[RolloutStart], evaluator: StateEvaluator) -> list[tuple[Chain, ...]]:
    """Kept chains of every rollout, in order. All states of a depth are evaluated, and scored by policies, together."""
    proposer = StateProposer(evaluator)
    growing = [start.expansion() for start in starts]
    chains: dict[int, tuple[Chain, ...]] = {}
    needed = {index: next(rollout) for index, rollout in enumerate(growing)}
    while needed:
        requests = [starts[index].request(path) for index, paths in needed.items() for path in paths]
        states = iter(proposer.evaluate(requests))
        answers = {index: {path: next(states) for path in paths} for index, paths in needed.items()}
        needed = {}
        for index, answer in answers.items():
            try:
                needed[index] = growing[index].send(answer)
            except StopIteration as stop:
                chains[index] = stop.value
    return [chains[index] for index in range(len(starts))]
