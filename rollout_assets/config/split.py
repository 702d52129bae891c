"""How a campaign divides scenes between training and validation. It decides where rows go, never what is in them."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollout_assets.config.section import ConfigSection, Fraction, Seed, UsablePath, unhashed
from rollout_assets.config.sections import Split

SplitMode = Literal["from_source", "by_scene", "explicit"]
SceneNames = tuple[Annotated[str, Field(min_length=1)], ...]


class SplitShares(ConfigSection):
    """Shares of the scenes by split, for mode by_scene; they sum to 1."""

    train: Fraction = Field(0.8, description="Share of the scenes in split train.")
    val: Fraction = Field(0.2, description="Share of the scenes in split val.")

    @model_validator(mode="after")
    def _sum_to_one(self) -> Self:
        total = self.train + self.val
        if not math.isclose(total, 1.0, abs_tol=1e-9):
            raise ValueError(f"shares must sum to 1, got train = {self.train:g} and val = {self.val:g}: {total:g}")
        return self


class SceneLists(ConfigSection):
    """Scene ids by split, for mode explicit."""

    train: SceneNames = Field((), description="Scenes of split train.")
    val: SceneNames = Field((), description="Scenes of split val.")

    @model_validator(mode="after")
    def _one_list_each(self) -> Self:
        both = sorted(set(self.train) & set(self.val))
        if both:
            raise ValueError(f"a scene must be in one list only, got {', '.join(both)} in train and in val")
        return self

    def by_scene(self) -> dict[str, Split]:
        """The split of every scene that is named."""
        listed: dict[str, Split] = dict.fromkeys(self.train, "train")
        return listed | dict.fromkeys(self.val, "val")


class SplitConfig(ConfigSection):
    """Which split a row belongs to. Rows that stay in their split keep their shards, so it is not part of any hash."""

    mode: SplitMode = unhashed(
        "from_source", description="by_scene: every scene in one split, by hash; explicit: scenes as listed."
    )
    seed: Seed = unhashed(0, description="Another seed is another division by_scene.")
    file: UsablePath | None = unhashed(None, description="For explicit: a CSV with the columns scene_id and split.")
    rest: Split | None = unhashed(None, description="For explicit: the split of scenes that are not listed.")
    shares: SplitShares = unhashed(SplitShares())
    scenes: SceneLists = unhashed(SceneLists())

    @model_validator(mode="after")
    def _options_of_the_mode(self) -> Self:
        for mode, names in (("by_scene", ("seed", "shares")), ("explicit", ("scenes", "file", "rest"))):
            given = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
            if given and self.mode != mode:
                raise ValueError(f'{", ".join(given)} belongs to mode = "{mode}", got mode = "{self.mode}"')
        if self.mode == "explicit" and (self.file is None) == (self.scenes == SceneLists()):
            given_both = "both" if self.file is not None else "neither"
            raise ValueError(f'mode = "explicit" takes either the lists in scenes or a CSV file, got {given_both}')
        return self
