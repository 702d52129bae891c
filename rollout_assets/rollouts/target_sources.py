"""Target sources: which of a row's described boxes get rollouts. A campaign's ``[targets]`` names one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rollout_assets.config import CampaignConfig, TargetConfig
from rollout_assets.targets.selection import all_eligible, explicit_targets, select_targets
from rollout_assets.targets.table import SelectedTarget, TargetTable

SelectedTargets = tuple[SelectedTarget, ...]


class RolloutTargetSource(Protocol):
    """Decides which of a row's described targets get rollouts."""

    def choose(self, table: TargetTable, config: CampaignConfig, rng: np.random.Generator) -> SelectedTargets:
        """Targets in the order of their rank."""


class TargetsByPolicy:
    """The best targets by the campaign's selection policy."""

    def choose(self, table: TargetTable, config: CampaignConfig, rng: np.random.Generator) -> SelectedTargets:
        """At most ``top_k`` targets."""
        return select_targets(table, config.targets, rng)


class AllEligibleTargets:
    """Every eligible target."""

    def choose(self, table: TargetTable, config: CampaignConfig, rng: np.random.Generator) -> SelectedTargets:
        """All eligible targets that are not passed over, best first."""
        return all_eligible(table)


@dataclass(frozen=True)
class ExplicitTargets:
    """Targets by their ids, eligible or not. With ``required``, an id that a row does not have is a ``ConfigError``."""

    target_ids: tuple[str, ...]
    required: bool = True

    def choose(self, table: TargetTable, config: CampaignConfig, rng: np.random.Generator) -> SelectedTargets:
        """Those of the named targets that the row has, in the given order."""
        present = set(table.target_id)
        return explicit_targets(table, [name for name in self.target_ids if self.required or name in present])


def target_source_of(config: TargetConfig) -> RolloutTargetSource:
    """The target source that a campaign asks for; its explicit targets lie in many rows, so none must have them all."""
    if config.policy == "all_eligible":
        return AllEligibleTargets()
    if config.policy == "explicit":
        return ExplicitTargets(config.target_ids, required=False)
    return TargetsByPolicy()
