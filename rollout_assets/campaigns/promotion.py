"""Promotion: all finished shards of a campaign into one ``rollouts.zarr`` with a child store per split.

Shards go in by their number, which is the order of source rows within a split, so the promoted rows do not depend on
how they were divided. A child whose shards begin with those of an earlier version is extended from it by hard links and
tails; it equals one made from the start. Everything is built beside, validated, flushed, renamed into ``versions/`` and
then made current by replacing one link.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Literal

from rollout_assets.campaigns.layout import STORE_NAME, CampaignLayout
from rollout_assets.campaigns.leakage import find_leaks
from rollout_assets.campaigns.markers import ShardOwner, damage, read_owner
from rollout_assets.campaigns.plan import RolloutShardEntry, read_rollout_shard_manifest, refuse_config_drift
from rollout_assets.campaigns.shard import shard_problems
from rollout_assets.campaigns.versions import (
    PROMOTION_LOCK,
    PromotedShard,
    PromotedVersion,
    PromotionRecord,
    make_current,
    promoted_versions,
    version_name,
    write_record,
)
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import PromotionRefused, StoreError
from rollout_assets.files import file_lock, link_tree, remove_path, rename_path, sync_tree
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.chunks.files import HashingFiles
from rollout_assets.rollouts.zarr_store.extend import RolloutZarrStoreExtender
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation, RolloutStoreManifestContext
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
    """A promoted version; ``splits`` is empty when the shards were promoted already."""

    version: PromotedVersion
    store_dir: Path
    splits: tuple[PromotedSplit, ...]
    left_out: tuple[str, ...]
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
    splits always refuses it. Promoting the same shards again changes nothing. ``on_step`` is called at named points,
    for tests that kill a promotion there.
    """
    began = perf_counter()
    layout = CampaignLayout(config.shards.output_dir)
    entries = read_rollout_shard_manifest(config)
    for entry in entries[:1]:
        refuse_config_drift(entry, config)
    with file_lock(layout.lock(PROMOTION_LOCK), str(layout.promoted)):
        for leftover in layout.attempts(PROMOTION_LOCK):
            remove_path(leftover)
        shards, left_out = _finished(layout, entries, partial)
        record = _record(config, shards)
        versions = promoted_versions(config)
        same = next((version for version in reversed(versions) if version.record == record), None)
        if same is not None and incremental:
            if not same.is_current:
                make_current(layout, same.name, on_step)
            same = replace(same, is_current=True)
            return PromotionResult(same, layout.promoted, (), left_out, perf_counter() - began)
        job = _Promotion(config, layout, versions if incremental else (), invocation, on_step, progress)
        path, splits = job.run(shards, record, version_name(versions[-1].number + 1 if versions else 1))
        made = PromotedVersion(int(path.name[1:]), path, record, True)
    return PromotionResult(made, layout.promoted, splits, left_out, perf_counter() - began)


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
    refusals = list(find_leaks((shard.entry, shard.owner) for shard in shards))
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
    invocation: RolloutStoreInvocation | None
    on_step: OnStep
    progress: ProgressSink

    def run(
        self, shards: Sequence[_Shard], record: PromotionRecord, name: str
    ) -> tuple[Path, tuple[PromotedSplit, ...]]:
        self.layout.staging.mkdir(parents=True, exist_ok=True)
        self.layout.versions.mkdir(exist_ok=True)
        staged = self.layout.new_attempt(PROMOTION_LOCK)
        final = self.layout.versions / name
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
            self.on_step("rename/before")
            rename_path(staged, final)
            self.on_step("rename/after")
        except BaseException:
            remove_path(staged)
            raise
        make_current(self.layout, name, self.on_step)
        return final, splits

    def _child(self, child: Path, shards: Sequence[_Shard]) -> PromotedSplit:
        began = perf_counter()
        base, shared = self._base(child.name, tuple(shard.promoted for shard in shards))
        how: How = "built"
        if all(shard.owner.store is None for shard in shards):
            how = "empty"
        elif base is not None and self._grow(child, shards, shared, base):
            how = "linked" if shared == len(shards) else "extended"
        else:
            shared = 0
            self._write(child, shards, 0, None)
        return PromotedSplit(child.name, how, len(shards), len(shards) - shared, perf_counter() - began)

    def _grow(self, child: Path, shards: Sequence[_Shard], shared: int, base: Path) -> bool:
        """Make a child from an earlier one; False, with nothing left, if that one is damaged or cannot be linked to."""
        try:
            if shared == len(shards):
                link_tree(base, child)
            else:
                self._write(child, shards, shared, base)
            return True
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LINKS:
                raise
            remove_path(child)
            return False

    def _base(self, split: str, shards: tuple[PromotedShard, ...]) -> tuple[Path | None, int]:
        """The earlier child store with the longest beginning in common, if it has nothing else, and its length."""
        best: tuple[Path | None, int] = (None, 0)
        for version in reversed(self.earlier):
            earlier = version.record.splits.get(split, ())
            if best[1] < len(earlier) and earlier == shards[: len(earlier)] and (version.path / split).is_dir():
                best = (version.path / split, len(earlier))
        return best

    def _write(self, child: Path, shards: Sequence[_Shard], shared: int, base: Path | None) -> None:
        split = child.name

        def report(done: int, note: str) -> None:
            self.progress(ProgressEvent(f"promote {split}", done, len(shards), note, "shards"))

        with self._writer(child, shards) as writer:
            if base is not None:
                report(shared, "reading the last version")
                writer.resume(RolloutZarrStoreReader(base))
            self.on_step(f"{split}/resumed")
            for done, shard in enumerate(shards[shared:], start=shared + 1):
                _append(writer, shard)
                report(done, shard.entry.shard_id)
            self.on_step(f"{split}/appended")
            writer.finish()
        self.on_step(f"{split}/validate")
        # Extending hashed every old row on the way, so a deep pass would only read them a second time.
        validate_rollout_zarr_store(child, deep=base is None).raise_if_wrong()

    def _writer(self, child: Path, shards: Sequence[_Shard]) -> RolloutZarrStoreExtender:
        made_of = {"split": child.name, "shards": [shard.promoted.model_dump(mode="json") for shard in shards]}
        context = RolloutStoreManifestContext.here(self.config, self.invocation, made_of)
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
