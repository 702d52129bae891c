"""Checkpoints of recipes: found beside the campaign, and pinned by their content, which decides the config hash."""

from __future__ import annotations

from pathlib import Path

from rollout_assets.config.sections import RolloutRecipeConfig
from rollout_assets.errors import ConfigError
from rollout_assets.files import file_sha256
from rollout_assets.parsing import refuse_special_file


def pin_checkpoints(recipes: tuple[RolloutRecipeConfig, ...], base: Path) -> tuple[RolloutRecipeConfig, ...]:
    """Recipes with the whole path and the SHA-256 of their checkpoints; relative paths start at ``base``.

    A file that is not there, or is not the one whose hash a recipe names, is a ``ConfigError``.
    """
    return tuple(_pinned(recipe, f"recipes[{at}]", base) for at, recipe in enumerate(recipes))


def checkpoint_sha256(path: Path) -> str:
    """The SHA-256 of a checkpoint's content; anything but a file is a ``ConfigError``."""
    try:
        refuse_special_file(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such checkpoint") from None
    return file_sha256(path)


def _pinned(recipe: RolloutRecipeConfig, where: str, base: Path) -> RolloutRecipeConfig:
    if recipe.checkpoint is None:
        return recipe
    path = base / recipe.checkpoint
    try:
        content = checkpoint_sha256(path)
    except ConfigError as error:
        raise ConfigError(f"{where}.checkpoint: {error}") from None
    if recipe.checkpoint_sha256 not in (None, content):
        raise ConfigError(
            f"{where}.checkpoint: {path} has SHA-256 {content}, "
            f"but checkpoint_sha256 is {recipe.checkpoint_sha256}; name the file that is meant, or leave the hash out"
        )
    return recipe.model_copy(update={"checkpoint": path, "checkpoint_sha256": content})
