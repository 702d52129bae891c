"""Running all shards of a campaign, here or in several processes, and going on whatever happens to one of them.

A process that is killed takes nothing with it but its shard, which is reported and can be run again. A fault of the
machine is tried again a few times. Interrupting the run interrupts the others; each removes its unfinished attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Literal

from rollout_assets.campaigns.array import ArrayShare, plan_as_one_of_many
from rollout_assets.campaigns.layout import SetAside
from rollout_assets.campaigns.markers import skipped_rows
from rollout_assets.campaigns.plan import open_source, refuse_unplanned, write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.campaigns.shard import RolloutShardRunResult, running_rollout_shard
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ConfigError, RolloutAssetsError, ShardBusy, passes_soon
from rollout_assets.overlap import Pausing, begin
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.policy_registry import require_policies
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.workers import run_tasks

if TYPE_CHECKING:
    from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

RETRY_AFTER_S = (0.5, 2.0)
"""How long to wait before each further attempt at a shard that a fault of the machine ended."""

Outcome = Literal["built", "reused", "already_finished", "busy", "failed"]

DONE: tuple[Outcome, ...] = ("built", "reused", "already_finished")
"""Outcomes of a shard that is finished now."""


@dataclass(frozen=True, eq=False)
class ShardOutcome:
    """What became of one shard in a run.

    ``skipped`` are its source rows without a record, each with its reason; ``retried`` are the faults that were tried
    again.
    """

    shard_id: str
    outcome: Outcome
    reason: str = ""
    set_aside: tuple[SetAside, ...] = ()
    records: int = 0
    skipped: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    targets_absent: tuple[str, ...] = ()
    """Explicit targets that name a row of this shard which does not have them."""
    fewer: str = ""
    """What went if the shard has fewer records than the finished one that it replaced."""
    seconds: float = 0.0


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
        """Whether every shard is finished now, and the campaign gave any record at all."""
        return self.finished and not self.barren

    @property
    def finished(self) -> bool:
        """Whether every shard is finished now."""
        return all(shard.outcome in DONE for shard in self.shards)

    @property
    def barren(self) -> bool:
        """Whether all shards of the campaign are finished and not one has a record."""
        return self.finished and len(self.shards) == self.planned and not self.records

    @property
    def records(self) -> int:
        """Records in all shards of the run."""
        return sum(shard.records for shard in self.shards)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Source rows without a record, each with its reason."""
        return tuple(line for shard in self.shards for line in shard.skipped)

    def of(self, outcome: Outcome) -> tuple[ShardOutcome, ...]:
        """The shards with one outcome."""
        return tuple(shard for shard in self.shards if shard.outcome == outcome)


def run_campaign(
    config: CampaignConfig,
    *,
    shard_ids: Sequence[str] = (),
    share: ArrayShare | None = None,
    workers: int = 1,
    allow_fewer: bool = False,
    invocation: RolloutStoreInvocation | None = None,
    progress: ProgressSink = SILENT,
) -> CampaignRunResult:
    """Plan what is new, then build every shard that is not finished and current; a failing shard stops no other.

    With a ``share`` only this task's shards are built, and other tasks may be planning and building at the same time.

    A shard that misses a mesh that it was planned or built with fails before it is touched, and a finished shard is
    not replaced by one with fewer records, unless ``allow_fewer``.

    A policy of a recipe that cannot be used is ``PolicyRefused`` before any shard is begun. The result does not depend
    on ``workers``. More than one start fresh processes: a script that calls this needs the usual ``__main__`` guard.
    """
    if workers < 1:
        raise ConfigError(f"workers must be >= 1, got {workers}")
    if share is not None and shard_ids:
        raise ConfigError(f"give either shards or a share of them, got {', '.join(shard_ids)} and share {share}")
    require_policies(config.recipes)
    began = perf_counter()
    plan = write_rollout_shard_manifest_from_config(config) if share is None else plan_as_one_of_many(config)
    planned = {entry.shard_id: entry for entry in plan.entries}
    refuse_unplanned(shard_ids, list(planned))
    chosen = {shard_id: planned[shard_id] for shard_id in shard_ids} or planned
    if share is not None:
        chosen = {entry.shard_id: entry for entry in share.of(plan.entries)}
    progress(ProgressEvent("shards", 0, len(chosen), unit="shards"))

    def report(shard_id: str, outcome: ShardOutcome, finished: int) -> None:
        progress(ProgressEvent("shards", finished, len(chosen), f"{shard_id} {outcome.outcome}", "shards"))

    runner = partial(_ShardRunner, config, invocation or RolloutStoreInvocation.of_config(config), allow_fewer)
    if min(workers, len(chosen)) <= 1:
        outcomes = runner().run_in_turn(chosen, report, progress)
    else:
        outcomes = run_tasks(
            runner,
            chosen,
            workers,
            on_result=report,
            on_death=lambda death: ShardOutcome(death.task, "failed", str(death)),
            progress=progress,
        )
    return CampaignRunResult(
        tuple(outcomes.values()), len(plan.entries), perf_counter() - began, plan.targets_without_row
    )


