"""The snippets of one imported scene, as rows that wait in a file until every scene's class numbers are known."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import RolloutAssetsError, SourceError, error_line, is_fault
from rollout_assets.geometry.boxes import SEM_ID
from rollout_assets.geometry.poses import Float32
from rollout_assets.importing.config import ImportConfig
from rollout_assets.importing.imported_scene import free_floor
from rollout_assets.importing.points import seen_points
from rollout_assets.importing.scene_folder import SceneFolder
from rollout_assets.importing.understanding import GivenDetections, Understood, understand
from rollout_assets.randomness import rng_for
from rollout_assets.sources import layout
from rollout_assets.sources.meshes import content_hash, mesh_file_name
from rollout_assets.sources.ply import write_binary_ply
from rollout_assets.synthetic.detections import SEEN_RAYS, VISIBLE_RAYS, Guess, detected_boxes, packed_guesses
from rollout_assets.synthetic.floor_grid import FloorGrid
from rollout_assets.synthetic.sight import Sight, look, semidense_points
from rollout_assets.synthetic.snippet import snippet_blocks, texture_seed
from rollout_assets.synthetic.walk import Walk, draw_walk

ROWS_DIR = ".rows"
"""Where rows wait, inside the directory that is being built."""

LEAST_IN_VIEW = 0.3
"""Share of a walk's rays that must hit the mesh."""

_BOX_SLACK_M = 0.05

Row = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class SceneReport:
    """What was understood of a scene, and what was made of it."""

    scene_id: str
    mesh: str
    faces: int
    objects: int
    classes: tuple[str, ...]
    objects_from: str
    up: str
    units: str
    size_m: tuple[float, float, float]
    floor_m: float
    walks: str
    points: str
    detections: str
    mesh_in_view: float
    notes: tuple[str, ...]
    mesh_hash: str
    rows_hash: str


@dataclass(frozen=True)
class LeftOutScene:
    """A scene that was not imported, and why, in one line."""

    scene_id: str
    reason: str


@dataclass(frozen=True)
class SceneTask:
    """One scene to import into a store that is being built."""

    config: ImportConfig
    folder: SceneFolder
    store_dir: Path


def import_scene(task: SceneTask) -> SceneReport | LeftOutScene:
    """Write a scene's mesh and its rows; what is wrong with its files becomes the reason to leave it out."""
    try:
        return _import(task)
    except RolloutAssetsError as error:
        if is_fault(error):
            raise
        return LeftOutScene(task.folder.scene_id, " ".join(error_line(str(error)).split()))
    except OSError as error:
        if not _about_input(error, task.folder.path):
            raise
        return LeftOutScene(task.folder.scene_id, f"{Path(error.filename).name}: {error.strerror}")


def _about_input(error: OSError, place: Path) -> bool:
    """Whether the system refused to read one of the scene's own files, which says nothing about the other scenes."""
    return isinstance(error.filename, str) and Path(error.filename).is_relative_to(place)


def load_rows(store_dir: Path, scene_id: str, class_numbers: NDArray[np.int64]) -> list[Row]:
    """The rows of a scene, with the store's class numbers (classes,) in place of the scene's own."""
    with np.load(store_dir / ROWS_DIR / f"{scene_id}.npz", allow_pickle=False) as stacked:
        blocks = {name: stacked[name] for name in stacked.files}
    for name in (layout.GT_OBBS, layout.DETECTED_OBBS):
        own = blocks[name][..., SEM_ID]
        blocks[name][..., SEM_ID] = np.where(own >= 0, class_numbers[np.maximum(own, 0).astype(np.int64)], own)
    count = len(blocks[layout.LENGTHS])
    return [{name: block[row] for name, block in blocks.items()} for row in range(count)]


def _import(task: SceneTask) -> SceneReport:
    known = understand(task.folder, task.config)
    grid = free_floor(known.scene) if known.path is None else None
    rows, in_view = [], []
    for number in range(task.config.snippets_per_scene):
        row, share = _snippet(task.config, known, grid, number)
        rows.append(row)
        in_view.append(share)
    _check_seen(rows, in_view)
    scene = known.scene
    write_binary_ply(task.store_dir / layout.MESHES_DIR / mesh_file_name(scene.scene_id), scene.vertices, scene.faces)
    stacked = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    waiting: Any = stacked
    np.savez(task.store_dir / ROWS_DIR / f"{scene.scene_id}.npz", **waiting)
    return _report(known, float(np.mean(in_view)), stacked)


