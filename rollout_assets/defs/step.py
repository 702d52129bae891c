"""What one step of a run works on: its campaign as the file says now, its source, its shard, and where it logs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from time import monotonic
from typing import Any

import dagster as dg

from rollout_assets.campaigns.plan import entry_of, open_source
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.config import CampaignConfig
from rollout_assets.defs.keys import ALLOW_FEWER, ANEW_TAG, STORE_CHECKS, CampaignKeys
from rollout_assets.defs.resources import CAMPAIGN_FILES, CampaignFiles
from rollout_assets.progress import ProgressEvent
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation
from rollout_assets.sources.vin_store import VinOfflineStore

LOG_EVERY_S = 10.0
"""How often a long step writes its progress to the run's log."""


@dataclass(frozen=True, eq=False)
class CampaignStep:
    """One step of a run, or one evaluation of a sensor or schedule; source and plan are opened on first use."""

    keys: CampaignKeys
    config: CampaignConfig
    instance: dg.DagsterInstance
    log: Any
    partition: str | None = None
    job: str = ""
    run_id: str = ""
    anew: bool = False
    """Whether the run asks for a promotion from all shards, and not from the last version, or for checks alone."""
    allow_fewer: bool = False
    """Whether the run config accepts missing inputs, and fewer records or rows than there are."""
    _opened: list[VinOfflineStore] = field(default_factory=list)

    @classmethod
    def of_run(
        cls,
        keys: CampaignKeys,
        context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext,
        campaigns: CampaignFiles,
    ) -> CampaignStep:
        """The step behind the context of an asset or a check."""
        run, config = context.run, campaigns.load(keys.campaign)
        anew = run.tags.get(ANEW_TAG) == "true"
        allow_fewer = bool((context.op_execution_context.op_config or {}).get(ALLOW_FEWER, False))
        return cls(
            keys,
            config,
            context.instance,
            context.log,
            job=run.job_name,
            run_id=run.run_id,
            anew=anew,
            allow_fewer=allow_fewer,
        )

    @classmethod
    def of_tick(
        cls, keys: CampaignKeys, context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext
    ) -> CampaignStep:
        """The step behind one evaluation of a sensor or schedule."""
        return cls(keys, CAMPAIGN_FILES.load(keys.campaign), context.instance, context.log)

    def of_shard(self, shard_id: str) -> CampaignStep:
        """The part of this step that is about one shard; all parts share one opened source."""
        return replace(self, partition=shard_id)

    @property
    def measures_anew(self) -> bool:
        """Whether results that were derived from the same content before are not used again."""
        return self.anew or self.job == self.keys.job(STORE_CHECKS)

    @property
    def shard_id(self) -> str:
        """The shard that this step is about."""
        if self.partition is None:
            raise dg.DagsterInvariantViolationError(
                f"{self.keys.name}: this step works on one shard; choose a partition, for example shard-000000"
            )
        return self.partition

    @property
    def source(self) -> VinOfflineStore:
        """The campaign's source store."""
        if not self._opened:
            self._opened.append(open_source(self.config))
        return self._opened[0]

    def reopen_source(self) -> None:
        """Let the next use open the source anew, because it may have changed since."""
        self._opened.clear()

    @cached_property
    def entry(self) -> RolloutShardEntry:
        """The planned entry of this step's shard."""
        return entry_of(self.config, self.shard_id)

    def invocation(self) -> RolloutStoreInvocation:
        """How a store that this step makes came about, to be kept in its manifest."""
        return RolloutStoreInvocation.of_campaign(self.keys.campaign, "dagster")


class LogProgress:
    """Progress as lines in the run's log, one every few seconds: every line is a row in Dagster's database."""

    def __init__(self, log: dg.DagsterLogManager) -> None:
        self._log = log
        self._last = monotonic()

    def __call__(self, event: ProgressEvent, /) -> None:
        if monotonic() - self._last >= LOG_EVERY_S:
            self._last = monotonic()
            self._log.info(f"{event.task}: {event.done} of {event.total or '?'} {event.unit} {event.note}")
