"""What a request comes to under a campaign: the recipe to run, and the campaign that its record names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import ValidationError

from rollout_assets.config import CampaignConfig, RolloutRecipeConfig
from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import RowRefused
from rollout_assets.rollouts.manager.endings import RolloutLimits
from rollout_assets.rollouts.recipes import largest_branch
from rollout_assets.rollouts.remote.messages import RolloutRequest
from rollout_assets.rollouts.roots import PreparedSample, RefusedTarget, TargetedRoot

MAX_HORIZON = 256
MAX_STEPS = 1_024
"""Steps of all chains that a request's own recipe may grow: each holds a shell, its labels and a depth image in memory.

A recipe of the campaign itself is its operator's choice and may grow further.
"""


@dataclass(frozen=True)
class RequestPlan:
    """A request with everything decided.

    ``recipe`` is what was asked for and ``recipe_run`` the same under the step limit of ``limits``. ``config`` is the
    campaign at the request's seed, with the recipe that is run in place of the one of the same name, or after its own:
    the campaign that would roll this target out to the same record. Which targets there are is decided by the served
    campaign's own seed, whatever the request's, so that a target's rank means the same in every request.
    """

    request: RolloutRequest
    recipe: RolloutRecipeConfig
    recipe_run: RolloutRecipeConfig
    config: CampaignConfig
    limits: RolloutLimits


def plan_request(request: RolloutRequest, config: CampaignConfig) -> RequestPlan:
    """Decide recipe, parameters and seed of a request, or ``RowRefused`` with the field at fault."""
    recipe = _with_params(_recipe_of(request, config), request)
    limits = RolloutLimits(request.params.max_rollout_steps, request.params.max_views_scored)
    run = limits.applied(recipe)
    if run not in config.recipes:
        _refuse_large(run)
    recipes = {own.name: own for own in config.recipes} | {run.name: run}
    seed = config.seed if request.seed is None else request.seed
    asked = config.model_copy(update={"seed": seed, "recipes": tuple(recipes.values())})
    return RequestPlan(request, recipe, run, asked, limits)


def find_target(prepared: PreparedSample, target: str | int) -> TargetedRoot | RefusedTarget:
    """The target of an id or a rank, or ``RowRefused`` with what there is."""
    key = prepared.actor.identity.sample_key
    if prepared.skip_reason is not None:
        raise RowRefused("sample_key", f"{key} has no target to roll out: {prepared.skip_reason}")
    by_name = {choice.match.target.target_id: choice for choice in prepared.targets}
    by_rank = dict(enumerate(prepared.targets))
    choice = by_rank.get(target) if isinstance(target, int) else by_name.get(target)
    if choice is None:
        offered = f"ranks 0 to {len(by_name) - 1}" if isinstance(target, int) else ", ".join(by_name)
        raise RowRefused("target", f"{key} has {offered}, got {target!r}")
    return choice


def _recipe_of(request: RolloutRequest, config: CampaignConfig) -> RolloutRecipeConfig:
    if isinstance(request.recipe, RolloutRecipeConfig):
        return _whole_recipe(request.recipe, config)
    field = "recipe" if request.agent_ref is None else "agent_ref.name"
    recipes = {recipe.name: recipe for recipe in config.recipes}
    if request.agent_name is None and len(recipes) == 1:
        return config.recipes[0]
    if request.agent_name not in recipes:
        names = ", ".join(recipes)
        raise RowRefused(field, f"campaign {config.name} has recipes {names}, got {request.agent_name!r}")
    return recipes[request.agent_name]


def _whole_recipe(recipe: RolloutRecipeConfig, config: CampaignConfig) -> RolloutRecipeConfig:
    """A recipe that a request carries. One that brings its policy must be the campaign's, whose file is then read.

    Otherwise whoever may send requests could have the server load any file or module on its machine.
    """
    if not recipe.brings_policy:
        return recipe
    own = next((own for own in config.recipes if own.hashable() == recipe.hashable()), None)
    if own is None:
        brought = ", ".join(own.name for own in config.recipes if own.brings_policy) or "none"
        raise RowRefused(
            "recipe.policy",
            f"a request cannot bring policy {recipe.policy} or a checkpoint; recipes of campaign {config.name} that "
            f"have one and can be named: {brought}",
        )
    return own


def _with_params(recipe: RolloutRecipeConfig, request: RolloutRequest) -> RolloutRecipeConfig:
    changes = request.params.model_dump(exclude_none=True, exclude=set(RolloutLimits.__dataclass_fields__))
    if not changes:
        return recipe
    try:
        return RolloutRecipeConfig.model_validate(recipe.model_dump() | changes)
    except ValidationError as error:
        problem = validation_problems(error, RolloutRecipeConfig)[0]
        raise RowRefused(f"params.{problem.field}", str(replace(problem, field=""))) from None


def _refuse_large(recipe: RolloutRecipeConfig) -> None:
    if recipe.horizon > MAX_HORIZON:
        raise RowRefused("recipe", f"{recipe.name}: horizon may be {MAX_HORIZON}, got {recipe.horizon}")
    chains = 1
    for depth in range(1, recipe.horizon + 1):
        chains *= largest_branch(recipe)
        chains = chains if recipe.beam_width is None else min(chains, recipe.beam_width)
        if chains * depth > MAX_STEPS:
            bound = f"may grow more than {MAX_STEPS:,} steps; lower horizon, branch or beam_width"
            raise RowRefused("recipe", f"{recipe.name} {bound}")
