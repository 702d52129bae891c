"""Source stores as the research code writes them, made by plain zarr, json, numpy and msgpack.

Nothing of this package is imported: the layout, the padding and the chunks are those that are written down about real
stores, so that a mistake in our reader is not repeated by our own writer. Rooms of six metres with three boxes in them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgpack
import numpy as np
import zarr
from numpy.typing import NDArray

Array = NDArray[Any]

ROOM_M = (6.0, 5.0, 2.6)
FLOOR_M = 0.037
"""Height of the floor: a recording has its own zero, which is on no border of voxels."""

OBJECTS = (
    ("table", (1.2, 0.8, 0.75), (3.4, 2.5), 0.3),
    ("sofa", (1.6, 0.8, 0.8), (4.6, 0.9), -0.2),
    ("cabinet", (0.8, 0.5, 1.3), (4.9, 4.2), 0.1),
)
"""Name, size (m), place on the floor (m) and turn (rad) of what stands in a room."""

CLASSES = ("floor", "table", "sofa", "cabinet")
"""Class names; the place is the class id."""

SLOTS = 128
CANDIDATES = 3
"""Slots of the research code's own candidates; the last stays empty."""

RIG_FROM_CAMERA = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])


@dataclass(frozen=True)
class Variant:
    """One kind of store. ``without_truth`` and ``without_detections`` are numbers of rows, or ``"all"``."""

    version: int = 7
    columns: int = 4
    grid: tuple[int, int, int] | None = (48, 48, 48)
    names: Literal["map", "list", "text", "none"] = "map"
    walks: tuple[int, ...] = (6, 6, 6, 6)
    without_truth: tuple[int, ...] | Literal["all"] = ()
    without_detections: tuple[int, ...] | Literal["all"] = ()
    snippet_shift_m: float = 0.0
    flat_snippet: bool = False
    reference: Literal["oracle", "vin", "both", "none"] | None = None
    split_by: Literal["scene", "sample"] = "scene"
    candidate_labels: bool = True
    trajectory: bool = True
    slots: int = SLOTS
    extra: tuple[str, ...] = ()
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.walks)

    @property
    def reference_blocks(self) -> tuple[str, ...]:
        place = self.reference or ("oracle" if self.version < 9 else "vin")
        places = {"both": ("oracle", "vin"), "none": ()}.get(place, (place,))
        return tuple(f"{name}.reference_pose_world_rig" for name in places)


@dataclass(frozen=True)
class Walk:
    """One snippet: camera poses in the world, (t, 4, 4), and the pose of its own frame."""

    camera: Array
    snippet: Array

    @property
    def rig(self) -> Array:
        turn = np.eye(4)
        turn[:3, :3] = RIG_FROM_CAMERA.T
        return self.camera @ turn


def write_foreign_store(folder: Path, variant: Variant = Variant()) -> Path:  # noqa: B008 - frozen
    """A store with its meshes, at ``folder``: two rows to a scene, all in one shard a scene."""
    scenes = [range(start, min(start + 2, variant.rows)) for start in range(0, variant.rows, 2)]
    shards, index = [], []
    for number, rows in enumerate(scenes):
        shard_id = f"shard-{number:06d}"
        blocks = _write_shard(folder / "shards" / shard_id, [_row(variant, row) for row in rows])
        shards.append(
            {
                "shard_id": shard_id,
                "relative_dir": f"shards/{shard_id}",
                "row_start": rows[0],
                "num_rows": len(rows),
                "blocks": blocks,
            }
        )
        index += [_index_line(variant, row, number, place) for place, row in enumerate(rows)]
        _write_mesh(folder / "meshes" / f"scene_ply_{81283 + number}.ply", height_m=ROOM_M[2] + 0.1 * number)
    _write_metadata(folder, variant, shards, index)
    return folder


def walk_of(variant: Variant, row: int) -> Walk:
    """A few steps into the room, looking at the table."""
    count = variant.walks[row]
    places = np.linspace([0.8 + 0.1 * row, 1.2, 1.6], [1.4 + 0.1 * row, 2.2, 1.6], count)
    camera = np.stack([_looking(place, np.array([3.4, 2.5, 0.5])) for place in places])
    turn = np.eye(4)
    turn[:3, :3] = RIG_FROM_CAMERA.T
    first = camera[0] @ turn
    shift = _pose((variant.snippet_shift_m, -2 * variant.snippet_shift_m, 0.0), variant.snippet_shift_m)
    return Walk(camera, shift @ first)


