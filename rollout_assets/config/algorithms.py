"""Versions of the algorithms that decide stored bytes, one per room, raised by hand.

A campaign's file says what is asked for; what comes of it also depends on the code. Whoever changes what a room
computes raises its number here. The number is part of the hashes, so finished shards become stale, and labels of the
old and the new code never share a campaign. ``tests/campaigns/test_algorithms.py`` fails when labels change and no
number does.

The first version is part of no hash: everything that was made before there were numbers stays current.
"""

from __future__ import annotations

from typing import Any, Literal

Room = Literal["targets", "candidates", "oracle", "rollouts", "store"]

ALGORITHM_VERSIONS: dict[Room, int] = {
    "targets": 1,
    "candidates": 1,
    "oracle": 1,
    "rollouts": 1,
    "store": 1,
}
"""What each room computes: targets and matches, offered views, labels, chains, and how they are stored."""


def versions_of(*rooms: Room) -> dict[str, Any]:
    """What a hash says about the algorithms of some rooms: nothing while all of them are the first ones."""
    raised = {room: ALGORITHM_VERSIONS[room] for room in rooms if ALGORITHM_VERSIONS[room] > 1}
    return {"algorithms": raised} if raised else {}
