"""What a training reads: states with what the actor knew at them, divided by scene into training and held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout_assets.config.training import TrainingConfig
from rollout_assets.errors import StoreError, TrainingError
from rollout_assets.learning.iterable import QHIterableDataset, QHLoader
from rollout_assets.learning.observation_source import ObservationSource
from rollout_assets.learning.pinned import open_stores
from rollout_assets.learning.state_filter import StateFilter, by_hash, divide_scenes, scenes_in
from rollout_assets.rollouts.zarr_store.open_store import split_location
from rollout_assets.rollouts.zarr_store.schema import Q_H

TRAINING_SPLIT = "train"
"""The split of a promoted store that is trained on."""


@dataclass(frozen=True)
class TrainingData:
    """States to learn from and states to validate on; no scene is in both."""

    config: TrainingConfig
    train: QHIterableDataset
    validation: QHIterableDataset
    train_scenes: list[str]
    validation_scenes: list[str]
    scale: float

    @property
    def versions(self) -> list[str]:
        """Digests of the manifests of all stores that are read."""
        return list(dict.fromkeys([*self.train.versions, *self.validation.versions]))

    @property
    def judged_scenes(self) -> list[str]:
        """Scenes of the states that are validated on, held out or of stores given for it."""
        return self.validation_scenes or scenes_in(self.validation.source.readers)

    @property
    def width(self) -> int:
        """Views of a state."""
        return self.train.source.width

    @property
    def states(self) -> int:
        """States to learn from."""
        return self.train.source.total

    @property
    def validation_states(self) -> int:
        """States held out."""
        return self.validation.source.total

    def training_loader(self) -> QHLoader:
        """Batches to learn from, in an order that the seed decides."""
        return QHLoader(self.train, num_workers=self.config.workers)

    def validation_loader(self) -> QHLoader:
        """Every state held out, once, in the same order every time."""
        self.validation.set_epoch(0)
        return QHLoader(self.validation, num_workers=self.config.workers)


def open_training_data(config: TrainingConfig) -> TrainingData:
    """Open the stores of a training and divide their scenes; whatever cannot be trained on is refused."""
    _refuse_nothing(config)
    stores = [training_store(store) for store in config.stores]
    train_scenes, held_out = _divided(config, scenes_in(open_stores(stores)))
    only_gain = config.head == "gain"
    train = QHIterableDataset(
        stores,
        config.batch_size,
        seed=config.seed,
        observations=observation_source(config, next_observations=not only_gain),
        where=StateFilter(frozenset(train_scenes), distinct=config.distinct_states and only_gain),
    )
    validation = QHIterableDataset(
        [training_store(store) for store in config.validation.stores] or stores,
        config.batch_size,
        shuffle=False,
        observations=observation_source(config),
        where=StateFilter(None if config.validation.stores else frozenset(held_out), distinct=True),
    )
    if not validation.source.total:
        raise TrainingError(f"no state of the {len(held_out)} scenes held out has a label; hold out others or more")
    return TrainingData(config, train, validation, train_scenes, held_out, gain_spread(train))


def observation_source(config: TrainingConfig, next_observations: bool = False) -> ObservationSource:
    """Where a training finds what the actor knew."""
    kept = {} if config.cache_dir is None else {"cache_dir": config.cache_dir}
    return ObservationSource(config.sources, config.observation, next_observations, **kept)


def training_store(location: Path | str) -> str:
    """A store as it is given, or the training split of a promoted one."""
    try:
        return str(split_location(location, None))
    except StoreError:
        return str(split_location(location, TRAINING_SPLIT))


def gain_spread(dataset: QHIterableDataset) -> float:
    """Standard deviation of the labels around their state's mean, over all states of a dataset."""
    squares, count = 0.0, 0
    for index, rows in enumerate(dataset.source.chosen):
        gain = dataset.source.read_rows(index, Q_H.path("one_step_target_root_gain"))[rows].astype(np.float64)
        mask = dataset.source.read_rows(index, Q_H.path("q_train_mask"))[rows] & np.isfinite(gain)
        mean = np.where(mask, gain, 0.0).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)
        squares += float((np.where(mask, gain - mean[:, None], 0.0) ** 2).sum())
        count += int(mask.sum())
    spread = float(np.sqrt(squares / count)) if count else 0.0
    if not spread > 0:
        raise TrainingError(f"all {count:,} labels of a state are equal, in every state: there is nothing to learn")
    return spread


def _refuse_nothing(config: TrainingConfig) -> None:
    if not config.stores:
        raise TrainingError("stores is empty, so there is nothing to train on; name at least one rollout store")
    if not config.sources:
        raise TrainingError("sources is empty; name the source store that the rollouts of the stores began from")


def _divided(config: TrainingConfig, scenes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Scenes to train on, at most ``homes``, and those held out for validation."""
    if config.validation.stores:
        return by_hash(scenes, config.validation.seed)[: config.homes], []
    if len(scenes) < 2:
        raise TrainingError(
            f"the stores have {len(scenes)} scene, and at least two are needed to hold one out; "
            "name other stores in validation.stores"
        )
    train, held_out = divide_scenes(scenes, config.validation.share, config.validation.seed)
    return train[: config.homes], held_out
