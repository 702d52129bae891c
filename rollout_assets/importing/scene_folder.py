"""Which files of a folder make up a scene.

A scene is a folder with one mesh, or a mesh file by itself. Names decide what the other files are: ``objects.json``,
``detections.json``, ``trajectory.csv`` (Aria Synthetic Environments), ``trajectory.txt`` or ``*.tum`` (TUM),
``poses.json``, ``semidense_points.csv.gz`` and ``points.ply``. A Replica folder has its mesh below ``habitat/``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rollout_assets.errors import MeshError, SourceError
from rollout_assets.sources.meshes import MESH_ENDINGS

OBJECTS_FILE = "objects.json"
DETECTIONS_FILE = "detections.json"
CLASS_FILES = ("object_instances_to_classes.json", "info_semantic.json", "classes.json")
POINT_FILES = ("semidense_points.csv.gz", "semidense_points.csv", "semidense_points.ply", "points.ply")
TRAJECTORY_FILES = ("trajectory.csv", "trajectory.txt", "trajectory.json", "poses.json")

_TUM_ENDING = ".tum"
_SUBFOLDER = "habitat"
_PREFERRED = ("mesh_semantic.ply", "mesh.glb", "mesh.obj", "mesh.ply", "scene.glb", "scene.obj", "scene.ply")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class SceneFolder:
    """A place that should hold a scene: a folder, or one mesh file."""

    scene_id: str
    path: Path

    def check_name(self) -> None:
        """Refuse a name that cannot be a scene id everywhere."""
        if not _NAME.fullmatch(self.scene_id):
            raise SourceError(
                f"{self.scene_id!r} cannot be a scene's name; rename it to letters, digits, '.', '_' and '-' only"
            )

    def mesh(self) -> Path:
        """The scene's only mesh, or the one whose name says so."""
        if self.path.is_file():
            return self.path
        meshes = [path for path in self._files() if path.suffix.lower() in MESH_ENDINGS and not _is_points(path)]
        if not meshes:
            raise MeshError(f"no mesh in the folder; put one {', '.join(MESH_ENDINGS)} file there")
        by_name = {path.name.lower(): path for path in meshes}
        preferred = [by_name[name] for name in _PREFERRED if name in by_name]
        if len(meshes) > 1 and not preferred:
            listed = ", ".join(sorted(path.name for path in meshes)[:4])
            raise MeshError(f"{len(meshes)} meshes in the folder ({listed}); keep one, or name it {_PREFERRED[1]}")
        return preferred[0] if preferred else meshes[0]

    def trajectory(self) -> Path | None:
        """The trajectory file, if there is one."""
        return self._only(
            "trajectories",
            (path for path in self._files() if path.name in TRAJECTORY_FILES or path.suffix.lower() == _TUM_ENDING),
        )

    def points(self) -> Path | None:
        """The file with semi-dense points, if there is one."""
        return self._only("point files", (path for path in self._files() if _is_points(path)))

    def named(self, *names: str) -> Path | None:
        """The first of some files that is there."""
        by_name = {path.name: path for path in self._files()}
        return next((by_name[name] for name in names if name in by_name), None)

    def _only(self, what: str, paths: Iterable[Path]) -> Path | None:
        listed = sorted(paths)
        if len(listed) > 1:
            raise SourceError(f"{len(listed)} {what}: {', '.join(path.name for path in listed)}; keep one")
        return listed[0] if listed else None

    def _files(self) -> list[Path]:
        if self.path.is_file():
            return []
        folders = [self.path, self.path / _SUBFOLDER]
        return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file())


def find_scenes(scenes_dir: Path) -> tuple[SceneFolder, ...]:
    """Every folder and every mesh file in a directory, by name; what starts with a dot is left alone."""
    if not scenes_dir.is_dir():
        raise SourceError(f"{scenes_dir}: no such directory; give the directory that holds one folder per scene")
    scenes = []
    for path in sorted(scenes_dir.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            scenes.append(SceneFolder(path.name, path))
        elif path.suffix.lower() in MESH_ENDINGS and not _is_points(path):
            scenes.append(SceneFolder(path.stem, path))
    if not scenes:
        endings = ", ".join(MESH_ENDINGS)
        raise SourceError(f"{scenes_dir}: no scene in it; put one folder per scene there, or {endings} files")
    names = [scene.scene_id for scene in scenes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SourceError(f"{scenes_dir}: several scenes are named {twice[0]}; rename all but one")
    return tuple(scenes)


def _is_points(path: Path) -> bool:
    return path.name in POINT_FILES
