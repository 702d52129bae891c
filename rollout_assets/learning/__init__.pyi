"""Torch datasets over rollout stores: every trainable state once per epoch, in a reproducible order."""

from rollout_assets.learning.batch import DepthHistory as DepthHistory, QHBatch as QHBatch
from rollout_assets.learning.dataset import QHDataset as QHDataset
from rollout_assets.learning.iterable import (
    EpochPosition as EpochPosition,
    QHIterableDataset as QHIterableDataset,
    QHLoader as QHLoader,
)
from rollout_assets.learning.observation_source import ObservationSource as ObservationSource
from rollout_assets.learning.observed_states import ObservedStates as ObservedStates