def box_poses_world() -> list[Array]:
    """(4, 4) centre frames of the three boxes."""
    return [_pose((x, y, FLOOR_M + size[2] / 2), turn) for _, size, (x, y), turn in OBJECTS]


def _row(variant: Variant, row: int) -> dict[str, Array | bytes]:
    rng = np.random.default_rng(row)
    walk = walk_of(variant, row)
    points = _points(rng, variant.columns)
    blocks: dict[str, Array | bytes] = {
        "vin.points_world": points,
        "vin.lengths": np.array([np.isfinite(points[:, 0]).sum()], np.int64),
        "vin.t_world_rig": _flat(walk.rig),
        **{name: _flat(walk.camera[-1]) for name in variant.reference_blocks},
    }
    if variant.version >= 8:
        snippet = _flat(walk.snippet)
        blocks["vin.t_world_snippet"] = snippet if variant.flat_snippet else snippet[None]
    if variant.trajectory:
        blocks["vin.trajectory.time_ns"] = np.arange(1, variant.walks[row] + 1, dtype=np.int64) * 100_000_000
        blocks["vin.trajectory.gravity_in_world"] = np.array([0, 0, -9.81], np.float32)
    if variant.without_truth != "all" and row not in variant.without_truth:
        boxes = _boxes(walk.snippet, variant.slots, grow_m=0.0, probability=1.0)
        blocks["gt.obbs"] = np.repeat(boxes[None], variant.walks[row], axis=0)
        blocks |= _names("gt", variant)
    if variant.without_detections != "all" and row not in variant.without_detections:
        blocks["detected.obbs"] = _boxes(walk.snippet, variant.slots, grow_m=0.06, probability=0.8)[None]
        blocks |= _names("detected", variant)
    if variant.grid is not None:
        blocks |= _backbone(variant.grid)
    blocks |= _cameras()
    if variant.candidate_labels:
        blocks |= _candidate_labels()
    return blocks | {name: np.full(2, 0.5, np.float32) for name in variant.extra}


def _points(rng: np.random.Generator, columns: int) -> Array:
    """40 points on each box, 300 on walls and floor, and NaN up to 600 rows."""
    clouds = []
    for (_, size, _, _), pose in zip(OBJECTS, box_poses_world(), strict=True):
        local = _on_surface(rng, np.array(size), 40)
        clouds.append(local @ pose[:3, :3].T + pose[:3, 3])
    clouds.append(_on_surface(rng, np.array(ROOM_M), 300) + np.array(ROOM_M) / 2 + [0, 0, FLOOR_M])
    places = np.concatenate(clouds)
    stored = np.full((600, columns), np.nan, np.float32)
    stored[: len(places), :3] = places
    stored[: len(places), 3] = 0.01
    stored[: len(places), 4:] = 7.0
    return stored


def _on_surface(rng: np.random.Generator, size: Array, count: int) -> Array:
    points = rng.uniform(-0.5, 0.5, (count, 3))
    axis = rng.integers(0, 3, count)
    points[np.arange(count), axis] = rng.choice([-0.5, 0.5], count)
    return points * size


def _boxes(snippet: Array, slots: int, grow_m: float, probability: float) -> Array:
    packed = np.full((slots, 34), -1.0, np.float32)
    for slot, ((name, size, _, _), pose) in enumerate(zip(OBJECTS, box_poses_world(), strict=True)):
        half = np.array(size) / 2 + grow_m
        packed[slot, 0:6] = np.stack([-half, half], axis=1).reshape(6)
        packed[slot, 18:30] = _flat(np.linalg.inv(snippet) @ pose)
        packed[slot, 30:34] = CLASSES.index(name), 100 + slot, probability, 0
    return packed


def _names(prefix: str, variant: Variant) -> dict[str, bytes]:
    tables: dict[str, Any] = {
        "map": dict(enumerate(CLASSES)),
        "list": list(CLASSES),
        "text": {str(number): name for number, name in enumerate(CLASSES)},
    }
    if variant.names == "none":
        return {}
    return {f"{prefix}.obb_sem_id_to_name": msgpack.packb(tables[variant.names])}


