"""Which format version of the VIN offline store has which block: one table for reader, check and messages.

Versions 7, 8 and 11 are described in public. Nothing public describes 9 and 10, except that the reference pose changed
its name after 8 and before or with 11; they are read when exactly one of the two names is there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from rollout_assets.sources import layout

OLDEST, NEWEST = 7, 11
SUPPORTED_VERSIONS = tuple(range(OLDEST, NEWEST + 1))
"""Format versions that can be read. Stores are written in ``layout.FORMAT_VERSION`` only."""

UNDESCRIBED_VERSIONS = (9, 10)
"""Versions that are read by what is known of their neighbours."""


@dataclass(frozen=True)
class BlockUse:
    """In which versions, first and last included, a block may be there under this name, and what it tells."""

    name: str
    role: str
    first: int = OLDEST
    last: int = NEWEST
    required: bool = False

    def in_version(self, version: int) -> bool:
        """Whether stores of this version may have the block."""
        return self.first <= version <= self.last


TRAJECTORY = "rig trajectory"
REFERENCE = "reference pose"
SNIPPET = "snippet pose"

BLOCK_USES: tuple[BlockUse, ...] = (
    BlockUse(layout.POINTS_WORLD, "semi-dense points", required=True),
    BlockUse(layout.LENGTHS, "number of points", required=True),
    BlockUse(layout.T_WORLD_RIG, TRAJECTORY, required=True),
    BlockUse(layout.T_WORLD_SNIPPET, SNIPPET, first=8, required=True),
    BlockUse(layout.REFERENCE_POSE, REFERENCE, last=10, required=True),
    BlockUse(layout.VIN_REFERENCE_POSE, REFERENCE, first=9, required=True),
    BlockUse(layout.FOCAL_LENGTH, "focal length", required=True),
    BlockUse(layout.PRINCIPAL_POINT, "principal point", required=True),
    BlockUse(layout.IMAGE_SIZE, "image size", required=True),
    BlockUse(layout.IN_NDC, "unit of the camera"),
    BlockUse(layout.TIME_NS, "times of the trajectory"),
    BlockUse(layout.GRAVITY_IN_WORLD, "gravity"),
    BlockUse(layout.EVIDENCE_POINTS, "places of the evidence voxels"),
    BlockUse(layout.EVIDENCE_COUNTS, "counts of the evidence voxels"),
    BlockUse(layout.GT_OBBS, "true boxes"),
    BlockUse(layout.GT_NAMES, "class names of the true boxes"),
    BlockUse(layout.DETECTED_OBBS, "detected boxes"),
    BlockUse(layout.DETECTED_NAMES, "class names of the detected boxes"),
)
"""Every block that is read. Two names of one role are two names of one thing: a shard has exactly one of them."""

_CANDIDATE_LABELS = (
    *("candidate_count", "candidate_indices", "candidate_poses_world_cam", "rri", "depths", "depths_valid_mask"),
    *(f"pm_{part}_{when}" for part in ("dist", "acc", "comp") for when in ("before", "after")),
    *("p3d.R", "p3d.T", "p3d.znear", "p3d.zfar", "depths_payload", "candidates", "candidate_pcs"),
)
_BACKBONE_GRIDS = ("t_world_voxel", "voxel_extent", "occ_pr", "occ_input", "free_input", "cent_pr", "payload")

UNUSED_BLOCKS: frozenset[str] = frozenset(
    (
        *(f"oracle.{name}" for name in _CANDIDATE_LABELS),
        *(f"backbone.{name}" for name in _BACKBONE_GRIDS),
        "detected.obb_probs",
    )
)
"""Blocks that the research code writes and nothing here reads: labels of its own candidates, more of the backbone."""


def unsupported_version(found: Any) -> str | None:
    """What is wrong with a manifest's version, in words; None for a version that can be read.

    Only a whole number is a version: the text "7" and 7.0 were written by something else.
    """
    if type(found) is int and found in SUPPORTED_VERSIONS:
        return None
    return f"format version {json.dumps(found)} is not supported; versions {OLDEST} to {NEWEST} can be read"


def name_problems(version: int, names: Collection[str]) -> Iterator[str]:
    """Roles without a block or with two, and blocks of another version, among the block names of one shard."""
    for role in dict.fromkeys(use.role for use in BLOCK_USES):
        uses = [use for use in BLOCK_USES if use.role == role]
        possible = [use.name for use in uses if use.in_version(version)]
        present = [name for name in possible if name in names]
        if len(present) > 1:
            yield f"blocks {' and '.join(present)} are both there, but version {version} has one of them"
        if possible and not present and uses[0].required:
            yield f"block {' or '.join(possible)} is required by version {version}, but the manifest does not list it"
        for use in uses:
            if use.name in names and use.name not in possible:
                yield f"block {use.name} belongs to {_span(use)}, but the manifest says version {version}"


def block_of(role: str, names: Collection[str]) -> str | None:
    """The name under which a shard with these block names has a role."""
    return next((use.name for use in BLOCK_USES if use.role == role and use.name in names), None)


def is_unknown(name: str) -> bool:
    """Whether no version that has been read about has a block of this name."""
    return name not in UNUSED_BLOCKS and all(use.name != name for use in BLOCK_USES)


def _span(use: BlockUse) -> str:
    return f"versions {use.first} to {use.last}"
