"""Building one shard, so that it is either complete and marked as finished, or not there at all.

The order is the promise: build in a staging directory, validate, write the owner, flush to disk, rename into place,
write the success marker. A process killed between any two of these leaves nothing that counts as finished, and the next
run sets its leftovers aside and builds again.

One builder at a time holds the shard's lock. Where a file system does not carry locks from one machine to another, two
builders may be at work: whichever renames first has built the shard, and the other compares and takes it.

From build to promotion a shard's files are read twice, and once more by every run that finds it finished; each time
there is a new reason to distrust them. The build validates what it wrote, and the seal is made of those very bytes. A
later run holds them against the seal, because disks and people alter files, and so does one that takes over a finished
shard which the plan has under another number now, before it validates and seals it anew. A promotion holds them against
it again and copies the rows from the bytes that it hashed. Everything else looks at markers, sizes and times.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any, Literal

from rollout_assets.campaigns import markers
from rollout_assets.campaigns.guards.inputs import refuse_missing_inputs
from rollout_assets.campaigns.guards.shards import FinishedBefore
from rollout_assets.campaigns.layout import ROLLOUT_SHARD_OWNER_FILENAME, STORE_NAME, CampaignLayout, SetAside
from rollout_assets.campaigns.markers import ShardOwner
from rollout_assets.campaigns.objects.publishing import publish_failures, publish_shard
from rollout_assets.campaigns.objects.working_copy import fetch_shard
from rollout_assets.campaigns.plan import entry_of, open_source, planned_rows
from rollout_assets.campaigns.plan_entry import RolloutShardEntry
from rollout_assets.campaigns.reuse import take_over_former
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ShardBusy, ShardFailed, StoreDamaged
from rollout_assets.files import (
    discard_path,
    file_lock,
    is_locked,
    make_folder,
    now_utc,
    publish_json,
    rename_path,
    sync_tree,
)
from rollout_assets.overlap import Pausing, without_pause
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation, RolloutStoreManifestContext
from rollout_assets.rollouts.zarr_store.writer import OnStep, ignore_step
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.vin_store import VinOfflineStore

if TYPE_CHECKING:
    from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter, WrittenShard


OTHER_BUILDER_S = 30.0
"""How long to wait for the marker of another builder, which takes moments."""

_LOOK_EVERY_S = 0.1

Finished = Literal["built", "reused", "already_finished"]
"""How a shard came to be finished; ``reused`` ones have the files of a finished shard of another number."""


@dataclass(frozen=True, eq=False)
class RolloutShardRunResult:
    """Result of one strict rollout shard build or resume check.

    ``store_dir`` is None for a shard whose rows were all skipped. ``set_aside`` names what had to move out of the way.
    ``fewer`` says what went if the shard has fewer records than the finished one that it replaces.
    """

    shard_id: str
    outcome: Finished
    shard_dir: Path
    store_dir: Path | None
    owner: ShardOwner
    set_aside: tuple[SetAside, ...]
    seconds: float
    fewer: str = ""


def run_rollout_shard(
    config: CampaignConfig,
    entry: RolloutShardEntry | str,
    *,
    source: VinOfflineStore | None = None,
    writer: Callable[[], RolloutDatasetWriter] | None = None,
    invocation: RolloutStoreInvocation | None = None,
    allow_fewer: bool = False,
    on_step: OnStep = ignore_step,
    progress: ProgressSink = SILENT,
) -> RolloutShardRunResult:
    """Build one rollout shard with strict temp-to-final promotion semantics.

    Drift of config or source rows is ``ShardDrift`` before any work; a shard that another process builds is
    ``ShardBusy``; a finished and current shard, every byte of it checked, is left as it is. Whatever else lies at its
    place is set aside. A finished shard with the same rows and hashes under another number is reused. A build that
    fails leaves a note beside the shards and nothing else. A missing mesh that the shard was planned or built with is
    ``InputMissing`` before any work, and a finished shard that would be replaced by one with fewer records stays, with
    ``FewerRecords``, unless ``allow_fewer``. ``writer`` is called only when there is a shard to build.
    ``on_step`` is called at named points, for tests that kill a build there.
    """
    work = running_rollout_shard(
        config,
        entry,
        source=source,
        writer=writer,
        invocation=invocation,
        allow_fewer=allow_fewer,
        on_step=on_step,
        progress=progress,
    )
    return without_pause(work)


def running_rollout_shard(
    config: CampaignConfig,
    entry: RolloutShardEntry | str,
    *,
    source: VinOfflineStore | None = None,
    writer: Callable[[], RolloutDatasetWriter] | None = None,
    invocation: RolloutStoreInvocation | None = None,
    allow_fewer: bool = False,
    on_step: OnStep = ignore_step,
    progress: ProgressSink = SILENT,
) -> Pausing[RolloutShardRunResult]:
    """``run_rollout_shard``, with a pause when all rows of a shard that has to be built are scored.

    Whoever gives up at the pause leaves no trace of the attempt.
    """
    began = perf_counter()
    entry = entry_of(config, entry) if isinstance(entry, str) else entry
    source = source or open_source(config)
    rows = planned_rows(entry, config, source)
    layout = CampaignLayout.of(config)
    job = _Build(config, entry, rows, source, writer, invocation, layout, allow_fewer, on_step, progress, began)
    try:
        return (yield from _run_in_folder(job) if layout.url is None else _run_published(job))
    except OSError as error:
        raise ShardFailed(f"{entry.shard_id}: {_what_to_do(error, layout.root)}") from error


def _run_in_folder(job: _Build) -> Pausing[RolloutShardRunResult]:
    """Build a shard at its place in a folder, unless it is finished there."""
    layout, entry = job.layout, job.entry
    with file_lock(layout.lock(entry.shard_id), entry.shard_id):
        final = layout.shard(entry.shard_id)
        problems = _problems(final, entry, job.source, deep=True)
        if not problems:
            layout.clear_attempts(entry.shard_id)
            return _result(final, "already_finished", (), job.began)
        if not job.allow_fewer:
            refuse_missing_inputs(layout, entry, job.source)
        former = FinishedBefore.find(final, entry, problems)
        moved = [layout.move_aside(final, "; ".join(problems))] if final.exists() and former is None else []
        moved += layout.clear_attempts(entry.shard_id)
        outcome = yield from replace(job, former=former).run()
        return _result(final, outcome, (*moved, *(() if former is None else former.moved)), job.began, former)


def _run_published(job: _Build) -> Pausing[RolloutShardRunResult]:
    """Build a shard in a folder of this process alone and publish it to object storage, unless it is there already.

    Nobody waits for anybody: whoever publishes first has built the shard, and all others have worked for nothing.
    """
    layout, entry = job.layout, job.entry
    final = layout.shard(entry.shard_id)
    present = fetch_shard(layout, entry.shard_id, entry.sha256, store=False)
    problems = ["not built yet"] if present is None else _problems(final, entry, job.source, deep=False)
    if not problems:
        return _result(final, "already_finished", (), job.began)
    if not job.allow_fewer:
        refuse_missing_inputs(layout, entry, job.source)
    former = FinishedBefore.find(final, entry, problems)
    scratch = _fresh_scratch(layout, f"build-{entry.shard_id}")
    with file_lock(scratch, entry.shard_id):
        try:
            built = yield from _run_in_folder(replace(job, layout=CampaignLayout(scratch), allow_fewer=True))
            content = built.owner.content_sha256
            if former is not None:
                former.refuse_fewer(built.owner, allow=job.allow_fewer)
            publish_shard(layout, entry, built.shard_dir, content, instead_of=present, on_step=job.on_step)
        except Exception:
            with suppress(Exception):  # the error itself is what matters, not that its note could not be left
                publish_failures(layout, CampaignLayout(scratch).shards)
            raise
        finally:
            discard_path(scratch)
    fetch_shard(layout, entry.shard_id, entry.sha256)
    return _result(final, built.outcome, (), job.began, former)


def _fresh_scratch(layout: CampaignLayout, name: str) -> Path:
    """A new folder for a build; those of dead processes are removed."""
    for leftover in layout.attempts(name):
        if not is_locked(leftover):
            discard_path(leftover)
    scratch = layout.new_attempt(name)
    scratch.mkdir(parents=True)
    return scratch


def shard_problems(
    shard_dir: Path, entry: RolloutShardEntry, source: VinOfflineStore | None, *, deep: bool
) -> Sequence[str]:
    """Why what lies at a shard's place is not the finished, current shard; empty if it is.

    ``deep`` reads every byte of its store; a ``source`` is compared with the one the shard was built from. That
    something cannot be read is a problem too, but never a reason to set the shard aside.
    """
    try:
        return _problems(shard_dir, entry, source, deep=deep)
    except OSError as error:
        return [f"cannot be read: {error.strerror or error}{f': {error.filename}' if error.filename else ''}"]


def _problems(
    shard_dir: Path, entry: RolloutShardEntry, source: VinOfflineStore | None, *, deep: bool
) -> Sequence[str]:
    """``shard_problems`` as far as they lie in the shard's bytes; what cannot be read is an ``OSError``."""
    if not shard_dir.exists():
        return ["not built yet"]
    try:
        owner = markers.read_owner(shard_dir)
        return [*markers.damage(shard_dir, owner, deep=deep), *markers.staleness(owner, entry, source)]
    except StoreDamaged as error:
        return [error.problem]


