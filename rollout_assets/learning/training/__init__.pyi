"""Training of policies: what is read, what is made small, how well views are chosen, and the run itself."""

from rollout_assets.learning.training.choices import ChoiceQuality as ChoiceQuality, Choices as Choices
from rollout_assets.learning.training.data import (
    TrainingData as TrainingData,
    open_training_data as open_training_data,
)
from rollout_assets.learning.training.run import (
    TrainingResult as TrainingResult,
    read_metrics as read_metrics,
    train_policy as train_policy,
)
