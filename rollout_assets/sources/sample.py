"""One source row in memory, in two halves that types keep apart: what the actor has, and what only the oracle knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.boxes import BOX_WIDTH, INST_ID, PROBABILITY, SEM_ID, OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32
from rollout_assets.sources.layout import IndexRow


@dataclass(frozen=True, eq=False)
class BoxSet:
    """The boxes of one time slice in the world frame, padding dropped.

    boxes: n oriented boxes (possibly non-finite or without extent: selection refuses those with a reason),
    packed: (n, 34) float32 as stored, source_index: (n,) int64 position in the stored slice, class_names: n names.
    """

    boxes: OrientedBoxes
    packed: Float32
    source_index: NDArray[np.int64]
    class_names: tuple[str, ...]

    @classmethod
    def empty(cls) -> BoxSet:
        """No box at all."""
        boxes = OrientedBoxes(np.zeros((0, 12), np.float32), np.zeros((0, 3), np.float32))
        return cls(boxes, np.zeros((0, BOX_WIDTH), np.float32), np.zeros(0, np.int64), ())

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def sem_id(self) -> NDArray[np.int32]:
        """(n,) class ids; -1 where the stored value is not finite."""
        return _ids(self.packed[:, SEM_ID])

    @property
    def inst_id(self) -> NDArray[np.int32]:
        """(n,) instance ids; -1 where the stored value is not finite."""
        return _ids(self.packed[:, INST_ID])

    @property
    def confidence(self) -> Float32:
        """(n,) detection probability."""
        return self.packed[:, PROBABILITY]


@dataclass(frozen=True, eq=False)
class EvidencePoints:
    """Voxels in which the backbone saw something: points_world (k, 3) float32 and counts (k,) int64, all > 0."""

    points_world: Float32
    counts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class VinActor:
    """Everything an actor may base a decision on.

    identity: which row of the store it is.
    trajectory_world_camera: (t, 12) float32 LUF poses without padding; the last one is where the root stands.
    reference_pose_world_camera: (12,) float32 LUF. points_world: (n, 3) float32 semi-dense points;
    points_inv_dist_std: (n,) float32. time_ns: (t,) int64 or None. gravity_in_world: (3,) float32 or None.
    """

    identity: IndexRow
    trajectory_world_camera: Float32
    reference_pose_world_camera: Float32
    camera: PinholeCamera
    points_world: Float32
    points_inv_dist_std: Float32
    detected: BoxSet | None
    evidence: EvidencePoints | None
    time_ns: NDArray[np.int64] | None
    gravity_in_world: Float32 | None


@dataclass(frozen=True, eq=False)
class VinTruth:
    """What only matching and the oracle may look at.

    ``gt_boxes`` is empty for a row without true boxes: its targets stay without labels. ``mesh_path`` is None when no
    mesh was found for the scene.
    """

    gt_boxes: BoxSet
    mesh_path: Path | None


@dataclass(frozen=True, eq=False)
class VinSample:
    """One source row: the actor's half and the truth."""

    actor: VinActor
    truth: VinTruth


def class_names_of(record: Any) -> dict[int, str]:
    """Class id -> name, from a map by number or by number as text, or from a list in which the place is the id.

    No record is no name. ``ValueError`` for anything else.
    """
    table = dict(enumerate(record)) if isinstance(record, list) else record or {}
    if not isinstance(table, dict):
        raise ValueError(f"must map class ids to names or list the names, got {type(record).__name__}")
    for key in table:
        if not _is_class_id(key):
            raise ValueError(f"must map class ids to names, got the id {key!r}")
    return {int(key): str(name) for key, name in table.items() if name is not None}


def _is_class_id(key: Any) -> bool:
    return type(key) is int or (isinstance(key, str) and key.removeprefix("-").isdecimal())


def _ids(values: Float32) -> NDArray[np.int32]:
    return np.where(np.isfinite(values), values, -1).astype(np.int32)
