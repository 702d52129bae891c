"""Who takes part: the policies that were named and the references that are always there, each as recipes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from rollout_assets.config import RolloutRecipeConfig, checkpoint_sha256
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ConfigError
from rollout_assets.evaluation.config import EvaluatedPolicy, EvaluationConfig

RANDOM, GREEDY, LOOKAHEAD = "random_valid", "oracle_greedy", "oracle_lookahead"
"""The references: a view drawn at random, the best view of each step, and a beam of two over the best two."""

REFERENCES = (RANDOM, GREEDY, LOOKAHEAD)

Role = Literal["policy", "reference"]


@dataclass(frozen=True)
class Contestant:
    """A policy under its name, with the recipes that run it: one, or one per draw."""

    name: str
    role: Role
    recipes: tuple[RolloutRecipeConfig, ...]

    @property
    def recipe(self) -> RolloutRecipeConfig:
        """The first of the recipes, which differ in their names only."""
        return self.recipes[0]


def roster(config: EvaluationConfig) -> tuple[Contestant, ...]:
    """References first, then the policies in the order in which they were named.

    The first recipe is a draw of ``random_valid``: a store keeps refused targets under its first recipe.
    """
    named = [policy for policy in config.policies if not _is_reference(policy)]
    if not named:
        raise ConfigError(f"{', '.join(REFERENCES)} are always evaluated; name a policy to compare with them")
    names = _names(named)
    return (
        *_references(config),
        *(_contestant(policy, name, config) for policy, name in zip(named, names, strict=True)),
    )


def _references(config: EvaluationConfig) -> tuple[Contestant, ...]:
    draws = range(1, config.random_repeats + 1)
    randoms = tuple(_recipe(config, name=f"{RANDOM}-{draw}", policy=RANDOM) for draw in draws)
    beam = _recipe(config, name=LOOKAHEAD, policy=GREEDY, branch=2, beam_width=2)
    return (
        Contestant(RANDOM, "reference", randoms),
        Contestant(GREEDY, "reference", (_recipe(config, name=GREEDY, policy=GREEDY),)),
        Contestant(LOOKAHEAD, "reference", (beam,)),
    )


def _is_reference(policy: EvaluatedPolicy) -> bool:
    """Whether a policy is one that is always there."""
    return policy.policy in (RANDOM, GREEDY) and policy.name in (None, policy.policy)


def _contestant(policy: EvaluatedPolicy, name: str, config: EvaluationConfig) -> Contestant:
    recipe = _recipe(config, **policy.model_dump(exclude_none=True) | {"name": name})
    return Contestant(name, "policy", (_pinned(recipe),))


def _pinned(recipe: RolloutRecipeConfig) -> RolloutRecipeConfig:
    """The recipe with the content of its checkpoint, which decides the campaign's hash."""
    if recipe.checkpoint is None:
        return recipe
    path = recipe.checkpoint.absolute()
    return recipe.model_copy(update={"checkpoint": path, "checkpoint_sha256": checkpoint_sha256(path)})


def _recipe(config: EvaluationConfig, **values: Any) -> RolloutRecipeConfig:
    try:
        return RolloutRecipeConfig.model_validate({"horizon": config.horizon, **values})
    except ValidationError as error:
        raise ConfigError(f"policy {values['name']}: {problems_text(error, RolloutRecipeConfig)}") from None


def _names(policies: Sequence[EvaluatedPolicy]) -> list[str]:
    """A name for each policy; checkpoints of one name are told apart by their folders."""
    names = [
        policy.name or _slug(policy.checkpoint.stem if policy.checkpoint else policy.policy) for policy in policies
    ]
    twice = {name for name, count in Counter(names).items() if count > 1}
    names = [_longer(policy, name) if name in twice else name for policy, name in zip(policies, names, strict=True)]
    clashing = sorted({name for name in names if names.count(name) > 1 or name in REFERENCES or _is_draw(name)})
    if clashing:
        raise ConfigError(f"policies need names of their own, got {', '.join(clashing)} twice; give one as NAME=POLICY")
    return names


def _longer(policy: EvaluatedPolicy, name: str) -> str:
    if policy.name is not None or policy.checkpoint is None:
        return name
    return _slug(f"{policy.checkpoint.resolve().parent.name}-{name}")


def _is_draw(name: str) -> bool:
    return re.fullmatch(rf"{RANDOM}-\d+", name) is not None


def _slug(text: str) -> str:
    """Any text as a name that recipes can have."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")[:64] or "policy"
