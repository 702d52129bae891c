"""How scenes are imported."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import Field

from rollout_assets.config import Number, Whole, unhashed
from rollout_assets.synthetic.config import SnippetConfig

Up = Literal["auto", "x", "y", "z"]
Units = Literal["auto", "m", "cm", "mm", "in", "ft"]
Camera = Literal["auto", "opencv", "opengl", "luf", "rig"]


class ImportConfig(SnippetConfig):
    """Options of an import. Every hashed field is kept in the manifest and decides the store's arrays."""

    up: Up = Field("auto", description="The axis of the files that points up.")
    units: Units = Field("auto", description="What one unit of the files' coordinates is.")
    camera: Camera = Field("auto", description="Axes of the poses in a trajectory file.")
    snippets_per_scene: Annotated[Whole, Field(ge=1, le=10_000)] = Field(4, description="Snippets of each scene.")
    val_share: Annotated[Number, Field(ge=0, le=0.9)] = Field(0.25, description="Share of scenes in split val.")
    workers: Annotated[Whole, Field(ge=1, le=256)] | None = unhashed(None, description="Processes; none: one per core.")

    @property
    def effective_workers(self) -> int:
        """Processes to use."""
        return self.workers or os.cpu_count() or 1
