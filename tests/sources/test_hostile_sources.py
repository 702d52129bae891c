"""Source stores and meshes that promise more than they hold, or have pipes and devices for files: one error each."""

import io
import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.errors import MeshError, RolloutAssetsError, SourceError
from rollout_assets.importing.raw_mesh import read_raw_mesh
from rollout_assets.sources import layout
from rollout_assets.sources.audit import audit_store
from rollout_assets.sources.meshes import load_mesh
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.sources.test_vin_store import edit_array_json

HUGE = 10**12
SHARD = Path(layout.shard_dir("shard-000000"))
POINTS = SHARD / layout.zarr_path(layout.POINTS_WORLD)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def records(store: Path, ending: str) -> Path:
    """A file of the records of class names."""
    return min((store / SHARD).rglob(f"*obb_sem_id_to_name*{ending}"))


def first_chunk(store: Path) -> Path:
    return min(path for path in (store / POINTS / "c").rglob("*") if path.is_file())


FILES: dict[str, Callable[[Path], Path]] = {
    "manifest": lambda store: store / layout.MANIFEST_FILE,
    "index": lambda store: store / layout.INDEX_FILE,
    "split": lambda store: store / layout.split_file("all"),
    "document": lambda store: store / POINTS / "zarr.json",
    "chunk": first_chunk,
    "payload": lambda store: records(store, ".msgpack"),
    "offsets": lambda store: records(store, ".offsets.npy"),
}


@pytest.mark.parametrize("replace", [pipe, device])
def test_special_files_in_a_source_are_problems(store_copy, replace):
    for place in FILES.values():
        path = place(store_copy)
        original = path.read_bytes()
        opened = VinOfflineStore.open(store_copy)
        row = opened.rows()[0]
        replace(path)
        try:
            broken = audit_store(store_copy).broken
        except SourceError as error:
            broken = (str(error),)
        assert broken, path
        with suppress(RolloutAssetsError):  # a sample needs neither the index again nor the names of classes
            opened.sample(row)
        path.unlink()
        path.write_bytes(original)
    assert audit_store(store_copy).ok


@pytest.mark.parametrize("name", ["split", "offsets"])
def test_an_npy_header_that_promises_too_much_is_a_problem(store_copy, name):
    path, header = FILES[name](store_copy), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (HUGE,)})
    path.write_bytes(header.getvalue() + bytes(64))
    found = [problem for problem in audit_store(store_copy).broken if path.name in problem and str(HUGE) in problem]
    assert found
    if name == "offsets":
        with pytest.raises(SourceError):
            VinOfflineStore.open(store_copy)


def wide(document: dict) -> None:
    document["shape"][1] = HUGE


def wide_chunks(document: dict) -> None:
    document["chunk_grid"]["configuration"]["chunk_shape"][0] = HUGE


@pytest.mark.parametrize("change", [wide, wide_chunks])
def test_an_array_that_promises_too_much_is_a_problem(store_copy, change):
    edit_array_json(store_copy, layout.POINTS_WORLD, change)
    assert [problem for problem in audit_store(store_copy).broken if layout.POINTS_WORLD in problem]
    with pytest.raises(SourceError):
        VinOfflineStore.open(store_copy)


def glb(accessors: list[dict]) -> bytes:
    triangle = np.eye(3, dtype="<f4").tobytes()
    document = {
        "asset": {"version": "2.0"},
        "buffers": [{"byteLength": len(triangle)}],
        "bufferViews": [{"buffer": 0, "byteOffset": 0, "byteLength": len(triangle)}],
        "accessors": accessors,
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
        "nodes": [{"mesh": 0}],
        "scenes": [{"nodes": [0]}],
        "scene": 0,
    }
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    parts = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(triangle), b"BIN\0") + triangle
    return struct.pack("<4sII", b"glTF", 2, 12 + len(parts)) + parts


def ply(faces: str) -> bytes:
    header = (
        "ply\nformat binary_little_endian 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
    )
    face = bytes([4]) + np.array([0, 1, 2, 0], "<i4").tobytes()
    return f"{header}element face {faces}\nproperty list uchar int vertex_indices\nend_header\n".encode() + (
        np.eye(3, dtype="<f4").tobytes() + face
    )


POSITIONS = {"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3", "min": [0] * 3, "max": [1] * 3}


def test_a_mesh_that_promises_too_much_is_refused(tmp_path):
    (tmp_path / "good.glb").write_bytes(glb([POSITIONS]))
    assert len(load_mesh(tmp_path / "good.glb").faces) == len(read_raw_mesh(tmp_path / "good.glb").faces) == 1
    hostile = {
        "accessor.glb": glb([POSITIONS, {"componentType": 5126, "count": HUGE, "type": "MAT4"}]),
        "negative.glb": glb([POSITIONS, {"componentType": 5126, "count": -HUGE, "type": "MAT4"}]),
        "text.glb": glb([POSITIONS, {"componentType": 5126, "count": str(HUGE), "type": "MAT4"}]),
        "polygons.ply": ply(str(HUGE)),
    }
    for name, content in hostile.items():
        path = tmp_path / name
        path.write_bytes(content)
        for read in (load_mesh, read_raw_mesh):
            with pytest.raises(MeshError):
                read(path)


@pytest.mark.parametrize("replace", [pipe, device])
@pytest.mark.parametrize("name", ["mesh.ply", "mesh.obj", "mesh.glb"])
def test_a_mesh_that_is_no_regular_file_is_refused(tmp_path, name, replace):
    path = tmp_path / name
    path.touch()
    replace(path)
    with pytest.raises(MeshError):
        load_mesh(path)


def test_what_a_mesh_refers_to_is_read_from_regular_files_only(tmp_path):
    path = tmp_path / "mesh.obj"
    path.write_text("mtllib colours.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl red\nf 1 2 3\n")
    os.mkfifo(tmp_path / "colours.mtl")
    assert len(load_mesh(path).faces) == 1
