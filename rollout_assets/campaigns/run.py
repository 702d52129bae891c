"""Running all shards of a campaign, here or in several processes, and going on whatever happens to one of them.

A process that is killed takes nothing with it but its shard, which is reported and can be run again. Interrupting the
run interrupts the others; each removes its unfinished attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from time import perf_counter
from typing import Literal

from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter
from rollout_assets.campaigns.layout import SetAside
from rollout_assets.campaigns.plan import (
    RolloutShardEntry,
    open_source,
    refuse_unplanned,
    write_rollout_shard_manifest_from_config,
)
from rollout_assets.campaigns.shard import run_rollout_shard
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, RolloutAssetsError, ShardBusy
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation
from rollout_assets.workers import run_tasks

Outcome = Literal["built", "already_finished", "busy", "failed"]


@dataclass(frozen=True, eq=False)
class ShardOutcome:
    """What became of one shard in a run."""

    shard_id: str
    outcome: Outcome
    reason: str
    set_aside: tuple[SetAside, ...]
    records: int
    seconds: float
    targets_absent: tuple[str, ...] = ()
    """Explicit targets that name a row of this shard which does not have them."""


@dataclass(frozen=True, eq=False)
class CampaignRunResult:
    """What became of every shard that a run was asked for, in order."""

    shards: tuple[ShardOutcome, ...]
    planned: int
    seconds: float
    targets_without_row: tuple[str, ...] = ()
    """Explicit targets that name no row of the source."""

    @property
    def ok(self) -> bool:
        """Whether every shard is finished now."""
        return all(shard.outcome in ("built", "already_finished") for shard in self.shards)

    def of(self, outcome: Outcome) -> tuple[ShardOutcome, ...]:
        """The shards with one outcome."""
        return tuple(shard for shard in self.shards if shard.outcome == outcome)


def run_campaign(
    config: CampaignConfig,
    *,
    shard_ids: Sequence[str] = (),
    workers: int = 1,
    invocation: RolloutStoreInvocation | None = None,
    progress: ProgressSink = SILENT,
) -> CampaignRunResult:
    """Plan what is new, then build every shard that is not finished and current; a failing shard stops no other.

    The result does not depend on ``workers``. More than one start fresh processes: a script that calls this needs the
    usual ``__main__`` guard.
    """
    if workers < 1:
        raise ConfigError(f"workers must be >= 1, got {workers}")
    began = perf_counter()
    plan = write_rollout_shard_manifest_from_config(config)
    planned = {entry.shard_id: entry for entry in plan.entries}
    refuse_unplanned(shard_ids, list(planned))
    chosen = {shard_id: planned[shard_id] for shard_id in shard_ids} or planned
    progress(ProgressEvent("shards", 0, len(chosen), unit="shards"))

    def report(shard_id: str, outcome: ShardOutcome, finished: int) -> None:
        progress(ProgressEvent("shards", finished, len(chosen), f"{shard_id} {outcome.outcome}", "shards"))

    outcomes = run_tasks(
        partial(_ShardRunner, config, invocation or RolloutStoreInvocation.of_config(config)),
        chosen,
        workers,
        on_result=report,
        on_death=lambda death: ShardOutcome(death.task, "failed", str(death), (), 0, 0.0),
        progress=progress,
    )
    return CampaignRunResult(
        tuple(outcomes.values()), len(plan.entries), perf_counter() - began, plan.targets_without_row
    )


class _ShardRunner:
    """Runs shards one after another in this process; source, meshes and kernels stay between them."""

    def __init__(self, config: CampaignConfig, invocation: RolloutStoreInvocation) -> None:
        self._config = config
        self._invocation = invocation
        self._source = open_source(config)
        self._writer = cache(lambda: RolloutDatasetWriter(config, self._source))

    def __call__(self, entry: RolloutShardEntry, progress: ProgressSink) -> ShardOutcome:
        """One shard; whatever goes wrong with it is its outcome, not an exception."""
        began = perf_counter()

        def named(event: ProgressEvent, /) -> None:
            progress(replace(event, task=entry.shard_id))

        def ended(outcome: Outcome, reason: str = "") -> ShardOutcome:
            return ShardOutcome(entry.shard_id, outcome, reason, (), 0, perf_counter() - began)

        try:
            done = run_rollout_shard(
                self._config,
                entry,
                source=self._source,
                writer=self._writer,
                invocation=self._invocation,
                progress=named,
            )
        except ShardBusy as error:
            return ended("busy", str(error))
        except Exception as error:  # the other shards are not affected
            expected = isinstance(error, RolloutAssetsError)
            return ended("failed", str(error) if expected else f"{type(error).__name__}: {error}")
        absent = tuple(done.owner.stats.get("targets_absent", ()))
        return replace(ended(done.outcome), set_aside=done.set_aside, records=done.owner.records, targets_absent=absent)
