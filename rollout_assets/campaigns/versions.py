"""Versions of the promoted store: which are there, which one readers get, going back, and clearing away.

A version is a directory below ``versions/`` that appeared by rename, so it is complete. Its root group says what it was
made from. ``rollouts.zarr`` is a link to one of them, replaced in one step; a reader that opened an older one reads on.
Damage in a version concerns that version only: it is named, it is never made current, and it can be pruned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from rollout_assets.campaigns.claim import refuse_other_campaign
from rollout_assets.campaigns.inventory import check_version, read_inventory
from rollout_assets.campaigns.layout import CampaignLayout, StoredModel
from rollout_assets.campaigns.objects.publishing import move_pointer, remove_version, reserve_version
from rollout_assets.campaigns.objects.storage import TaggedPointer
from rollout_assets.campaigns.objects.working_copy import refresh_versions
from rollout_assets.campaigns.pin import Pin, new_pin, read_pin, remove_pin, write_pin
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import CampaignError, StoreDamaged
from rollout_assets.files import file_lock, publish_bytes, remove_path, rename_path, switch_link
from rollout_assets.locations.url import Location, ObjectUrl
from rollout_assets.parsing import parse_json
from rollout_assets.rollouts.zarr_store.documents import PROMOTION_ATTRIBUTE, ZARR_JSON, group_document
from rollout_assets.rollouts.zarr_store.writer import OnStep, ignore_step

KEPT_VERSIONS = 2
"""Versions that ``prune_promoted_versions`` leaves by default."""

PROMOTION_LOCK = "promotion"

_NAME = re.compile(r"v(\d{6,})")


class PromotedShard(StoredModel):
    """A shard as it went into a promoted store; ``content_sha256`` is None for one without records."""

    shard_id: str
    entry_sha256: str
    content_sha256: str | None


class PromotionRecord(StoredModel):
    """What a version was made from: per split the ordered shards. Equal inputs give equal records."""

    promotion_version: Literal["rollout-promotion-v1"] = "rollout-promotion-v1"
    campaign: str
    writer_config_hash: str
    splits: dict[str, tuple[PromotedShard, ...]]

    @property
    def splits_with_records(self) -> tuple[str, ...]:
        """The splits that have a child store, sorted."""
        return tuple(
            sorted(
                split
                for split, shards in self.splits.items()
                if any(shard.content_sha256 is not None for shard in shards)
            )
        )

    def document(self) -> bytes:
        """The root group's ``zarr.json``."""
        group = group_document({PROMOTION_ATTRIBUTE: self.model_dump(mode="json")})
        return json.dumps(group, indent=2).encode() + b"\n"


@dataclass(frozen=True)
class PromotedVersion:
    """One complete promoted store."""

    number: int
    path: Path
    record: PromotionRecord
    is_current: bool
    url: ObjectUrl | None = None
    """Where it lies if not on a disk; ``path`` is then this machine's copy, which need not have all of its files."""

    @property
    def name(self) -> str:
        """``v000002``."""
        return self.path.name

    @property
    def location(self) -> Location:
        """Where readers open it."""
        return self.path if self.url is None else self.url

    @property
    def children(self) -> tuple[Location, ...]:
        """Its child stores, one per split with records."""
        if self.url is not None:
            return tuple(self.url / split for split in self.record.splits_with_records)
        folders = (self.path / split for split in sorted(self.record.splits))
        return tuple(path for path in folders if path.is_dir())

    @property
    def shard_ids(self) -> tuple[str, ...]:
        """The shards it was made from."""
        return tuple(sorted(shard.shard_id for shards in self.record.splits.values() for shard in shards))


@dataclass(frozen=True)
class UnreadableVersion:
    """A version whose root group no longer says what it was made from."""

    number: int
    path: Path
    problem: str
    is_current: bool

    @property
    def name(self) -> str:
        """``v000002``."""
        return self.path.name

    @property
    def text(self) -> str:
        """The version and its problem as one line."""
        return f"{self.name}: {ZARR_JSON} {self.problem}"


