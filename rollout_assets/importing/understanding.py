"""From the files of a scene to what they mean: mesh in our world, objects, camera path, points and detections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import MeshError, SourceError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.importing.config import ImportConfig
from rollout_assets.importing.frames import Frame, recognise_frame
from rollout_assets.importing.imported_scene import ImportedScene
from rollout_assets.importing.object_file import read_detections, world_boxes
from rollout_assets.importing.objects import (
    SceneObjects,
    class_name_of,
    objects_of_boxes,
    objects_of_labels,
    read_classes,
)
from rollout_assets.importing.points import read_points
from rollout_assets.importing.raw_mesh import RawMesh, read_raw_mesh
from rollout_assets.importing.scene_folder import CLASS_FILES, DETECTIONS_FILE, OBJECTS_FILE, SceneFolder
from rollout_assets.importing.trajectories import CameraPath, camera_path, read_trajectory
from rollout_assets.sources.meshes import clean_faces, usable_faces

IN_MESH = 0.9
"""Share of a trajectory's positions, and of points, that must lie within the mesh's bounds."""

_SLACK_M = 0.5


@dataclass(frozen=True, eq=False)
class GivenDetections:
    """Boxes of ``detections.json`` in our world, with class ids (n,) and confidences (n,)."""

    boxes: OrientedBoxes
    class_ids: NDArray[np.int64]
    confidences: Float64


@dataclass(frozen=True, eq=False)
class Understood:
    """Everything that a scene's files say. Class ids are indices into ``class_names``."""

    scene: ImportedScene
    class_names: tuple[str, ...]
    frame: Frame
    mesh_file: str
    objects_from: str
    path: CameraPath | None
    points: Float32 | None
    detections: GivenDetections | None
    notes: tuple[str, ...]


def understand(folder: SceneFolder, config: ImportConfig) -> Understood:
    """Read and check all files of a scene."""
    folder.check_name()
    file = folder.mesh()
    mesh = read_raw_mesh(file)
    frame = recognise_frame(mesh.vertices, mesh.faces, file.suffix.lower(), config.up, config.units)
    vertices, faces, labels, dropped = _in_world(mesh, frame)
    objects = _objects(folder, mesh, frame, vertices, faces, labels)
    detected = folder.named(DETECTIONS_FILE)
    listed = read_detections(detected) if detected else ()
    guessed = [class_name_of(box.class_name) for box in listed]
    names = tuple(sorted({*objects.class_names, *guessed}))
    bounds = vertices.min(axis=0), vertices.max(axis=0)
    path = _path(folder.trajectory(), frame, config, bounds)
    points = _points(folder.points(), frame, bounds)
    scene = ImportedScene(
        folder.scene_id,
        objects.boxes,
        np.array([names.index(name) for name in objects.class_names], np.int64),
        objects.moveable,
        vertices,
        faces,
        objects.face_piece,
        TriangleBvh(vertices, faces, "cpu"),
    )
    detections = None
    if detected:
        ids = np.array([names.index(name) for name in guessed], np.int64)
        confidences = np.array([box.confidence for box in listed], np.float64)
        detections = GivenDetections(world_boxes(listed, frame), ids, confidences)
    notes = (*frame.notes, *objects.notes, *dropped)
    return Understood(scene, names, frame, file.name, objects.found_by, path, points, detections, notes)


def _in_world(mesh: RawMesh, frame: Frame) -> tuple[Float32, NDArray[np.int32], NDArray[np.int32], tuple[str, ...]]:
    """Vertices, faces and labels exactly as a reader of the written file will see them, and what was left out."""
    world = frame.to_world(mesh.vertices)
    keep, dropped = usable_faces(world, mesh.faces)
    if not keep.any():
        raise MeshError(f"no usable face among {len(keep)}: {dropped}")
    vertices, faces, _ = clean_faces(world, mesh.faces if keep.all() else mesh.faces[keep])
    labels = mesh.face_label if keep.all() else mesh.face_label[keep]
    left_out = int((~keep).sum())
    return vertices, faces, labels, (f"{left_out:,} faces without an area dropped",) if left_out else ()


def _objects(
    folder: SceneFolder,
    mesh: RawMesh,
    frame: Frame,
    vertices: Float32,
    faces: NDArray[np.int32],
    labels: NDArray[np.int32],
) -> SceneObjects:
    listed = folder.named(OBJECTS_FILE)
    if listed is not None:
        return objects_of_boxes(listed, frame, vertices, faces)
    class_file = folder.named(*CLASS_FILES)
    return objects_of_labels(mesh, labels, vertices, faces, read_classes(class_file) if class_file else None)


def _path(file: Path | None, frame: Frame, config: ImportConfig, bounds: tuple[Float32, Float32]) -> CameraPath | None:
    if file is None:
        return None
    path = camera_path(read_trajectory(file), frame, config.camera, config.rate_hz)
    path.check_length(config.poses, config.rate_hz)
    _check_inside(file, "poses", path.poses[:, 9:], bounds)
    return path


def _points(file: Path | None, frame: Frame, bounds: tuple[Float32, Float32]) -> Float32 | None:
    if file is None:
        return None
    points = read_points(file, frame)
    _check_inside(file, "points", points[:, :3], bounds)
    return points


def _check_inside(file: Path, what: str, places: Float32, bounds: tuple[Float32, Float32]) -> None:
    low, high = bounds
    inside = float(((places > low - _SLACK_M) & (places < high + _SLACK_M)).all(axis=1).mean())
    if inside < IN_MESH:
        raise SourceError(
            f"{file.name}: only {inside:.0%} of its {what} lie within the mesh; it must have the mesh's axes and units"
        )
