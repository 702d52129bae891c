"""Objects of a scene: which faces they have, what they are called, and the boxes around them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import SourceError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float32, Float64, make_pose
from rollout_assets.importing.frames import Frame
from rollout_assets.importing.object_file import read_json, read_objects, world_boxes
from rollout_assets.importing.raw_mesh import RawMesh
from rollout_assets.synthetic.furniture import CLASS_IDS, MOVEABLE_CLASSES
from rollout_assets.synthetic.scene import STRUCTURE

BOX_MARGIN_M = 0.002
"""Space between an object's outermost vertices and its box, so that a flat object has a box as well."""

STRUCTURE_WORDS = frozenset(
    """wall walls floor floors ceiling ceilings roof door doors doorway window windows room rooms building house ground
    structure background empty space void undefined unlabeled unknown stairs stair staircase column pillar beam
    baseboard skirting molding panel facade""".split()  # noqa: SIM905
)
_PLACE_WORDS = frozenset(
    """north south east west left right front back inner outer inside outside interior exterior upper lower top bottom
    main base plane mesh geometry geo node group a b c d of the frame sill living bed bedroom bath bathroom kitchen
    shell up down upstairs downstairs first second third storey story level""".split()  # noqa: SIM905
)
_WHOLE_SCENE = 0.8
_IN_BOX_M = 0.01
_FACES_AT_ONCE = 1 << 18
_AXIS_ALIGNED = 1.02


@dataclass(frozen=True)
class SceneObjects:
    """k objects: boxes, class_names, moveable (k,), and face_piece (m,) int32: the object of each face or STRUCTURE."""

    boxes: OrientedBoxes
    class_names: tuple[str, ...]
    moveable: NDArray[np.bool_]
    face_piece: NDArray[np.int32]
    found_by: str
    notes: tuple[str, ...] = ()


def class_name_of(name: str) -> str:
    """``Office Chair.002`` -> ``office_chair``; a word that names a known class is enough: ``chair``."""
    words = [word for word in re.split(r"[^a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) if word]
    whole = "_".join(words) or "object"
    known = [word for word in reversed(words) if word in CLASS_IDS]
    return known[0] if known and not is_structure(whole) else whole


def is_structure(class_name: str) -> bool:
    """Whether a name means the building: ``wall_north`` does, ``floor_lamp`` does not."""
    words = set(class_name.split("_"))
    return bool(words & STRUCTURE_WORDS) and words <= STRUCTURE_WORDS | _PLACE_WORDS


def objects_of_boxes(path: Path, frame: Frame, vertices: Float32, faces: NDArray[np.int32]) -> SceneObjects:
    """Objects of ``objects.json``; a face belongs to the smallest box that its centre lies in."""
    listed = read_objects(path)
    boxes = world_boxes(listed, frame)
    names = tuple(class_name_of(box.class_name) for box in listed)
    face_piece = _faces_in_boxes(boxes, vertices, faces)
    present = np.isin(np.arange(len(boxes)), face_piece)
    if not present.any():
        raise SourceError(f"{path.name}: no face of the mesh lies in any of {len(boxes)} boxes; are they in its axes?")
    empty = int((~present).sum())
    notes = (f"{empty} boxes without a face left out",) if empty else ()
    moveable = np.array([_moveable(name, box.moveable) for name, box in zip(names, listed, strict=True)])
    kept = np.flatnonzero(present)
    renumbered = np.full(len(boxes) + 1, STRUCTURE, np.int32)
    renumbered[kept] = np.arange(len(kept))
    return SceneObjects(
        boxes[kept],
        tuple(names[index] for index in kept),
        moveable[kept],
        renumbered[face_piece],
        path.name,
        notes,
    )


def objects_of_labels(
    mesh: RawMesh,
    labels: NDArray[np.int32],
    vertices: Float32,
    faces: NDArray[np.int32],
    classes: dict[str, str] | None,
) -> SceneObjects:
    """Objects of named faces; labels (m,) index ``mesh.names``. ``classes`` names instances, if known."""
    numbered = mesh.named_by.startswith("column")
    names = [_name_of(name, numbered, classes) for name in mesh.names]
    size = np.ptp(vertices, axis=0).astype(np.float64)
    kept, boxes, spanning = [], [], 0
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(len(names) + 1))
    for label, name in enumerate(names):
        own = order[bounds[label] : bounds[label + 1]]
        if name is None or is_structure(name) or not len(own):
            continue
        pose, extent = upright_box(vertices[np.unique(faces[own])])
        if (extent[:2].max() > _WHOLE_SCENE * size[:2].max()) and extent[2] > _WHOLE_SCENE * size[2]:
            spanning += 1
            continue
        kept.append(label)
        boxes.append((pose, extent))
    if not kept:
        raise SourceError(_no_objects(mesh, names))
    class_names = tuple(str(names[label]) for label in kept)
    piece = np.full(len(names) + 1, STRUCTURE, np.int32)
    piece[kept] = np.arange(len(kept))
    notes = (f"{spanning} as large as the scene taken as structure",) if spanning else ()
    return SceneObjects(
        OrientedBoxes(np.array([box[0] for box in boxes]), np.array([box[1] for box in boxes], np.float32)),
        class_names,
        np.array([_moveable(name, None) for name in class_names]),
        piece[labels],
        mesh.named_by,
        (*mesh.notes, *notes),
    )


def upright_box(points: Float32) -> tuple[Float32, Float64]:
    """Pose (12,) and extents (3,) of the upright box around points (n, 3) with the least footprint."""
    flat = points[:, :2].astype(np.float64)
    yaw = _least_footprint(flat)
    c, s = np.cos(yaw), np.sin(yaw)
    local = flat @ np.array([[c, -s], [s, c]])
    low = np.append(local.min(axis=0), points[:, 2].min()) - BOX_MARGIN_M
    high = np.append(local.max(axis=0), points[:, 2].max()) + BOX_MARGIN_M
    turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    return make_pose(turn, turn @ ((low + high) / 2)), high - low


def read_classes(path: Path) -> dict[str, str]:
    """Class name by instance: a map, or Replica's list ``objects`` with ``id`` and ``class_name``."""
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("objects"), list):
        entries = [
            (entry.get("id"), entry.get("class_name")) for entry in content["objects"] if isinstance(entry, dict)
        ]
    elif isinstance(content, dict):
        entries = list(content.items())
    else:
        raise SourceError(f"{path.name}: not a map from instance to class name")
    if not all(isinstance(name, str) for _, name in entries):
        raise SourceError(f'{path.name}: a class name is not text; write {{"7": "chair"}}')
    return {str(key): str(name) for key, name in entries}


