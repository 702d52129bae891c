"""The environments under their id, so that ``gymnasium.make`` and ``gymnasium.make_vec`` find them."""

from __future__ import annotations

import gymnasium

ENVIRONMENT_ID = "rollout_assets/NextBestView-v0"
"""For ``gymnasium.make`` and ``gymnasium.make_vec``."""

_MODULE = "rollout_assets.learning.environment"


def register_environments() -> None:
    """Register them once; their modules are loaded when one is made."""
    if ENVIRONMENT_ID not in gymnasium.registry:
        gymnasium.register(
            ENVIRONMENT_ID,
            entry_point=f"{_MODULE}.single:NextBestViewEnv",
            vector_entry_point=f"{_MODULE}.vector:NextBestViewVectorEnv",
        )
