"""A checkpoint of a network that was never trained, with a card that says what a test needs."""

from __future__ import annotations

from pathlib import Path

import torch

from rollout_assets.config.network import NetworkConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.learning.checkpoints import PolicyCard, observed_arrays, parameter_count, save_checkpoint
from rollout_assets.learning.network import ViewNetwork

OBSERVATION = ObservationConfig(points=16, history=2)


def write_checkpoint(path: Path, scenes: tuple[str, ...]) -> Path:
    """The file, trained on these scenes if one believes it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = ViewNetwork(NetworkConfig())
    card = PolicyCard(
        head="gain",
        observation=OBSERVATION,
        observation_layout=OBSERVATION.layout_hash,
        observation_arrays=observed_arrays(),
        network=NetworkConfig(),
        candidates=4,
        parameters=parameter_count(network.state_dict()),
        training_config_hash="0" * 64,
        stores=("1" * 64,),
        scenes=scenes,
    )
    save_checkpoint(path, card, network.state_dict())
    return path