def _name_of(name: str, numbered: bool, classes: dict[str, str] | None) -> str | None:
    """The class of a label, or None for what is no object."""
    if not numbered:
        return class_name_of(name)
    if classes is not None:
        return class_name_of(classes[name]) if name in classes else None
    return "object" if float(name) > 0 else None


def _no_objects(mesh: RawMesh, names: list[str | None]) -> str:
    if not mesh.names:
        return (
            "no objects: the mesh has neither named parts nor an instance column "
            "(object_id, instance, instance_id, objectId), and there is no objects.json beside it"
        )
    listed = ", ".join(sorted({name for name in names if name is not None})[:5])
    return f"no objects: all {len(names)} parts ({mesh.named_by}: {listed or 'none with a class'}) are structure"


def _moveable(class_name: str, given: bool | None) -> bool:
    return class_name in MOVEABLE_CLASSES if given is None else given


def _faces_in_boxes(boxes: OrientedBoxes, vertices: Float32, faces: NDArray[np.int32]) -> NDArray[np.int32]:
    by_size = np.argsort(np.prod(boxes.extents_m.astype(np.float64), axis=1), kind="stable")
    piece = np.full(len(faces), STRUCTURE, np.int32)
    ordered = boxes[by_size]
    for start in range(0, len(faces), _FACES_AT_ONCE):
        centres = vertices[faces[start : start + _FACES_AT_ONCE]].mean(axis=1)
        part = piece[start : start + _FACES_AT_ONCE]
        for row, index in enumerate(by_size):
            inside = ordered[row : row + 1].contains(centres, _IN_BOX_M)[0]
            part[inside & (part == STRUCTURE)] = index
    return piece


def _least_footprint(flat: Float64) -> float:
    """Yaw in (-45, 45] degrees of the least rectangle; 0 when the axis-aligned one is hardly larger."""
    hull = _convex_hull(flat)
    edges = np.diff(np.concatenate([hull, hull[:1]]), axis=0)
    edges = edges[np.linalg.norm(edges, axis=1) > 1e-9]
    if not len(edges):
        return 0.0
    angles = np.concatenate([[0.0], np.arctan2(edges[:, 1], edges[:, 0])])
    angles = (angles + np.pi / 4) % (np.pi / 2) - np.pi / 4
    c, s = np.cos(angles), np.sin(angles)
    along, across = hull @ np.stack([c, s]), hull @ np.stack([-s, c])
    areas = (np.ptp(along, axis=0) + 1e-3) * (np.ptp(across, axis=0) + 1e-3)
    best = int(np.argmin(areas))
    return 0.0 if areas[0] <= _AXIS_ALIGNED * areas[best] else float(angles[best])


def _convex_hull(points: Float64) -> Float64:
    """(h, 2) corners of the convex hull, counter-clockwise; only points that are outermost in one of 256 directions
    or lie on the exact hull of those are looked at when there are many."""
    candidates = np.unique(points if len(points) <= 4096 else _outermost(points), axis=0)
    if len(candidates) < 3:
        return np.asarray(candidates)
    return np.array(_half_hull(candidates)[:-1] + _half_hull(candidates[::-1])[:-1])


def _outermost(points: Float64) -> Float64:
    angles = np.linspace(0.0, 2 * np.pi, 512, endpoint=False)
    directions = np.stack([np.cos(angles), np.sin(angles)])
    return np.asarray(points[np.unique([int(np.argmax(points @ direction)) for direction in directions.T])])


def _half_hull(ordered: NDArray[Any]) -> list[tuple[float, float]]:
    chain: list[tuple[float, float]] = []
    for x, y in ordered.tolist():
        while len(chain) > 1 and _turns_right(chain[-2], chain[-1], (x, y)):
            chain.pop()
        chain.append((x, y))
    return chain


def _turns_right(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]) <= 0
