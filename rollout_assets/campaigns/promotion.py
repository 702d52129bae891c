"""Promotion: all finished shards of a campaign into one ``rollouts.zarr`` with a child store per split.

Shards go in by their number, which is the order of source rows within a split, so the promoted rows do not depend on
how they were divided. Only a changed ``[split]`` leaves another order, because it keeps the shards that it can. A child
whose shards begin with those of an earlier version is extended from it by hard links and tails; it equals one made from
the start. Everything is built beside, validated, flushed, renamed into ``versions/`` and then made current by replacing
one link.

Whatever a promotion publishes, or leaves published, it has read: a child that is linked whole is compared with the
inventory of its version, byte by byte, and a damaged one is built again from its shards. While a rollback keeps readers
at a version, a promotion that would move them is refused.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from os.path import samestat
from pathlib import Path
from time import perf_counter
from typing import Literal

from rollout_assets.campaigns.inventory import (
    VersionChecks,
    VersionInventory,
    read_inventory,
    renew_times,
    write_inventory,
)
from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.leakage import find_leaks
from rollout_assets.campaigns.markers import ShardOwner, damage, read_owner
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.plan import RolloutShardEntry, read_rollout_shard_manifest, refuse_config_drift
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.versions import (
    PROMOTION_LOCK,
    PromotedShard,
    PromotedVersion,
    PromotionRecord,
    make_current,
    next_version_name,
    promoted_versions,
    unreadable_versions,
    write_record,
)
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import PromotionRefused, StoreError
from rollout_assets.files import (
    SizeAndDigest,
    file_lock,
    link_tree,
    remove_path,
    rename_path,
    sync_tree,
    tree_digests,
    tree_status,
)
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.chunks.files import HashingFiles
from rollout_assets.rollouts.zarr_store.extend import RolloutZarrStoreExtender
from rollout_assets.rollouts.zarr_store.manifest import (
    RolloutStoreInvocation,
    RolloutStoreManifestContext,
    names_campaign,
)
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.writer import OnStep, RolloutZarrStoreWriter, ignore_step

PROMOTED_STORE_KIND = "promoted_rollout_zarr_split"
"""``store_kind`` of a promoted child store."""

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
    versions on the way, and was not used.
    """

    version: PromotedVersion
    store_dir: Path
    splits: tuple[PromotedSplit, ...]
    left_out: tuple[str, ...]
    moved: bool
    damaged: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, eq=False)
class _Shard:
    entry: RolloutShardEntry
    owner: ShardOwner
    path: Path

    @property
    def promoted(self) -> PromotedShard:
        return PromotedShard(
            shard_id=self.entry.shard_id,
            entry_sha256=self.entry.sha256,
            content_sha256=self.owner.content_sha256,
        )


def promote_rollout_campaign(
    config: CampaignConfig,
    *,
    partial: bool = False,
    incremental: bool = True,
    invocation: RolloutStoreInvocation | None = None,
    on_step: OnStep = ignore_step,
    progress: ProgressSink = SILENT,
) -> PromotionResult:
    """Promote every finished shard and make the result current.

    Unfinished shards refuse promotion with their reasons, unless ``partial`` leaves them out; a scene or mesh in two
    splits always refuses it, and so does the pin of a rollback if readers would be moved. Promoting the same shards
    again changes nothing, unless what is there is damaged. ``on_step`` is called at named points, for tests that kill a
    promotion there.
    """
    began = perf_counter()
    layout = CampaignLayout(config.shards.output_dir)
    entries = read_rollout_shard_manifest(config)
    for entry in entries:
        refuse_config_drift(entry, config)
    checks = VersionChecks(layout)
    with file_lock(layout.lock(PROMOTION_LOCK), str(layout.promoted)):
        for leftover in layout.attempts(PROMOTION_LOCK):
            remove_path(leftover)
        shards, left_out = _finished(layout, entries, partial)
        record = _record(config, shards)
        on_disk = promoted_versions(config)
        versions = on_disk if incremental else ()
        for unreadable in unreadable_versions(config):
            checks.note(unreadable.text)
        version = _sound_version(versions, record, checks)
        splits: tuple[PromotedSplit, ...] = ()
        moved = version is None or not version.is_current
        if moved:
            _refuse_pinned(layout, checks)
        if version is None:
            job = _Promotion(config, layout, versions, checks, invocation, on_step, progress)
            version, splits = job.run(shards, record)
        else:
            renew_times(layout, version.name)
        if moved:
            make_current(layout, version.name, on_step)
    current = replace(version, is_current=True)
    return PromotionResult(current, layout.promoted, splits, left_out, moved, checks.damaged, perf_counter() - began)