def _snippet(config: ImportConfig, known: Understood, grid: FloorGrid | None, number: int) -> tuple[Row, float]:
    """One row, and the share of its rays that hit the mesh."""
    scene = known.scene
    rng = rng_for("imported snippet", config.seed, scene.scene_id, number)
    walk = _walk(config, known, grid, number, rng)
    sight = look(config, scene, scene.bvh, walk, rng)
    if known.points is None:
        points = semidense_points(config, sight, texture_seed(config.seed, scene.scene_id), rng)
    else:
        points = seen_points(config, known.points, scene.bvh, walk, rng)
    if known.detections is None:
        detected = detected_boxes(config, scene, walk, sight, rng)
    else:
        detected = _given_boxes(config, known.detections, walk, sight)
    return snippet_blocks(config, scene, walk, sight, points, detected), float(np.isfinite(sight.depth_m).mean())


def _walk(
    config: ImportConfig, known: Understood, grid: FloorGrid | None, number: int, rng: np.random.Generator
) -> Walk:
    if known.path is not None:
        return known.path.snippet(number, config.snippets_per_scene, config.poses, config.rate_hz)
    assert grid is not None
    return draw_walk(config, known.scene, grid, rng)


def _given_boxes(config: ImportConfig, given: GivenDetections, walk: Walk, sight: Sight) -> Float32:
    """(1, 128, 34): the detections that this walk has in view."""
    views = [given.boxes.contains(points, _BOX_SLACK_M).sum(axis=1) for points in sight.points]
    rays = np.array(views).reshape(len(views), len(given.boxes))
    guesses = [
        Guess(
            given.boxes.pose_world_object[index],
            given.boxes.extents_m[index].astype(np.float64),
            int(given.class_ids[index]),
            float(given.confidences[index]),
            bool(rays[-1, index] >= VISIBLE_RAYS),
        )
        for index in np.flatnonzero(rays.sum(axis=0) >= SEEN_RAYS)
    ]
    return packed_guesses(config, walk, guesses)


def _check_seen(rows: list[Row], in_view: list[float]) -> None:
    if np.mean(in_view) < LEAST_IN_VIEW:
        raise SourceError(
            f"only {np.mean(in_view):.0%} of the views' rays hit the mesh; are up axis, units and --camera right?"
        )
    if not any((row[layout.GT_OBBS][..., SEM_ID] >= 0).any() for row in rows):
        raise SourceError(f"none of {len(rows)} snippets sees an object; ask for more --snippets, or check --camera")
    if not all(int(row[layout.LENGTHS][0]) for row in rows):
        empty = sum(int(row[layout.LENGTHS][0]) == 0 for row in rows)
        raise SourceError(f"{empty} of {len(rows)} snippets see no point; do points and trajectory belong together?")


def _report(known: Understood, in_view: float, stacked: Row) -> SceneReport:
    scene, frame, path = known.scene, known.frame, known.path
    walks = "made on free floor"
    if path is not None:
        seconds = float(path.time_ns[-1] - path.time_ns[0]) / 1e9
        walks = (
            f"{len(path.poses)} poses, {seconds:.1f} s, camera {path.camera} "
            f"(upright {path.upright:.2f}, gaze along motion {path.forward:+.2f})"
        )
    digest = hashlib.sha256()
    for name, block in stacked.items():
        digest.update(f"{name} {block.dtype} {block.shape}".encode("ascii"))
        digest.update(np.ascontiguousarray(block).data)
    return SceneReport(
        scene_id=scene.scene_id,
        mesh=known.mesh_file,
        faces=len(scene.faces),
        objects=len(scene.boxes),
        classes=known.class_names,
        objects_from=known.objects_from,
        up=frame.up,
        units=frame.units,
        size_m=frame.size_m,
        floor_m=frame.floor_m,
        walks=walks,
        points="made from sightings" if known.points is None else f"{len(known.points):,} given",
        detections="made with noise" if known.detections is None else f"{len(known.detections.boxes)} given",
        mesh_in_view=in_view,
        notes=known.notes,
        mesh_hash=content_hash(scene.vertices, scene.faces),
        rows_hash=digest.hexdigest(),
    )
