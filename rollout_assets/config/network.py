"""How large the reference network is. It lies here because a training's configuration and every checkpoint hold it."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from rollout_assets.config.section import ConfigSection, Fraction, SmallCount


class NetworkConfig(ConfigSection):
    """The size of the network."""

    patches: SmallCount = Field(4, description="Patches along each side of a face of the target's box.")
    width: SmallCount = Field(64, description="Numbers that stand for a patch, a candidate or a state.")
    gates: SmallCount = Field(8, description="Gates through which a candidate gathers what it sees of the patches.")
    heads: SmallCount = Field(4, description="Heads with which candidates look at each other.")
    layers: SmallCount = Field(2, description="Layers in which they do.")
    dropout: Fraction = Field(0.1, description="Share of the numbers that training leaves out at a time.")

    @model_validator(mode="after")
    def _equal_heads(self) -> Self:
        for name in ("gates", "heads"):
            if self.width % getattr(self, name):
                raise ValueError(f"width must be a multiple of {name} {getattr(self, name)}, got {self.width}")
        return self
