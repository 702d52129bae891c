"""Torch datasets over rollout stores: every trainable state once per epoch, in a reproducible order."""

from rollout_assets.training.batch import DepthHistory, QHBatch
from rollout_assets.training.dataset import QHDataset
from rollout_assets.training.iterable import QHIterableDataset, QHLoader

__all__ = ["DepthHistory", "QHBatch", "QHDataset", "QHIterableDataset", "QHLoader"]
