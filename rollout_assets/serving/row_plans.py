"""What a row comes to under a campaign: the recipe to run, and the campaign that its record names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import ValidationError

from rollout_assets.config import CampaignConfig, RolloutRecipeConfig
from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import RowRefused
from rollout_assets.rollouts.manager.completions import step_limited
from rollout_assets.rollouts.recipes import largest_branch
from rollout_assets.rollouts.remote.messages import RolloutRequest
from rollout_assets.rollouts.roots import PreparedSample, RefusedTarget, TargetedRoot

MAX_HORIZON = 256
MAX_STEPS = 1_024
"""Steps of all chains that a row's own recipe may grow: each holds a shell, its labels and a depth image in memory.

A recipe of the campaign itself is its operator's choice and may grow further.
"""


@dataclass(frozen=True)
class RowPlan:
    """A row made definite.

    ``recipe`` is what was asked for and ``recipe_run`` the same under the row's step limit. ``config`` is the campaign
    at the row's seed, with the recipe that is run in the place of its namesake: the campaign that would roll this
    target out to the same record. Which targets there are is decided by the served campaign's own seed, whatever the
    row's, so that a target's rank means the same in every row.
    """

    recipe: RolloutRecipeConfig
    recipe_run: RolloutRecipeConfig
    config: CampaignConfig
    max_rollout_steps: int | None


def plan_row(row: RolloutRequest, config: CampaignConfig) -> RowPlan:
    """Settle recipe, parameters and seed of a row, or ``RowRefused`` with the field at fault."""
    recipe = _changed(_asked(row, config), row)
    limit = row.params.max_rollout_steps
    run = step_limited(recipe, limit)
    if run not in config.recipes:
        _refuse_large(run)
    seed = config.seed if row.seed is None else row.seed
    return RowPlan(recipe, run, _holding(run, config.model_copy(update={"seed": seed})), limit)


def find_target(prepared: PreparedSample, wanted: str | int) -> TargetedRoot | RefusedTarget:
    """The target of an id or a rank, or ``RowRefused`` with what there is."""
    key = prepared.actor.identity.sample_key
    if prepared.skip_reason is not None:
        raise RowRefused("sample_key", f"{key} has no target to roll out: {prepared.skip_reason}")
    by_name = {target.match.target.target_id: target for target in prepared.targets}
    if isinstance(wanted, int):
        if wanted < len(prepared.targets):
            return prepared.targets[wanted]
        raise RowRefused("target", f"{key} has ranks 0 to {len(by_name) - 1}, got {wanted}")
    if wanted in by_name:
        return by_name[wanted]
    raise RowRefused("target", f"{key} has {', '.join(by_name)}, got {wanted!r}")


def _asked(row: RolloutRequest, config: CampaignConfig) -> RolloutRecipeConfig:
    if isinstance(row.recipe, RolloutRecipeConfig):
        return row.recipe
    field = "recipe" if row.agent_ref is None else "agent_ref.name"
    known = {recipe.name: recipe for recipe in config.recipes}
    if row.agent_name is None and len(known) == 1:
        return config.recipes[0]
    if row.agent_name not in known:
        names = ", ".join(known)
        raise RowRefused(field, f"campaign {config.name} has recipes {names}, got {row.agent_name!r}")
    return known[row.agent_name]


def _changed(recipe: RolloutRecipeConfig, row: RolloutRequest) -> RolloutRecipeConfig:
    changes = row.params.model_dump(exclude_none=True, exclude={"max_rollout_steps"})
    if not changes:
        return recipe
    try:
        return RolloutRecipeConfig.model_validate(recipe.model_dump() | changes)
    except ValidationError as error:
        problem = validation_problems(error, RolloutRecipeConfig)[0]
        raise RowRefused(f"params.{problem.field}", str(replace(problem, field=""))) from None


def _holding(recipe: RolloutRecipeConfig, config: CampaignConfig) -> CampaignConfig:
    """The campaign with this recipe in the place of its namesake, or after its own."""
    if recipe in config.recipes:
        return config
    names = [known.name for known in config.recipes]
    if recipe.name in names:
        recipes = tuple(recipe if known.name == recipe.name else known for known in config.recipes)
    else:
        recipes = (*config.recipes, recipe)
    return config.model_copy(update={"recipes": recipes})


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
