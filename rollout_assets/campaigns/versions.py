"""Versions of the promoted store: which are there, which one readers get, going back, and clearing away.

A version is a directory below ``versions/`` that appeared by rename, so it is complete. Its root group says what it was
made from. ``rollouts.zarr`` is a link to one of them, replaced in one step; a reader that opened an older one reads on.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from rollout_assets.campaigns.layout import CampaignLayout, StoredModel
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import CampaignError, StoreDamaged
from rollout_assets.files import file_lock, publish_bytes, remove_path, rename_path, switch_link
from rollout_assets.parsing import parse_json
from rollout_assets.rollouts.zarr_store.documents import ZARR_JSON, group_document
from rollout_assets.rollouts.zarr_store.writer import OnStep, ignore_step

KEPT_VERSIONS = 2
"""Versions that ``prune_promoted_versions`` leaves by default."""

PROMOTION_LOCK = "promotion"

_NAME = re.compile(r"v(\d{6,})")
_ATTRIBUTE = "rollout_promotion"


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

    def document(self) -> bytes:
        """The root group's ``zarr.json``."""
        return json.dumps(group_document({_ATTRIBUTE: self.model_dump(mode="json")}), indent=2).encode() + b"\n"


@dataclass(frozen=True)
class PromotedVersion:
    """One complete promoted store."""

    number: int
    path: Path
    record: PromotionRecord
    is_current: bool

    @property
    def name(self) -> str:
        """``v000002``."""
        return self.path.name

    @property
    def children(self) -> tuple[Path, ...]:
        """Its child stores, one per split with records."""
        folders = (self.path / split for split in sorted(self.record.splits))
        return tuple(path for path in folders if path.is_dir())

    @property
    def shard_ids(self) -> tuple[str, ...]:
        """The shards it was made from."""
        return tuple(sorted(shard.shard_id for shards in self.record.splits.values() for shard in shards))


@dataclass(frozen=True)
class Pruned:
    """What was cleared away."""

    versions: tuple[str, ...]
    set_aside: tuple[str, ...]
    kept: tuple[str, ...]


def promoted_versions(config: CampaignConfig) -> tuple[PromotedVersion, ...]:
    """All complete versions, oldest first."""
    layout = CampaignLayout(config.shards.output_dir)
    current = current_name(layout)
    versions = []
    for path in sorted(layout.versions.glob("v*"), key=lambda path: path.name):
        if (match := _NAME.fullmatch(path.name)) is not None:
            versions.append(PromotedVersion(int(match[1]), path, _read_record(path), path.name == current))
    return tuple(versions)


def current_version(config: CampaignConfig) -> PromotedVersion:
    """The version that readers get; nothing promoted is a ``CampaignError``."""
    for version in promoted_versions(config):
        if version.is_current:
            return version
    where = CampaignLayout(config.shards.output_dir).promoted
    raise CampaignError(f"{where}: nothing is promoted yet; 'rollout-assets campaign promote' does it")


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


def write_record(version_dir: Path, record: PromotionRecord) -> None:
    """Make a directory of child stores a Zarr group that says what it was made from."""
    publish_bytes(version_dir / ZARR_JSON, record.document())


def make_current(layout: CampaignLayout, name: str, on_step: OnStep = ignore_step) -> None:
    """Let readers that open from now on get this version."""
    on_step("switch/before")
    switch_link(layout.promoted, f"{layout.versions.name}/{name}")
    on_step("switch/after")


def rollback_promotion(config: CampaignConfig, to: str | None = None) -> PromotedVersion:
    """Make the version before the current one current again, or the one named ``to``; nothing is removed."""
    layout = CampaignLayout(config.shards.output_dir)
    with file_lock(layout.lock(PROMOTION_LOCK), str(layout.promoted)):
        versions = promoted_versions(config)
        names = ", ".join(version.name for version in versions) or "none"
        if to is not None:
            target = next((version for version in versions if version.name == to), None)
            if target is None:
                raise CampaignError(f"{layout.versions}: no version {to}; there are {names}")
        else:
            current = current_version(config).number
            older = [version for version in versions if version.number < current]
            if not older:
                raise CampaignError(f"{layout.promoted}: no version before {version_name(current)}; there are {names}")
            target = older[-1]
        make_current(layout, target.name)
    return replace(target, is_current=True)


def prune_promoted_versions(config: CampaignConfig, keep: int = KEPT_VERSIONS, *, set_aside: bool = False) -> Pruned:
    """Remove all but the newest ``keep`` versions; the current one always stays.

    With ``set_aside`` also what builds have set aside, and leftovers of dead promotions.
    """
    if keep < 1:
        raise CampaignError(f"keep must be >= 1, got {keep}")
    layout = CampaignLayout(config.shards.output_dir)
    with file_lock(layout.lock(PROMOTION_LOCK), str(layout.promoted)):
        versions = promoted_versions(config)
        newest = {version.name for version in versions[-keep:]}
        gone = [version for version in versions if version.name not in newest and not version.is_current]
        for version in gone:
            layout.staging.mkdir(exist_ok=True)
            leaving = layout.new_attempt(PROMOTION_LOCK)
            rename_path(version.path, leaving)  # first out of sight, so that no half version can ever be opened
            remove_path(leaving)
        for leftover in layout.attempts(PROMOTION_LOCK):
            remove_path(leftover)
        aside = sorted(layout.set_aside_dir.glob("*")) if set_aside else []
        for path in aside:
            remove_path(path)
    return Pruned(
        tuple(version.name for version in gone),
        tuple(path.name for path in aside if path.suffix != ".json"),
        tuple(version.name for version in versions if version not in gone),
    )


def _read_record(path: Path) -> PromotionRecord:
    try:
        document: Any = parse_json((path / ZARR_JSON).read_bytes())
        return PromotionRecord.model_validate(document["attributes"][_ATTRIBUTE])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        raise StoreDamaged(str(path / ZARR_JSON), "does not say what the version was made from") from None
