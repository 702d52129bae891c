"""The vector environment as stable-baselines3 wants it, so that ``MaskablePPO`` of sb3-contrib trains on it unchanged.

stable-baselines3 is not installed by any extra but ``dev``; ``pip install sb3-contrib`` brings it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from rollout_assets.learning.environment.options import Campaign, EnvironmentOptions
from rollout_assets.learning.environment.vector import NextBestViewVectorEnv
from rollout_assets.observations.observation import Arrays

Indices = int | Iterable[int] | None


class NextBestViewVecEnv(VecEnv):
    """``NextBestViewVectorEnv`` behind the interface of stable-baselines3: ``MaskablePPO("MultiInputPolicy", env)``.

    The end of an episode is in ``terminal_observation``, its return and length in ``episode``, as ``Monitor`` gives
    them.
    """

    def __init__(self, campaign: Campaign, num_envs: int = 8, **options: Unpack[EnvironmentOptions]) -> None:
        self.vector = NextBestViewVectorEnv(campaign, num_envs, AutoresetMode.SAME_STEP, **options)
        super().__init__(num_envs, self.vector.single_observation_space, self.vector.single_action_space)
        self._actions: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)

    def reset(self) -> dict[str, Arrays]:
        """Begin an episode in every member, in the order of the seed that ``seed()`` set, if any."""
        observations, infos = self.vector.reset(seed=self._seeds[0])
        self.reset_infos = [_of_member(infos, place) for place in range(self.num_envs)]
        self._returns[:], self._lengths[:] = 0.0, 0
        self._reset_seeds()
        return observations

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Remember the actions; ``step_wait`` takes them."""
        self._actions = actions

    def step_wait(self) -> tuple[dict[str, Arrays], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Take the actions. Members that ended have begun anew already."""
        observations, rewards, ended, _, merged = self.vector.step(self._actions)
        self._returns += rewards
        self._lengths += 1
        infos = [_of_member(merged, place) for place in range(self.num_envs)]
        for place in np.flatnonzero(ended):
            episode = {"r": float(self._returns[place]), "l": int(self._lengths[place]), "t": 0.0}
            final = {"terminal_observation": infos[place].pop("final_obs"), "TimeLimit.truncated": False}
            infos[place] |= final | {"episode": episode}
        self._returns[ended], self._lengths[ended] = 0.0, 0
        return observations, rewards.astype(np.float32), ended, infos

    def close(self) -> None:
        """End the environment."""
        self.vector.close()

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """An attribute, the same for every member."""
        return [getattr(self.vector, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute for all members, because they share everything."""
        setattr(self.vector, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """What a method of the vector environment gives for some members: ``action_masks`` is what MaskablePPO asks."""
        results = getattr(self.vector, method_name)(*method_args, **method_kwargs)
        return [results[place] for place in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """No member is wrapped."""
        return [False] * len(list(self._get_indices(indices)))


def _of_member(merged: dict[str, Any], place: int) -> dict[str, Any]:
    """One member's info out of the merged ones."""
    return {
        key: _of_member(values, place) if isinstance(values, dict) else values[place]
        for key, values in merged.items()
        if not key.startswith("_") and merged[f"_{key}"][place]
    }