def _sound_version(
    versions: Sequence[PromotedVersion], record: PromotionRecord, checks: VersionChecks
) -> PromotedVersion | None:
    """The newest version that holds exactly these shards, with every byte as it was published."""
    for version in reversed(versions):
        if version.record == record:
            sound = [checks.is_sound(version.name, split, deep=True) for split in ("", *record.splits)]
            if all(sound):
                return version
    return None


def _refuse_pinned(layout: CampaignLayout, checks: VersionChecks) -> None:
    pin = read_pin(layout)
    if pin is not None:
        raise PromotionRefused(str(layout.promoted), [*checks.damaged, str(pin)])


def _finished(
    layout: CampaignLayout, entries: Sequence[RolloutShardEntry], partial: bool
) -> tuple[list[_Shard], tuple[str, ...]]:
    """Finished shards in order, and what is left out; refuses what must not be promoted, with every reason."""
    shards, unfinished = [], []
    for entry in entries:
        path = layout.shard(entry.shard_id)
        problems = shard_problems(path, entry, None, deep=False)
        if problems:
            unfinished.append(f"{entry.shard_id} ({entry.split}): {'; '.join(problems)}")
        else:
            shards.append(_Shard(entry, read_owner(path), path))
    leaks = list(find_leaks((shard.entry, shard.owner) for shard in shards))
    refusals = [leak.text for leak in leaks] + list(dict.fromkeys(leak.way_out for leak in leaks))
    if unfinished and not partial:
        refusals += [*unfinished, "'rollout-assets campaign run' builds what is missing; --partial leaves it out"]
    if not any(shard.owner.store is not None for shard in shards):
        refusals.append("no finished shard holds any record")
    if refusals:
        raise PromotionRefused(str(layout.root), refusals)
    return shards, tuple(unfinished)


def _record(config: CampaignConfig, shards: Sequence[_Shard]) -> PromotionRecord:
    splits: dict[str, tuple[PromotedShard, ...]] = {}
    for shard in shards:
        splits[shard.entry.split] = (*splits.get(shard.entry.split, ()), shard.promoted)
    return PromotionRecord(campaign=config.name, writer_config_hash=config.writer_config_hash, splits=splits)


