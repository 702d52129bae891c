"""Recipes: how a rollout grows from a root, and which policy selects its views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, ValidationInfo, field_validator, model_validator

from rollout_assets.config.policy_names import BUILT_IN_POLICIES, LEARNED_POLICY, POLICY_GROUP, policy_names
from rollout_assets.config.section import (
    LARGEST_INT32,
    ConfigSection,
    Fraction,
    NonNegative,
    Positive,
    Slug,
    SmallCount,
    UsablePath,
    hashed_when_set,
    unhashed,
)


class StochasticBranching(ConfigSection):
    """A branch count drawn per step: ``counts[i]`` with probability ``probabilities[i]``."""

    counts: tuple[SmallCount, ...] = Field(min_length=1, description="Branch counts to draw from.")
    probabilities: tuple[Fraction, ...] = Field(min_length=1, description="How likely each of them is.")

    @model_validator(mode="after")
    def _distribution(self) -> Self:
        if len(self.counts) != len(self.probabilities):
            raise ValueError(f"{len(self.counts)} counts need as many probabilities, got {len(self.probabilities)}")
        total = sum(self.probabilities)
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"probabilities must sum to 1, got {total}")
        return self


def _branching_kind(value: Any) -> str:
    if isinstance(value, (Mapping, StochasticBranching)):
        return "stochastic"
    return "schedule" if isinstance(value, (list, tuple)) else "constant"


Branching = Annotated[
    Annotated[SmallCount, Tag("constant")]
    | Annotated[tuple[SmallCount, ...], Field(min_length=1), Tag("schedule")]
    | Annotated[StochasticBranching, Tag("stochastic")],
    Discriminator(_branching_kind),
]


def _largest_branch(branch: int | tuple[int, ...] | StochasticBranching, depth: int) -> int:
    """Most views that are taken at a depth."""
    if isinstance(branch, StochasticBranching):
        return max(branch.counts)
    return branch[min(depth, len(branch) - 1)] if isinstance(branch, tuple) else branch


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

RECORDED = "recorded"
"""Set in the context of a validation: the campaign is one that was run, maybe with packages that are not here."""


class RolloutRecipeConfig(ConfigSection):
    """One rollout policy materialised into the replay store."""

    name: Slug = Field(description="Names the recipe in stores and results.")
    policy: str = Field(
        description=f"How the next view is selected: {', '.join(BUILT_IN_POLICIES)}, {LEARNED_POLICY}, or a package's."
    )
    horizon: SmallCount = Field(2, description="Steps of a rollout.")
    branch: Branching = Field(1, description="A constant, a schedule whose last entry repeats, or random counts.")
    beam_width: SmallCount | None = Field(None, description="Chains kept after each step; none keeps all.")
    temperature: Positive = Field(1.0, description="Softmax temperature of temperature_softmax, and of draw.")
    min_history_distance_m: NonNegative = Field(0.0, description="A view must be this far from every earlier one.")
    min_sibling_distance_m: NonNegative = Field(0.0, description="Views taken at one step must be this far apart.")
    checkpoint: UsablePath | None = unhashed(None, description="The file that a learned policy is read from.")
    checkpoint_sha256: Sha256 | None = hashed_when_set(
        None, description="What that file must hold; filled in from the file when a campaign is read."
    )
    draw: bool = hashed_when_set(
        False, description="Draw from the scores of a policy that is not the engine's, instead of taking the best."
    )

    @property
    def brings_policy(self) -> bool:
        """Whether the policy is not one of the engine's: its scores come from outside."""
        return self.policy not in BUILT_IN_POLICIES

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, policy: str, info: ValidationInfo) -> str:
        recorded = isinstance(info.context, dict) and info.context.get(RECORDED)
        if recorded or policy in BUILT_IN_POLICIES or policy in (names := policy_names()):
            return policy
        raise ValueError(
            f"there are {', '.join(names)}; install the package that registers another one under {POLICY_GROUP}, "
            f"got {policy!r}"
        )

    @model_validator(mode="after")
    def _of_policies_brought(self) -> Self:
        if self.policy == LEARNED_POLICY and self.checkpoint is None:
            raise ValueError(f'policy = "{LEARNED_POLICY}" needs a checkpoint, got none')
        if self.checkpoint is None and self.checkpoint_sha256 is not None:
            raise ValueError("checkpoint_sha256 is the hash of a checkpoint; give checkpoint too")
        if not self.brings_policy and (self.checkpoint is not None or self.draw):
            raise ValueError(f'policy = "{self.policy}" is the engine\'s own and takes neither checkpoint nor draw')
        return self

    def most_chains(self, views: int) -> int:
        """Most chains that can be open at a time when every step offers so many views, before the beam is applied."""
        chains = most = 1
        for depth in range(self.horizon):
            chains *= min(_largest_branch(self.branch, depth), views)
            most = max(most, chains)
            chains = chains if self.beam_width is None else min(chains, self.beam_width)
            if most > LARGEST_INT32:
                break
        return most


DEFAULT_RECIPES = (
    RolloutRecipeConfig(name="random_valid", policy="random_valid"),
    RolloutRecipeConfig(name="oracle_greedy", policy="oracle_greedy"),
    RolloutRecipeConfig(name="oracle_lookahead", policy="oracle_greedy", branch=2, beam_width=2),
    RolloutRecipeConfig(name="temperature_softmax", policy="temperature_softmax", branch=2, beam_width=2),
)
