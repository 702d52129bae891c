"""Boxes of a snippet: the true ones, and what a detector would make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.boxes import BB3, BOX_WIDTH, INST_ID, MOVEABLE, POSE, PROBABILITY, SEM_ID, OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64, compose, inverse, make_pose, transform
from rollout_assets.sources.layout import MAX_BOXES
from rollout_assets.synthetic.config import SnippetConfig
from rollout_assets.synthetic.scene import STRUCTURE, LabelledScene
from rollout_assets.synthetic.sight import Sight, camera_of
from rollout_assets.synthetic.walk import Walk

SEEN_RAYS = 20
"""Rays of a whole walk that must end on an object before it counts as seen."""

VISIBLE_RAYS = 6
"""Rays of one view that make an object visible in it."""

_RGB = slice(6, 10)
_NEAR_M = 0.05
_WELL_SEEN_RAYS = 900.0
_WRONG_CLASS_RATE = 0.04
_EDGES = np.array([(a, a | bit) for bit in (1, 2, 4) for a in range(8) if not a & bit])


@dataclass(frozen=True)
class Guess:
    """One detection before packing."""

    pose_world_object: Float32
    extents_m: Float64
    class_id: int
    confidence: float
    in_last_view: bool


def true_boxes(config: SnippetConfig, scene: LabelledScene, walk: Walk, sight: Sight) -> Float32:
    """(T, 128, 34): every object seen on the walk, in every slice; its 2-D box only where that view sees it."""
    rays = sight.rays_on(len(scene.boxes))
    seen = np.flatnonzero(rays.sum(axis=0) >= SEEN_RAYS)
    seen = np.sort(seen[np.argsort(-rays.sum(axis=0)[seen], kind="stable")][:MAX_BOXES])
    boxes = scene.boxes[seen]
    packed = _packed(boxes, walk.pose_world_rig[0])
    packed[:, SEM_ID] = scene.class_ids[seen]
    packed[:, INST_ID] = seen
    packed[:, PROBABILITY] = 1.0
    packed[:, MOVEABLE] = scene.moveable[seen]
    slices = np.full((len(walk.pose_world_rig), MAX_BOXES, BOX_WIDTH), -1.0, np.float32)
    slices[:, : len(seen)] = packed
    camera = camera_of(config)
    for view, pose in enumerate(walk.pose_world_camera):
        visible = rays[view, seen] >= VISIBLE_RAYS
        slices[view, : len(seen), _RGB] = np.where(visible[:, None], project_boxes(camera, pose, boxes), -1.0)
    return slices


def detected_boxes(
    config: SnippetConfig, scene: LabelledScene, walk: Walk, sight: Sight, rng: np.random.Generator
) -> Float32:
    """(1, 128, 34): noisy copies of what was seen, some missed, some invented, the most confident first."""
    rays = sight.rays_on(len(scene.boxes))
    guesses = [
        guess
        for index in np.flatnonzero(rays.sum(axis=0) >= SEEN_RAYS)
        if (guess := _detect(config, scene, int(index), rays[:, index], rng)) is not None
    ]
    plain = np.argwhere((sight.piece == STRUCTURE) & (sight.depth_m > 1.2) & (sight.depth_m < 5.0))
    if len(plain):
        guesses += [_invent(scene, sight, plain, rng) for _ in range(int(rng.poisson(config.false_positives)))]
    return packed_guesses(config, walk, guesses)


def packed_guesses(config: SnippetConfig, walk: Walk, guesses: Sequence[Guess]) -> Float32:
    """(1, 128, 34): the most confident first; more than fit are left out."""
    guesses = sorted(guesses, key=lambda guess: -guess.confidence)[:MAX_BOXES]
    block = np.full((1, MAX_BOXES, BOX_WIDTH), -1.0, np.float32)
    if not guesses:
        return block
    boxes = OrientedBoxes(
        np.array([guess.pose_world_object for guess in guesses], np.float32),
        np.array([guess.extents_m for guess in guesses], np.float32),
    )
    packed = _packed(boxes, walk.pose_world_rig[0])
    in_view = np.array([guess.in_last_view for guess in guesses])
    projected = project_boxes(camera_of(config), walk.pose_world_camera[-1], boxes)
    packed[:, _RGB] = np.where(in_view[:, None], projected, -1.0)
    packed[:, SEM_ID] = [guess.class_id for guess in guesses]
    packed[:, INST_ID] = np.arange(len(guesses))
    packed[:, PROBABILITY] = [guess.confidence for guess in guesses]
    packed[:, MOVEABLE] = 0.0
    block[0, : len(guesses)] = packed
    return block


def project_boxes(camera: PinholeCamera, pose_world_camera: Float32, boxes: OrientedBoxes) -> Float32:
    """(n, 4) xmin, xmax, ymin, ymax of the part in front of the camera, clipped to the image; -1 when there is none."""
    corners = transform(inverse(pose_world_camera), boxes.corners_world().reshape(-1, 3)).reshape(-1, 8, 3)
    bounds = np.full((len(boxes), 4), -1.0, np.float32)
    for row, points in enumerate(corners.astype(np.float64)):
        start, stop = points[_EDGES[:, 0]], points[_EDGES[:, 1]]
        crossing = (start[:, 2] < _NEAR_M) != (stop[:, 2] < _NEAR_M)
        share = (_NEAR_M - start[crossing, 2]) / (stop[crossing, 2] - start[crossing, 2])
        cuts = start[crossing] + share[:, None] * (stop[crossing] - start[crossing])
        front = np.concatenate([points[points[:, 2] >= _NEAR_M], cuts])
        if not len(front):
            continue
        u = np.clip(camera.cx_px - camera.fx_px * front[:, 0] / front[:, 2], 0.0, camera.width_px)
        v = np.clip(camera.cy_px - camera.fy_px * front[:, 1] / front[:, 2], 0.0, camera.height_px)
        if np.ptp(u) > 0 and np.ptp(v) > 0:
            bounds[row] = u.min(), u.max(), v.min(), v.max()
    return bounds


def _detect(
    config: SnippetConfig, scene: LabelledScene, index: int, rays: NDArray[np.int64], rng: np.random.Generator
) -> Guess | None:
    """A detection of one seen object, the better the more of it was seen; None when it is missed."""
    share = min(1.0, float(rays.sum()) / _WELL_SEEN_RAYS) ** 0.5
    draws = rng.random(2)
    quality = float(np.clip(0.3 + 0.6 * share + rng.normal(0.0, 0.12), 0.0, 1.0))
    slack = 1.0 - quality
    extent = scene.boxes.extents_m[index].astype(np.float64)
    shift = rng.normal(0.0, 1.0, 3) * (0.015 + 0.08 * slack) * np.maximum(extent, 0.4)
    turn = rng.normal(0.0, np.radians(1.5 + 8.0 * slack))
    size = extent * np.exp(rng.normal(0.0, 0.02 + 0.12 * slack, 3))
    confidence = float(np.clip(0.1 + 0.85 * quality + rng.normal(0.0, 0.06), 0.03, 0.99))
    other_class = int(rng.choice(np.unique(scene.class_ids)))
    if draws[0] > (1.0 - config.miss_rate) * min(1.0, 0.3 + share):
        return None
    class_id = other_class if draws[1] < _WRONG_CLASS_RATE else int(scene.class_ids[index])
    pose = compose(scene.boxes.pose_world_object[index], _yawed(turn, shift))
    return Guess(pose, size, class_id, confidence, bool(rays[-1] >= VISIBLE_RAYS))


def _invent(scene: LabelledScene, sight: Sight, plain: NDArray[np.int64], rng: np.random.Generator) -> Guess:
    """A box where there is no object: at one of the ``plain`` (view, ray) ends, on a wall or the floor."""
    model = int(rng.integers(len(scene.boxes)))
    size = scene.boxes.extents_m[model].astype(np.float64) * rng.uniform(0.5, 0.9, 3)
    view, ray = plain[int(rng.integers(len(plain)))]
    where = sight.points[view, ray] + rng.normal(0.0, 0.2, 3)
    where[2] = max(where[2], size[2] / 2)
    pose = _yawed(float(rng.uniform(-np.pi, np.pi)), where)
    return Guess(pose, size, int(scene.class_ids[model]), float(rng.uniform(0.05, 0.5)), True)


def _yawed(yaw: float, shift: Float64) -> Float32:
    c, s = np.cos(yaw), np.sin(yaw)
    return make_pose(np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]), shift)


def _packed(boxes: OrientedBoxes, pose_world_snippet: Float32) -> Float32:
    """(n, 34) with geometry filled in and everything else -1."""
    packed = np.full((len(boxes), BOX_WIDTH), -1.0, np.float32)
    half = boxes.extents_m / 2
    packed[:, BB3] = np.stack([-half, half], axis=-1).reshape(-1, 6)
    packed[:, POSE] = compose(inverse(pose_world_snippet), boxes.pose_world_object)
    return packed