@dataclass(frozen=True)
class Pruned:
    """What was cleared away; ``damaged`` are those of the removed versions that were damaged."""

    versions: tuple[str, ...]
    kept: tuple[str, ...]
    damaged: tuple[str, ...] = ()


def promoted_versions(config: CampaignConfig) -> tuple[PromotedVersion, ...]:
    """All complete versions, oldest first; those of which the root group cannot be read are left out."""
    return tuple(version for version in versions_on_disk(config) if isinstance(version, PromotedVersion))


def unreadable_versions(config: CampaignConfig) -> tuple[UnreadableVersion, ...]:
    """All versions of which the root group cannot be read, oldest first."""
    return tuple(version for version in versions_on_disk(config) if isinstance(version, UnreadableVersion))


def versions_on_disk(config: CampaignConfig) -> tuple[PromotedVersion | UnreadableVersion, ...]:
    """All versions, oldest first, also those that cannot be read."""
    layout = CampaignLayout.of(config)
    current = current_name(layout)
    numbered = ((_number(path.name), path) for path in layout.versions.glob("v*"))
    return tuple(_version(layout, number, path, path.name == current) for number, path in sorted(numbered) if number)


def current_version(config: CampaignConfig, *, refresh: bool = True) -> PromotedVersion:
    """The version that readers get; nothing promoted is a ``CampaignError``, an unreadable one ``StoreDamaged``.

    With ``refresh``, this machine's copy of a campaign in object storage is brought up to date before.
    """
    layout = CampaignLayout.of(config)
    if refresh:
        refresh_versions(layout)
    name = current_name(layout)
    if name is None:
        raise CampaignError(
            f"{layout.store_location}: nothing is promoted yet; 'rollout-assets campaign promote' does it"
        )
    version = next((version for version in versions_on_disk(config) if version.name == name), None)
    if isinstance(version, PromotedVersion):
        return version
    remedy = "'rollout-assets campaign promote' makes another version, 'campaign rollback' goes to an earlier one"
    if version is None:
        raise CampaignError(f"{layout.store_location}: leads to {name}, which is not there; {remedy}")
    raise StoreDamaged(str(version.path / ZARR_JSON), f"{version.problem}; {remedy}")


def current_name(layout: CampaignLayout) -> str | None:
    """Name of the version that readers get; None before the first promotion."""
    if not layout.promoted.is_symlink():
        if layout.promoted.exists():
            raise CampaignError(f"{layout.promoted}: is not a promoted store's link; move it away")
        return None
    return layout.promoted.readlink().name


def version_name(number: int) -> str:
    """``v000002``."""
    return f"v{number:06d}"


def next_version_name(layout: CampaignLayout) -> str:
    """A name that no version has or had: what a reader noted under a name is never something else later."""
    names = [path.stem for folder in (layout.versions, layout.inventories) for path in folder.glob("v*")]
    return version_name(1 + max(map(_number, names), default=0))


def _number(name: str) -> int:
    """The number in a version's name; 0 for another name."""
    match = _NAME.fullmatch(name)
    return 0 if match is None else int(match[1])


def write_record(version_dir: Path, record: PromotionRecord) -> None:
    """Make a directory of child stores a Zarr group that says what it was made from."""
    publish_bytes(version_dir / ZARR_JSON, record.document())


def reserved_version_name(layout: CampaignLayout) -> str:
    """A version's name that belongs to the caller alone, also among other machines."""
    number = _number(next_version_name(layout))
    while not reserve_version(layout, version_name(number)):
        number += 1
    return version_name(number)


def make_current(
    layout: CampaignLayout, name: str, on_step: OnStep = ignore_step, before: TaggedPointer | None = None
) -> None:
    """Let readers that open from now on get this version.

    In object storage the pointer must still be ``before``, as it was read; otherwise this is ``PointerMoved``.
    """
    on_step("switch/before")
    move_pointer(layout, name, None, before)
    switch_link(layout.promoted, f"{layout.versions.name}/{name}")
    on_step("switch/after")


