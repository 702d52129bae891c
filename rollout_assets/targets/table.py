"""What is known of each box as a target: the columns, one selected row, and its stable id."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import GeometryError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float32
from rollout_assets.sources.layout import IndexRow
from rollout_assets.targets.reasons import TargetInvalidReason

TargetSource = Literal["detected_obbs", "gt_obbs_oracle"]

DETECTED_SOURCE: TargetSource = "detected_obbs"
"""Boxes the actor's detector found; the source of protocol ``v1_observed``."""

GROUND_TRUTH_SOURCE: TargetSource = "gt_obbs_oracle"
"""Ground-truth boxes; the source of protocol ``v0_gt_input``."""

PassedOver = Literal["SCORE_ZERO", "TOO_FAR_TO_SEE", "OUT_OF_REACH"]
"""Why an eligible box is not selected: nothing is left to gain, or no first view can look at it. Never stored."""

_AREAS = ("projected_area_px", "projected_area_fraction")


def target_id(identity: IndexRow, source: TargetSource, sem_id: int, inst_id: int, source_index: int) -> str:
    """``scene:snippet:source:sem=S:inst=I:idx=K``: unique in a campaign, the same in every run."""
    return f"{row_prefix(identity)}{source}:sem={sem_id}:inst={inst_id}:idx={source_index}"


def row_prefix(identity: IndexRow) -> str:
    """How the ids of all targets of one source row begin."""
    return f"{identity.scene_id}:{identity.snippet_id}:"


@dataclass(frozen=True)
class Draw:
    """How a target came to be selected. Without a draw: probability 1, entropy 0, no temperature."""

    policy: str
    rank: int
    probability: float = 1.0
    log_probability: float = 0.0
    entropy: float = 0.0
    temperature: float | None = None


@dataclass(frozen=True, eq=False)
class SelectedTarget:
    """One object a rollout is about, with everything its selection was based on.

    center_world, extents_m: 3 floats; pose_world_object, pose_reference_object: 12 floats, the latter relative to the
    sample's reference pose. Areas are None without a 2-D box. An explicit target may carry reasons against it.
    """

    identity: IndexRow
    target_id: str
    source: TargetSource
    source_index: int
    sem_id: int
    inst_id: int
    class_name: str
    confidence: float
    projected_area_px: float | None
    projected_area_fraction: float | None
    semidense_support_count: int
    evl_support_count: int
    effective_support_count: float
    visibility_score: float
    support_score: float
    deficit_score: float
    score: float
    center_world: tuple[float, ...]
    extents_m: tuple[float, ...]
    pose_world_object: tuple[float, ...]
    pose_reference_object: tuple[float, ...]
    reason_bitset: int
    primary_reason: TargetInvalidReason
    draw: Draw

    @property
    def eligible(self) -> bool:
        """Whether there is no reason against it."""
        return self.reason_bitset == 1 << TargetInvalidReason.VALID

    @property
    def box(self) -> OrientedBoxes:
        """The target's box, as a set of one."""
        return OrientedBoxes(
            pose_world_object=np.array([self.pose_world_object], np.float32),
            extents_m=np.array([self.extents_m], np.float32),
        )


@dataclass(frozen=True, eq=False)
class TargetTable:
    """Every box of one source, eligible or not: n rows in source order.

    ``source_reasons`` says why a source as a whole gave nothing. Counts are int32, scores and areas float32 (area NaN
    without a 2-D box), pose_reference_object (n, 12). ``reason_bitset`` is exactly VALID where a box is eligible.
    ``passed_over`` names why an eligible box is not selected all the same; "" where nothing speaks against it.
    """

    identity: IndexRow
    source: TargetSource
    source_reasons: tuple[TargetInvalidReason, ...]
    target_id: tuple[str, ...]
    source_index: NDArray[np.int64]
    sem_id: NDArray[np.int32]
    inst_id: NDArray[np.int32]
    class_name: tuple[str, ...]
    confidence: Float32
    projected_area_px: Float32
    projected_area_fraction: Float32
    semidense_support_count: NDArray[np.int32]
    evl_support_count: NDArray[np.int32]
    effective_support_count: Float32
    visibility_score: Float32
    support_score: Float32
    deficit_score: Float32
    score: Float32
    boxes: OrientedBoxes
    pose_reference_object: Float32
    reason_bitset: NDArray[np.uint32]
    primary_reason: NDArray[np.uint16]
    passed_over: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if name not in ("identity", "source", "source_reasons") and len(values) != len(self):
                raise GeometryError(f"target column {name} has {len(values)} rows, expected {len(self)}")

    def __len__(self) -> int:
        return len(self.target_id)

    @property
    def eligible(self) -> NDArray[np.bool_]:
        """(n,): whether there is no reason against the box."""
        return self.reason_bitset == 1 << TargetInvalidReason.VALID

    @property
    def selectable(self) -> NDArray[np.bool_]:
        """(n,): eligible and not passed over."""
        return self.eligible & np.array([not reason for reason in self.passed_over], np.bool_)

    def passing_over(self, rows: NDArray[np.bool_], reason: PassedOver) -> TargetTable:
        """The table with the selectable ones among ``rows`` (n,) passed over for ``reason``."""
        fails = rows & self.selectable
        names = zip(fails.tolist(), self.passed_over, strict=True)
        return replace(self, passed_over=tuple(reason if fail else before for fail, before in names))

    def passed_over_counts(self) -> Counter[str]:
        """How many eligible boxes were passed over for which reason."""
        return Counter(reason for reason in self.passed_over if reason)

    def selected(self, row: int, draw: Draw) -> SelectedTarget:
        """One row as a selected target."""
        columns = {name: values for name, values in vars(self).items() if isinstance(values, np.ndarray)}
        plain = {name: values[row].tolist() for name, values in columns.items()}
        areas = {name: None if np.isnan(plain[name]) else plain[name] for name in _AREAS}
        pose = tuple(self.boxes.pose_world_object[row].tolist())
        exact = {
            "center_world": pose[9:],
            "extents_m": tuple(self.boxes.extents_m[row].tolist()),
            "pose_world_object": pose,
            "pose_reference_object": tuple(plain["pose_reference_object"]),
            "primary_reason": TargetInvalidReason(plain["primary_reason"]),
        }
        given = (self.identity, self.target_id[row], self.source)
        return SelectedTarget(*given, class_name=self.class_name[row], draw=draw, **plain | areas | exact)


def usable_boxes(boxes: OrientedBoxes) -> NDArray[np.bool_]:
    """(n,): finite and with an extent on every axis."""
    finite = np.isfinite(boxes.pose_world_object).all(axis=1) & np.isfinite(boxes.extents_m).all(axis=1)
    return np.asarray(finite & (boxes.extents_m > 0).all(axis=1))