@dataclass(frozen=True, eq=False)
class _Promotion:
    """One attempt; the promotion lock is held."""

    config: CampaignConfig
    layout: CampaignLayout
    earlier: Sequence[PromotedVersion]
    checks: VersionChecks
    invocation: RolloutStoreInvocation | None
    on_step: OnStep
    progress: ProgressSink
    digests: dict[str, SizeAndDigest] = field(default_factory=dict)

    def run(
        self, shards: Sequence[_Shard], record: PromotionRecord
    ) -> tuple[PromotedVersion, tuple[PromotedSplit, ...]]:
        """Build a version beside the others and let it appear; readers do not get it yet."""
        self.layout.staging.mkdir(parents=True, exist_ok=True)
        self.layout.versions.mkdir(exist_ok=True)
        staged = self.layout.new_attempt(PROMOTION_LOCK)
        final = self.layout.versions / next_version_name(self.layout)
        try:
            self.on_step("temp/before")
            staged.mkdir()
            self.on_step("temp/after")
            splits = tuple(
                self._child(staged / split, [shard for shard in shards if shard.entry.split == split])
                for split in record.splits
            )
            self.on_step("record/before")
            write_record(staged, record)
            self.on_step("record/after")
            self.on_step("fsync/before")
            sync_tree(staged)
            self.on_step("fsync/after")
            self.on_step("inventory/before")
            inventory = VersionInventory.take(staged, tree_digests(staged, self.digests))
            write_inventory(self.layout, final.name, inventory)
            self.on_step("inventory/after")
            self.on_step("rename/before")
            rename_path(staged, final)
            self.on_step("rename/after")
        except BaseException:
            remove_path(staged)
            raise
        return PromotedVersion(int(final.name[1:]), final, record, False), splits

    def _child(self, child: Path, shards: Sequence[_Shard]) -> PromotedSplit:
        began = perf_counter()
        how: How = "empty"
        shared = 0
        if any(shard.owner.store is not None for shard in shards):
            how, shared = self._grown(child, shards) or self._built(child, shards)
        return PromotedSplit(child.name, how, len(shards), len(shards) - shared, perf_counter() - began)

    def _built(self, child: Path, shards: Sequence[_Shard]) -> tuple[How, int]:
        self._write(child, shards, 0, None)
        return "built", 0

    def _grown(self, child: Path, shards: Sequence[_Shard]) -> tuple[How, int] | None:
        """Make a child from the earlier one that has most of it; None if there is none that can be used."""
        for version, shared in self._bases(child.name, tuple(shard.promoted for shard in shards)):
            whole = shared == len(shards)
            sound = self.checks.is_sound(version.name, child.name, deep=whole)
            if sound and self._grow(child, shards, shared, version):
                return "linked" if whole else "extended", shared
        return None

    def _grow(self, child: Path, shards: Sequence[_Shard], shared: int, version: PromotedVersion) -> bool:
        """Make a child from an earlier one; False, with nothing left, if that one is damaged or cannot be linked to."""
        try:
            if shared == len(shards):
                link_tree(version.path / child.name, child)
                self._note_linked(child, version)
            else:
                self._write(child, shards, shared, version)
            return True
        except StoreError as error:
            self.checks.note(f"{version.name} {child.name}: {error}")
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        remove_path(child)
        return False

    def _bases(self, split: str, shards: tuple[PromotedShard, ...]) -> list[tuple[PromotedVersion, int]]:
        """Earlier versions whose child is a beginning of this one, with its length: longest first, then newest."""
        bases = []
        for version in reversed(self.earlier):
            earlier = version.record.splits.get(split, ())
            if earlier and earlier == shards[: len(earlier)] and (version.path / split).is_dir():
                bases.append((version, len(earlier)))
        return sorted(bases, key=lambda base: -base[1])

    def _write(self, child: Path, shards: Sequence[_Shard], shared: int, base: PromotedVersion | None) -> None:
        split = child.name

        def report(done: int, note: str) -> None:
            self.progress(ProgressEvent(f"promote {split}", done, len(shards), note, "shards"))

        with self._writer(child, shards) as writer:
            if base is not None:
                report(shared, "reading the last version")
                writer.resume(RolloutZarrStoreReader(base.path / split))
            self.on_step(f"{split}/resumed")
            for done, shard in enumerate(shards[shared:], start=shared + 1):
                _append(writer, shard)
                report(done, shard.entry.shard_id)
            self.on_step(f"{split}/appended")
            writer.finish()
        if base is not None:
            self._note_linked(child, base)
        self._note_written(child)
        self.on_step(f"{split}/validate")
        # Extending hashed every old row on the way, so a deep pass would only read them a second time.
        validate_rollout_zarr_store(child, deep=base is None, profile="own").raise_if_wrong()

    def _note_linked(self, child: Path, version: PromotedVersion) -> None:
        """Take over the digests of the files that a child shares with an earlier one; both were compared with them."""
        inventory = read_inventory(self.layout, version.name)
        if inventory is None:
            return
        here, there = tree_status(child), tree_status(version.path / child.name)
        for path, (size, digest) in inventory.digests.items():
            name = path.removeprefix(f"{child.name}/")
            if path != name and name in here and name in there and samestat(here[name], there[name]):
                self.digests[path] = size, digest

    def _note_written(self, child: Path) -> None:
        """Hash what was written, before it is validated: a later change is found by one of the two."""
        prefix = f"{child.name}/"
        known = {path.removeprefix(prefix): fact for path, fact in self.digests.items() if path.startswith(prefix)}
        self.digests.update({f"{prefix}{path}": fact for path, fact in tree_digests(child, known).items()})

    def _writer(self, child: Path, shards: Sequence[_Shard]) -> RolloutZarrStoreExtender:
        made_of = {"split": child.name, "shards": [shard.promoted.model_dump(mode="json") for shard in shards]}
        stores = (shard.path / STORE_NAME for shard in shards if shard.owner.store is not None)
        named = any(names_campaign(store) for store in islice(stores, 1))
        context = RolloutStoreManifestContext.here(self.config if named else None, self.invocation, made_of)
        return RolloutZarrStoreExtender(
            child,
            RolloutZarrStoreConfig.from_campaign(self.config),
            context=context,
            store_kind=PROMOTED_STORE_KIND,
            on_step=self.on_step,
        )


def _append(writer: RolloutZarrStoreWriter, shard: _Shard) -> None:
    """Add a shard's rows, and hold every byte of it against its seal: those that were added, and the rest."""
    files = HashingFiles(shard.path / STORE_NAME)
    unreadable: StoreError | None = None
    if shard.owner.store is not None:
        try:
            writer.append_store(RolloutZarrStoreReader(files))
        except StoreError as error:
            unreadable = error
    problems = list(damage(shard.path, shard.owner, deep=True, hashed=files.hashed))
    if unreadable is not None and not problems:
        raise unreadable
    if problems:
        hint = f"'rollout-assets campaign run --shard {shard.entry.shard_id}' builds it again"
        raise StoreError(f"{shard.entry.shard_id}: {'; '.join(problems)}; {hint}")
