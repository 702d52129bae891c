"""The vector environment: members share launches, and each plays what a single environment plays."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import InvalidAction
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import ConfigError, RowRefused
from rollout_assets.learning.environment import ENVIRONMENT_ID, NextBestViewEnv, NextBestViewVectorEnv
from rollout_assets.learning.environment.layout import member
from rollout_assets.learning.environment.sb3 import NextBestViewVecEnv
from tests.support.refusals import refused

pytestmark = pytest.mark.ci

SMALL = ObservationConfig(points=64, history=2, depth_px=8)


def last_takeable(masks: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.array([np.flatnonzero(mask)[-1] if mask.any() else 0 for mask in masks])


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_members_play_what_single_environments_play(played_campaign, mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector = gymnasium.make_vec(ENVIRONMENT_ID, 3, campaign=played_campaign, observation=SMALL, autoreset_mode=mode)
    assert vector.metadata["autoreset_mode"] is mode
    single = NextBestViewEnv(played_campaign, observation=SMALL)
    observations, infos = vector.reset(seed=4)
    traces: list[list[tuple[Any, ...]]] = [[] for _ in range(3)]
    for _ in range(7):
        begun = [path == () for path in infos["path"]]
        actions = last_takeable(vector.action_masks())
        before = [(infos["sample_key"][i], infos["target_id"][i], member(observations, i)) for i in range(3)]
        observations, rewards, ended, cut, infos = vector.step(actions)
        assert observations in vector.observation_space and not cut.any()
        for i in range(3):
            traces[i].append((begun[i], *before[i], int(actions[i]), rewards[i], bool(ended[i])))
    for trace in traces:
        after_the_end = False
        for begun, sample_key, target_id, shown, action, reward, ended in trace:
            if after_the_end and mode is AutoresetMode.NEXT_STEP:
                assert reward == 0.0 and not ended
                after_the_end = False
                continue
            if begun:
                expected, _ = single.reset(options={"root": (sample_key, target_id)})
            assert same(shown, expected)
            expected, gain, terminated, *_ = single.step(action)
            assert (gain, terminated) == (reward, ended)
            after_the_end = ended


def test_one_member_plays_the_episodes_of_the_single_environment(played_campaign):
    vector = NextBestViewVectorEnv(played_campaign, 1, observation=SMALL)
    single = NextBestViewEnv(played_campaign, observation=SMALL)
    _, infos = vector.reset(seed=9)
    for episode in range(3):
        _, info = single.reset(seed=9 if episode == 0 else None)
        assert (info["sample_key"], info["target_id"]) == (infos["sample_key"][0], infos["target_id"][0])
        ended = np.array([False])
        while not ended[0]:
            _, _, ended, _, infos = vector.step(last_takeable(vector.action_masks()))
        _, _, _, _, infos = vector.step([0])


def test_a_step_is_one_evaluation_for_all_members(played_campaign, monkeypatch):
    vector = NextBestViewVectorEnv(played_campaign, 4, "SameStep", observation=SMALL, horizon=2, fresh_views=True)
    vector.reset(seed=0)
    scorer, calls = vector.player.evaluator.scorer, list[int]()
    score = scorer.score
    monkeypatch.setattr(scorer, "score", lambda requests: calls.append(len(requests)) or score(requests))
    ended = np.zeros(4, bool)
    for _ in range(2):
        calls.clear()
        _, _, ended, _, _ = vector.step(last_takeable(vector.action_masks()))
        assert calls[0] == 4
    assert ended.any()


def test_the_end_is_in_final_obs_when_members_begin_anew_at_once(played_campaign):
    vector = NextBestViewVectorEnv(played_campaign, 2, "SameStep", observation=SMALL, horizon=1)
    vector.reset(seed=0)
    actions = last_takeable(vector.action_masks())
    observations, _, ended, _, infos = vector.step(actions)
    assert ended.all() and (observations["steps_left"] == 1).all()
    assert [final["steps_left"] for final in infos["final_obs"]] == [0, 0]
    assert infos["final_info"]["path"].tolist() == [(int(action),) for action in actions]
    assert infos["path"].tolist() == [(), ()]


def test_roots_can_be_named_and_mistakes_are_said(played_campaign):
    vector = NextBestViewVectorEnv(played_campaign, 2, observation=SMALL)
    _, infos = vector.reset(options={"roots": [(0, 0), (1, 0)]})
    assert infos["sample_index"].tolist() == [0, 1] and infos["target_rank"].tolist() == [0, 0]
    for wrong in ([0], [[0, 1]], [0, 8], [0.5, 0]):
        with refused(InvalidAction):
            vector.step(wrong)
    with refused(RowRefused, "roots", "2 members", field="options"):
        vector.reset(options={"roots": [(0, 0)]})
    with refused(ConfigError, "autoreset_mode", "Disabled"):
        NextBestViewVectorEnv(played_campaign, 2, "Disabled")
    with refused(ConfigError, "num_envs", 0):
        NextBestViewVectorEnv(played_campaign, 0)


def test_stable_baselines_sees_masks_returns_and_ends(played_campaign):
    env = NextBestViewVecEnv(played_campaign, 2, observation=SMALL, horizon=2)
    assert is_masking_supported(env)
    env.seed(3)
    first = env.reset()
    total = np.zeros(2)
    for _ in range(2):
        masks = get_action_masks(env)
        assert masks.shape == (2, 8) and masks.dtype == np.bool_
        _, rewards, ended, infos = env.step(last_takeable(masks))
        total += rewards
    for place in np.flatnonzero(ended):
        assert infos[place]["episode"]["r"] == pytest.approx(total[place])
        assert infos[place]["terminal_observation"]["steps_left"] == 0
        assert infos[place]["final_info"]["path"] and infos[place]["path"] == ()
    env.seed(3)
    assert same(first, env.reset())
