"""Ranks of one training run find out when they do not read the same data in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from rollout_assets.errors import StoreError


def group_size() -> int:
    """Ranks of the default process group; 0 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0


def require_agreement(facts: Mapping[str, Any], rank: int | None = None, group: Any = None) -> None:
    """Refuse to go on, on every rank, where one rank's facts are not those of all, or two have the same ``rank``.

    All ranks of the process group (default: the default group) must call this, because each waits for the others.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise StoreError("ranks cannot be compared: torch.distributed is not initialised; compare 'versions' yourself")
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, (dict(facts), rank), group=group)
    first = gathered[0][0]
    for number, (other, _) in enumerate(gathered):
        for name, value in first.items():
            if other[name] != value:
                raise StoreError(
                    f"ranks disagree on {name}: process 0 has {value!r}, process {number} has {other[name]!r}; "
                    "open the same version of the stores, with the same settings, on every rank"
                )
    ranks = [rank for _, rank in gathered]
    if rank is not None and sorted(ranks) != list(range(len(ranks))):
        raise StoreError(f"every process needs its own rank from 0 to {len(ranks) - 1}, got {ranks}")
