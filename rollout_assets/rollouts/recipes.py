"""Recipes: how many views a rollout tries at each step, and the names under which that is stored."""

from __future__ import annotations

import numpy as np

from rollout_assets.config import RolloutRecipeConfig, StochasticBranching


def branch_count(recipe: RolloutRecipeConfig, depth: int, rng: np.random.Generator) -> int:
    """Views to take at ``depth``. A schedule's last entry repeats; only stochastic branching draws from ``rng``."""
    match recipe.branch:
        case int(count):
            return count
        case StochasticBranching(counts=counts, probabilities=probabilities):
            return int(rng.choice(counts, p=probabilities))
        case schedule:
            return schedule[min(depth, len(schedule) - 1)]


def largest_branch(recipe: RolloutRecipeConfig) -> int:
    """The most views a recipe takes at one step."""
    match recipe.branch:
        case int(count):
            return count
        case StochasticBranching(counts=counts):
            return max(counts)
        case schedule:
            return max(schedule)


def branch_schedule_id(recipe: RolloutRecipeConfig) -> str:
    """A readable name of the branching: ``constant:2``, ``schedule:3,1``, ``stochastic:1@0.5,2@0.5``."""
    match recipe.branch:
        case int(count):
            return f"constant:{count}"
        case StochasticBranching(counts=counts, probabilities=probabilities):
            return "stochastic:" + ",".join(f"{n}@{p:g}" for n, p in zip(counts, probabilities, strict=True))
        case schedule:
            return "schedule:" + ",".join(str(count) for count in schedule)
