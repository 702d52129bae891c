"""Promotion: all finished shards of a campaign into one ``rollouts.zarr`` with a child store per split.

Shards go in by their number, which is the order of source rows within a split, so the promoted rows do not depend on
how they were divided. Only a changed ``[split]`` leaves another order, because it keeps the shards that it can. A child
whose shards begin with those of an earlier version is extended from it by hard links and tails; it equals one made from
the start. Everything is built beside, validated, flushed, renamed into ``versions/`` and then made current by replacing
one link.

Cost follows what is new. What a promotion writes it has validated before readers get it, new rows deeply, and rows must
add up. A child that is linked whole is compared with the inventory of its version: documents, sizes, times, and the
bytes of a sample that every promotion draws anew. When nothing is new at all, every byte is compared. What is damaged
is built again from its shards. While a rollback keeps readers at a version, a promotion that would move them is
refused.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial as partial_function
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Literal

from rollout_assets.campaigns.claim import refuse_other_campaign
from rollout_assets.campaigns.guards.rows import fewer_rows, refuse_fewer_rows
from rollout_assets.campaigns.inventory import (
    StagedDigests,
    VersionChecks,
    VersionInventory,
    note_full_read,
    read_inventory,
    renew_times,
    write_inventory,
)
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.merging.row_counts import table_rows
from rollout_assets.campaigns.merging.sample import ReadSample
from rollout_assets.campaigns.merging.shards import FinishedShard, append_shards, finished_shards
from rollout_assets.campaigns.objects.publishing import publish_version
from rollout_assets.campaigns.objects.working_copy import fetch_version, forget_bytes, refresh_versions
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.plan import read_rollout_shard_manifest, refuse_config_drift
from rollout_assets.campaigns.versions import (
    PROMOTION_LOCK,
    PromotedShard,
    PromotedVersion,
    PromotionRecord,
    make_current,
    promoted_versions,
    reserved_version_name,
    unreadable_versions,
    write_record,
)
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import PointerMoved, PromotionRefused, StoreError
from rollout_assets.files import SizeAndDigest, file_lock, link_tree, make_folder, remove_path, rename_path, sync_tree
from rollout_assets.locations.url import Location
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.extend import RolloutZarrStoreExtender
from rollout_assets.rollouts.zarr_store.manifest import (
    RolloutStoreInvocation,
    RolloutStoreManifestContext,
    names_campaign,
)
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.writer import OnStep, ignore_step

PROMOTED_STORE_KIND = "promoted_rollout_zarr_split"
"""``store_kind`` of a promoted child store."""

_TRIES = 3
"""Attempts at a promotion while other machines move readers."""

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK)
"""Errors of file systems that have no hard links."""

How = Literal["linked", "extended", "built", "empty"]
"""A child store: as in an earlier version, an earlier one made longer, made from all shards, or without any record."""


@dataclass(frozen=True)
class PromotedSplit:
    """One child store of a promotion."""

    split: str
    how: How
    shards: int
    new_shards: int
    seconds: float


@dataclass(frozen=True, eq=False)
class PromotionResult:
    """A promoted version; ``splits`` is empty when the shards were promoted already.

    ``moved`` says whether readers get another version than before; ``damaged`` names what was found wrong with earlier
    versions on the way, and was not used. ``sample_seed`` drew what was read of the files that are not new. ``fewer``
    says of which rows readers have fewer than before, and why.
    """

    version: PromotedVersion
    store_dir: Location
    splits: tuple[PromotedSplit, ...]
    left_out: tuple[str, ...]
    moved: bool
    damaged: tuple[str, ...]
    sample_seed: int
    seconds: float
    fewer: tuple[str, ...] = ()


def promote_rollout_campaign(
    config: CampaignConfig,
    *,
    partial: bool = False,
    incremental: bool = True,
    allow_fewer: bool = False,
    workers: int | None = None,
    sample: ReadSample | None = None,
    invocation: RolloutStoreInvocation | None = None,
    on_step: OnStep = ignore_step,
    progress: ProgressSink = SILENT,
) -> PromotionResult:
    """Promote every finished shard and make the result current.

    Unfinished shards refuse promotion with their reasons, unless ``partial`` leaves them out; a scene or mesh in two
    splits always refuses it, and so does the pin of a rollback if readers would be moved. So does a split with fewer
    rows in any table than readers have, with what went and why, unless ``allow_fewer``. Promoting the same shards
    again changes nothing, unless what is there is damaged. More than one of ``workers``, of which the campaign says how
    many if nobody else does, merge shards in fresh processes, and give the same files. ``sample`` says what is read of
    the files that are not new; without it a seed is drawn. ``on_step`` is called at named points, for tests that kill a
    promotion there.
    """
    count = config.automation.promotion_workers if workers is None else workers
    sample = sample or ReadSample.new()
    promote = partial_function(
        _promote, config, partial, incremental, allow_fewer, count, sample, invocation, on_step, progress
    )
    for _ in range(_TRIES - 1):
        with suppress(PointerMoved):  # by another machine: look again at what is there now
            return promote()
    return promote()


def _promote(
    config: CampaignConfig,
    partial: bool,
    incremental: bool,
    allow_fewer: bool,
    workers: int,
    sample: ReadSample,
    invocation: RolloutStoreInvocation | None,
    on_step: OnStep,
    progress: ProgressSink,
) -> PromotionResult:
    began = perf_counter()
    layout = CampaignLayout.of(config)
    entries = read_rollout_shard_manifest(config)
    for number in islice(entries.config_changes(config), 1):
        refuse_config_drift(entries[number], config)
    checks = VersionChecks(layout, sample)
    with file_lock(layout.lock(PROMOTION_LOCK), str(layout.promoted)):
        before = refresh_versions(layout)
        refuse_other_campaign(config)
        for leftover in layout.attempts(PROMOTION_LOCK):
            remove_path(leftover)
        shards, left_out = finished_shards(config, entries, partial)
        record = _record(config, shards)
        on_disk = promoted_versions(config)
        versions = on_disk if incremental else ()
        for unreadable in unreadable_versions(config):
            checks.note(unreadable.text)
        version = _sound_version(versions, record, checks)
        splits: tuple[PromotedSplit, ...] = ()
        moved = version is None or not version.is_current
        fewer = fewer_rows(layout, record, on_disk, left_out) if moved else ()
        if moved:
            _refuse_pinned(layout, checks)
            refuse_fewer_rows(layout, fewer, allow=allow_fewer)
        if version is None:
            name = reserved_version_name(layout)
            digests = StagedDigests(layout)
            job = _Promotion(config, layout, name, versions, checks, workers, invocation, on_step, progress, digests)
            version, splits = job.run(shards, record)
        else:
            renew_times(layout, version.name)
            if layout.url is None:
                note_full_read(layout, version.name)
        if moved:
            make_current(layout, version.name, on_step, before)
            forget_bytes(layout, version.name)
    current = replace(version, is_current=True)
    seconds = perf_counter() - began
    return PromotionResult(
        current, layout.store_location, splits, left_out, moved, checks.damaged, sample.seed, seconds, fewer
    )


def _sound_version(
    versions: Sequence[PromotedVersion], record: PromotionRecord, checks: VersionChecks
) -> PromotedVersion | None:
    """The newest version that holds exactly these shards, with every byte as it was published."""
    for version in reversed(versions):
        if version.record == record:
            deep = version.url is None  # object storage keeps what it was given, and is asked for sizes only
            sound = [checks.is_sound(version.name, split, deep=deep) for split in ("", *record.splits)]
            if all(sound):
                return version
    return None


def _refuse_pinned(layout: CampaignLayout, checks: VersionChecks) -> None:
    pin = read_pin(layout)
    if pin is not None:
        raise PromotionRefused(str(layout.store_location), [*checks.damaged, str(pin)])


def _record(config: CampaignConfig, shards: Sequence[FinishedShard]) -> PromotionRecord:
    splits: dict[str, list[PromotedShard]] = {}
    for shard in shards:
        splits.setdefault(shard.split, []).append(shard.promoted)
    ordered = {split: tuple(of_split) for split, of_split in splits.items()}
    return PromotionRecord(campaign=config.name, writer_config_hash=config.writer_config_hash, splits=ordered)


@dataclass(frozen=True, eq=False)
class _Promotion:
    """One attempt; the promotion lock is held."""

    config: CampaignConfig
    layout: CampaignLayout
    name: str
    earlier: Sequence[PromotedVersion]
    checks: VersionChecks
    workers: int
    invocation: RolloutStoreInvocation | None
    on_step: OnStep
    progress: ProgressSink
    digests: StagedDigests

    def run(
        self, shards: Sequence[FinishedShard], record: PromotionRecord
    ) -> tuple[PromotedVersion, tuple[PromotedSplit, ...]]:
        """Build a version beside the others and let it appear; readers do not get it yet."""
        self.layout.staging.mkdir(parents=True, exist_ok=True)
        make_folder(self.layout.versions)
        staged = self.layout.new_attempt(PROMOTION_LOCK)
        final = self.layout.versions / self.name
        try:
            self.on_step("temp/before")
            staged.mkdir()
            self.on_step("temp/after")
            splits = tuple(
                self._child(staged / split, [shard for shard in shards if shard.split == split])
                for split in record.splits
            )
            self._refuse_lost_rows(staged, record)
            self.on_step("record/before")
            write_record(staged, record)
            self.on_step("record/after")
            self.on_step("fsync/before")
            sync_tree(staged)
            self.on_step("fsync/after")
            self.on_step("inventory/before")
            inventory = self.digests.inventory(staged)
            write_inventory(self.layout, final.name, inventory)
            self.on_step("inventory/after")
            self.on_step("rename/before")
            rename_path(staged, final)
            self.on_step("rename/after")
            if all(split.how in ("built", "empty") for split in splits):
                note_full_read(self.layout, final.name)
            self._publish(inventory)
        except BaseException:
            remove_path(staged)
            raise
        url = None if self.layout.url is None else self.layout.url / "versions" / final.name
        return PromotedVersion(int(final.name[1:]), final, record, False, url), splits

    def _publish(self, inventory: VersionInventory) -> None:
        """Publish the version to object storage, if the campaign lies there."""
        if self.layout.url is not None:
            earlier = {version.name: self._sound_files(version.name) for version in reversed(self.earlier)}
            publish_version(self.layout, self.name, earlier, inventory.digests, self.on_step)

    def _sound_files(self, version: str) -> dict[str, SizeAndDigest]:
        """Size and digest of the files of an earlier version, but for those of a damaged split."""
        inventory = read_inventory(self.layout, version)
        splits = set() if inventory is None else {path.partition("/")[0] for path in inventory.files}
        sound = {split for split in splits if self.checks.is_sound(version, split, deep=False)}
        digests = {} if inventory is None else inventory.digests
        return {path: fact for path, fact in digests.items() if path.partition("/")[0] in sound}

    def _child(self, child: Path, shards: Sequence[FinishedShard]) -> PromotedSplit:
        began = perf_counter()
        how: How = "empty"
        shared = 0
        if any(shard.has_store for shard in shards):
            how, shared = self._grown(child, shards) or self._built(child, shards)
        return PromotedSplit(child.name, how, len(shards), len(shards) - shared, perf_counter() - began)

    def _built(self, child: Path, shards: Sequence[FinishedShard]) -> tuple[How, int]:
        self._write(child, shards, 0, None)
        return "built", 0

    def _grown(self, child: Path, shards: Sequence[FinishedShard]) -> tuple[How, int] | None:
        """Make a child from the earlier one that has most of it; None if there is none that can be used."""
        for version, shared in self._bases(child.name, tuple(shard.promoted for shard in shards)):
            whole = shared == len(shards)
            self._fetch(version, child.name)
            if self.checks.is_sound(version.name, child.name, deep=False) and self._grow(
                child, shards, shared, version
            ):
                return "linked" if whole else "extended", shared
        return None

    def _fetch(self, version: PromotedVersion, split: str) -> None:
        """Copy the files of an earlier child from object storage, if it lies there."""
        inventory = read_inventory(self.layout, version.name) if version.url is not None else None
        if inventory is not None:
            fetch_version(self.layout, version.name, tuple(inventory.of_split(split)))

    def _grow(self, child: Path, shards: Sequence[FinishedShard], shared: int, version: PromotedVersion) -> bool:
        """Make a child from an earlier one; False, with nothing left, if that one is damaged or cannot be linked to."""
        try:
            if shared == len(shards):
                link_tree(version.path / child.name, child)
                self.digests.note_linked(child, version.name)
            else:
                self._write(child, shards, shared, version)
            return True
        except StoreError as error:
            self.checks.note(f"{version.name} {child.name}: {error}")
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        remove_path(child)
        self.digests.forget(child)
        return False

    def _bases(self, split: str, shards: tuple[PromotedShard, ...]) -> list[tuple[PromotedVersion, int]]:
        """Earlier versions whose child is a beginning of this one, with its length: longest first, then newest."""
        bases = []
        for version in reversed(self.earlier):
            earlier = version.record.splits.get(split, ())
            has_store = split in version.record.splits_with_records
            if has_store and earlier == shards[: len(earlier)]:
                bases.append((version, len(earlier)))
        return sorted(bases, key=lambda base: -base[1])

    def _write(self, child: Path, shards: Sequence[FinishedShard], shared: int, base: PromotedVersion | None) -> None:
        split = child.name

        def report(done: int, note: str) -> None:
            self.progress(ProgressEvent(f"promote {split}", done, len(shards), note, "shards"))

        old_steps = 0
        with self._writer(child, shards) as writer:
            if base is not None:
                report(shared, "reading the last version")
                writer.resume(RolloutZarrStoreReader(base.path / split))
                old_steps = writer.counts.steps
            self.on_step(f"{split}/resumed")
            append_shards(
                self.config,
                writer,
                shards[shared:],
                workers=self.workers,
                folder=self.layout.new_attempt(PROMOTION_LOCK),
                report=lambda done, note: report(shared + done, note),
            )
            self.on_step(f"{split}/appended")
            writer.finish()
        if base is not None:
            self.digests.note_linked(child, base.name)
        self.digests.note_written(child)
        self.on_step(f"{split}/validate")
        # Extending hashed every old row on the way, so a deep pass would only read them a second time.
        result = validate_rollout_zarr_store(child, deep=True, profile="own", deep_from_step=old_steps)
        self._refuse(f"{split} is not a valid store", result.errors)

    def _refuse_lost_rows(self, staged: Path, record: PromotionRecord) -> None:
        """Raise ``StoreError`` unless the rows of every table are the sum of the shards' rows."""
        children = {split: staged / split for split in record.splits_with_records}
        wrong = [str(rows) for rows in table_rows(self.layout, record, children) if not rows.add_up]
        self._refuse("rows are lost or doubled", wrong)

    def _refuse(self, what: str, problems: Sequence[str]) -> None:
        """Raise ``StoreError`` if there is a problem with what was built, which is then never published."""
        if problems:
            remedy = "'rollout-assets campaign promote --anew' builds it from all shards"
            listed = "".join(f"\n  - {problem}" for problem in problems)
            raise StoreError(f"{self.name}: {what}; it is not published, and readers keep theirs; {remedy}{listed}")

    def _writer(self, child: Path, shards: Sequence[FinishedShard]) -> RolloutZarrStoreExtender:
        made_of = {"split": child.name, "shards": [shard.promoted.model_dump(mode="json") for shard in shards]}
        first = next((shard for shard in shards if shard.has_store), None)
        if first is not None:
            first.fetch()
        named = first is not None and names_campaign(first.path / STORE_NAME)
        context = RolloutStoreManifestContext.here(self.config if named else None, self.invocation, made_of)
        return RolloutZarrStoreExtender(
            child,
            RolloutZarrStoreConfig.from_campaign(self.config),
            context=context,
            store_kind=PROMOTED_STORE_KIND,
            on_step=self.on_step,
        )