@dataclass(frozen=True, eq=False)
class _Build:
    """One attempt at one shard; the shard's lock is held."""

    config: CampaignConfig
    entry: RolloutShardEntry
    rows: Sequence[IndexRow]
    source: VinOfflineStore
    writer: Callable[[], RolloutDatasetWriter] | None
    invocation: RolloutStoreInvocation | None
    layout: CampaignLayout
    allow_fewer: bool
    on_step: OnStep
    progress: ProgressSink
    began: float
    former: FinishedBefore | None = None
    """The finished shard that lies at the place of this one until this one is finished."""
    _renamed: list[Path] = field(default_factory=list)
    """The shard's place, once this attempt has filled it."""

    def run(self) -> Pausing[Finished]:
        """Finish the shard, by a build unless there is a finished shard to take over."""
        make_folder(self.layout.shards)
        self.layout.staging.mkdir(parents=True, exist_ok=True)
        staged = self.layout.new_attempt(self.entry.shard_id)
        try:
            self.on_step("temp/before")
            staged.mkdir()
            self.on_step("temp/after")
            reused = self._take_over(staged)
            if not reused:
                yield from self._fill(staged)
            if self.former is not None:
                self.former.refuse_fewer(markers.staged_owner(staged), allow=self.allow_fewer)
            if not self._publish(staged):
                discard_path(staged)
                return "already_finished"
        except BaseException as error:
            for path in (staged, *self._renamed):
                discard_path(path)  # what cannot be removed is set aside by the next attempt
            if isinstance(error, Exception):
                with suppress(OSError):  # a full or read-only disk takes no note either; the error itself is raised
                    markers.write_failure(self.layout, self.entry, error)
            raise
        return "reused" if reused else "built"

    def _take_over(self, staged: Path) -> bool:
        """Whether a finished shard with the same rows and hashes was found and now is this one."""
        self.on_step("reuse/before")
        owner = take_over_former(self.layout, self.entry, self.source, staged)
        if owner is None:
            return False
        self.on_step("reuse/after")
        named = {"shard_id": self.entry.shard_id, "entry_sha256": self.entry.sha256}
        self._declare(owner.model_copy(update=named | self._attempt(staged)), staged)
        return True

    def _fill(self, staged: Path) -> Pausing[None]:
        before = markers.observe_source(self.entry, self.source)
        written = yield from self._writer().writing(
            self.entry,
            staged / STORE_NAME,
            rows=self.rows,
            context=RolloutStoreManifestContext.here(
                self.config, self.invocation, shard=self.entry.model_dump(mode="json")
            ),
            on_step=self.on_step,
            progress=self.progress,
        )
        self._refuse_changed_source(before, written)
        self._declare(self._owner(staged, written, before), staged)

    def _declare(self, owner: ShardOwner, staged: Path) -> None:
        self.on_step("owner/before")
        publish_json(staged / ROLLOUT_SHARD_OWNER_FILENAME, owner.model_dump(mode="json"))
        self.on_step("owner/after")

    def _refuse_changed_source(self, before: markers.SourceState, written: WrittenShard) -> None:
        """Raise ``ShardFailed`` if the records may not be of the source that the owner file will name."""
        changed = markers.mesh_changes(before, written.mesh_versions)
        for scene in changed:
            self.source.meshes.forget_hash(scene)
        if changed or markers.source_has_changed(before, self.entry, self.source):
            what = f"the mesh of scene {', '.join(changed)}" if changed else "the source"
            raise ShardFailed(f"{self.entry.shard_id}: {what} changed while it was read; run it again")

    def _publish(self, staged: Path) -> bool:
        """Let the shard appear at its place; False if another builder, which no lock has kept away, was first."""
        final = self.layout.shard(self.entry.shard_id)
        self.on_step("fsync/before")
        sync_tree(staged)
        self.on_step("fsync/after")
        markers.note_validated(self.layout.root, markers.staged_owner(staged))
        self.on_step("rename/before")
        if self.former is not None:
            self.former.move_aside(self.layout)
        try:
            rename_path(staged, final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self._require_equal(staged, final)
            return False
        self._renamed.append(final)
        self.on_step("rename/after")
        self.on_step("success/before")
        markers.write_success(final, self.entry.shard_id)
        self.on_step("success/after")
        return True

    def _require_equal(self, staged: Path, final: Path) -> None:
        """Raise unless the shard that lies at our place is finished soon, and has the content that we made."""
        ours = markers.staged_owner(staged)
        deadline = monotonic() + OTHER_BUILDER_S
        while (theirs := markers.owner_if_finished(final)) is None and monotonic() < deadline:
            sleep(_LOOK_EVERY_S)
        if theirs is None:
            raise ShardBusy(f"{self.entry.shard_id}: another builder was first, but has not finished it; run it again")
        if theirs.content_sha256 != ours.content_sha256 or theirs.entry_sha256 != ours.entry_sha256:
            raise ShardFailed(
                f"{self.entry.shard_id}: two builders made different content from the same plan; one of the two "
                "machines computes wrongly, or has another version of this package, so compare them"
            )

    def _writer(self) -> RolloutDatasetWriter:
        if self.writer is not None:
            return self.writer()
        # Not at the top: it loads Warp, which Dagster's definitions and a campaign's status do without.
        from rollout_assets.campaigns.dataset_writer import RolloutDatasetWriter

        return RolloutDatasetWriter(self.config, self.source)

    def _owner(self, staged: Path, written: WrittenShard, source: markers.SourceState) -> ShardOwner:
        return ShardOwner(
            shard_id=self.entry.shard_id,
            split=self.entry.split,
            entry_sha256=self.entry.sha256,
            writer_config_hash=self.entry.writer_config_hash,
            **self._attempt(staged),
            seconds=perf_counter() - self.began,
            rows=written.rows,
            stats=written.stats.to_jsonable(),
            mesh_versions=dict(source.mesh_versions),
            source_shards=dict(source.source_shards),
            store=written.store,
        )

    @staticmethod
    def _attempt(staged: Path) -> dict[str, Any]:
        """Which attempt finished the shard, for its owner file."""
        return {
            "attempt": staged.name,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "created_at_utc": now_utc(),
        }


def _result(
    final: Path,
    outcome: Finished,
    moved: tuple[SetAside, ...],
    began: float,
    former: FinishedBefore | None = None,
) -> RolloutShardRunResult:
    owner = markers.read_owner(final)
    store_dir = None if owner.store is None else final / STORE_NAME
    fewer = "" if former is None else former.fewer_in(owner)
    return RolloutShardRunResult(owner.shard_id, outcome, final, store_dir, owner, moved, perf_counter() - began, fewer)


_REMEDIES: dict[int, str] = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EROFS: "make it writable",
    errno.EACCES: "make it writable",
    errno.EPERM: "make it writable",
}


def _what_to_do(error: OSError, root: Path) -> str:
    remedy = _REMEDIES.get(error.errno or 0, "fix the cause")
    where = error.filename or root
    return f"{where}: {error.strerror or error}; {remedy}, then run it again: nothing partial was left as finished"
