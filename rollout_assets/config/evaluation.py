"""How policies are evaluated: the part of an evaluation that a campaign's section and an evaluation's file share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from rollout_assets.config.hashing import canonical_hash
from rollout_assets.config.section import (
    ConfigSection,
    Count,
    Natural,
    Number,
    Positive,
    Seed,
    Slug,
    SmallCount,
    UsablePath,
    unhashed,
)
from rollout_assets.config.sections import Split

CHECKPOINT_ENDING = ".safetensors"
"""A policy that is named by a file with this ending is a learned one."""

_NAMED = re.compile(r"([a-z0-9][a-z0-9_-]{0,63})=(.+)", re.DOTALL)


class EvaluatedPolicy(ConfigSection):
    """One policy to evaluate. It takes one view a step, whatever beam a recipe would give it."""

    name: Slug | None = Field(None, description="Its name in tables; default: the policy's, or the checkpoint's stem.")
    policy: Annotated[str, Field(min_length=1)] = Field(description="As in a recipe: learned, nearest_to_target, …")
    checkpoint: UsablePath | None = unhashed(None, description="The file of a learned policy.")
    temperature: Positive | None = Field(None, description="Softmax temperature, where the policy draws.")
    draw: bool | None = Field(None, description="Draw from the scores of a learned policy instead of taking the best.")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """``FILE.safetensors`` or the name of a policy, with ``NAME=`` before it for a name of one's own."""
        if not isinstance(value, str):
            return value
        match = _NAMED.fullmatch(value)
        name, text = match.groups() if match else (None, value)
        if text.endswith(CHECKPOINT_ENDING):
            return {"name": name, "policy": "learned", "checkpoint": text}
        return {"name": name, "policy": text}

    def below(self, folder: Path) -> EvaluatedPolicy:
        """The same policy, a relative checkpoint taken from a folder."""
        return self.model_copy(update={"checkpoint": self.checkpoint and folder / self.checkpoint})


class BootstrapConfig(ConfigSection):
    """How intervals are made: scenes are drawn anew with replacement, each with all its roots and seeds."""

    samples: Annotated[Count, Field(ge=100, le=1_000_000)] = Field(4_000, description="Times the scenes are drawn.")
    confidence: Annotated[Number, Field(gt=0, lt=1)] = Field(0.95, description="Share of the draws in an interval.")
    seed: Seed = Field(0, description="Another seed is another set of draws.")


class EvaluationSettings(ConfigSection):
    """Which held-out roots policies are run on, and how closely the results are looked at."""

    policies: tuple[EvaluatedPolicy, ...] = Field((), description="What is compared with the references.")
    horizon: SmallCount = Field(3, description="Views of a rollout.")
    split: Split = Field("val", description="Split of the campaign whose scenes are used.")
    seeds: Annotated[Count, Field(le=1_000)] = Field(
        2, description="Campaigns that are run, each with other views on offer."
    )
    first_seed: Seed | None = Field(
        None, description="Seed of the first of them; default: the campaign's plus one, so that no state is trained on."
    )
    random_repeats: Annotated[Count, Field(le=256)] = Field(4, description="Draws of random_valid per root and seed.")
    limit: Count | None = Field(None, description="Only the first scenes of the split.")
    workers: Annotated[Count, Field(le=256)] = unhashed(1, description="Processes that build shards side by side.")
    rows_per_shard: Count = unhashed(4, description="Source rows that are built and retried together.")
    keep_depth: bool = Field(False, description="Keep depth images of views taken, to train on these stores later.")
    failures: Annotated[Natural, Field(le=1_000)] = Field(
        8, description="Worst roots listed per policy, with 3-D pages."
    )
    max_pages: Annotated[Natural, Field(le=10_000)] = Field(32, description="3-D pages in all, a megabyte or two each.")
    allow_seen_scenes: bool = Field(False, description="Go on with a policy that was trained on an evaluated scene.")
    bootstrap: BootstrapConfig = BootstrapConfig()

    @property
    def config_hash(self) -> str:
        """Digest of what is evaluated and how; the content of checkpoints is known when they are run."""
        return canonical_hash(self.hashable())