def rollback_promotion(config: CampaignConfig, to: str | None = None) -> PromotedVersion:
    """Make the last sound version before the current one current again, or the one named ``to``, and pin readers to it.

    Nothing is removed. Promotions do not move readers on until ``unpin_promotion``. The pin is written before the link,
    so that a rollback that is killed in between is never undone by a promotion.
    """
    layout = CampaignLayout.of(config)
    refuse_other_campaign(config)
    with file_lock(layout.lock(PROMOTION_LOCK), str(layout.promoted)):
        before = refresh_versions(layout)
        versions = versions_on_disk(config)
        target = _earlier_version(layout, versions) if to is None else _named_version(layout, versions, to)
        pin = new_pin(target.name)
        move_pointer(layout, target.name, pin.model_dump(mode="json"), before)
        write_pin(layout, pin)
        switch_link(layout.promoted, f"{layout.versions.name}/{target.name}")
    return replace(target, is_current=True)


def rollback_target(config: CampaignConfig, to: str | None = None) -> PromotedVersion:
    """The version that ``rollback_promotion`` would make current; a ``CampaignError`` says why there is none."""
    layout = CampaignLayout.of(config)
    refuse_other_campaign(config)
    refresh_versions(layout)
    versions = versions_on_disk(config)
    return _earlier_version(layout, versions) if to is None else _named_version(layout, versions, to)


def present_pin(config: CampaignConfig) -> Pin | None:
    """The pin that ``unpin_promotion`` would lift; None if nothing is pinned."""
    layout = CampaignLayout.of(config)
    refuse_other_campaign(config)
    refresh_versions(layout)
    return read_pin(layout)


def unpin_promotion(config: CampaignConfig) -> Pin | None:
    """Lift the pin of a rollback, so that the next promotion moves readers on; returns the pin, if there was one."""
    layout = CampaignLayout.of(config)
    refuse_other_campaign(config)
    with file_lock(layout.lock(PROMOTION_LOCK), str(layout.promoted)):
        before = refresh_versions(layout)
        pin = read_pin(layout)
        if pin is not None:
            if before is not None:
                move_pointer(layout, before.pointer.version, None, before)
            remove_pin(layout)
    return pin


def _named_version(
    layout: CampaignLayout, versions: Sequence[PromotedVersion | UnreadableVersion], name: str
) -> PromotedVersion:
    version = next((version for version in versions if version.name == name), None)
    if version is None:
        raise CampaignError(f"{layout.place}: no version {name}; there are {_names(versions)}")
    problems = _known_damage(layout, version)
    if problems or isinstance(version, UnreadableVersion):
        raise CampaignError(f"{layout.place}: {name} is damaged and is not made current: {'; '.join(problems)}")
    return version


def _earlier_version(
    layout: CampaignLayout, versions: Sequence[PromotedVersion | UnreadableVersion]
) -> PromotedVersion:
    name = current_name(layout)
    if name is None:
        raise CampaignError(
            f"{layout.store_location}: nothing is promoted yet; 'rollout-assets campaign promote' does it"
        )
    damaged: list[str] = []
    for version in reversed([version for version in versions if version.number < _number(name)]):
        problems = _known_damage(layout, version)
        if isinstance(version, PromotedVersion) and not problems:
            return version
        damaged += problems
    why = f" that is not damaged ({'; '.join(damaged)})" if damaged else ""
    raise CampaignError(f"{layout.store_location}: no version before {name}{why}; there are {_names(versions)}")


def version_problems(
    layout: CampaignLayout, version: PromotedVersion | UnreadableVersion, deep: bool = False
) -> tuple[str, ...]:
    """What of a version is not as it was published: by sizes and times, or by every byte."""
    if isinstance(version, UnreadableVersion):
        return (version.text,)
    return check_version(layout, version.name, deep=deep).problems


