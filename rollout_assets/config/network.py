"""How large the reference network is. It lies here because a training's configuration and every checkpoint hold it."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rollout_assets.config.section import ConfigSection, Fraction, SmallCount


class NetworkConfig(ConfigSection):
    """The size of the network."""

    patches: SmallCount = Field(5, description="Patches along each side of a face of the target's box.")
    width: SmallCount = Field(64, description="Numbers that stand for a patch, a candidate or a state.")
    heads: SmallCount = Field(4, description="Heads with which candidates look at each other.")
    layers: SmallCount = Field(2, description="Layers in which they do.")
    dropout: Fraction = Field(0.1, description="Share of the numbers that training leaves out at a time.")

    @model_validator(mode="after")
    def _equal_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads {self.heads}, got {self.width}")
        return self
