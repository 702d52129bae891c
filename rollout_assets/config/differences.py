"""Which fields two campaigns do not share, in words: what a store was made with, and what the campaign says now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rollout_assets.config.campaign import CampaignConfig


def changed_fields(
    recorded: CampaignConfig, present: CampaignConfig, sections: Iterable[str] | None = None
) -> Iterator[str]:
    """Every field that decides bytes and differs, for example ``oracle.width_px: store 16, campaign 18``.

    ``recorded`` is the campaign that a store names as its maker. Only ``sections`` are compared if they are given.
    """
    theirs, ours = recorded.hashable(), present.hashable()
    for section in sorted(theirs.keys() | ours.keys()) if sections is None else sections:
        yield from _leaves(section, theirs.get(section), ours.get(section))


def _leaves(path: str, stored: Any, own: Any) -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(own, dict):
        for key in sorted(stored.keys() | own.keys()):
            yield from _leaves(f"{path}.{key}", stored.get(key), own.get(key))
    elif isinstance(stored, list) and isinstance(own, list) and len(stored) == len(own):
        for index, (left, right) in enumerate(zip(stored, own, strict=True)):
            yield from _leaves(f"{path}[{index}]", left, right)
    elif stored != own:
        yield f"{path}: store {_brief(stored)}, campaign {_brief(own)}"


def _brief(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, list | dict) else str(value)
