"""A Gymnasium environment over a campaign's roots: the actor takes views, the oracle rewards them."""

from rollout_assets.learning.environment.layout import (
    as_observations as as_observations,
    observation_space as observation_space,
)
from rollout_assets.learning.environment.options import (
    EnvironmentConfig as EnvironmentConfig,
    EnvironmentOptions as EnvironmentOptions,
)
from rollout_assets.learning.environment.registration import ENVIRONMENT_ID as ENVIRONMENT_ID
from rollout_assets.learning.environment.single import NextBestViewEnv as NextBestViewEnv
from rollout_assets.learning.environment.vector import NextBestViewVectorEnv as NextBestViewVectorEnv
