"""``NextBestViewVectorEnv``: many actors at once, whose views are offered, scored and shown together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike, NDArray

from rollout_assets.errors import ConfigError, RowRefused
from rollout_assets.learning.environment.episodes import Episode, EpisodePlayer
from rollout_assets.learning.environment.layout import member, observation_space
from rollout_assets.learning.environment.options import (
    Campaign,
    EnvironmentOptions,
    campaign_config,
    environment_config,
)
from rollout_assets.learning.environment.roots import RootName
from rollout_assets.learning.environment.single import checked_action, root_name
from rollout_assets.observations.observation import Arrays

Bools = NDArray[np.bool_]
Batch = dict[str, Arrays]
Step = tuple[Batch, NDArray[np.float64], Bools, Bools, dict[str, Any]]

_STATES_PER_MEMBER = 4
"""Evaluated states that must be kept for each member: the last one, the next one, and the next root."""


class NextBestViewVectorEnv(VectorEnv[Batch, ArrayLike, NDArray[Any]]):
    """``num_envs`` members of ``NextBestViewEnv``; each step evaluates the next states of all of them in one call.

    Members take their roots from one order, so that they share the rows that are in memory; with one member it plays
    the episodes of ``NextBestViewEnv``. ``autoreset_mode`` is Gymnasium's: by default (``NEXT_STEP``) a member that
    has ended ignores its next action and begins anew; with ``SAME_STEP`` it begins anew at once, and the end is in
    ``info["final_obs"]`` and ``info["final_info"]``. ``reset(options={"roots": [(row, target), …]})`` names the roots.
    """

    def __init__(
        self,
        campaign: Campaign,
        num_envs: int = 8,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **options: Unpack[EnvironmentOptions],
    ) -> None:
        mode = AutoresetMode(autoreset_mode)
        if num_envs < 1:
            raise ConfigError(f"num_envs must be >= 1, got {num_envs}")
        if mode is AutoresetMode.DISABLED:
            raise ConfigError("autoreset_mode must be NextStep or SameStep, got Disabled")
        config = environment_config(options)
        kept_states = max(config.kept_states, _STATES_PER_MEMBER * num_envs)
        self.player = EpisodePlayer(campaign_config(campaign), config.model_copy(update={"kept_states": kept_states}))
        self.num_envs = num_envs
        self.metadata = {"render_modes": [], "autoreset_mode": mode}
        self.single_observation_space = observation_space(config.observation, self.player.views, self.player.horizon)
        self.single_action_space = spaces.Discrete(self.player.views)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._episodes: list[Episode] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Batch, dict[str, Any]]:
        """Begin an episode in every member."""
        player = self.player
        seed = player.first_seed(seed)
        super().reset(seed=seed)
        if seed is not None or not player.shuffled:
            player.shuffle(self.np_random)
        self._episodes = player.begin_at(self._roots(options)) if options else player.begin(self.num_envs)
        return player.observe(self._episodes), self._merged([player.info(episode) for episode in self._episodes])

    def step(self, actions: ArrayLike) -> Step:
        """Take a view in every member, or begin anew where the last step was the end."""
        if not self._episodes:
            raise ResetNeeded("no episode has begun; call reset() first")
        before, chosen = self._episodes, self._checked(actions)
        reached, self._episodes = self._advance(before, chosen)
        replaced = [place for place, episode in enumerate(reached) if episode is not self._episodes[place]]
        shown = self.player.observe([*self._episodes, *(reached[place] for place in replaced)])
        infos = [self._info(*member_step) for member_step in zip(before, chosen, reached, strict=True)]
        for row, place in enumerate(replaced, start=self.num_envs):
            final = {"final_obs": member(shown, row), "final_info": infos[place]}
            infos[place] = self.player.info(self._episodes[place]) | final
        observations = {name: values[: self.num_envs] for name, values in shown.items()}
        rewards = np.array([episode.gain_of(action) for episode, action in zip(before, chosen, strict=True)])
        terminations = np.array([episode.ended for episode in reached])
        return observations, rewards, terminations, np.zeros(self.num_envs, np.bool_), self._merged(infos)

    def action_masks(self) -> Bools:
        """(n, k) which views each member can take; all False for one that has ended."""
        masks = np.zeros((self.num_envs, self.player.views), np.bool_)
        for mask, episode in zip(masks, self._episodes, strict=False):
            mask[:] = False if episode.takeable is None else episode.takeable
        return masks

    def _advance(self, before: Sequence[Episode], chosen: Sequence[int]) -> tuple[list[Episode], list[Episode]]:
        """The episodes that a step leads to, and those that go on from there: others, where a member begins anew.

        All that can be known before is evaluated in one call: next states, and the roots that come after a horizon.
        """
        player, count = self.player, self.num_envs
        reached = [
            player.deal() if episode.ended else episode.after(action)
            for episode, action in zip(before, chosen, strict=True)
        ]
        out_of_steps = [place for place, episode in enumerate(reached) if not episode.steps_left and self._same_step]
        evaluated = player.evaluated([*reached, *(player.deal() for _ in out_of_steps)])
        reached, successors = evaluated[:count], dict(zip(out_of_steps, evaluated[count:], strict=True))
        begun = [place for place, episode in enumerate(before) if episode.ended]
        _put(reached, begun, player.playable([reached[place] for place in begun]))
        going_on = list(reached)
        if self._same_step:
            ended = [place for place, episode in enumerate(reached) if episode.ended]
            _put(going_on, ended, player.playable([successors.get(place) or player.deal() for place in ended]))
        return reached, going_on

    def _info(self, before: Episode, action: int, reached: Episode) -> dict[str, Any]:
        return self.player.info(reached, untakeable=not (before.ended or before.can_take(action)))

    def _merged(self, infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Infos of all members as Gymnasium wants them: an array per key, and ``_key`` for who has it."""
        merged: dict[str, Any] = {}
        for place, info in enumerate(infos):
            merged = self._add_info(merged, info, place)
        return merged

    def _checked(self, actions: ArrayLike) -> list[int]:
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,):
            raise InvalidAction(f"actions must have shape ({self.num_envs},), got {chosen.shape}")
        return [checked_action(action, self.player.views) for action in chosen]

    def _roots(self, options: dict[str, Any]) -> list[RootName]:
        names = [root_name(name) for name in options.get("roots", ())]
        if len(names) != self.num_envs:
            raise RowRefused("options", f'must be {{"roots": [(row, target), …]}} for {self.num_envs} members')
        return names


def _put(episodes: list[Episode], places: Sequence[int], others: Sequence[Episode]) -> None:
    for place, episode in zip(places, others, strict=True):
        episodes[place] = episode
