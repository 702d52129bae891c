"""The rollout manager: several rollouts of one root at once, run here or by a server, as a group with metrics."""

from rollout_assets.rollouts.manager.batching import BatchLimits as BatchLimits
from rollout_assets.rollouts.manager.completions import RolloutCompletion as RolloutCompletion
from rollout_assets.rollouts.manager.completions import RolloutGroupRecord as RolloutGroupRecord
from rollout_assets.rollouts.manager.completions import RolloutTask as RolloutTask
from rollout_assets.rollouts.manager.endings import FinalOracleState as FinalOracleState
from rollout_assets.rollouts.manager.gym import AsyncGymRolloutImpl as AsyncGymRolloutImpl
from rollout_assets.rollouts.manager.gym import GymServerConfig as GymServerConfig
from rollout_assets.rollouts.manager.native import AsyncRolloutImpl as AsyncRolloutImpl
from rollout_assets.rollouts.manager.native import RolloutManager as RolloutManager
