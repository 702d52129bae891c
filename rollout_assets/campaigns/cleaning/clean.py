"""Cleaning a campaign: find what nobody needs, and remove it if asked to, while builders and promoters work on.

A thing is removed under the lock that guards it, so that a live process keeps what it works on. A folder is renamed
into ``staging/`` before its files go, so that nobody ever meets half of it; what a killed cleaning leaves there is
removed by the next one.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rollout_assets.campaigns.claim import refuse_other_campaign
from rollout_assets.campaigns.cleaning.finders import CLEANING, FINDERS, CampaignContents
from rollout_assets.campaigns.cleaning.removable import Removable
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.versions import remove_superseded
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import ShardBusy
from rollout_assets.files import file_lock, remove_path, rename_path


@dataclass(frozen=True)
class Cleaning:
    """What a cleaning found and what it removed; ``kept_back`` names what another process works on."""

    found: tuple[Removable, ...]
    removed: tuple[Removable, ...] = ()
    kept_back: tuple[str, ...] = ()


def removable_parts(config: CampaignConfig) -> tuple[Removable, ...]:
    """Everything that a cleaning would remove now."""
    refuse_other_campaign(config)
    contents = CampaignContents.of(config)
    return tuple(item for finder in FINDERS for item in finder(contents))


def clean_campaign(config: CampaignConfig, *, apply: bool = False) -> Cleaning:
    """Find what nobody needs, and remove it if ``apply``."""
    found = removable_parts(config)
    if not apply:
        return Cleaning(found)
    layout = CampaignLayout.of(config)
    removed, kept_back = [], []
    for item in found:
        try:
            if _remove(config, layout, item):
                removed.append(item)
        except ShardBusy as error:
            kept_back.append(f"{item.kind} {item.name}: {error}")
    return Cleaning(found, tuple(removed), tuple(kept_back))


def _remove(config: CampaignConfig, layout: CampaignLayout, item: Removable) -> bool:
    """Whether a thing was removed; False if it is gone, or is needed again."""
    if item.kind == "version":
        return item.name in remove_superseded(config, config.retention.versions, [item.name])
    present = [path for path in item.paths if path.exists()]
    if not present:
        return False
    with ExitStack() as held:
        if item.lock is not None:
            held.enter_context(file_lock(item.lock, item.name))
        for path in present:
            _take_away(layout, path)
    return True


def _take_away(layout: CampaignLayout, path: Path) -> None:
    same_disk = path.stat().st_dev == layout.root.stat().st_dev
    if path.is_dir() and same_disk and path.parent != layout.staging:
        layout.staging.mkdir(exist_ok=True)
        leaving = layout.new_attempt(CLEANING)
        rename_path(path, leaving)
        path = leaving
    remove_path(path)
