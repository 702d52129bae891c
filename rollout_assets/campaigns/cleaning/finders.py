"""What may go, kind by kind. Each finder leaves alone whatever a version, a pin, a link or a plan still refers to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rollout_assets.campaigns.cleaning.removable import Removable, aged, days_since, days_unused, size_of
from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.layout import FAILURE_PREFIX, CampaignLayout, is_dead_attempt
from rollout_assets.campaigns.markers import ShardOwner, read_owner
from rollout_assets.campaigns.plan_entry import RolloutShardEntry, shard_id_of
from rollout_assets.campaigns.versions import PROMOTION_LOCK, current_name, current_version, superseded_versions
from rollout_assets.config import CampaignConfig, data_home
from rollout_assets.errors import StoreDamaged
from rollout_assets.files import is_locked

CLEANING = "clean"
"""Name of what a cleaning leaves in ``staging/`` if it is killed."""

_NOTE = ".reason.json"
_TRAINING_LOCK = ".lock"


@dataclass(frozen=True)
class CampaignContents:
    """A campaign as a cleaning finds it; ``survey`` is None before the first plan."""

    config: CampaignConfig
    layout: CampaignLayout
    survey: CampaignSurvey | None

    @classmethod
    def of(cls, config: CampaignConfig) -> CampaignContents:
        """Look at a campaign."""
        layout = CampaignLayout.of(config)
        return cls(config, layout, CampaignSurvey.of(config) if layout.plan.exists() else None)

    @cached_property
    def finished(self) -> frozenset[str]:
        """Planned shards that are finished and current."""
        if self.survey is None:
            return frozenset()
        return frozenset(shard_id_of(number) for number in self.survey.current().nonzero()[0].tolist())

    @cached_property
    def planned_digests(self) -> frozenset[str]:
        """Digests of the lines of the plan."""
        return frozenset(() if self.survey is None else self.survey.planned.columns.sha256)

    @cached_property
    def unfinished_rows(self) -> frozenset[str]:
        """What the planned shards that are not finished ask for, whatever their number."""
        if self.survey is None:
            return frozenset()
        waiting = (~self.survey.current()).nonzero()[0].tolist()
        return frozenset(_without_number(self.survey.planned[number]) for number in waiting)

    @cached_property
    def former_entries(self) -> dict[str, bytes]:
        """Lines of replaced plans by their digest."""
        plans = self.layout.replaced_plans.glob("plan.*.jsonl")
        lines = (line for plan in plans for line in plan.read_bytes().splitlines(keepends=True))
        return {hashlib.sha256(line).hexdigest(): line for line in lines}

    def can_be_reused(self, owner: ShardOwner) -> bool:
        """Whether a shard that is planned and not finished could take over the files of this former one."""
        line = self.former_entries.get(owner.entry_sha256)
        if line is None:  # a former shard is looked for by the lines of replaced plans
            return False
        return _without_number(RolloutShardEntry.model_validate_json(line)) in self.unfinished_rows

    def set_aside_owner(self, folder: Path) -> ShardOwner | None:
        """The owner of a finished shard that was set aside; None for anything else."""
        try:
            return read_owner(folder, folder.name.split(".")[0])
        except (StoreDamaged, OSError):
            return None


Finder = Callable[[CampaignContents], Iterator[Removable]]


def old_versions(contents: CampaignContents) -> Iterator[Removable]:
    """Versions beyond those that are kept, and damaged ones; never the current one, the pinned one, or one in use."""
    layout, keep = contents.layout, contents.config.retention.versions
    for version, damaged in superseded_versions(contents.config, keep):
        if any(f"versions/{version.name}" in text for text in _running_trainings(layout)):
            continue
        why = "is damaged and not current" if damaged else f"is older than the newest {keep}"
        yield Removable("version", version.name, (version.path,), why, size_of([version.path]))


def set_aside(contents: CampaignContents) -> Iterator[Removable]:
    """What builds moved out of the way, unless a planned shard could still take it over."""
    layout, least = contents.layout, contents.config.retention.set_aside_days
    for folder in sorted(path for path in layout.set_aside_dir.glob("*") if not path.name.endswith(_NOTE)):
        note = folder.with_name(f"{folder.name}{_NOTE}")
        days = days_since(note if note.exists() else folder)
        if days < least:
            continue
        owner = contents.set_aside_owner(folder)
        if owner is not None and contents.can_be_reused(owner):
            continue
        why = f"was set aside, is {aged(days)}, and no planned shard can take it over"
        lock = layout.lock(folder.name.split(".")[0])
        yield Removable("set aside", folder.name, (folder, note), why, size_of([folder, note]), lock)


def staging_leftovers(contents: CampaignContents) -> Iterator[Removable]:
    """What dead attempts left: the lock of a live one is held, or it has written something not long ago."""
    layout, least = contents.layout, contents.config.retention.staging_days
    for folder in sorted(layout.staging.glob("*")):
        days, name = days_since(folder), folder.name.split(".")[0]
        lock = layout.lock(name) if name.startswith(("shard-", PROMOTION_LOCK, CLEANING)) else folder
        if days >= least and not is_locked(lock) and is_dead_attempt(folder):
            why = f"was left by an attempt that died, and is {aged(days)}"
            yield Removable("staging", folder.name, (folder,), why, size_of([folder]), lock)


def replaced_plans(contents: CampaignContents) -> Iterator[Removable]:
    """Plans that were replaced, beyond the newest ones, unless a finished shard is only in such a plan."""
    layout, keep = contents.layout, contents.config.retention.replaced_plans
    plans = sorted(layout.replaced_plans.glob("plan.*.jsonl"), reverse=True)[keep:]
    if not plans:
        return
    needed = _entries_on_disk(contents) - contents.planned_digests
    for plan in plans:
        digests = {hashlib.sha256(line).hexdigest() for line in plan.read_bytes().splitlines(keepends=True)}
        if digests.isdisjoint(needed):
            why = f"was replaced, is older than the newest {keep}, and no shard on disk was built for it"
            yield Removable("replaced plan", plan.name, (plan,), why, size_of([plan]), layout.lock("plan"))


def _entries_on_disk(contents: CampaignContents) -> set[str]:
    """Digests of the entries that finished shards were built for, those that were set aside included."""
    aside = (contents.set_aside_owner(path) for path in contents.layout.set_aside_dir.glob("shard-*") if path.is_dir())
    digests = {owner.entry_sha256 for owner in aside if owner is not None}
    return digests | set(() if contents.survey is None else contents.survey.finished.lists["entry"])


def old_failure_notes(contents: CampaignContents) -> Iterator[Removable]:
    """Notes about shards that are finished since, and all but the last note about any other."""
    notes: dict[str, list[Path]] = {}
    for path in sorted(contents.layout.shards.glob(f"{FAILURE_PREFIX}*.json")):
        notes.setdefault(path.name.split(".")[1], []).append(path)
    for shard_id, paths in notes.items():
        finished = shard_id in contents.finished
        gone = paths if finished else paths[:-1]
        why = "its shard is finished since" if finished else "there is a later note about its shard"
        for path in gone:
            yield Removable("failure note", path.name, (path,), why, size_of([path]), contents.layout.lock(shard_id))


def old_trainings(contents: CampaignContents) -> Iterator[Removable]:
    """Trainings beyond the newest ones, but for the current one, one that was evaluated last, and running ones."""
    layout, keep = contents.layout, contents.config.retention.trainings
    folders = sorted((path for path in layout.policies.glob("*") if path.is_dir()), key=days_since)
    for folder in folders[keep:]:
        lock = folder / _TRAINING_LOCK
        if folder in _trainings_in_use(layout) or is_locked(lock):
            continue
        why = f"is neither the current training nor one of the newest {keep}; accepted policies are kept as copies"
        yield Removable("training", folder.name, (folder,), why, size_of([folder]), lock)


def _trainings_in_use(layout: CampaignLayout) -> set[Path]:
    """The current training, and every one whose checkpoint an evaluation names."""
    current = {layout.policy.resolve()} if layout.policy.is_symlink() else set()
    texts = [path.read_text("utf-8") for path in layout.evaluation.glob("*.json")]
    named = {path for path in layout.policies.glob("*") if any(f"policies/{path.name}" in text for text in texts)}
    return {layout.policies / path.name for path in current | named}


def _running_trainings(layout: CampaignLayout) -> Iterator[str]:
    """What trainings under way have written about themselves, their stores among it."""
    for folder in layout.policies.glob("*"):
        if is_locked(folder / _TRAINING_LOCK):
            yield from (path.read_text("utf-8", "replace") for path in folder.glob("*.json"))


def unused_observations(contents: CampaignContents) -> Iterator[Removable]:
    """Observations that were made for training and that nobody has read for long; they can be made again."""
    training, least = contents.config.training, contents.config.retention.observation_days
    if training is None:
        return
    cache = training.cache_dir or data_home() / "observations"
    for folder in sorted(path for path in cache.glob("*") if path.is_dir()):
        days = days_unused(folder)
        if days >= least:
            why = f"nobody has read it for {days:.0f} days; a training makes it again"
            yield Removable("observations", folder.name, (folder,), why, size_of([folder]), folder)


def old_reports(contents: CampaignContents) -> Iterator[Removable]:
    """Pages, pictures and opinions about splits that the current version does not have; those it has are replaced."""
    layout = contents.layout
    if layout.url is not None or current_name(layout) is None:
        return
    splits = {str(child).rsplit("/", 1)[-1] for child in current_version(contents.config).children}
    for path in sorted(layout.reports.glob("*")):
        split = path.name.split(".")[0].removesuffix("_rollouts")
        if split not in splits:
            why = f"is about the split {split}, which the current version does not have"
            yield Removable("report", path.name, (path,), why, size_of([path]))


FINDERS: tuple[Finder, ...] = (
    old_versions,
    set_aside,
    staging_leftovers,
    replaced_plans,
    old_failure_notes,
    old_trainings,
    unused_observations,
    old_reports,
)
"""Everything that a cleaning looks for in a campaign's folder."""


def _without_number(entry: RolloutShardEntry) -> str:
    return entry.model_copy(update={"shard_id": shard_id_of(0)}).sha256
