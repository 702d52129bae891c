"""What a rollout's randomness derives from: seed, source row, target, recipe and the views selected so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rollout_assets.config import RolloutRecipeConfig
from rollout_assets.randomness import key_digest, rng_for

ShellPath: TypeAlias = tuple[int, ...]
"""Shell indices selected from the root on."""


@dataclass(frozen=True)
class RolloutKey:
    """What all of a rollout's randomness derives from, besides recipe and path."""

    seed: int
    sample_key: str
    target_id: str

    def candidates_rng(self, path: ShellPath) -> np.random.Generator:
        """For the views offered at a state; the same whatever the recipe."""
        return rng_for(self.seed, self.sample_key, self.target_id, path, "candidates")

    def selection_rng(self, recipe: RolloutRecipeConfig, path: ShellPath) -> np.random.Generator:
        """For what a recipe does at a state."""
        return rng_for(self.seed, self.sample_key, self.target_id, recipe.name, path, "selection")

    def selection_digest(self, recipe: RolloutRecipeConfig, path: ShellPath) -> str:
        """Digest of the key of a chain's selections; stored as ``selection_rng_state_hash``."""
        return key_digest(self.seed, self.sample_key, self.target_id, recipe.name, path, "selection").hex()
