"""What a policy is shown of a state. Its hash is part of every checkpoint: another layout is another input."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rollout_assets.config.hashing import canonical_hash
from rollout_assets.config.section import ConfigSection, Fraction, NonNegative, Pixels, Whole


class ObservationConfig(ConfigSection):
    """How much an observation holds, and of which surroundings of the target."""

    points: Annotated[Whole, Field(ge=1, le=1 << 20)] = Field(1_024, description="Points around the target.")
    near_margin_m: NonNegative = Field(0.1, description="Points this close to the target's box count as the target's.")
    corridor_m: NonNegative = Field(1.0, description="Points this close to the line from actor to target may hide it.")
    near_share: Fraction = Field(0.5, description="Share of the points that the target's own may take.")
    voxel_m: Annotated[NonNegative, Field(ge=1e-3)] = Field(0.02, description="Points of one voxel count as one.")
    depth_px: Pixels = Field(48, description="A view taken shows at most so many pixels a side.")
    history: Annotated[Whole, Field(ge=1, le=256)] = Field(8, description="Poses taken that are shown, latest first.")

    @property
    def layout_hash(self) -> str:
        """Digest of everything that decides what an observation holds."""
        return canonical_hash(self.hashable())