def _backbone(grid: tuple[int, int, int]) -> dict[str, Array | bytes]:
    """A grid over the room with something seen in a dozen voxels of each box."""
    sides = [(np.arange(count) + 0.5) * (side / count) for side, count in zip(ROOM_M, grid, strict=True)]
    centres = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 3)
    seen = np.zeros(len(centres), np.int64)
    for (_, size, _, _), pose in zip(OBJECTS, box_poses_world(), strict=True):
        local = (centres - pose[:3, 3]) @ pose[:3, :3]
        inside = np.flatnonzero((np.abs(local) < np.array(size) / 2).all(axis=1))
        seen[inside[:: len(inside) // 12 + 1]] = 2
    return {
        "backbone.pts_world": centres.astype(np.float32)[None],
        "backbone.counts": seen.reshape(1, *grid),
        "backbone.voxel_extent": np.array([0, ROOM_M[0], 0, ROOM_M[1], 0, ROOM_M[2]], np.float32),
    }


def _cameras() -> dict[str, Array | bytes]:
    def padded(pair: tuple[float, float]) -> Array:
        values = np.zeros((CANDIDATES, 2), np.float32)
        values[:-1] = pair
        return values

    return {
        "oracle.p3d.focal_length": padded((90.0, 90.0)),
        "oracle.p3d.principal_point": padded((64.0, 48.0)),
        "oracle.p3d.image_size": padded((96.0, 128.0)),
        "oracle.p3d.in_ndc": np.array(False),
    }


def _candidate_labels() -> dict[str, Array | bytes]:
    scores = np.array([0.1, 0.2, np.nan], np.float32)
    blocks: dict[str, Array | bytes] = {f"oracle.pm_{part}_before": scores for part in ("dist", "acc", "comp")}
    blocks |= {f"oracle.pm_{part}_after": scores for part in ("dist", "acc", "comp")}
    blocks |= {"oracle.candidate_count": np.array(CANDIDATES - 1), "oracle.rri": scores}
    blocks["oracle.candidate_poses_world_cam"] = np.zeros((CANDIDATES, 12), np.float32)
    blocks |= {"oracle.p3d.R": np.zeros((CANDIDATES, 3, 3), np.float32)}
    blocks |= {"oracle.p3d.T": np.zeros((CANDIDATES, 3), np.float32)}
    return blocks


def _write_shard(folder: Path, rows: Sequence[dict[str, Array | bytes]]) -> dict[str, Any]:
    group = zarr.open_group(str(folder), mode="a")
    specs: dict[str, Any] = {}
    for name in sorted({name for row in rows for name in row}):
        values = [row.get(name) for row in rows]
        specs[name] = {"name": name, "optional": False, "dtype": None, "shape": [len(rows)]}
        if any(isinstance(value, bytes) for value in values):
            specs[name] |= {"kind": "msgpack_indexed_records", "paths": _write_records(folder, name, values)}
            continue
        stacked = _stacked(values)
        path = name.replace(".", "/")
        chunks = (1, *stacked.shape[1:]) if stacked.ndim > 1 else (min(len(stacked), 1024),)
        group.create_array(name=path, shape=stacked.shape, chunks=chunks, dtype=stacked.dtype)[:] = stacked
        specs[name] |= {
            "kind": "zarr_array",
            "paths": [path],
            "dtype": str(stacked.dtype),
            "shape": list(stacked.shape),
        }
    return specs


def _stacked(values: Sequence[Any]) -> Array:
    """Rows of unequal length end in NaN or -1; a row without the block is zero where another row has values."""
    longest = max((value for value in values if value is not None), key=np.size)
    filler = np.nan if longest.dtype.kind == "f" else -1 if longest.dtype.kind == "i" else False
    stacked = np.full((len(values), *longest.shape), filler, longest.dtype)
    for row, value in enumerate(values):
        if value is None:
            stacked[row] = 0
        elif value.ndim:
            stacked[row, : len(value)] = value
        else:
            stacked[row] = value
    return stacked


def _write_records(folder: Path, name: str, values: Sequence[Any]) -> list[str]:
    stem = name.replace(".", "__")
    payloads = [msgpack.packb(None) if value is None else value for value in values]
    (folder / f"{stem}.msgpack").write_bytes(b"".join(payloads))
    np.save(folder / f"{stem}.offsets.npy", np.cumsum([0, *map(len, payloads)], dtype=np.int64))
    return [f"{stem}.msgpack", f"{stem}.offsets.npy"]


def _index_line(variant: Variant, row: int, scene: int, place: int) -> dict[str, Any]:
    key = f"ASE_{81283 + scene}_{row:06d}"
    by_sample = "val" if int(hashlib.sha1(key.encode()).hexdigest(), 16) % 2 else "train"
    return {
        "sample_index": row,
        "sample_key": key,
        "scene_id": str(81283 + scene),
        "snippet_id": f"{row:06d}",
        "split": ("val" if scene else "train") if variant.split_by == "scene" else by_sample,
        "shard_id": f"shard-{scene:06d}",
        "row": place,
    }


def _write_metadata(folder: Path, variant: Variant, shards: list[Any], index: list[dict[str, Any]]) -> None:
    names = {name for shard in shards for name in shard["blocks"]}
    splits = {split: [row["sample_index"] for row in index if row["split"] == split] for split in ("train", "val")}
    manifest = {
        "version": variant.version,
        "created_at": "2026-05-07T12:00:00Z",
        "source": {"dataset_config": {"scene_ids": ["81283", "81284"]}, "dataset_signature": "a1"},
        "oracle": {"labeler_signature": "b2", "max_candidates": CANDIDATES},
        "vin": {
            "pad_points": 600,
            "semidense_max_points": 600,
            "include_inv_dist_std": True,
            "include_obs_count": variant.columns == 5,
        },
        "materialized_blocks": {
            "backbone": any(name.startswith("backbone.") for name in names),
            "depths": False,
            "candidate_pcs": False,
            "gt_obbs": "gt.obbs" in names,
            "detected_obbs": "detected.obbs" in names,
            "trajectory": "vin.trajectory.time_ns" in names,
        },
        "stats": {
            "num_samples": len(index),
            "num_shards": len(shards),
            "num_train": len(splits["train"]),
            "num_val": len(splits["val"]),
            "interrupted": False,
        },
        "provenance": {"writer": "research"},
        "shards": shards,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest | variant.manifest, indent=2))
    (folder / "sample_index.jsonl").write_text("".join(json.dumps(line) + "\n" for line in index))
    (folder / "splits").mkdir()
    for split, members in (splits | {"all": list(range(len(index)))}).items():
        np.save(folder / "splits" / f"{split}.npy", np.array(members, np.int64), allow_pickle=False)


def _write_mesh(path: Path, height_m: float) -> None:
    """The room and its boxes as an ASCII PLY of twelve triangles each; rooms differ in their height."""
    path.parent.mkdir(exist_ok=True)
    solids = [(np.array([*ROOM_M[:2], height_m]), _pose((ROOM_M[0] / 2, ROOM_M[1] / 2, FLOOR_M + height_m / 2), 0.0))]
    solids += [(np.array(size), pose) for (_, size, _, _), pose in zip(OBJECTS, box_poses_world(), strict=True)]
    vertices, faces = [], []
    for size, pose in solids:
        corners = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)]) * size
        faces += [[corner + 8 * len(vertices) for corner in face] for face in _TRIANGLES]
        vertices.append(corners @ pose[:3, :3].T + pose[:3, 3])
    points = np.concatenate(vertices)
    header = ["ply", "format ascii 1.0", f"element vertex {len(points)}"]
    header += [f"property float {axis}" for axis in "xyz"]
    header += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header"]
    lines = [" ".join(f"{value:.6f}" for value in point) for point in points]
    lines += [" ".join(map(str, (3, *face))) for face in faces]
    path.write_text("\n".join(header + lines) + "\n")


