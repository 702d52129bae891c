"""One campaign: every section that decides what is written, and the four digests of them.

A hash is SHA-256 over canonical JSON (sorted keys, no whitespace, every default written out). Fields that cannot change
a stored byte, such as paths, devices and batch sizes, are marked ``unhashed`` and left out. Options that were added
later are marked ``hashed_when_set`` and left out while they have their default.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from rollout_assets.config.algorithms import versions_of
from rollout_assets.config.evaluation import EvaluationSettings
from rollout_assets.config.hashing import canonical_hash
from rollout_assets.config.recipes import DEFAULT_RECIPES, RECORDED, RolloutRecipeConfig
from rollout_assets.config.section import ConfigSection, Seed, Slug, unhashed
from rollout_assets.config.sections import (
    AutomationConfig,
    CandidateConfig,
    OracleConfig,
    QualityConfig,
    RetentionConfig,
    RolloutSuspiciousQueryConfig,
    SelectedDepthRetentionConfig,
    ShardConfig,
    SourceConfig,
    StoreConfig,
    TargetConfig,
)
from rollout_assets.config.split import SplitConfig
from rollout_assets.config.training import TrainingSettings

MOST_CHAINS = 100_000
"""Chains of one target and recipe that are kept in memory at a time."""


class CampaignConfig(ConfigSection):
    """Everything that decides what a campaign writes."""

    name: Slug = Field(description="Names the campaign in Dagster, in stores and in messages.")
    seed: Seed = Field(0, description="Every random choice follows from it.")
    source: SourceConfig = SourceConfig()
    split: SplitConfig = unhashed(SplitConfig())
    targets: TargetConfig = TargetConfig()
    candidates: CandidateConfig = CandidateConfig()
    oracle: OracleConfig = OracleConfig()
    recipes: tuple[RolloutRecipeConfig, ...] = DEFAULT_RECIPES
    selected_depth: SelectedDepthRetentionConfig = SelectedDepthRetentionConfig()
    store: StoreConfig = StoreConfig()
    shards: ShardConfig = ShardConfig()
    suspicious: RolloutSuspiciousQueryConfig = unhashed(RolloutSuspiciousQueryConfig())
    quality: QualityConfig = QualityConfig()
    automation: AutomationConfig = AutomationConfig()
    retention: RetentionConfig = RetentionConfig()
    training: TrainingSettings | None = unhashed(
        None,
        description="With this table Dagster trains a policy on the promoted store; see 'train --example'.",
    )
    evaluation: EvaluationSettings | None = unhashed(
        None, description="With this table Dagster evaluates that policy, beside the policies named here."
    )

    @classmethod
    def recorded(cls, values: Any) -> Self:
        """A campaign that a store records; its policies need not be installed here. ``ValidationError`` otherwise."""
        return cls.model_validate(values, context={RECORDED: True})

    @field_validator("recipes")
    @classmethod
    def _unique_names(cls, recipes: tuple[RolloutRecipeConfig, ...]) -> tuple[RolloutRecipeConfig, ...]:
        if not recipes:
            raise ValueError("a campaign needs at least one recipe, got none")
        names = [recipe.name for recipe in recipes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"recipe names must be unique, got {', '.join(twice)} more than once")
        return recipes

    @model_validator(mode="after")
    def _evaluates_what_it_trains(self) -> Self:
        if self.evaluation is not None and self.training is None:
            raise ValueError("[evaluation] evaluates the policy that [training] trains; give [training] too")
        return self

    @model_validator(mode="after")
    def _fits_in_memory(self) -> Self:
        for recipe in self.recipes:
            chains = recipe.most_chains(self.candidates.num_candidates)
            if chains > MOST_CHAINS:
                raise ValueError(
                    f"recipe {recipe.name} could grow to {chains:,} chains a target, more than {MOST_CHAINS:,}; "
                    f"give it a smaller branch, horizon or beam_width"
                )
        return self

    @property
    def candidate_config_hash(self) -> str:
        """Digest of what decides which views are offered and which of them may be taken."""
        return canonical_hash({**self.hashable("candidates"), **versions_of("candidates")})

    @property
    def oracle_config_hash(self) -> str:
        """Digest of what decides a label."""
        return canonical_hash({**self.hashable("oracle"), **versions_of("oracle")})

    @property
    def rollout_config_hash(self) -> str:
        """Digest of what decides targets, selections and chains."""
        return canonical_hash({**self.hashable("seed", "targets", "recipes"), **versions_of("targets", "rollouts")})

    @property
    def writer_config_hash(self) -> str:
        """Digest of everything that decides a shard's bytes, given its source rows."""
        return canonical_hash(
            {
                "candidate": self.candidate_config_hash,
                "oracle": self.oracle_config_hash,
                "rollout": self.rollout_config_hash,
                **self.hashable("selected_depth", "store"),
                **versions_of("store"),
            }
        )

    def hashes(self) -> dict[str, str]:
        """All four digests by name."""
        return {
            "candidate": self.candidate_config_hash,
            "oracle": self.oracle_config_hash,
            "rollout": self.rollout_config_hash,
            "writer": self.writer_config_hash,
        }
