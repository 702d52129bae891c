"""Why a box cannot be a target or has no label: stable bit positions, only ever appended to."""

from __future__ import annotations

from enum import IntEnum


class TargetInvalidReason(IntEnum):
    """Bit position of each reason in ``target_invalid_reason_bitset``."""

    VALID = 0
    NO_ACTOR_VISIBLE_SOURCE = 1
    GT_SOURCE_DISALLOWED = 2
    PADDED_OBB = 3
    OBB_NONFINITE = 4
    OBB_EXTENT_INVALID = 5
    CONFIDENCE_TOO_LOW = 6
    NO_PROJECTED_VISIBILITY = 7
    PROJECTED_AREA_TOO_SMALL = 8
    TARGET_SUPPORT_TOO_LOW = 9
    TARGET_GT_UNMATCHED = 10
    TARGET_GT_AMBIGUOUS = 11


TARGET_INVALID_REASON_CODES: dict[str, int] = {reason.name: int(reason) for reason in TargetInvalidReason}
"""Reason name -> bit position."""

TARGET_INVALID_REASON_VERSION = "target-selection-invalidity-v1"
"""Version label of ``TARGET_INVALID_REASON_CODES``."""
