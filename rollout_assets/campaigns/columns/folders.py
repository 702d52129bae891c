"""One look at each folder of a campaign, instead of several for every shard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollout_assets.campaigns.layout import FAILURE_PREFIX, CampaignLayout
from rollout_assets.files import is_locked


@dataclass(frozen=True)
class ShardFolders:
    """Names of shards: with a folder, with a note of a failure, with an attempt, and with a lock that is held."""

    built: frozenset[str]
    failed: frozenset[str]
    attempted: frozenset[str]
    running: frozenset[str]

    @classmethod
    def look(cls, layout: CampaignLayout) -> ShardFolders:
        """Look once."""
        locks = layout.lock("any").parent
        running = (name.removesuffix(".lock") for name in _names(locks) if is_locked(f"{locks}/{name}"))
        names = list(_names(layout.shards))
        return cls(
            frozenset(name for name in names if not name.startswith("_")),
            frozenset(name.split(".")[1] for name in names if name.startswith(FAILURE_PREFIX)),
            frozenset(name.split(".")[0] for name in _names(layout.staging)),
            frozenset(running),
        )


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries)
    except FileNotFoundError:
        return