OnOutcome = Callable[[str, ShardOutcome, int], None]
"""Called with a shard, what became of it, and how many are done by now."""

_Ended = tuple[ShardOutcome, Exception | None]
"""What became of one attempt, and the error that ended it, unless another process has the shard."""


class _ShardRunner:
    """Runs shards one after another in this process; source, meshes and kernels stay between them."""

    def __init__(self, config: CampaignConfig, invocation: RolloutStoreInvocation, allow_fewer: bool) -> None:
        self._config = config
        self._invocation = invocation
        self._allow_fewer = allow_fewer

    @cached_property
    def _source(self) -> VinOfflineStore:
        return open_source(self._config)

    @cached_property
    def _writer(self) -> RolloutDatasetWriter:
        # Not at the top: it loads Warp, which a campaign's status and all other commands about it do without.
        from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

        return RolloutDatasetWriter(self._config, self._source)

    def __call__(self, entry: RolloutShardEntry, progress: ProgressSink) -> ShardOutcome:
        """One shard; whatever goes wrong with it is its outcome, not an exception."""
        began = perf_counter()
        return self._settled(entry, progress, began, self._scored(entry, progress, began)())

    def run_in_turn(
        self, entries: Mapping[str, RolloutShardEntry], report: OnOutcome, progress: ProgressSink
    ) -> dict[str, ShardOutcome]:
        """One shard after another, each written and validated in a thread of its own while the next one is scored."""
        outcomes: dict[str, ShardOutcome] = {}

        def settle(entry: RolloutShardEntry, began: float, ended: Future[_Ended]) -> None:
            outcome = self._settled(entry, progress, began, ended.result())
            outcomes[entry.shard_id] = outcome
            report(entry.shard_id, outcome, len(outcomes))

        before: tuple[RolloutShardEntry, float, Future[_Ended]] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="finish") as pool:
            for entry in entries.values():
                began = perf_counter()
                finish = self._scored(entry, progress, began)
                if before is not None:
                    settle(*before)
                before = entry, began, pool.submit(finish)
            if before is not None:
                settle(*before)
        return outcomes

    def _settled(self, entry: RolloutShardEntry, progress: ProgressSink, began: float, ended: _Ended) -> ShardOutcome:
        """What became of a shard in the end: a fault that may pass is tried again a few times."""
        retried: list[str] = []
        for pause_s in RETRY_AFTER_S:
            outcome, error = ended
            if error is None or not passes_soon(error):
                break
            retried.append(outcome.reason)
            sleep(pause_s)
            ended = self._scored(entry, progress, began)()
        return replace(ended[0], retried=tuple(retried))

    def _scored(self, entry: RolloutShardEntry, progress: ProgressSink, began: float) -> Callable[[], _Ended]:
        """Score the rows of a shard now; the returned function does the rest, in whatever thread."""
        try:
            finish = begin(self._running(entry, progress))
        except Exception as error:  # the other shards are not affected
            ended = _gone_wrong(entry, error, began)
            return lambda: ended
        return partial(_finished, entry, finish, began)

    def _running(self, entry: RolloutShardEntry, progress: ProgressSink) -> Pausing[RolloutShardRunResult]:
        return running_rollout_shard(
            self._config,
            entry,
            source=self._source,
            writer=lambda: self._writer,
            invocation=self._invocation,
            allow_fewer=self._allow_fewer,
            progress=lambda event: progress(replace(event, task=entry.shard_id)),
        )


def _finished(entry: RolloutShardEntry, finish: Callable[[], RolloutShardRunResult], began: float) -> _Ended:
    try:
        done = finish()
    except Exception as error:
        return _gone_wrong(entry, error, began)
    made = ShardOutcome(entry.shard_id, done.outcome, "", done.set_aside, done.owner.records)
    absent = tuple(done.owner.stats.get("targets_absent", ()))
    seconds = perf_counter() - began
    skipped = skipped_rows(done.owner)
    return replace(made, skipped=skipped, targets_absent=absent, fewer=done.fewer, seconds=seconds), None


def _gone_wrong(entry: RolloutShardEntry, error: Exception, began: float) -> _Ended:
    seconds = perf_counter() - began
    if isinstance(error, ShardBusy):
        return ShardOutcome(entry.shard_id, "busy", str(error), seconds=seconds), None
    reason = str(error) if isinstance(error, RolloutAssetsError) else f"{type(error).__name__}: {error}"
    return ShardOutcome(entry.shard_id, "failed", reason, seconds=seconds), error
