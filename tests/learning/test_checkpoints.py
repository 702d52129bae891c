"""A checkpoint is one reproducible file; what is loaded scores the same in any batch, and a wrong file is one line."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rollout_assets.config.network import NetworkConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import PolicyRefused
from rollout_assets.learning.checkpoints import (
    LearnedPolicy,
    PolicyCard,
    load_policy,
    observed_arrays,
    parameter_count,
    read_card,
    save_checkpoint,
)
from rollout_assets.learning.network import ViewNetwork
from rollout_assets.learning.tensor_file import LARGEST_HEADER
from rollout_assets.testing.fake_observations import fake_observations
from tests.support.refusals import refused

OBSERVATION = ObservationConfig(points=32, history=2)
NETWORK = NetworkConfig(patches=2, width=8, heads=2, layers=1)


def network() -> ViewNetwork:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return ViewNetwork(NETWORK)


def card_of(net: ViewNetwork, **changes: Any) -> PolicyCard:
    values = {
        "head": "gain",
        "score_scale": 0.05,
        "observation": OBSERVATION,
        "observation_layout": OBSERVATION.layout_hash,
        "observation_arrays": observed_arrays(),
        "network": NETWORK,
        "candidates": 7,
        "parameters": parameter_count(net.state_dict()),
        "training_config_hash": "0" * 64,
        "stores": ("1" * 64,),
        "scenes": ("home-000", "home-001"),
        "metrics": {"share_of_headroom": 0.5},
    }
    return PolicyCard(**(values | changes))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    net = network()
    save_checkpoint(tmp_path / "policy.safetensors", card_of(net), net.state_dict())
    return tmp_path / "policy.safetensors"


def rewritten(path: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> Path:
    """The checkpoint with other tensors, or with other values in its card."""
    card = json.loads(read_card(path).model_dump_json()) | changes
    save_file(load_file(path) if tensors is None else tensors, path, metadata={"card": json.dumps(card)})
    return path


def test_equal_weights_and_cards_give_equal_bytes(checkpoint: Path, tmp_path: Path) -> None:
    net = network()
    weights = dict(reversed(net.state_dict().items()))
    save_checkpoint(tmp_path / "again.safetensors", card_of(net), weights)
    assert checkpoint.read_bytes() == (tmp_path / "again.safetensors").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_is_loaded_is_what_was_saved(checkpoint: Path) -> None:
    policy = load_policy(checkpoint)
    assert isinstance(policy, LearnedPolicy)
    assert (policy.observation, policy.score_source) == (OBSERVATION, "learned_gain")
    assert policy.card == read_card(checkpoint) == card_of(network())
    observations = fake_observations(5, 7, OBSERVATION)
    with torch.no_grad():
        direct = network().double().eval()(observations.mapped(lambda a: _double(torch.from_numpy(a)))).gain * 0.05
    mask = observations.candidate_mask
    assert np.allclose(policy.scores(observations)[mask], direct.numpy()[mask], atol=1e-6)
    assert np.isneginf(policy.scores(observations)[~mask]).all()


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def test_scores_do_not_depend_on_batch_width_threads_or_grad_mode(checkpoint: Path) -> None:
    policy = load_policy(checkpoint)
    observations = fake_observations(70, 7, OBSERVATION)
    together = policy.scores(observations)
    alone = [policy.scores(observations.mapped(lambda a, at=at: a[at : at + 1])) for at in range(70)]
    assert np.array_equal(np.concatenate(alone), together)
    with ThreadPoolExecutor(4) as threads:
        assert all(np.array_equal(scores, together) for scores in threads.map(policy.scores, [observations] * 4))


def test_the_head_of_the_card_decides_the_score(tmp_path: Path) -> None:
    net = network()
    save_checkpoint(tmp_path / "q.safetensors", card_of(net, head="q"), net.state_dict())
    save_checkpoint(tmp_path / "gain.safetensors", card_of(net), net.state_dict())
    by_q, by_gain = load_policy(tmp_path / "q.safetensors"), load_policy(tmp_path / "gain.safetensors")
    assert by_q.score_source == "learned_q"
    observations = fake_observations(2, 7, OBSERVATION)
    assert not np.array_equal(by_q.scores(observations), by_gain.scores(observations))


def test_loading_leaves_the_global_generator_alone(checkpoint: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load_policy(checkpoint)
    assert torch.equal(before, torch.get_rng_state())


def test_an_observation_of_other_sizes_is_refused(checkpoint: Path) -> None:
    with refused(PolicyRefused, "32 points", 16, 2):
        load_policy(checkpoint).scores(fake_observations(1, 3, ObservationConfig(points=16, history=2)))


def test_an_observation_that_is_not_finite_is_refused(checkpoint: Path) -> None:
    observations = fake_observations(1, 3, OBSERVATION)
    observations.target_extents[0, 0] = np.nan
    with refused(PolicyRefused, "target_extents"):
        load_policy(checkpoint).scores(observations)


def _header(size: int, body: bytes = b"") -> bytes:
    return struct.pack("<Q", size) + body


NOT_CHECKPOINTS = {
    "empty": (b"", ["0 bytes"]),
    "text": (b"not a checkpoint at all", ["header"]),
    "huge header": (_header(LARGEST_HEADER + 1), ["header"]),
    "header beyond the end": (_header(500, b"{}"), ["header", "500 bytes"]),
    "header that is not JSON": (_header(4, b"{{{{"), ["header", "JSON"]),
    "header nested deeply": (_header(90_000, b"[" * 90_000), ["header", "JSON"]),
    "header that is a list": (_header(2, b"[]"), ["header"]),
    "without card": (_header(2, b"{}"), ["card"]),
    "card that is not JSON": (_header(37, b'{"__metadata__": {"card": "no json"}}'), ["card", "JSON"]),
}


@pytest.mark.parametrize("case", NOT_CHECKPOINTS)
def test_what_is_no_checkpoint_is_one_line(case: str, tmp_path: Path) -> None:
    content, names = NOT_CHECKPOINTS[case]
    path = tmp_path / "policy.safetensors"
    path.write_bytes(content)
    for read in (load_policy, read_card):
        with refused(PolicyRefused, path, *names) as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    with refused(PolicyRefused, tmp_path / "absent.safetensors"):
        load_policy(tmp_path / "absent.safetensors")
    with refused(PolicyRefused, f"{tmp_path}: "):
        load_policy(tmp_path)


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(checkpoint: Path, kept: float) -> None:
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(data[: int(len(data) * kept)])
    with refused(PolicyRefused, checkpoint):
        load_policy(checkpoint)


def test_weights_that_are_not_finite_are_refused(checkpoint: Path) -> None:
    tensors = load_file(checkpoint)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[0] = torch.nan
    with refused(PolicyRefused, f"tensor {name}", 1):
        load_policy(rewritten(checkpoint, tensors))


def test_other_tensors_are_refused_by_name(checkpoint: Path) -> None:
    whole = load_file(checkpoint)
    name = sorted(whole)[0]
    with refused(PolicyRefused, f"1 tensor: {name}"):
        load_policy(rewritten(checkpoint, {key: value for key, value in whole.items() if key != name}))
    with refused(PolicyRefused, "1 tensor: another"):
        load_policy(rewritten(checkpoint, whole | {"another": torch.zeros(2)}))
    with refused(PolicyRefused, f"tensor {name}", "shape"):
        load_policy(rewritten(checkpoint, whole | {name: whole[name][:-1].clone()}))
    with refused(PolicyRefused, f"tensor {name}", "torch.float16", "torch.float32"):
        load_policy(rewritten(checkpoint, whole | {name: whole[name].half()}))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"observation_layout": "f" * 64}, "layout ffffffffffff"),
        ({"observation_arrays": ["points"]}, "candidate_mask"),
        ({"observation": {"points": 0}}, "observation.points"),
        ({"format_version": 2}, "version 2"),
        ({"kind": "other"}, "kind 'other'"),
        ({"parameters": 3}, "3 parameters"),
        ({"surprise": 1}, "surprise: "),
        ({"head": "fame"}, "head"),
    ],
)
def test_another_card_is_one_line(checkpoint: Path, changes: dict[str, Any], name: str) -> None:
    with refused(PolicyRefused, name) as caught:
        load_policy(rewritten(checkpoint, **changes))
    assert "\n" not in str(caught.value)
