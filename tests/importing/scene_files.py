"""Scene folders written by hand, from a room whose boxes are known exactly."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trimesh

WIDTH_M, DEPTH_M, HEIGHT_M = 6.0, 5.0, 2.6
Y_UP = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
"""Our Z-up coordinates -> a Y-up file's."""

_CORNERS = np.array([(x, y, z) for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (0.0, 1.0)])
_QUADS = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))


@dataclass(frozen=True)
class Part:
    """A cuboid on ``at`` (x, y, z of its foot's middle)."""

    name: str
    at: tuple[float, float, float]
    size: tuple[float, float, float]
    yaw: float = 0.0

    @property
    def turn(self) -> np.ndarray:
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])

    @property
    def corners(self) -> np.ndarray:
        return (_CORNERS * self.size) @ self.turn.T + self.at

    @property
    def centre(self) -> np.ndarray:
        return np.add(self.at, (0.0, 0.0, self.size[2] / 2))


STRUCTURE = (
    Part("Floor", (0, 0, -0.1), (WIDTH_M, DEPTH_M, 0.1)),
    Part("Ceiling", (0, 0, HEIGHT_M), (WIDTH_M, DEPTH_M, 0.1)),
    Part("Wall_north", (0, DEPTH_M / 2, 0), (WIDTH_M, 0.1, HEIGHT_M)),
    Part("Wall_south", (0, -DEPTH_M / 2, 0), (WIDTH_M, 0.1, HEIGHT_M)),
    Part("Wall_east", (WIDTH_M / 2, 0, 0), (0.1, DEPTH_M, HEIGHT_M)),
    Part("Wall.001", (-WIDTH_M / 2, 0, 0), (0.1, DEPTH_M, HEIGHT_M)),
)
_KINDS = (("Chair", 0.45, 0.9), ("Table", 0.5, 0.74), ("Sofa", 0.5, 0.6), ("Lamp", 0.3, 1.5), ("Drum", 0.4, 0.5))
_SPOTS = [(x, y) for x in (-2.4, -1.2, 0.0, 1.2, 2.4) for y in (-2.0, -1.4, 1.4, 2.0)]
OBJECTS = tuple(
    Part(f"{_KINDS[n % 5][0]}_{n:02d}", (x, y, 0.0), (_KINDS[n % 5][1], 0.4, _KINDS[n % 5][2]), 0.3 * (n % 3))
    for n, (x, y) in enumerate(_SPOTS)
)
"""Twenty objects of five classes."""

ROOM = (*STRUCTURE, *OBJECTS)


def triangles() -> np.ndarray:
    return np.array([(a, b, c) for q in _QUADS for a, b, c in ((q[0], q[1], q[2]), (q[0], q[2], q[3]))])


def write_glb(path: Path, parts: Sequence[Part] = ROOM, scale: float = 1.0, mirror: Sequence[str] = ()) -> None:
    """A Y-up GLB file with one node per part; nodes named in ``mirror`` get a transform that mirrors."""
    scene = trimesh.Scene()
    for part in parts:
        pose = np.diag([-1.0, 1.0, 1.0, 1.0]) if part.name in mirror else np.eye(4)
        corners = (part.corners @ Y_UP.T * scale) @ pose[:3, :3]
        faces = triangles()[:, ::-1] if part.name in mirror else triangles()
        mesh = trimesh.Trimesh(corners, faces, process=False)
        scene.add_geometry(mesh, node_name=part.name, geom_name=f"{part.name} mesh", transform=pose)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(scene.export(file_type="glb"))


