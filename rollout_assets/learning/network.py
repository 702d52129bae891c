"""The reference policy's network: what each candidate would see of the target's box, given what is known of it.

The box's surface is cut into patches. What is known of a patch comes from the points near it; what a candidate sees of
it comes from geometry: direction, distance, place in the image, and whether known points stand before it. Each
candidate gathers its patches through gates that geometry opens, looks at the other candidates, and is given two values:
the gain of this one view, and the return of going on from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollout_assets.config.network import NetworkConfig
from rollout_assets.learning.sight import (
    CANDIDATE_FEATURES,
    PAIR_FEATURES,
    PATCH_FEATURES,
    STATE_FEATURES,
    candidate_features,
    sight_of,
    state_features,
)
from rollout_assets.observations.observation import CLASS_BUCKETS, Observations


@dataclass(frozen=True, eq=False)
class ViewValues:
    """Values of b states of k candidates, (b, k) each; where a candidate cannot be taken they mean nothing."""

    gain: Tensor
    q: Tensor


class ViewNetwork(nn.Module):
    """Observations in, two values per candidate out. Any number of candidates, points and poses will do."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.classes = nn.Embedding(CLASS_BUCKETS, 8)
        self.state = _mlp(STATE_FEATURES + 8, width, width)
        self.patch = _mlp(PATCH_FEATURES, width, width)
        self.pair = nn.Linear(PAIR_FEATURES, width)
        self.gate = _mlp(width, width, 2 * width)
        self.candidate = _mlp(CANDIDATE_FEATURES + 2 * width, width, width, config.dropout)
        layer = nn.TransformerEncoderLayer(
            width, config.heads, 2 * width, config.dropout, functional.gelu, batch_first=True, norm_first=True
        )
        self.compare = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.values = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, observations: Observations[Tensor]) -> ViewValues:
        """Values of every candidate."""
        sight = sight_of(observations, self.config.patches)
        state = self.state(torch.cat([state_features(observations), self.classes(observations.target_class)], -1))
        patches = self.patch(sight.patches) + state[:, None]
        pairs = self.pair(sight.pairs) + patches[:, None]
        gate, value = self.gate(functional.gelu(pairs)).chunk(2, dim=-1)
        seen = (torch.sigmoid(gate) * value * sight.area[:, None, :, None]).sum(dim=2)
        own = candidate_features(observations)
        shared = state[:, None].expand(-1, own.shape[1], -1)
        tokens = self.candidate(torch.cat([own, seen, shared], dim=-1))
        absent = ~observations.candidate_mask
        absent = absent & ~absent.all(dim=1, keepdim=True)
        values = self.values(self.compare(tokens, src_key_padding_mask=absent))
        return ViewValues(values[..., 0], values[..., 1])


def _mlp(inputs: int, hidden: int, outputs: int, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, outputs))
