"""From stores to a policy: datasets in a reproducible order, training, and checkpoints."""

from rollout_assets.learning.batch import DepthHistory as DepthHistory, QHBatch as QHBatch
from rollout_assets.learning.checkpoints import (
    LearnedPolicy as LearnedPolicy,
    PolicyCard as PolicyCard,
    load_policy as load_policy,
    read_card as read_card,
    save_checkpoint as save_checkpoint,
)
from rollout_assets.learning.dataset import QHDataset as QHDataset
from rollout_assets.learning.iterable import (
    EpochPosition as EpochPosition,
    QHIterableDataset as QHIterableDataset,
    QHLoader as QHLoader,
)
from rollout_assets.learning.observation_source import ObservationSource as ObservationSource
from rollout_assets.learning.observed_states import ObservedStates as ObservedStates
from rollout_assets.learning.state_filter import StateFilter as StateFilter
from rollout_assets.learning.training.run import TrainingResult as TrainingResult, train_policy as train_policy
