"""A campaign in Dagster: what its assets, partitions and resource are called, and what one step of a run works on.

Every campaign has its own asset keys, partitions, jobs and resource, all named after it, so that several of them live
side by side in one instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from rollout_assets.config import CampaignConfig, load_campaign

if TYPE_CHECKING:
    from rollout_assets.campaigns.plan import RolloutShardEntry
    from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation
    from rollout_assets.sources.vin_store import VinOfflineStore

VIN_OFFLINE_STORE = "vin_offline_store"
ROLLOUT_SHARD_PLAN = "rollout_shard_plan"
VIN_SOURCE_ROWS = "vin_source_rows"
ROLLOUT_SHARDS = "rollout_shards"
VALIDATED_SHARDS = "validated_shards"
ROLLOUTS_ZARR = "rollouts_zarr"

ROLLOUT_REPORT = "rollout_report"
ROLLOUT_METRICS = "rollout_metrics"

CHAIN = (VIN_OFFLINE_STORE, ROLLOUT_SHARD_PLAN, VIN_SOURCE_ROWS, ROLLOUT_SHARDS, VALIDATED_SHARDS, ROLLOUTS_ZARR)
"""The assets of a campaign, from recorded snippets to what training reads."""

READINGS = (ROLLOUT_REPORT, ROLLOUT_METRICS)
"""What is read off the promoted store, for people."""


class CampaignResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The campaign that a run belongs to: the path of its TOML file, or the name of one that ships with the package."""

    campaign: str

    def load(self) -> CampaignConfig:
        """The campaign as its file says now; a device or path edited there is used by the next run."""
        return load_campaign(self.campaign)

    def invocation(self) -> RolloutStoreInvocation:
        """How a store made by a run was asked for, to be kept in its manifest."""
        from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation

        path = Path(self.campaign)
        if not path.is_file():
            return RolloutStoreInvocation("dagster")
        return RolloutStoreInvocation("dagster", (), path.resolve().as_posix(), path.read_text("utf-8"))


@dataclass(frozen=True)
class CampaignKeys:
    """Where a campaign lives in Dagster. ``campaign`` is a path or a shipped name, ``config`` as it was at load."""

    campaign: str
    config: CampaignConfig

    @classmethod
    def of(cls, campaign: str | Path) -> CampaignKeys:
        """The place of a campaign; a path is made absolute, for runs have other working directories."""
        config = load_campaign(campaign)
        path = Path(campaign)
        return cls(str(path.resolve()) if path.is_file() else str(campaign), config)

    @property
    def name(self) -> str:
        """The campaign's name as an identifier: its asset group and the beginning of every other name."""
        return self.config.name.replace("-", "_")

    def key(self, asset: str) -> dg.AssetKey:
        """The key of one of its assets."""
        return dg.AssetKey([self.name, asset])

    @property
    def partitions_name(self) -> str:
        """Name of the dynamic partitions: one per planned shard."""
        return f"{self.name}_shards"

    @cached_property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition per planned shard."""
        return dg.DynamicPartitionsDefinition(name=self.partitions_name)

    @property
    def resource_key(self) -> str:
        """Key of its ``CampaignResource``."""
        return f"{self.name}_campaign"

    @property
    def resource(self) -> CampaignResource:
        """Its resource."""
        return CampaignResource(campaign=self.campaign)


@dataclass(frozen=True, eq=False)
class CampaignStep:
    """One step of a run: its campaign as the file says now, and what of it is opened on first use."""

    place: CampaignKeys
    config: CampaignConfig
    resource: CampaignResource
    instance: dg.DagsterInstance
    log: dg.DagsterLogManager
    partition: str | None

    @classmethod
    def of(cls, place: CampaignKeys, context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> CampaignStep:
        """The step behind a Dagster context."""
        resource: CampaignResource = getattr(context.resources, place.resource_key)
        partition = context.partition_key if context.has_partition_key else None
        return cls(place, resource.load(), resource, context.instance, context.log, partition)

    @property
    def shard_id(self) -> str:
        """The shard that this step is about."""
        if self.partition is None:
            raise dg.DagsterInvariantViolationError(f"{self.place.name}: this step needs a shard partition")
        return self.partition

    @cached_property
    def source(self) -> VinOfflineStore:
        """The campaign's source store."""
        from rollout_assets.campaigns.plan import open_source

        return open_source(self.config)

    @cached_property
    def entry(self) -> RolloutShardEntry:
        """The planned entry of this step's shard."""
        from rollout_assets.campaigns.plan import entry_of

        return entry_of(self.config, self.shard_id)
