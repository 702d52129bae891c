"""A stand-in for the reference network, under its interface, until that one lands."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rollout_assets.config.network import NetworkConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.observations.observation import Observations


class ViewValues(NamedTuple):
    """gain, q: (b, k) what a view is worth now, and with all that may follow."""

    gain: Tensor
    q: Tensor


class ViewNetwork(nn.Module):
    """Values of the candidates of some states."""

    def __init__(self, config: NetworkConfig, observation: ObservationConfig) -> None:
        super().__init__()
        self.config, self.observation = config, observation
        self.points = nn.Linear(4, config.width)
        self.candidate = nn.Linear(12 + 4 + 3 + config.width, config.width)
        self.heads = nn.Linear(config.width, 2)

    def forward(self, observations: Observations[Tensor]) -> ViewValues:
        """Values of every candidate; those that cannot be taken mean nothing."""
        o = observations
        points = self.points(torch.cat([o.points, o.point_age[..., None]], -1)).relu() * o.point_mask[..., None]
        seen = points.mean(1)
        k = o.candidate_mask.shape[1]
        state = torch.cat([o.target_extents, seen], -1)[:, None].expand(-1, k, -1)
        hidden = self.candidate(torch.cat([o.candidate_pose_target, o.candidate_motion * 0.1, state], -1)).relu()
        gain, q = self.heads(hidden).unbind(-1)
        return ViewValues(gain, q)
