"""Whether a policy was trained on a scene that it is evaluated on, as far as its checkpoint says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollout_assets.config.policy_names import LEARNED_POLICY
from rollout_assets.errors import PolicyRefused, counted
from rollout_assets.evaluation.roster import Contestant
from rollout_assets.learning.checkpoints import read_card

SHOWN_SCENES = 5
"""Scenes that a message lists."""


@dataclass(frozen=True)
class SceneOverlap:
    """How many scenes a policy was trained on, None if nothing says so, and which of them are evaluated."""

    trained_on: int | None = None
    seen: tuple[str, ...] = ()


def scene_overlap(contestant: Contestant, scenes: Sequence[str], *, allow: bool = False) -> SceneOverlap:
    """The evaluated scenes that a policy was trained on. Any at all is ``PolicyRefused``, unless they are allowed."""
    if contestant.recipe.checkpoint is None or contestant.recipe.policy != LEARNED_POLICY:
        return SceneOverlap()
    card = read_card(contestant.recipe.checkpoint)
    trained = {*card.scenes, *card.validation_scenes}
    seen = tuple(scene for scene in scenes if scene in trained)
    if seen and not allow:
        shown = ", ".join(seen[:SHOWN_SCENES]) + (
            f" and {len(seen) - SHOWN_SCENES} more" if seen[SHOWN_SCENES:] else ""
        )
        raise PolicyRefused(
            f"policy {contestant.name} was trained on {len(seen)} of the {counted(len(scenes), 'scene')} to evaluate "
            f"it on: {shown}; choose another split or campaign, or go on all the same with --allow-seen-scenes"
        )
    return SceneOverlap(len(trained), seen)
