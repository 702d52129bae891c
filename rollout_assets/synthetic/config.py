"""What a synthetic source store is made of."""

from __future__ import annotations

import os
from typing import Annotated, Self

from pydantic import Field, model_validator

from rollout_assets.config import ConfigSection, Count, Fraction, Number, Positive, Seed, UsablePath, Whole, unhashed

PIECES_PER_HOME = 25
"""Pieces of furniture in a usual home, for sharing a face budget among the user's own meshes."""


class SnippetConfig(ConfigSection):
    """What a snippet is made of, whichever scene it walks through."""

    seed: Seed = 0
    poses: Annotated[Whole, Field(ge=2, le=200)] = Field(20, description="Trajectory poses of a snippet.")
    rate_hz: Positive = Field(5.0, description="Poses per second.")
    min_points: Count = Field(2_500, description="Fewest semi-dense points wanted in a snippet.")
    max_points: Count = Field(6_000, description="Most semi-dense points in a snippet, and the length of the block.")
    image_px: Annotated[Whole, Field(ge=16, le=4_096)] = Field(240, description="Height and width of the camera image.")
    focal_px: Positive = 130.0
    miss_rate: Fraction = Field(0.12, description="Chance that a well visible object is not detected.")
    false_positives: Annotated[Number, Field(ge=0, le=20)] = Field(1.0, description="Mean false detections a snippet.")
    evidence: bool = Field(False, description="Also write the backbone's evidence voxels.")

    @model_validator(mode="after")
    def _point_range(self) -> Self:
        if self.max_points < self.min_points:
            raise ValueError(f"max_points must be >= min_points {self.min_points}, got {self.max_points}")
        return self


class SyntheticConfig(SnippetConfig):
    """Options of a synthetic store. Every hashed field is kept in the manifest and decides the store's arrays."""

    scenes: Annotated[Whole, Field(ge=1, le=100_000)] = Field(8, description="Homes to build.")
    snippets_per_scene: Annotated[Whole, Field(ge=1, le=10_000)] = Field(4, description="Walks through each home.")
    faces: Annotated[Whole, Field(ge=30_000, le=2_000_000)] = Field(100_000, description="Triangles wanted per home.")
    val_fraction: Annotated[Number, Field(ge=0, le=0.5)] = Field(0.25, description="Share of scenes in split val.")
    furniture_dir: UsablePath | None = unhashed(None, description="Own mesh files to place, not the built-in kinds.")
    workers: Annotated[Whole, Field(ge=1, le=256)] | None = unhashed(None, description="Processes; none: one per core.")

    @property
    def faces_per_piece(self) -> int:
        """Most triangles of one of the user's own meshes."""
        return max(2_000, self.faces // PIECES_PER_HOME)

    @property
    def effective_workers(self) -> int:
        """Processes to use."""
        return self.workers or os.cpu_count() or 1

    def split_of(self, scene_index: int) -> str:
        """Split of a scene, by its number alone, so that appended scenes never move an older one."""
        if self.val_fraction == 0:
            return "train"
        return "val" if scene_index % round(1 / self.val_fraction) == 1 else "train"

    def scene_id(self, scene_index: int) -> str:
        """Names a home by all that its geometry depends on besides options: seed and number."""
        return f"synthetic-{self.seed}-{scene_index:05d}"


def snippet_id(snippet_index: int) -> str:
    """``snippet-0003``."""
    return f"snippet-{snippet_index:04d}"


def snippet_number(name: str) -> int:
    """The inverse of ``snippet_id``."""
    return int(name.removeprefix("snippet-"))
