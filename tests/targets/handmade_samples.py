"""Actors and truths made by hand: boxes with known support, area and class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollout_assets.geometry.boxes import BB2, BB3, BOX_WIDTH, INST_ID, POSE, PROBABILITY, SEM_ID, unpack_boxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import IDENTITY_POSE, look_along, make_pose
from rollout_assets.sources.layout import IndexRow
from rollout_assets.sources.sample import BoxSet, EvidencePoints, VinActor, VinTruth

IDENTITY = IndexRow(
    sample_index=7,
    sample_key="key-7",
    scene_id="scene-a",
    snippet_id="snip-3",
    split="train",
    shard_id="shard-000000",
    row=7,
)
CAMERA = PinholeCamera(fx_px=100.0, fy_px=100.0, cx_px=50.0, cy_px=40.0, height_px=80, width_px=100)
NO_BOX = (-1.0, -1.0, -1.0, -1.0)
REFERENCE = look_along((0.0, 0.0, 1.5), (1.0, 0.0, 0.0))


@dataclass(frozen=True)
class Box:
    """One box to be packed; ``pixels`` are up to three 2-D boxes as xmin, xmax, ymin, ymax."""

    center: tuple[float, float, float] = (2.0, 0.0, 1.0)
    extents: tuple[float, float, float] = (1.0, 1.0, 1.0)
    yaw_deg: float = 0.0
    pixels: tuple[tuple[float, float, float, float], ...] = ()
    sem: float = 3
    inst: float = 11
    confidence: float = 0.8
    name: str = "chair"
    index: int | None = None


def pack(boxes: Sequence[Box]) -> BoxSet:
    packed = np.full((len(boxes), BOX_WIDTH), -1, np.float32)
    for row, box in zip(packed, boxes, strict=True):
        half = np.array(box.extents) / 2
        row[BB3] = np.stack([-half, half], axis=1).reshape(-1)
        row[BB2] = np.array([*box.pixels, *[NO_BOX] * (3 - len(box.pixels))]).reshape(-1)
        c, s = np.cos(np.radians(box.yaw_deg)), np.sin(np.radians(box.yaw_deg))
        row[POSE] = make_pose([[c, -s, 0], [s, c, 0], [0, 0, 1]], box.center)
        row[SEM_ID], row[INST_ID], row[PROBABILITY] = box.sem, box.inst, box.confidence
    indices = [i if box.index is None else box.index for i, box in enumerate(boxes)]
    names = tuple(box.name for box in boxes)
    return BoxSet(unpack_boxes(packed, IDENTITY_POSE), packed, np.array(indices, np.int64), names)


def points_in(center: Sequence[float], n: int, size: float = 0.4) -> np.ndarray:
    """n points strictly inside a cube of that size."""
    return (np.asarray(center) + np.random.default_rng(n).uniform(-size / 2, size / 2, (n, 3))).astype(np.float32)


def actor(
    boxes: Sequence[Box] | None,
    points: np.ndarray | None = None,
    evidence: tuple[np.ndarray, Sequence[int]] | None = None,
) -> VinActor:
    world = np.zeros((0, 3), np.float32) if points is None else points
    return VinActor(
        identity=IDENTITY,
        trajectory_world_camera=REFERENCE[None],
        reference_pose_world_camera=REFERENCE,
        camera=CAMERA,
        points_world=world,
        points_inv_dist_std=np.zeros(len(world), np.float32),
        detected=None if boxes is None else pack(boxes),
        evidence=None if evidence is None else EvidencePoints(evidence[0], np.array(evidence[1], np.int64)),
        time_ns=None,
        gravity_in_world=None,
    )


def truth(*boxes: Box) -> VinTruth:
    return VinTruth(gt_boxes=pack(boxes), mesh_path=Path("mesh.ply"))
