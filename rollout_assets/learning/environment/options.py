"""What can be chosen about an environment, besides the campaign that it plays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from pydantic import Field, ValidationError

from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.config.problems import problems_list
from rollout_assets.config.section import ConfigSection, Count, Seed, SmallCount
from rollout_assets.errors import ConfigError
from rollout_assets.rollouts.evaluation import KEPT_STATES

Campaign = CampaignConfig | str | Path
"""A campaign, the path of its TOML file, or the name of a shipped one."""


class EnvironmentOptions(TypedDict, total=False):
    """Keywords of an environment; see ``EnvironmentConfig`` for what they mean and their defaults."""

    split: str | None
    rows: Sequence[int | str] | None
    horizon: int | None
    observation: ObservationConfig
    seed: int | None
    fresh_views: bool
    oracle_info: bool
    rows_per_window: int
    kept_rows: int
    kept_states: int


class EnvironmentConfig(ConfigSection):
    """Which roots are played, for how long, and what is shown of them."""

    split: str | None = Field(None, description="Rows of this split only; without it those of the campaign's splits.")
    rows: tuple[int | str, ...] | None = Field(None, description="Only these rows: sample indices or sample keys.")
    horizon: SmallCount | None = Field(None, description="Views of an episode; default: the longest recipe's horizon.")
    observation: ObservationConfig = ObservationConfig()
    seed: Seed | None = Field(None, description="Order of the roots until a reset brings a seed; default: by chance.")
    fresh_views: bool = Field(
        False, description="Offer other views in every episode instead of those that the campaign's seed gives."
    )
    oracle_info: bool = Field(False, description="Show the gains of all views in info, for diagnostics.")
    rows_per_window: SmallCount = Field(16, description="Rows whose roots are shuffled among each other.")
    kept_rows: SmallCount = Field(64, description="Prepared rows that are kept in memory.")
    kept_states: Annotated[Count, Field(ge=16)] = Field(KEPT_STATES, description="Evaluated states that are kept.")


def environment_config(options: EnvironmentOptions) -> EnvironmentConfig:
    """The options, checked; a ``ConfigError`` names everything that is wrong with them."""
    try:
        return EnvironmentConfig.model_validate(options)
    except ValidationError as error:
        raise ConfigError(problems_list("environment", error, EnvironmentConfig)) from None


def campaign_config(campaign: Campaign) -> CampaignConfig:
    """The campaign itself, read from its file if need be."""
    return campaign if isinstance(campaign, CampaignConfig) else load_campaign(campaign)
