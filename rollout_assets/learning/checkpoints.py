"""Checkpoints: a network's weights and a card that says what they are, in one safetensors file without code in it.

Equal weights and cards give equal bytes, so the file's digest names the policy. A file that cannot be used is one clear
line before any work.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch import Tensor

from rollout_assets import __version__
from rollout_assets.config.network import NetworkConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.config.problems import problems_text
from rollout_assets.config.section import ConfigSection, Finite, Natural, Positive
from rollout_assets.errors import PolicyRefused, counted
from rollout_assets.geometry.poses import Float64
from rollout_assets.learning.network import ViewNetwork
from rollout_assets.learning.tensor_file import NotATensorFile, read_document, read_tensor_file, write_tensor_file
from rollout_assets.observations.observation import MOTION_COLUMNS, Arrays, Observations
from rollout_assets.parsing import expand_path

CARD = "card"
"""Key of the card among a file's metadata."""

FORMAT_VERSION: Final = 1
"""Version of the card and of what the tensors are."""

KIND: Final = "rollout_assets.view_network"
"""Which network the tensors belong to."""

MOST_PARAMETERS = 50_000_000
"""A card that asks for a larger network is refused before it is built."""

SCORE_STEP = 1e-6
"""Scores are multiples of this, far above what the order of sums can change."""

_CHUNK_STATES = 64
_SHOWN_NAMES = 3

Head = Literal["gain", "q"]
"""Which of the network's values is the score: gain of this view alone, or of all views from this one on."""


def observed_arrays() -> tuple[str, ...]:
    """What an observation of this version of the package holds; a network is made for one such list."""
    return (*Observations.__dataclass_fields__, *MOTION_COLUMNS)


class PolicyCard(ConfigSection):
    """What a checkpoint says about itself.

    ``candidates`` is the number of views of a state in training; the network works for any. ``score_scale`` turns the
    network's values into root gain. ``stores`` are the digests of the stores' manifests, ``scenes`` what it was trained
    on, held out for its validation or not, because an evaluation must not use any of them.
    """

    format_version: Literal[1] = FORMAT_VERSION
    kind: Literal["rollout_assets.view_network"] = KIND
    package_version: str = __version__
    head: Head
    score_scale: Positive = 1.0
    observation: ObservationConfig
    observation_layout: str
    observation_arrays: tuple[str, ...]
    network: NetworkConfig
    candidates: Natural
    parameters: Natural
    training_config_hash: str
    stores: tuple[str, ...]
    scenes: tuple[str, ...]
    validation_scenes: tuple[str, ...] = ()
    metrics: dict[str, Finite] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)


Weights = Mapping[str, Tensor]


def save_checkpoint(path: Path, card: PolicyCard, weights: Weights) -> None:
    """Write a checkpoint in one step; its folder must exist."""
    write_tensor_file(path, CARD, card.model_dump(mode="json"), weights)


def read_card(path: Path | str) -> PolicyCard:
    """The card of a checkpoint, from the head of its file; one of another version or layout is refused."""
    place = expand_path(path)
    try:
        return _card(place, read_document(place, CARD))
    except NotATensorFile as error:
        raise PolicyRefused(f"{place}: {error}") from None


def load_policy(path: Path | str) -> LearnedPolicy:
    """The policy of a checkpoint; ``PolicyRefused`` in one line if it cannot be used, whatever is wrong with it."""
    place = expand_path(path)
    try:
        file = read_tensor_file(place, CARD)
    except NotATensorFile as error:
        raise PolicyRefused(f"{place}: {error}") from None
    card = _card(place, file.document)
    with torch.device("meta"):
        expected = ViewNetwork(card.network).state_dict()
    _refuse_other_weights(place, card, expected, file.tensors)
    with torch.random.fork_rng(devices=[]):
        network = ViewNetwork(card.network)
    network.load_state_dict(file.tensors)
    return LearnedPolicy(card, network)


def parameter_count(weights: Weights) -> int:
    """How many numbers the weights are."""
    return sum(tensor.numel() for tensor in weights.values())