def write_obj(path: Path, parts: Sequence[Part] = ROOM, scale: float = 1.0, y_up: bool = True) -> None:
    """An OBJ file of quads with one object per part, a normal line and a material nobody has."""
    lines = ["mtllib missing.mtl"]
    for number, part in enumerate(parts):
        corners = (part.corners @ Y_UP.T if y_up else part.corners) * scale
        lines += [f"o {part.name}", "usemtl nothing", *(f"v {x:.9g} {y:.9g} {z:.9g}" for x, y, z in corners)]
        lines += ["f " + " ".join(f"{8 * number + corner + 1}//1" for corner in quad) for quad in _QUADS]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def write_ply(
    path: Path,
    parts: Sequence[Part] = ROOM,
    column: str | None = "object_id",
    corners: int = 3,
    of: str = "face",
) -> None:
    """A Z-up binary PLY file; the instance column counts parts from 1, as structure without a class file is 0.

    The column belongs to faces, or, ``of`` vertices, to those.
    """
    polygons = triangles() if corners == 3 else np.array(_QUADS)
    vertices = np.concatenate([part.corners for part in parts]).astype("<f4")
    faces = np.concatenate([polygons + 8 * number for number in range(len(parts))])
    labels = np.repeat(np.arange(len(parts)) + 1, len(polygons))
    labels[labels <= sum(part in STRUCTURE for part in parts)] = 0
    on_faces, on_vertices = (column is not None and of == element for element in ("face", "vertex"))
    fields = [("count", "u1"), ("corners", "<i4", (corners,))] + ([("label", "<i4")] if on_faces else [])
    rows = np.zeros(len(faces), fields)
    rows["count"], rows["corners"] = corners, faces
    if on_faces:
        rows["label"] = labels
    if on_vertices:
        points = np.zeros(len(vertices), [("at", "<f4", (3,)), ("label", "<i4")])
        points["at"], points["label"] = vertices, np.repeat(labels[:: len(polygons)], 8)
        vertices = points
    instance = f"property int {column}\n"
    header = (
        f"ply\nformat binary_little_endian 1.0\nelement vertex {len(vertices)}\n"
        "property float x\nproperty float y\nproperty float z\n"
        + (instance if on_vertices else "")
        + f"element face {len(faces)}\nproperty list uchar int vertex_indices\n"
        + (instance if on_faces else "")
        + "end_header\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.encode() + vertices.tobytes() + rows.tobytes())


def head_path(count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Positions (n, 3) and left-up-forward rotations (n, 3, 3) of a head that walks to and fro and looks north."""
    x = 1.6 * np.sin(np.linspace(0.0, 2 * np.pi, count))
    yaw = np.pi / 2 + 0.5 * np.sin(np.linspace(0.0, 4 * np.pi, count))
    forward = np.stack([np.cos(yaw), np.sin(yaw), np.full(count, -0.3)], axis=1)
    forward /= np.linalg.norm(forward, axis=1, keepdims=True)
    left = np.cross([0.0, 0.0, 1.0], forward)
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    turns = np.stack([left, np.cross(forward, left), forward], axis=-1)
    return np.stack([x, np.full(count, -0.3), np.full(count, 1.6)], axis=1), turns


LUF_AXES = {
    "opencv": np.array([[-1.0, 0, 0], [0, -1.0, 0], [0, 0, 1.0]]),
    "opengl": np.array([[-1.0, 0, 0], [0, 1.0, 0], [0, 0, -1.0]]),
    "luf": np.eye(3),
    "rig": np.array([[0.0, -1.0, 0], [1.0, 0, 0], [0, 0, 1.0]]),
}
"""Left, up and forward as columns in the axes of a device."""


def device_rotations(camera: str, turns: np.ndarray) -> np.ndarray:
    """World-from-device rotations whose left-up-forward axes are ``turns``."""
    return turns @ LUF_AXES[camera].T


def quaternions(turns: np.ndarray) -> np.ndarray:
    """(n, 4) x, y, z, w."""
    homogeneous = np.tile(np.eye(4), (len(turns), 1, 1))
    homogeneous[:, :3, :3] = turns
    wxyz = np.array([trimesh.transformations.quaternion_from_matrix(turn) for turn in homogeneous])
    return wxyz[:, [1, 2, 3, 0]]


def write_tum(path: Path, camera: str = "opencv", rate_hz: float = 5.0) -> None:
    places, turns = head_path()
    turned = quaternions(device_rotations(camera, turns))
    lines = ["# timestamp tx ty tz qx qy qz qw"]
    for number, (place, turn) in enumerate(zip(places, turned, strict=True)):
        lines.append(" ".join(f"{value:.9f}" for value in (100.0 + number / rate_hz, *place, *turn)))
    path.write_text("\n".join(lines) + "\n")


def write_ase(path: Path, rate_hz: float = 5.0) -> None:
    places, turns = head_path()
    turned = quaternions(device_rotations("rig", turns))
    names = [f"{kind}{axis}_world_device" for kind, axes in (("t", "xyz"), ("q", "xyzw")) for axis in axes]
    lines = [",".join(["graph_uid", "tracking_timestamp_us", "utc_timestamp_ns", *names, "quality_score"])]
    for number, (place, turn) in enumerate(zip(places, turned, strict=True)):
        values = [f"{value:.9f}" for value in (*place, *turn)]
        lines.append(",".join(["b9f1", str(round(number / rate_hz * 1e6)), "-1", *values, "1.0"]))
    path.write_text("\n".join(lines) + "\n")


def write_poses(path: Path, camera: str = "opencv", flat: bool = False) -> None:
    places, turns = head_path()
    poses = np.tile(np.eye(4), (len(places), 1, 1))
    poses[:, :3, :3], poses[:, :3, 3] = device_rotations(camera, turns), places
    listed = [[*pose[:3, :3].ravel(), *pose[:3, 3]] for pose in poses] if flat else poses.tolist()
    path.write_text(json.dumps(listed))


def surface_points(count: int = 4000, seed: int = 0) -> np.ndarray:
    """(n, 3) points on the room's objects and walls."""
    mesh = trimesh.util.concatenate([trimesh.Trimesh(part.corners, triangles(), process=False) for part in ROOM])
    return np.asarray(trimesh.sample.sample_surface(mesh, count, seed=seed)[0])


def write_ase_points(path: Path) -> np.ndarray:
    points = surface_points()
    lines = ["uid,graph_uid,px_world,py_world,pz_world,inv_dist_std,dist_std"]
    lines += [f"{n},b9f1,{x:.6f},{y:.6f},{z:.6f},0.002,0.01" for n, (x, y, z) in enumerate(points)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return points


def write_objects(path: Path, parts: Sequence[Part] = OBJECTS, extra: Mapping[str, object] | None = None) -> None:
    """``objects.json`` in Z-up metres."""
    boxes = [
        {
            "class": part.name,
            "center": part.centre.tolist(),
            "size": list(part.size),
            "yaw_degrees": float(np.degrees(part.yaw)),
            **(extra or {}),
        }
        for part in parts
    ]
    path.write_text(json.dumps({"objects": boxes}))


def write_fine_ply(path: Path, cells: int) -> None:
    """The room as a binary PLY file with every side of every part cut into ``cells`` by ``cells`` squares."""
    steps = np.linspace(0.0, 1.0, cells + 1)
    u, v = (grid.reshape(-1, 1) for grid in np.meshgrid(steps, steps, indexing="ij"))
    at = (np.arange(cells)[:, None] * (cells + 1) + np.arange(cells)[None]).reshape(-1, 1)
    square = np.add(at, [0, cells + 1, cells + 2, 0, cells + 2, 1]).reshape(-1, 3)
    sides = [(number, part.corners[list(quad)]) for number, part in enumerate(ROOM) for quad in _QUADS]
    patches = [a * (1 - u) * (1 - v) + b * u * (1 - v) + c * u * v + d * (1 - u) * v for _, (a, b, c, d) in sides]
    vertices = np.concatenate(patches).astype("<f4")
    rows = np.zeros(len(sides) * len(square), [("count", "u1"), ("corners", "<i4", (3,)), ("label", "<i4")])
    rows["count"] = 3
    rows["corners"] = np.concatenate([square + number * len(u) for number in range(len(sides))])
    labels = [0 if ROOM[number] in STRUCTURE else number for number, _ in sides]
    rows["label"] = np.repeat(labels, len(square))
    header = (
        f"ply\nformat binary_little_endian 1.0\nelement vertex {len(vertices)}\n"
        "property float x\nproperty float y\nproperty float z\n"
        f"element face {len(rows)}\nproperty list uchar int vertex_indices\nproperty int object_id\nend_header\n"
    )
    path.parent.mkdir(parents=True)
    path.write_bytes(header.encode() + vertices.tobytes() + rows.tobytes())
