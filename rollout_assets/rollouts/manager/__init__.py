"""The rollout manager: several rollouts of one root at once, run here or by a server, as a group with metrics."""

from rollout_assets.rollouts.manager.batching import BatchLimits
from rollout_assets.rollouts.manager.completions import RolloutCompletion, RolloutGroupRecord, RolloutTask
from rollout_assets.rollouts.manager.gym import AsyncGymRolloutImpl, GymServerConfig
from rollout_assets.rollouts.manager.native import AsyncRolloutImpl, RolloutManager

__all__ = [
    "AsyncGymRolloutImpl",
    "AsyncRolloutImpl",
    "BatchLimits",
    "GymServerConfig",
    "RolloutCompletion",
    "RolloutGroupRecord",
    "RolloutManager",
    "RolloutTask",
]
