"""What is evaluated, on what and how closely: one frozen model, from a TOML file, the command line or Dagster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from rollout_assets.config import (
    ConfigSection,
    Count,
    Natural,
    Number,
    Positive,
    Seed,
    Slug,
    SmallCount,
    Split,
    UsablePath,
    shipped_campaigns,
)
from rollout_assets.config.problems import problems_list
from rollout_assets.errors import ConfigError
from rollout_assets.parsing import expand_path, parse_toml, read_text_file

CHECKPOINT_ENDING = ".safetensors"
"""A policy that is named by a file with this ending is a learned one."""

_NAMED = re.compile(r"([a-z0-9][a-z0-9_-]{0,63})=(.+)", re.DOTALL)


class EvaluatedPolicy(ConfigSection):
    """One policy to evaluate. It takes one view a step, whatever beam a recipe would give it."""

    name: Slug | None = Field(None, description="Its name in tables; default: the policy's, or the checkpoint's stem.")
    policy: Annotated[str, Field(min_length=1)] = Field(description="As in a recipe: learned, nearest_to_target, …")
    checkpoint: UsablePath | None = Field(None, description="The file of a learned policy.")
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


class EvaluationConfig(ConfigSection):
    """Policies, the held-out roots they are run on, and how closely the results are looked at."""

    campaign: str = Field(description="Source, targets, candidates, oracle and splits come from this campaign.")
    campaign_settings: dict[str, Any] = Field(
        default_factory=dict, description="Keys of the campaign that are replaced, such as oracle.device."
    )
    policies: tuple[EvaluatedPolicy, ...] = Field(min_length=1, description="What is compared with the references.")
    output_dir: UsablePath = Field(description="Stores, tables and the page go here.")
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
    workers: Annotated[Count, Field(le=256)] = Field(1, description="Processes that build shards side by side.")
    rows_per_shard: Count = Field(4, description="Source rows that are built and retried together.")
    keep_depth: bool = Field(False, description="Keep depth images of views taken, to train on these stores later.")
    failures: Annotated[Natural, Field(le=1_000)] = Field(
        8, description="Worst roots listed per policy, with 3-D pages."
    )
    max_pages: Annotated[Natural, Field(le=10_000)] = Field(32, description="3-D pages in all, a megabyte or two each.")
    allow_seen_scenes: bool = Field(False, description="Go on with a policy that was trained on an evaluated scene.")
    bootstrap: BootstrapConfig = BootstrapConfig()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_list("evaluation", error, type(self))) from None

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """A configuration from keys of a file and a command line; what is None is left to its default."""
        return cls(**{name: value for name, value in values.items() if value is not None})


def read_evaluation_file(path: Path) -> dict[str, Any]:
    """The keys of an evaluation's TOML file. Relative paths in it mean relative to the file, as in a campaign file."""
    try:
        values = parse_toml(read_text_file(path))
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    folder = path.resolve().parent
    if isinstance(values.get("output_dir"), str):
        values["output_dir"] = folder / expand_path(values["output_dir"])
    campaign = values.get("campaign")
    if isinstance(campaign, str) and campaign not in shipped_campaigns():
        values["campaign"] = str(folder / expand_path(campaign))
    if isinstance(values.get("policies"), list):
        values["policies"] = [_policy_below(folder, policy, path) for policy in values["policies"]]
    return values


def _policy_below(folder: Path, policy: Any, path: Path) -> EvaluatedPolicy:
    try:
        return EvaluatedPolicy.model_validate(policy).below(folder)
    except ValidationError as error:
        raise ConfigError(problems_list(f"{path}: policies", error, EvaluatedPolicy)) from None
