"""Torch datasets over rollout stores: every trainable state once per epoch, in a reproducible order."""

from rollout_assets.learning.batch import DepthHistory, QHBatch
from rollout_assets.learning.dataset import QHDataset
from rollout_assets.learning.iterable import QHIterableDataset, QHLoader

__all__ = ["DepthHistory", "QHBatch", "QHDataset", "QHIterableDataset", "QHLoader"]
