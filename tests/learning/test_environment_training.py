"""A masked PPO of sb3-contrib, unchanged, learns on the vector environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from rollout_assets.config import CampaignConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.learning.environment import NextBestViewEnv
from rollout_assets.learning.environment.sb3 import NextBestViewVecEnv
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.store import build_synthetic_store

SHOWN = ObservationConfig(points=16, history=2, depth_px=8)
STEPS = 2_048
EPISODES = 60

Choice = Callable[[dict[str, Any], dict[str, Any]], int]


class ViewScores(BaseFeaturesExtractor):
    """A number per view from its poses, its motion and the target's size, by one small network for all views."""

    def __init__(self, space: spaces.Dict) -> None:
        views = space["candidate_mask"].shape[0]
        super().__init__(space, views + int(space["steps_left"].n))
        self.network = torch.nn.Sequential(torch.nn.Linear(31, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def forward(self, shown: dict[str, torch.Tensor]) -> torch.Tensor:
        views = shown["candidate_mask"].shape[1]
        motion = shown["candidate_motion"] / torch.tensor([1.0, 1.0, 1.0, 60.0])
        extents = shown["target_extents"][:, None].expand(-1, views, -1)
        columns = [shown["candidate_pose_target"], shown["candidate_pose_camera"], motion, extents]
        scores = self.network(torch.cat(columns, dim=-1))[..., 0]
        return torch.cat([scores, shown["steps_left"].flatten(1)], dim=1)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> CampaignConfig:
    """Eight walks in four homes, sixteen views, two steps."""
    source: Path = tmp_path_factory.mktemp("homes") / "source"
    homes = SyntheticConfig(
        scenes=4, snippets_per_scene=2, faces=30_000, seed=3, min_points=500, max_points=2_000, workers=1
    )
    build_synthetic_store(source, homes)
    modes = {"forward_local": 6, "target_bearing_local": 6, "lateral_target_bypass": 4}
    return CampaignConfig.model_validate(
        {
            "name": "ppo",
            "seed": 5,
            "source": {"store_dir": source},
            "oracle": {"width_px": 16, "height_px": 16, "device": "cpu"},
            "selected_depth": {"width_px": 16, "height_px": 16},
            "candidates": {"mixture": [{"position": name, "count": count} for name, count in modes.items()]},
            "recipes": [{"name": "random_valid", "policy": "random_valid", "horizon": 2}],
        }
    )


def returns(campaign: CampaignConfig, choose: Choice) -> NDArray[np.float64]:
    """The sum of rewards of episodes whose views nobody was trained on; the same episodes whoever chooses."""
    env = NextBestViewEnv(campaign, observation=SHOWN, oracle_info=True, fresh_views=True, seed=99)
    sums = np.zeros(EPISODES)
    for episode in range(EPISODES):
        observation, info = env.reset()
        while info["action_mask"].any():
            observation, reward, _, _, info = env.step(choose(observation, info))
            sums[episode] += reward
    return sums


@pytest.mark.slow
def test_a_masked_ppo_improves_over_random(campaign):
    torch.set_num_threads(1)
    env = NextBestViewVecEnv(campaign, 8, observation=SHOWN, fresh_views=True, seed=1)
    model = MaskablePPO(
        "MultiInputPolicy",
        env,
        n_steps=64,
        batch_size=128,
        n_epochs=8,
        learning_rate=3e-3,
        gamma=1.0,
        gae_lambda=1.0,
        seed=1,
        policy_kwargs={"features_extractor_class": ViewScores, "net_arch": [], "share_features_extractor": False},
        device="cpu",
    )
    with torch.no_grad():  # each view's number is its logit at first
        model.policy.action_net.weight.copy_(torch.eye(*model.policy.action_net.weight.shape))
    model.learn(STEPS)

    rng = np.random.default_rng(0)
    by_lot = returns(campaign, lambda _, info: int(rng.choice(np.flatnonzero(info["action_mask"]))))
    greedy = returns(campaign, lambda _, info: int(np.nanargmax(info["target_root_gain"])))
    learned = returns(
        campaign,
        lambda shown, info: int(model.predict(shown, action_masks=info["action_mask"] == 1, deterministic=True)[0]),
    )
    gained = learned - by_lot
    z = gained.mean() / (gained.std(ddof=1) / np.sqrt(EPISODES))
    headroom = gained.mean() / (greedy - by_lot).mean()
    print(  # noqa: T201
        f"random {by_lot.mean():.3f}, learned {learned.mean():.3f}, greedy {greedy.mean():.3f}: "
        f"{headroom:.0%} of the headroom after {STEPS:,} steps, {z:.1f} standard errors above random"
    )
    assert z > 2
