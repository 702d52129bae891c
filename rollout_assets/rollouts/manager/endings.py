"""How a rollout ended, and what the oracle knew then; both follow from its chains, wherever they were grown.

A limit that is not the recipe's own cuts a rollout: it is truncated. Reaching the recipe's own horizon, or a state in
which no view can be taken, is its natural end. A root without a takeable view has no rollout at all: it is neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.errors import ConfigError
from rollout_assets.metrics.columns import NO_TAKEABLE_VIEW
from rollout_assets.rollouts.engine import Chain, StepDecision
from rollout_assets.rollouts.remote.messages import EndReason
from rollout_assets.rollouts.roots import TargetedRoot
from rollout_assets.rollouts.trace import NOT_SELECTED

STEP_LIMIT: EndReason = "max_rollout_steps"
VIEW_BUDGET: EndReason = "max_views_scored"
TRUNCATING: tuple[EndReason, ...] = (STEP_LIMIT, VIEW_BUDGET)
NATURAL: tuple[EndReason, ...] = ("horizon", "dead_end")


@dataclass(frozen=True)
class RolloutLimits:
    """What cuts a rollout before its recipe's own end.

    ``max_views_scored`` bounds the views that all chains of a rollout have scored together. A step is begun only if all
    views of its shells still fit, so that the budget is never exceeded and no step is left half done.
    """

    max_rollout_steps: int | None = None
    max_views_scored: int | None = None

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if limit is not None and limit < 1:
                raise ConfigError(f"{name} must be >= 1, got {limit}")

    def tightened(self, other: RolloutLimits) -> RolloutLimits:
        """The smaller of both limits, each by itself."""
        return RolloutLimits(
            _smaller(self.max_rollout_steps, other.max_rollout_steps),
            _smaller(self.max_views_scored, other.max_views_scored),
        )

    def applied(self, recipe: RolloutRecipeConfig) -> RolloutRecipeConfig:
        """The recipe as it is run: its horizon, or the step limit if that is below it."""
        horizon = _smaller(recipe.horizon, self.max_rollout_steps)
        return recipe if horizon == recipe.horizon else recipe.model_copy(update={"horizon": horizon})


@dataclass(frozen=True)
class FinalOracleState:
    """What the oracle knows of the target when a rollout has ended, and at its root.

    Points are those of the fused cloud inside the target's crop. ``views_scored`` is what it took to know.
    """

    root_error_m2: float
    error_m2: float
    root_points: int
    points: int
    views_scored: int


def end_reason(chains: Sequence[Chain], recipe: RolloutRecipeConfig, recipe_run: RolloutRecipeConfig) -> EndReason:
    """Why kept chains are as long as they are; ``recipe_run`` is the recipe under its step limit.

    A rollout is cut if a limit ended any of its kept chains, because that chain might have become the best one.
    """
    open_chains = [chain for chain in chains if not chain.dead_end]
    if any(len(chain.steps) < recipe_run.horizon for chain in open_chains):
        return VIEW_BUDGET
    if open_chains:
        return STEP_LIMIT if recipe_run.horizon < recipe.horizon else "horizon"
    return "dead_end" if any(chain.path for chain in chains) else NO_TAKEABLE_VIEW


def final_oracle_state(root: TargetedRoot, chain: Chain, views_scored: int) -> FinalOracleState:
    """What is known after the last view that a chain took; without one, what was known at the root."""
    target = root.oracle_state.target
    error_m2, points = target.root_error_m2, target.state.point_count
    if taken := taken_steps(chain):
        state, chosen = taken[-1].state, taken[-1].selected_shell_index
        error_m2 = float(state.labels.target_pm_dist_after[chosen])
        points = int(state.target_points_after[chosen])
    return FinalOracleState(target.root_error_m2, error_m2, target.state.point_count, points, views_scored)


def offered_steps(chain: Chain) -> tuple[StepDecision, ...]:
    """The steps of a chain, a dead end included; none for a root without a takeable view, where nothing began."""
    return chain.steps if chain.path else ()


def taken_steps(chain: Chain) -> list[StepDecision]:
    """The steps at which a chain took a view: all but a dead end."""
    return [step for step in chain.steps if step.selected_shell_index != NOT_SELECTED]


def _smaller(first: int | None, second: int | None) -> int | None:
    return min((limit for limit in (first, second) if limit is not None), default=None)
