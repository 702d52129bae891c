"""Why a candidate view is not takeable or has no label: stable bit positions, only ever appended to."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class InvalidReason(IntEnum):
    """Bit position of each reason in ``invalid_reason_bitset``."""

    VALID = 0
    POSE_NONFINITE = 1
    POSE_OUT_OF_EXTENT = 2
    CAMERA_OUT_OF_EXTENT = 3
    COLLISION_MESH = 4
    CLEARANCE_TOO_SMALL = 5
    PATH_SEGMENT_COLLISION = 6
    FRUSTUM_OUT_OF_BOUNDS = 7
    DEPTH_NO_HIT = 8
    DEPTH_TOO_SPARSE = 9
    BACKPROJECT_EMPTY = 10
    CANDIDATE_DUPLICATE = 11
    SAMPLER_RULE_REJECTED = 12
    TARGET_NOT_ACTOR_VISIBLE = 13
    TARGET_GT_UNMATCHED = 14
    TARGET_CROP_EMPTY = 15
    TARGET_SUPPORT_TOO_LOW = 16
    TARGET_VISIBILITY_TOO_LOW = 17
    SEMIDENSE_SUPPORT_TOO_LOW = 18
    EVL_EVIDENCE_MISSING = 19
    MESH_REFERENCE_MISSING = 20
    ORACLE_DISTANCE_FAILED = 21
    CANDIDATE_ORDER_GUARD_FAILED = 22
    RUNTIME_ERROR = 23


INVALID_REASON_CODES: dict[str, int] = {reason.name: int(reason) for reason in InvalidReason}
"""Reason name -> bit position."""

INVALID_REASON_VERSION = "rollout-invalidity-v1"
"""Version label of ``INVALID_REASON_CODES``."""

VALID_BITSET = 1 << InvalidReason.VALID
"""The bitset of a valid row: this bit and no other."""


def bitset_is_consistent(bitset: NDArray[np.uint32], valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n,), (n,) -> (n,): a valid row carries exactly VALID; an invalid one some other bit and not VALID."""
    return np.where(valid, bitset == VALID_BITSET, (bitset != 0) & (bitset & VALID_BITSET == 0))
