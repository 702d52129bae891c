"""Policies that packages bring, loaded once per process and told apart by their checkpoint's content."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from rollout_assets.config import RolloutRecipeConfig, checkpoint_sha256
from rollout_assets.config.policy_names import POLICY_GROUP, registered_policies
from rollout_assets.errors import ConfigError, PolicyRefused
from rollout_assets.observations.policy import PolicyFactory, ViewPolicy

_loaded: dict[tuple[str, str | None], ViewPolicy] = {}
_lock = threading.Lock()


def policy_of(recipe: RolloutRecipeConfig) -> ViewPolicy:
    """The policy that a recipe brings. What cannot be loaded as the recipe names it is ``PolicyRefused``."""
    name = (recipe.policy, recipe.checkpoint_sha256)
    with _lock:
        if name not in _loaded:
            _loaded[name] = _load(recipe)
        return _loaded[name]


def require_policies(recipes: Iterable[RolloutRecipeConfig]) -> None:
    """Load what recipes bring, before any work; a file that is not what it was is refused, loaded or not."""
    for recipe in recipes:
        if recipe.brings_policy:
            _refuse_other_content(recipe)
            policy_of(recipe)


def _load(recipe: RolloutRecipeConfig) -> ViewPolicy:
    make = _factory(recipe)
    _refuse_other_content(recipe)
    policy = make(recipe.checkpoint)
    _refuse_other_content(recipe)  # it may have been replaced while it was read
    return policy


def _factory(recipe: RolloutRecipeConfig) -> PolicyFactory:
    """The function that the recipe's policy is registered as."""
    entries = registered_policies().get(recipe.policy, ())
    if len(entries) != 1:
        claims = ", ".join(entry.value for entry in entries) or "none"
        raise PolicyRefused(
            f"recipe {recipe.name}: policy {recipe.policy} must be registered once under {POLICY_GROUP}, found {claims}"
        )
    try:
        factory: PolicyFactory = entries[0].load()
    except (ImportError, AttributeError) as error:
        raise PolicyRefused(
            f"recipe {recipe.name}: policy {recipe.policy} ({entries[0].value}) cannot be imported: {error}"
        ) from error
    return factory


def _refuse_other_content(recipe: RolloutRecipeConfig) -> None:
    """Raise ``PolicyRefused`` unless the checkpoint is the file that the campaign was read with."""
    if recipe.checkpoint is None:
        return
    pinned, content = recipe.checkpoint_sha256, _content(recipe, recipe.checkpoint)
    if pinned is None:
        raise PolicyRefused(
            f"recipe {recipe.name}: {recipe.checkpoint} is not pinned by its content; "
            "read the campaign with load_campaign, or pass its recipes through pin_checkpoints"
        )
    if content != pinned:
        raise PolicyRefused(
            f"recipe {recipe.name}: {recipe.checkpoint} has changed: the campaign names SHA-256 {pinned}, "
            f"the file has {content}; put the file back, or make another campaign for the new one"
        )


def _content(recipe: RolloutRecipeConfig, path: Path) -> str:
    try:
        return checkpoint_sha256(path)
    except ConfigError as error:
        raise PolicyRefused(f"recipe {recipe.name}: {error}") from None
