"""The reference policy's network: what each candidate would see of the target's box, given what is known of it.

The box's surface is cut into patches. What is known of a patch comes from the points near it; what a candidate sees of
it comes from geometry: direction, distance, place in the image, and whether known points stand before it. Each
candidate gathers its patches through gates that geometry opens, looks at the other candidates, and is given two values:
the gain of this one view, and the return of going on from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollout_assets.config.network import NetworkConfig
from rollout_assets.learning.sight import (
    CANDIDATE_FEATURES,
    KNOWN_FEATURES,
    PAIR_FEATURES,
    PATCH_FEATURES,
    POINT_FEATURES,
    STATE_FEATURES,
    candidate_features,
    point_features,
    sight_of,
    state_features,
)
from rollout_assets.observations.observation import CLASS_BUCKETS, Observations

CLASS_WIDTH = 8
"""Numbers that stand for a class."""

GATE_WIDTH = 16
"""Numbers from which a gate is opened, for every candidate and patch; most of the network's time goes by this."""


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
        width, joined = config.width, CANDIDATE_FEATURES + PAIR_FEATURES + KNOWN_FEATURES + 2 * config.width
        self.classes = nn.Embedding(CLASS_BUCKETS, CLASS_WIDTH)
        self.points = _mlp(POINT_FEATURES, width // 2, width // 2)
        self.state = _mlp(STATE_FEATURES + CLASS_WIDTH + width // 2, width, width)
        self.patch = _mlp(PATCH_FEATURES, width, width)
        self.known = nn.Linear(width, GATE_WIDTH)
        self.seen = nn.Linear(PAIR_FEATURES, GATE_WIDTH)
        self.gate = nn.Linear(GATE_WIDTH, config.gates)
        self.candidate = nn.Sequential(nn.LayerNorm(joined), _mlp(joined, 2 * width, width, config.dropout))
        layer = nn.TransformerEncoderLayer(
            width, config.heads, 2 * width, config.dropout, functional.gelu, batch_first=True, norm_first=True
        )
        self.compare = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.values = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2))

    def forward(self, observations: Observations[Tensor]) -> ViewValues:
        """Values of every candidate."""
        state = self._state(observations)
        own, seen = candidate_features(observations), self._seen(observations, state)
        shared = state[:, None].expand(-1, own.shape[1], -1)
        tokens = self.candidate(torch.cat([own, seen, shared], dim=-1))
        absent = ~observations.candidate_mask
        absent = absent & ~absent.all(dim=1, keepdim=True)
        values = self.values(self.compare(tokens, src_key_padding_mask=absent))
        return ViewValues(values[..., 0], values[..., 1])

    def _state(self, observations: Observations[Tensor]) -> Tensor:
        """(b, width): the target, what is known of it as a whole, and where the actor stands."""
        points = self.points(point_features(observations)).masked_fill(~observations.point_mask[..., None], 0.0)
        parts = [state_features(observations), self.classes(observations.target_class), points.amax(dim=1)]
        state: Tensor = self.state(torch.cat(parts, dim=-1))
        return state

    def _seen(self, observations: Observations[Tensor], state: Tensor) -> Tensor:
        """(b, k, …): what each candidate gathers of the patches, the plain mean, and what it keeps in sight."""
        sight = sight_of(observations, self.config.patches)
        patches = self.patch(sight.patches) + state[:, None]
        opened = self.seen(sight.pairs) + self.known(functional.gelu(patches))[:, None]
        weight = torch.sigmoid(self.gate(functional.gelu(opened))) * sight.area[:, None, :, None]
        parts = patches.reshape(*patches.shape[:2], self.config.gates, -1)
        gathered = torch.einsum("bkpg,bpgw->bkgw", weight, parts)
        plain = (sight.pairs * sight.area[:, None, :, None]).sum(dim=2)
        return torch.cat([gathered.flatten(2), plain, sight.known], dim=-1)


def augmented(observations: Observations[Tensor]) -> Observations[Tensor]:
    """The same states, half of them mirrored left to right: in the target's frame, y changes its sign.

    A camera's axes stay right-handed by turning its left to the right, which mirrors its image too.
    """
    sign = 1.0 - 2.0 * torch.randint(0, 2, (len(observations.steps_left),), device=observations.points.device)
    turned = torch.ones(len(sign), 12, dtype=observations.points.dtype, device=sign.device)
    turned[:, [0, 4, 5, 6, 10]] = sign[:, None].to(turned.dtype)  # left axis: x and z; others: y; translation: y
    camera = observations.camera.clone()
    camera[:, 2] = torch.where(sign > 0, camera[:, 2], 1.0 - camera[:, 2])
    return replace(
        observations,
        points=observations.points * torch.stack([sign * sign, sign, sign * sign], dim=-1)[:, None].to(turned.dtype),
        candidate_pose_target=observations.candidate_pose_target * turned[:, None],
        taken_pose_target=observations.taken_pose_target * turned[:, None],
        camera=camera,
    )


def _mlp(inputs: int, hidden: int, outputs: int, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, outputs))
