"""``NextBestViewEnv``: one actor that takes views of a target, one root per episode."""

from __future__ import annotations

from typing import Any, ClassVar, SupportsIndex, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from numpy.typing import NDArray

from rollout_assets.errors import RowRefused
from rollout_assets.learning.environment.episodes import Episode, EpisodePlayer
from rollout_assets.learning.environment.layout import member, observation_space
from rollout_assets.learning.environment.options import (
    Campaign,
    EnvironmentOptions,
    campaign_config,
    environment_config,
)
from rollout_assets.learning.environment.roots import RootName
from rollout_assets.observations.observation import Arrays

Observation = dict[str, Arrays]
"""What the actor knows; see ``Observations`` for the arrays and ``as_observations`` for the way back to it."""


class NextBestViewEnv(gymnasium.Env[Observation, np.int64]):
    """From a source row and a target, take one of k offered views at a time until the horizon.

    - **Action**: the shell index of a view, ``Discrete(k)``. ``info["action_mask"]`` (int8, as ``Discrete.sample``
      takes it) and ``action_masks()`` (bool) say which can be taken. One that cannot leaves the actor where it is,
      costs a step and gains nothing; ``info["untakeable"]`` says so.
    - **Reward**: the target root gain of the view, to the bit the label that a store of the same campaign has.
    - **End**: ``terminated`` when no steps are left or no view can be taken. The horizon is part of the task and
      ``steps_left`` is observed, so the value of the last state is 0 and nothing is cut off: ``truncated`` is never
      true. The last observation offers no views.
    - **Order**: every root once per epoch, shuffled. ``reset(seed=…)`` begins a new epoch in the order of that seed;
      ``reset(options={"root": (row, target)})`` plays one root, named by sample index or key and target rank or id.
      Rows without targets, and roots at which no view can be taken, are left out.
    - **info**: which row, target, seed and path this is, so that stored rollouts of it can be found, and no labels
      unless ``oracle_info`` is set.

    ``campaign`` is a ``CampaignConfig`` or its TOML file; keywords are those of ``EnvironmentConfig``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]
    observation_space: spaces.Dict  # type: ignore[assignment]  # Gymnasium says it holds spaces, not arrays

    def __init__(self, campaign: Campaign, **options: Unpack[EnvironmentOptions]) -> None:
        config = environment_config(options)
        self.player = EpisodePlayer(campaign_config(campaign), config)
        self.observation_space = observation_space(config.observation, self.player.views, self.player.horizon)
        self.action_space = spaces.Discrete(self.player.views)
        self._episode: Episode | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode, on the next root or on ``options["root"]``."""
        player = self.player
        seed = player.first_seed(seed)
        super().reset(seed=seed)
        if seed is not None or not player.shuffled:
            player.shuffle(self.np_random)
        named = root_name(options.get("root")) if options else None
        (self._episode,) = player.begin(1) if named is None else player.begin_at([named])
        return self._observed(self._episode), player.info(self._episode)

    def step(self, action: SupportsIndex) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take a view."""
        before = self._episode
        if before is None or before.ended:
            raise ResetNeeded("the episode has ended or not begun; call reset() first")
        chosen = checked_action(action, self.player.views)
        (after,) = self.player.evaluated([before.after(chosen)])
        self._episode = after
        info = self.player.info(after, untakeable=not before.can_take(chosen))
        return self._observed(after), before.gain_of(chosen), after.ended, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """(k,) which views can be taken, as sb3-contrib asks for it."""
        takeable = None if self._episode is None else self._episode.takeable
        return np.zeros(self.player.views, np.bool_) if takeable is None else takeable.copy()

    def _observed(self, episode: Episode) -> Observation:
        return member(self.player.observe([episode]), 0)


def checked_action(action: SupportsIndex, views: int) -> int:
    """A shell index; anything else is an ``InvalidAction``."""
    try:
        chosen = action.__index__()
    except (AttributeError, TypeError):
        raise InvalidAction(f"an action must be a whole number, got {action!r}") from None
    if not 0 <= chosen < views:
        raise InvalidAction(f"an action must be 0 to {views - 1}, got {chosen}")
    return chosen


def root_name(name: Any) -> RootName:
    """The name of a root, as a reset's options give it."""
    try:
        row, target = name
    except (TypeError, ValueError):
        raise RowRefused("options", f"a root is (row, target), got {name!r}") from None
    return row, target
