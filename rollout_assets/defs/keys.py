"""What everything of a campaign is called in Dagster: assets, partitions, jobs, resource, pool and tags.

Every campaign has its own names, which begin with its own, so that several campaigns live side by side in one instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import dagster as dg

from rollout_assets.config import CampaignConfig, load_campaign

VIN_OFFLINE_STORE = "vin_offline_store"
ROLLOUT_SHARD_PLAN = "rollout_shard_plan"
VIN_SOURCE_ROWS = "vin_source_rows"
ROLLOUT_SHARDS = "rollout_shards"
VALIDATED_SHARDS = "validated_shards"
ROLLOUTS_ZARR = "rollouts_zarr"

ROLLOUT_REPORT = "rollout_report"
ROLLOUT_METRICS = "rollout_metrics"

TRAINED_POLICY = "trained_policy"
POLICY_EVALUATION = "policy_evaluation"

CHAIN = (VIN_OFFLINE_STORE, ROLLOUT_SHARD_PLAN, VIN_SOURCE_ROWS, ROLLOUT_SHARDS, VALIDATED_SHARDS, ROLLOUTS_ZARR)
"""The assets of a campaign, from recorded snippets to what training reads."""

SHARD_CHAIN = (VIN_SOURCE_ROWS, ROLLOUT_SHARDS, VALIDATED_SHARDS)
"""The assets with one partition per shard."""

READINGS = (ROLLOUT_REPORT, ROLLOUT_METRICS)
"""The assets that summarize the promoted store for people."""

POLICY_CHAIN = (TRAINED_POLICY, POLICY_EVALUATION)
"""The assets behind the promoted store of a campaign that asks for a training, and for an evaluation."""

OBSERVE, PLAN, SHARD, SHARD_CHECKS, PROMOTE, STORE_CHECKS = JOBS = (
    "observe",
    "plan",
    "shard",
    "shard_checks",
    "promote",
    "store_checks",
)
"""The jobs of a campaign, in the order of the graph."""

PROMOTE_ANEW, DESCRIBE, UP_TO_DATE = FURTHER_JOBS = ("promote_anew", "describe", "up_to_date")
"""Jobs of assets and checks beside the graph: promotion from all shards, checks, report and metrics of the version that
readers have, and the check that runs by the clock."""

ROLLBACK, UNPIN, CLEAN = UPKEEP_JOBS = ("rollback", "unpin", "clean")
"""Jobs that do what the commands of these names do, and record it."""

TRAIN_AND_EVALUATE = "train_and_evaluate"
"""The job of a campaign that asks for a training; no other one trains."""

GPU_POOL = "gpu"
"""Pool of the steps that score views or train; its limit is in ``dagster_home/dagster.yaml``."""

CAMPAIGN_TAG = "rollout_assets/campaign"
"""Run tag with the campaign's name."""

ASKED_FOR_TAG = "rollout_assets/asked_for"
"""Run tag with what a sensor asked for: every attempt at the same content has the same."""

NIGHT_TAG = "rollout_assets/night"
"""Run tag of a planning of the nightly schedule, which is followed by its shards."""

ANEW_TAG = "rollout_assets/anew"
ALLOW_FEWER = "allow_fewer"
"""Run tag of a promotion that begins from all shards, and not from the last version."""

PARTITION_TAG = "dagster/partition"
"""Dagster's run tag with the partition."""

RANGE_START_TAG = "dagster/asset_partition_range_start"
"""Dagster's run tag with the first partition of a run that takes a range of them."""

RANGE_END_TAG = "dagster/asset_partition_range_end"
"""Dagster's run tag with the last partition of such a run."""

BACKFILL_TAG = "dagster/backfill"
"""Dagster's tag of runs and materializations with the backfill that they belong to."""

RUN_KEY_TAG = "dagster/run_key"
"""Dagster's run tag with the key under which a sensor asked for the run."""

INPUT_VERSION_TAG = "dagster/input_data_version"
"""Beginning of Dagster's tags of a materialization with the data version of each asset that it was made from."""

DATA_VERSION_TAG = "dagster/data_version"
"""Dagster's tag of a materialization or observation with its data version."""


@dataclass(frozen=True)
class CampaignKeys:
    """The names of one campaign. ``campaign`` is a path or a shipped name, ``config`` the campaign as it was loaded."""

    campaign: str
    config: CampaignConfig

    @classmethod
    def of(cls, campaign: str | Path) -> CampaignKeys:
        """The names of a campaign; a path is made absolute because runs have other working directories."""
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

    def job(self, job: str) -> str:
        """The name of one of its jobs."""
        return f"{self.name}_{job}"

    @property
    def partitions_name(self) -> str:
        """Name of the dynamic partitions: one per planned shard."""
        return f"{self.name}_shards"

    @cached_property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition per planned shard."""
        return dg.DynamicPartitionsDefinition(name=self.partitions_name)
