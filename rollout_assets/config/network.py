"""How large the reference network is. It lies here because a training's configuration and every checkpoint hold it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rollout_assets.config.section import ConfigSection, Whole


class NetworkConfig(ConfigSection):
    """How large the network is."""

    width: Annotated[Whole, Field(ge=1, le=4_096)] = Field(32, description="Channels of a candidate.")
