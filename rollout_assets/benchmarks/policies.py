"""Policies side by side on the same stored states: how much of what a state offers do their choices get?

Only one choice is judged at a time, at states that other policies went through. What a policy gets when it goes its own
way is measured by ``rollout-assets evaluate``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.benchmarks.results import Figure
from rollout_assets.benchmarks.trees import FEATURES, fit_trees, tree_features
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.config.training import load_training
from rollout_assets.errors import TrainingError
from rollout_assets.geometry.poses import Float64
from rollout_assets.learning.batch import QHBatch
from rollout_assets.learning.checkpoints import LearnedPolicy, load_policy
from rollout_assets.learning.iterable import QHIterableDataset, QHLoader
from rollout_assets.learning.policies import largest_turn, most_new_points, nearest_to_target
from rollout_assets.learning.training.choices import ChoiceQuality, Choices
from rollout_assets.learning.training.data import TrainingData, observation_source, open_training_data
from rollout_assets.observations.observation import Arrays, Observations
from rollout_assets.observations.policy import ViewPolicy
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.randomness import rng_for

BASELINES: tuple[Callable[[], ViewPolicy], ...] = (nearest_to_target, largest_turn, most_new_points)

RANDOM_DRAWS = 16
"""How often a random choice is made at every state; its mean share of the headroom is 0."""

_SEED = 0


@dataclass(frozen=True)
class PolicyQuality:
    """How well one policy chooses."""

    policy: Annotated[str, Figure("policy")]
    first_share: Annotated[float, Figure("share of headroom, first steps", "{:.1%}")]
    share: Annotated[float, Figure("all steps", "{:.1%}")]
    gain: Annotated[float, Figure("gain", "{:.4f}")]
    regret: Annotated[float, Figure("regret", "{:.4f}")]
    rank_correlation: Annotated[float, Figure("rank correlation", "{:.3f}")]


@dataclass(frozen=True)
class PolicyBenchmark:
    """All policies on the same states."""

    training_scenes: Annotated[int, Figure("scenes that the trees were trained on", "{:,}")]
    training_states: Annotated[int, Figure("states that the trees were trained on", "{:,}")]
    scenes: Annotated[int, Figure("scenes of the judged states", "{:,}")]
    states: Annotated[int, Figure("judged states", "{:,}")]
    policies: Annotated[tuple[PolicyQuality, ...], Figure("choices")]

    def __str__(self) -> str:
        return "policies on stored states"


def benchmark_policies(
    store: Path,
    sources: Sequence[Path],
    held_out: Path | None = None,
    checkpoints: Sequence[Path] = (),
    cache_dir: Path | None = None,
    homes: int | None = None,
    progress: ProgressSink = SILENT,
) -> PolicyBenchmark:
    """Train trees on a store; judge them, simple policies and checkpoints on ``held_out``, or on scenes held out."""
    loaded = {path: load_policy(path) for path in checkpoints}
    settings = {
        "stores": (store,),
        "sources": tuple(sources),
        "validation": {"stores": () if held_out is None else (held_out,)},
        "cache_dir": cache_dir,
        "homes": homes,
    }
    config = load_training(None, settings)
    data = open_training_data(config)
    judged = data.judged_scenes
    for path, policy in loaded.items():
        _refuse_known_scenes(path, policy, judged)
    contestants = _contestants(data, loaded, progress)
    qualities = tuple(_judged(name, policy, data, progress) for name, policy in contestants)
    return PolicyBenchmark(len(data.train_scenes), data.states, len(judged), data.validation_states, qualities)


def _contestants(
    data: TrainingData, loaded: dict[Path, LearnedPolicy], progress: ProgressSink
) -> Iterator[tuple[str, ViewPolicy]]:
    yield "random", _Random()
    yield from ((make.__name__, make()) for make in BASELINES)
    yield "trees", _trees(data, progress)
    yield from ((str(path), policy) for path, policy in loaded.items())


class _Random:
    """Scores that mean nothing; every call draws others."""

    observation = ObservationConfig(points=1)
    score_source = "random"

    def __init__(self) -> None:
        self._rng = rng_for(_SEED, "random scores")

    def scores(self, observations: Observations[Arrays]) -> Float64:
        return self._rng.random(observations.candidate_mask.shape)


def _trees(data: TrainingData, progress: ProgressSink) -> ViewPolicy:
    features, gains = [np.zeros((0, len(FEATURES)))], [np.zeros(0)]
    loader = data.training_loader()
    for number, batch in enumerate(loader):
        gain, mask = _labels(batch)
        features.append(tree_features(_observed(batch), mask))
        mean = np.where(mask, gain, 0.0).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)
        gains.append((gain - mean[:, None])[mask])
        progress(ProgressEvent("features of the training states", number + 1, len(loader), unit="batches"))
    return fit_trees(np.concatenate(features), np.concatenate(gains), data.config.observation, _SEED)


def _judged(name: str, policy: ViewPolicy, data: TrainingData, progress: ProgressSink) -> PolicyQuality:
    choices, loader = Choices(), QHLoader(_shown_to(policy, data))
    for number, batch in enumerate(loader):
        observations = _observed(batch)
        gain, mask = _labels(batch)
        for _ in range(RANDOM_DRAWS if isinstance(policy, _Random) else 1):
            choices.add(policy.scores(observations), gain, mask, observations.taken_mask.sum(axis=1) == 1)
        progress(ProgressEvent(name, number + 1, len(loader), unit="batches"))
    return _figures(name, choices.quality())


def _figures(name: str, quality: ChoiceQuality) -> PolicyQuality:
    return PolicyQuality(
        name, quality.first_share, quality.share_of_headroom, quality.gain, quality.regret, quality.rank_correlation
    )


def _shown_to(policy: ViewPolicy, data: TrainingData) -> QHIterableDataset:
    """The judged states, with what this policy wants to be shown."""
    source = data.validation.source
    return QHIterableDataset(
        [pin.location for pin in source.pins],
        data.config.batch_size,
        shuffle=False,
        observations=observation_source(data.config.model_copy(update={"observation": policy.observation})),
        where=source.where,
    )


def _observed(batch: QHBatch) -> Observations[Arrays]:
    if batch.observations is None:
        raise TrainingError("a batch has no observations")
    return batch.observations.mapped(lambda tensor: tensor.numpy())


def _labels(batch: QHBatch) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    gain = batch.one_step_target_root_gain.numpy()
    return gain, batch.q_train_mask.numpy() & np.isfinite(gain)


def _refuse_known_scenes(path: Path, policy: LearnedPolicy, judged: Sequence[str]) -> None:
    if held_in := set(judged) & set(policy.card.scenes):
        raise TrainingError(
            f"{path}: was trained on {len(held_in)} of the {len(judged)} judged scenes, {min(held_in)} among them; "
            "judge it on another store with --held-out"
        )