_TRIANGLES = (
    *((0, 1, 3), (0, 3, 2), (4, 6, 7), (4, 7, 5), (0, 4, 5), (0, 5, 1)),
    *((2, 3, 7), (2, 7, 6), (0, 2, 6), (0, 6, 4), (1, 5, 7), (1, 7, 3)),
)


def _looking(place: Array, at: Array) -> Array:
    """A camera with its columns left, up and forward."""
    forward = (at - place) / np.linalg.norm(at - place)
    left = np.cross([0.0, 0, 1], forward)
    left /= np.linalg.norm(left)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([left, np.cross(forward, left), forward], axis=1)
    pose[:3, 3] = place
    return pose


def _pose(place: Sequence[float], turn_rad: float) -> Array:
    pose = np.eye(4)
    pose[:2, :2] = [[np.cos(turn_rad), -np.sin(turn_rad)], [np.sin(turn_rad), np.cos(turn_rad)]]
    pose[:3, 3] = place
    return pose


def _flat(poses: Array) -> Array:
    """(..., 4, 4) -> (..., 12): the rotation row by row, then the translation."""
    turned = poses[..., :3, :3].reshape(*poses.shape[:-2], 9)
    return np.concatenate([turned, poses[..., :3, 3]], axis=-1).astype(np.float32)