def _known_damage(layout: CampaignLayout, version: PromotedVersion | UnreadableVersion) -> tuple[str, ...]:
    """The problems of a version, but for a lost inventory: it is no reason to remove a version or to refuse it."""
    lost = isinstance(version, PromotedVersion) and read_inventory(layout, version.name) is None
    return () if lost else version_problems(layout, version)


def _names(versions: Sequence[PromotedVersion | UnreadableVersion]) -> str:
    return ", ".join(version.name for version in versions) or "none"


def superseded_versions(
    config: CampaignConfig, keep: int = KEPT_VERSIONS
) -> list[tuple[PromotedVersion | UnreadableVersion, bool]]:
    """All but the newest ``keep`` versions, oldest first, and whether each is damaged.

    The current version and the pinned one are never among them; damaged ones always are, and do not count as kept.
    """
    if keep < 1:
        raise CampaignError(f"keep must be >= 1, got {keep}")
    layout = CampaignLayout.of(config)
    versions = versions_on_disk(config)
    damaged = {version.name for version in versions if _known_damage(layout, version)}
    stay = {version.name for version in [version for version in versions if version.name not in damaged][-keep:]}
    stay |= {version.name for version in versions if version.is_current}
    if (pin := read_pin(layout)) is not None and pin.version is not None:
        stay.add(pin.version)
    return [(version, version.name in damaged) for version in versions if version.name not in stay]


def remove_superseded(config: CampaignConfig, keep: int, names: Collection[str]) -> tuple[str, ...]:
    """Remove those of some versions that are still superseded, and leftovers of dead promotions; returns their names.

    What is current or pinned is looked at under the lock of promotions, so that nobody can move readers meanwhile.
    """
    layout = CampaignLayout.of(config)
    refuse_other_campaign(config)
    with file_lock(layout.lock(PROMOTION_LOCK), str(layout.promoted)):
        refresh_versions(layout)
        gone = [version for version, _ in superseded_versions(config, keep) if version.name in names]
        for version in gone:
            _remove_version(layout, version.path)
        for leftover in layout.attempts(PROMOTION_LOCK):
            remove_path(leftover)
    return tuple(version.name for version in gone)


def prune_promoted_versions(config: CampaignConfig, keep: int = KEPT_VERSIONS) -> Pruned:
    """Remove all but the newest ``keep`` versions; the current one always stays, and damaged ones do not count."""
    refuse_other_campaign(config)
    damaged = {version.name for version, is_damaged in superseded_versions(config, keep) if is_damaged}
    versions = [version.name for version in versions_on_disk(config)]
    gone = remove_superseded(config, keep, versions)
    return Pruned(
        gone,
        tuple(name for name in versions if name not in gone),
        tuple(name for name in gone if name in damaged),
    )


def _remove_version(layout: CampaignLayout, path: Path) -> None:
    remove_version(layout, path.name)
    layout.staging.mkdir(exist_ok=True)
    leaving = layout.new_attempt(PROMOTION_LOCK)
    rename_path(path, leaving)  # first out of sight, so that no half version can ever be opened
    remove_path(layout.full_read(path.name))
    if next_version_name(layout) != version_name(_number(path.name) + 1):  # the last inventory keeps the number taken
        remove_path(layout.inventory(path.name))
    remove_path(leaving)


def _version(layout: CampaignLayout, number: int, path: Path, is_current: bool) -> PromotedVersion | UnreadableVersion:
    url = None if layout.url is None else layout.url / "versions" / path.name
    try:
        return PromotedVersion(number, path, _read_record(path), is_current, url)
    except StoreDamaged as error:
        return UnreadableVersion(number, path, error.problem, is_current)


def _read_record(path: Path) -> PromotionRecord:
    try:
        document: Any = parse_json((path / ZARR_JSON).read_bytes())
        return PromotionRecord.model_validate(document["attributes"][PROMOTION_ATTRIBUTE])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        raise StoreDamaged(str(path / ZARR_JSON), "does not say what the version was made from") from None
