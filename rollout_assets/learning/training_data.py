"""What a training reads: states with what the actor knew at them, divided by scene into training and held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rollout_assets.config.training import TrainingConfig
from rollout_assets.errors import StoreError, TrainingError
from rollout_assets.learning.batch import QHBatch
from rollout_assets.learning.iterable import EpochPosition, QHIterableDataset, QHLoader
from rollout_assets.learning.observed_states import ObservedStates
from rollout_assets.learning.state_filter import StateFilter, divide_scenes, scenes_in
from rollout_assets.observations.observation import Observations
from rollout_assets.rollouts.zarr_store.open_store import split_location
from rollout_assets.rollouts.zarr_store.schema import Q_H
from rollout_assets.sources.vin_store import VinOfflineStore

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
    def observed(self) -> list[str]:
        return []

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

    def training_loader(self) -> ObservedLoader:
        """Batches to learn from, in an order that the seed decides."""
        return ObservedLoader(self.train, self.config, self.config.stores, self.config.head == "q")

    def validation_loader(self) -> ObservedLoader:
        """Every state held out, once, in the same order every time."""
        self.validation.set_epoch(0)
        return ObservedLoader(self.validation, self.config, self.config.validation.stores or self.config.stores, False)


def open_training_data(config: TrainingConfig) -> TrainingData:
    """Open the stores of a training and divide their scenes; whatever cannot be trained on is refused."""
    stores = [training_store(store) for store in config.stores]
    if not stores:
        raise TrainingError("stores is empty: there is nothing to train on; name at least one rollout store")
    distinct = config.distinct_states and config.head == "gain"
    everything = QHIterableDataset(stores, config.batch_size)
    scenes = scenes_in(everything.source.readers)
    train_scenes, held_out = _divided(config, scenes)
    train = QHIterableDataset(
        stores, config.batch_size, seed=config.seed, where=StateFilter(frozenset(train_scenes), distinct)
    )
    validation_stores = [training_store(store) for store in config.validation.stores] or stores
    validation = QHIterableDataset(
        validation_stores,
        config.batch_size,
        shuffle=False,
        where=StateFilter(None if config.validation.stores else frozenset(held_out), True),
    )
    return TrainingData(config, train, validation, train_scenes, held_out, gain_spread(train))


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


def _divided(config: TrainingConfig, scenes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Scenes to train on, at most ``homes``, and those held out for validation."""
    if config.validation.stores:
        train, held_out = list(scenes), []
    elif len(scenes) < 2:
        raise TrainingError(
            f"the stores have {len(scenes)} scene, and at least two are needed to hold one out; "
            "name other stores in validation.stores"
        )
    else:
        train, held_out = divide_scenes(scenes, config.validation.share, config.validation.seed)
    return train[: config.homes], held_out


class ObservedLoader:
    def __init__(self, dataset: QHIterableDataset, config: TrainingConfig, stores: Sequence[Path], following: bool):
        self._loader = QHLoader(dataset)
        self.following = following
        self.width = dataset.source.width
        sources = [VinOfflineStore.open(path) for path in config.sources]
        sources = sources * len(stores) if len(sources) == 1 else sources
        self.states = [
            ObservedStates(reader, source, config.observation)
            for reader, source in zip(dataset.source.readers, sources, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[QHBatch]:
        for batch in self._loader:
            observations = self.observe(batch.store_index, batch.state_step_row_id)
            following = None
            if self.following:
                there = batch.td_next_step_row_id >= 0
                steps = torch.where(there, batch.td_next_step_row_id, batch.state_step_row_id)
                following = self.observe(batch.store_index, steps)
                following = replace(following, candidate_mask=following.candidate_mask & there[:, None])
            yield replace(batch, observations=observations, next_observations=following)

    def observe(self, store_index: Tensor, steps: Tensor) -> Observations[Tensor]:
        parts, order = [], []
        for store in torch.unique(store_index).tolist():
            own = torch.nonzero(store_index == store)[:, 0]
            parts.append(self.states[store].observations(steps[own].numpy(), self.width))
            order.append(own.numpy())
        back = np.argsort(np.concatenate(order))
        return Observations(
            **{
                name: torch.from_numpy(np.concatenate([part.arrays()[name] for part in parts])[back])
                for name in parts[0].arrays()
            }
        )

    def state_dict(self) -> EpochPosition:
        return self._loader.state_dict()

    def load_state_dict(self, state: EpochPosition) -> None:
        self._loader.load_state_dict(state)
