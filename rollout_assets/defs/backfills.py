"""Backfills: whether one still runs, and how much of its time the engine took, which is all that is not in a step."""

from __future__ import annotations

from dataclasses import dataclass

import dagster as dg

from rollout_assets.defs.keys import BACKFILL_TAG, CampaignKeys
from rollout_assets.defs.records import UNFINISHED_BACKFILL, shards_of_run
from rollout_assets.errors import CampaignError


def runs_of_backfill(instance: dg.DagsterInstance, backfill: str) -> int:
    """How many runs a backfill has started."""
    return instance.get_runs_count(dg.RunsFilter(tags={BACKFILL_TAG: backfill}))


@dataclass(frozen=True)
class ShardRunTimes:
    """One run of some shards in turn; the first three times are seconds since the epoch."""

    shards: int
    launched: float
    started: float
    ended: float
    steps_s: float
    """Seconds inside its step: reading, building, checking and validating its shards."""


@dataclass(frozen=True)
class ShardThroughput:
    """What some runs of shards took together, ``slots`` at a time."""

    runs: tuple[ShardRunTimes, ...]
    slots: int

    @property
    def shards(self) -> int:
        """Shards of all runs."""
        return sum(run.shards for run in self.runs)

    @property
    def seconds(self) -> float:
        """From the first launch to the last end."""
        return max(run.ended for run in self.runs) - min(run.launched for run in self.runs)

    @property
    def shards_per_minute(self) -> float:
        """Finished shards a minute."""
        return 60 * self.shards / self.seconds

    @property
    def slot_s(self) -> float:
        """How long a slot is taken for one shard, the wait for the next launch included."""
        return self.seconds * self.slots / self.shards

    @property
    def steps_s(self) -> float:
        """Seconds inside steps, a shard."""
        return sum(run.steps_s for run in self.runs) / self.shards

    @property
    def starting_s(self) -> float:
        """Seconds a run from its launch to its beginning: the scheduler's job, Python, and the definitions."""
        return sum(run.started - run.launched for run in self.runs) / len(self.runs)

    @property
    def engine_s(self) -> float:
        """Seconds of a slot a shard that are not inside a step."""
        return self.slot_s - self.steps_s


def backfill_is_running(instance: dg.DagsterInstance, backfill_id: str) -> bool:
    """Whether a backfill still has something to launch or to wait for."""
    backfill = instance.get_backfill(backfill_id)
    if backfill is None:
        raise CampaignError(f"there is no backfill {backfill_id} in this instance")
    return backfill.status.value in UNFINISHED_BACKFILL


def shard_throughput(instance: dg.DagsterInstance, keys: CampaignKeys, backfill_id: str, slots: int) -> ShardThroughput:
    """The times of a backfill's successful runs of shards."""
    known = instance.get_dynamic_partitions(keys.partitions_name)
    filters = dg.RunsFilter(tags={BACKFILL_TAG: backfill_id}, statuses=[dg.DagsterRunStatus.SUCCESS])
    shards = {run.run_id: len(shards_of_run(run, known)) for run in instance.get_runs(filters=filters)}
    if not any(shards.values()):
        raise CampaignError(f"backfill {backfill_id}: no run of a shard has succeeded")
    times = tuple(_times(instance, run_id, count) for run_id, count in shards.items() if count)
    return ShardThroughput(times, slots)


def _times(instance: dg.DagsterInstance, run_id: str, shards: int) -> ShardRunTimes:
    stats = instance.get_run_stats(run_id)
    steps = instance.get_run_step_stats(run_id)
    inside = sum((step.end_time or 0.0) - (step.start_time or 0.0) for step in steps)
    times = (stats.launch_time or 0.0, stats.start_time or 0.0, stats.end_time or 0.0)
    return ShardRunTimes(shards, *times, inside)
