"""A checkpoint of a network that was never trained, with a card that says what a test needs."""

from __future__ import annotations

from pathlib import Path

import torch

from rollout_assets.config.network import NetworkConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.learning.checkpoints import PolicyCard, observed_arrays, parameter_count, save_checkpoint
from rollout_assets.learning.network import ViewNetwork

OBSERVATION = ObservationConfig(points=16, history=2)
NETWORK = NetworkConfig(patches=2, width=8, heads=2, layers=1)


def write_checkpoint(path: Path, scenes: tuple[str, ...]) -> Path:
    """The file, trained on these scenes if one believes it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = ViewNetwork(NETWORK)
    card = PolicyCard(
        head="gain",
        observation=OBSERVATION,
        observation_layout=OBSERVATION.layout_hash,
        observation_arrays=observed_arrays(),
        network=NETWORK,
        candidates=4,
        parameters=parameter_count(network.state_dict()),
        training_config_hash="0" * 64,
        stores=("1" * 64,),
        scenes=scenes,
    )
    save_checkpoint(path, card, network.state_dict())
    return path
