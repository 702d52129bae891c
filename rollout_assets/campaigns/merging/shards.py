"""The finished shards of a promotion, and how they get into a promoted store: one by one, or by parts.

With several workers, ranges of shards are merged side by side into parts, from which the promoted store is joined.
A part is a store of its shards' rows in order, without the training view, in a folder that only the promotion knows.
Appending parts one after another gives the very files that appending their shards would: strings are numbered by first
appearance and rows keep their order. The costly part of a promotion, opening thousands of small stores and holding
every byte of them against its seal, is done by the workers; the join reads a few large files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.guards.leakage import leaks_among
from rollout_assets.campaigns.guards.plans import cut_plan
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.markers import damage, read_owner
from rollout_assets.campaigns.objects.working_copy import fetch_shard
from rollout_assets.campaigns.plan_entry import PlannedShards, shard_id_of
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.versions import PromotedShard
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import PromotionRefused, StoreError
from rollout_assets.files import remove_path
from rollout_assets.progress import ProgressSink
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.chunks.files import HashingFiles
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.writer import RolloutZarrStoreWriter
from rollout_assets.rollouts.zarr_store.written import WrittenArrays
from rollout_assets.workers import run_tasks

PARTS_PER_WORKER = 4
"""Parts that each worker makes, so that none waits long for the last one."""

MOST_SHARDS = 256
"""Shards of a part: the folder of parts never holds much more than this for each worker."""


@dataclass(frozen=True)
class FinishedShard:
    """A finished shard on its way into a promoted store."""

    split: str
    layout: CampaignLayout
    promoted: PromotedShard

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.layout.shard(self.shard_id)

    @property
    def shard_id(self) -> str:
        """``shard-000003``."""
        return self.promoted.shard_id

    @property
    def has_store(self) -> bool:
        """Whether any of its source rows gave a record."""
        return self.promoted.content_sha256 is not None

    def fetch(self) -> None:
        """Copy its bytes from object storage, if the campaign lies there."""
        fetch_shard(self.layout, self.shard_id, self.promoted.entry_sha256)

    def append_to(self, writer: RolloutZarrStoreWriter) -> None:
        """Add its rows, and hold every byte of it against its seal: those that were added, and the rest."""
        self.fetch()
        owner = read_owner(self.path)
        files = HashingFiles(self.path / STORE_NAME)
        unreadable: StoreError | None = None
        if self.has_store:
            try:
                writer.append_store(RolloutZarrStoreReader(files))
            except StoreError as error:
                unreadable = error
        problems = list(damage(self.path, owner, deep=True, hashed=files.hashed))
        if owner.content_sha256 != self.promoted.content_sha256:
            problems.append("it was built again meanwhile")
        if unreadable is not None and not problems:
            raise unreadable
        if problems:
            hint = f"'rollout-assets campaign run --shard {self.shard_id}' builds it again"
            raise StoreError(f"{self.shard_id}: {'; '.join(problems)}; {hint}")


def finished_shards(
    config: CampaignConfig, entries: PlannedShards, partial: bool
) -> tuple[list[FinishedShard], tuple[str, ...]]:
    """Finished shards in order, and what is left out; refuses what must not be promoted, with every reason."""
    layout, survey = CampaignLayout.of(config), CampaignSurvey.of(config, entries)
    digests, splits = entries.columns.sha256, entries.columns.splits
    shards, unfinished, numbers = [], [], []
    for number, current in enumerate(survey.current().tolist()):
        shard_id, content = shard_id_of(number), None
        path = layout.shard(shard_id)
        problems: Sequence[str] = ()
        if current:
            content = survey.content(number)
        elif not (problems := shard_problems(path, entries[number], None, deep=False)):
            content = read_owner(path).content_sha256
        if problems:
            unfinished.append(f"{shard_id} ({splits[number]}): {'; '.join(problems)}")
            continue
        numbers.append(number)
        promoted = PromotedShard(shard_id=shard_id, entry_sha256=digests[number], content_sha256=content)
        shards.append(FinishedShard(splits[number], layout, promoted))
    leaks = list(leaks_among(layout, survey, numbers))
    refusals = [leak.text for leak in leaks] + list(dict.fromkeys(leak.way_out for leak in leaks))
    if cut := cut_plan(layout, survey):
        refusals.append(cut)
    if unfinished and not partial:
        refusals += [*unfinished, "'rollout-assets campaign run' builds what is missing; --partial leaves it out"]
    if not any(shard.has_store for shard in shards):
        refusals.append("no finished shard holds any record")
    if refusals:
        raise PromotionRefused(layout.place, refusals)
    return shards, tuple(unfinished)


class PartWriter(RolloutZarrStoreWriter):
    """Writes a part: what a join reads, and nothing that it derives again."""

    def _write_view(self, written: WrittenArrays) -> None:
        for sink in self._view_sinks(1):
            written.add(sink.finish())


def append_shards(
    config: CampaignConfig,
    writer: RolloutZarrStoreWriter,
    shards: Sequence[FinishedShard],
    *,
    workers: int,
    folder: Path,
    report: Callable[[int, str], None],
) -> None:
    """Append shards in order, by parts below ``folder`` if there is more than one worker.

    ``report`` gets the number of shards that are in, and the name of the last one. The files are the same either way.
    """
    ranges = list(_ranges(len(shards), workers)) if workers > 1 else []
    if len(ranges) < 2:
        for done, shard in enumerate(shards, start=1):
            shard.append_to(writer)
            report(done, shard.shard_id)
        return
    parts = {f"part-{start:06d}": shards[start:stop] for start, stop in ranges}
    waiting: dict[str, bool] = {}
    order = iter(parts)
    expected = next(order)
    done = 0

    def join(name: str, has_store: bool, _finished: int) -> None:
        """Append every part whose turn has come; one that is made early waits for those before it."""
        nonlocal expected, done
        waiting[name] = has_store
        while expected in waiting:
            if waiting.pop(expected):
                writer.append_store(RolloutZarrStoreReader(folder / expected))
                remove_path(folder / expected)
            done += len(parts[expected])
            report(done, parts[expected][-1].shard_id)
            expected = next(order, "")

    folder.mkdir(parents=True)
    try:
        run_tasks(
            partial(_part_maker, config, folder),
            {name: (name, part) for name, part in parts.items()},
            workers,
            on_result=join,
        )
    finally:
        remove_path(folder)


def _ranges(shards: int, workers: int) -> Iterator[tuple[int, int]]:
    size = min(max(-(-shards // (workers * PARTS_PER_WORKER)), 1), MOST_SHARDS)
    yield from ((start, min(start + size, shards)) for start in range(0, shards, size))


Part = tuple[str, Sequence[FinishedShard]]


def _part_maker(config: CampaignConfig, folder: Path) -> Callable[[Part, ProgressSink], bool]:
    return lambda part, _progress: make_part(config, folder / part[0], part[1])


def make_part(config: CampaignConfig, place: Path, shards: Sequence[FinishedShard]) -> bool:
    """Make one part; False if none of its shards has a record, and nothing was written."""
    with PartWriter(place, RolloutZarrStoreConfig.from_campaign(config)) as writer:
        for shard in shards:
            shard.append_to(writer)
        if not any(shard.has_store for shard in shards):
            return False
        writer.finish()
    return True