class LearnedPolicy:
    """A network as a policy: scores in float64, in chunks of states, rounded so that batching cannot change them.

    Threads may share one, because nothing of it changes.
    """

    def __init__(self, card: PolicyCard, network: ViewNetwork) -> None:
        self.card = card
        self._network = network.to("cpu", torch.float64).eval().requires_grad_(False)

    @property
    def observation(self) -> ObservationConfig:
        """What it wants to be shown."""
        return self.card.observation

    @property
    def score_source(self) -> str:
        """``learned_gain`` or ``learned_q``."""
        return f"learned_{self.card.head}"

    def scores(self, observations: Observations[Arrays]) -> Float64:
        """(b, k) predicted root gain, in multiples of ``SCORE_STEP``; -inf where a view cannot be taken."""
        self._refuse_other_sizes(observations)
        _refuse_what_is_not_finite(observations)
        scores = np.full(observations.candidate_mask.shape, -np.inf)
        for start in range(0, len(observations), _CHUNK_STATES):
            rows = slice(start, start + _CHUNK_STATES)
            scores[rows] = self._chunk(observations.mapped(lambda values, rows=rows: values[rows]))  # type: ignore[misc]
        scores[~observations.candidate_mask] = -np.inf
        return scores

    def _chunk(self, observations: Observations[Arrays]) -> Float64:
        with torch.inference_mode():
            values = self._network(observations.mapped(_as_float64))
            chosen: Tensor = getattr(values, self.card.head) * self.card.score_scale
        return np.round(chosen.numpy() / SCORE_STEP) * SCORE_STEP

    def _refuse_other_sizes(self, observations: Observations[Arrays]) -> None:
        given = observations.points.shape[1], observations.taken_pose_target.shape[1]
        wanted = self.observation.points, self.observation.history
        if given != wanted:
            raise PolicyRefused(
                f"a policy for {wanted[0]:,} points and {wanted[1]} poses taken was shown {given[0]:,} and {given[1]}; "
                "make observations with its own 'observation'"
            )


def _refuse_what_is_not_finite(observations: Observations[Arrays]) -> None:
    for name, values in observations.arrays().items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise PolicyRefused(f"an observation's {name} is not finite, so no view can be scored")


def _as_float64(values: Arrays) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.double() if tensor.is_floating_point() else tensor


def _card(path: Path, document: dict[str, Any]) -> PolicyCard:
    """A file's card; of another version or layout, only that is said, because the rest follows from it."""
    version, kind = document.get("format_version"), document.get("kind")
    if version != FORMAT_VERSION or kind != KIND:
        raise PolicyRefused(
            f"{path}: is a checkpoint of kind {kind!r}, version {version!r}; "
            f"this package reads {KIND!r}, version {FORMAT_VERSION}"
        )
    try:
        card = PolicyCard.model_validate(document)
    except ValidationError as error:
        raise PolicyRefused(f"{path}: its card cannot be used: {problems_text(error, PolicyCard)}") from None
    _refuse_other_layout(path, card)
    return card


def _refuse_other_layout(path: Path, card: PolicyCard) -> None:
    own = card.observation.layout_hash
    if card.observation_layout != own:
        raise PolicyRefused(
            f"{path}: was trained on observations of layout {card.observation_layout[:12]} by version "
            f"{card.package_version}; version {__version__} makes layout {own[:12]} of the same settings"
        )
    if card.observation_arrays != observed_arrays():
        difference = sorted(set(card.observation_arrays) ^ set(observed_arrays())) or ["their order"]
        raise PolicyRefused(
            f"{path}: was trained on other observations than this version makes; they differ in {_some(difference)}"
        )


def _refuse_other_weights(path: Path, card: PolicyCard, expected: Weights, found: Weights) -> None:
    count = parameter_count(expected)
    if count > MOST_PARAMETERS:
        raise PolicyRefused(f"{path}: its network would have {count:,} parameters, at most {MOST_PARAMETERS:,} are run")
    if card.parameters != count:
        raise PolicyRefused(f"{path}: its card says {card.parameters:,} parameters, its network has {count:,}")
    for what, names in (("lacks", expected.keys() - found.keys()), ("has unknown", found.keys() - expected.keys())):
        if names:
            raise PolicyRefused(f"{path}: {what} {counted(len(names), 'tensor')}: {_some(sorted(names))}")
    for name, tensor in found.items():
        problem = _weight_problem(tensor, expected[name])
        if problem:
            raise PolicyRefused(f"{path}: tensor {name} {problem}")


def _weight_problem(tensor: Tensor, expected: Tensor) -> str:
    if tensor.shape != expected.shape:
        return f"has shape {tuple(tensor.shape)}, its network needs {tuple(expected.shape)}"
    if tensor.dtype != expected.dtype:
        return f"is {tensor.dtype}, its network needs {expected.dtype}"
    bad = int((~torch.isfinite(tensor)).sum())
    return f"is not finite in {counted(bad, 'place')}; train it again" if bad else ""


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
