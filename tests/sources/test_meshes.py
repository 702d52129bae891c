"""Scene meshes: every layout gives the same triangles, damage is named, hashes follow content, the cache is bounded."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import trimesh
from numpy.typing import NDArray

from rollout_assets.errors import MeshError
from rollout_assets.sources import meshes
from rollout_assets.sources.meshes import MeshLibrary, TriangleMesh, load_mesh, mesh_file_name
from rollout_assets.sources.ply import write_binary_ply
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

VERTICES = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.5]], np.float32)
FACES = np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]], np.int32)


def _rows(faces: NDArray[np.int32], order: str, extra: bool) -> bytes:
    layout = [("n", "u1"), ("v", f"{order}i4", (3,))] + ([("label", f"{order}u2")] if extra else [])
    rows = np.zeros(len(faces), layout)
    rows["n"], rows["v"] = 3, faces
    return rows.tobytes()


def _binary(order: str = "<", kind: str = "f4", extra: bool = False) -> bytes:
    layout = [("x", order + kind), ("y", order + kind), ("red", "u1"), ("z", order + kind)]
    rows = np.zeros(len(VERTICES), layout)
    rows["x"], rows["y"], rows["z"] = VERTICES.T
    name = {"f4": "float", "f8": "double"}[kind]
    endian = {"<": "little", ">": "big"}[order]
    header = (
        f"ply\nformat binary_{endian}_endian 1.0\ncomment made by hand\nelement vertex {len(VERTICES)}\n"
        f"property {name} x\nproperty {name} y\nproperty uchar red\nproperty {name} z\n"
        f"element face {len(FACES)}\nproperty list uchar int vertex_indices\n"
        + ("property ushort label\n" if extra else "")
        + "end_header\n"
    )
    return header.encode() + rows.tobytes() + _rows(FACES, order, extra)


def _ascii() -> bytes:
    lines = ["ply", "format ascii 1.0", f"element vertex {len(VERTICES)}"]
    lines += [f"property float {axis}" for axis in "xyz"]
    lines += [f"element face {len(FACES)}", "property list uchar int vertex_indices", "end_header"]
    lines += [" ".join(str(float(value)) for value in row) for row in VERTICES]
    lines += ["3 " + " ".join(str(index) for index in row) for row in FACES]
    return ("\n".join(lines) + "\n").encode()


def _quad() -> bytes:
    header = (
        "ply\nformat binary_little_endian 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\n"
        "element face 1\nproperty list uchar int vertex_indices\nend_header\n"
    )
    square = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]], "<f4").tobytes()
    return header.encode() + square + b"\x04" + np.array([0, 1, 2, 3], "<i4").tobytes()


@pytest.mark.parametrize(
    "content",
    [_binary(), _binary(extra=True), _binary(kind="f8"), _binary(order=">", extra=True), _ascii()],
    ids=["binary", "face-labels", "double", "big-endian", "ascii"],
)
def test_every_ply_layout_gives_the_same_mesh(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mesh.ply"
    path.write_bytes(content)
    mesh = load_mesh(path)
    np.testing.assert_array_equal(mesh.vertices, VERTICES)
    np.testing.assert_array_equal(mesh.faces, FACES)
    assert (mesh.vertices.dtype, mesh.faces.dtype) == (np.float32, np.int32)
    assert mesh.content_hash == meshes.content_hash(VERTICES, FACES)


def test_quads_are_triangulated(tmp_path: Path) -> None:
    path = tmp_path / "mesh.ply"
    path.write_bytes(_quad())
    assert load_mesh(path).faces.shape == (2, 3)


@pytest.mark.parametrize("ending", [".obj", ".glb"])
def test_other_formats_are_read(tmp_path: Path, ending: str) -> None:
    path = tmp_path / mesh_file_name("a", ending)
    trimesh.Trimesh(VERTICES, FACES, process=False).export(path)
    library = MeshLibrary([tmp_path])
    assert library.find("a") == path
    mesh = library.load("a")
    area = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False).area
    assert area == pytest.approx(trimesh.Trimesh(VERTICES, FACES).area, rel=1e-5)


def test_useless_faces_are_dropped_and_counted(tmp_path: Path) -> None:
    vertices = np.concatenate([VERTICES, [[2, 0, 0], [np.nan, 0, 0], [9, 9, 9]]]).astype(np.float32)
    faces = np.concatenate([FACES, [[0, 1, 1], [0, 1, 4], [0, 1, 5], [2, 5, 3]]]).astype(np.int32)
    path = tmp_path / "mesh.ply"
    write_binary_ply(path, vertices, faces)
    mesh = load_mesh(path)
    assert dict(mesh.dropped_faces) == {"non_finite": 2, "repeated_vertex": 1, "zero_area": 1}
    np.testing.assert_array_equal(mesh.vertices, VERTICES)
    np.testing.assert_array_equal(mesh.faces, FACES)
    assert mesh.content_hash == meshes.content_hash(VERTICES, FACES)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (_binary()[:-5], ("4 face rows", "5 bytes")),
        (_binary()[:40], ("end_header", "40 bytes")),
        (b"", ("PLY", b"")),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), ("PLY", "PNG")),
        (_ascii()[:-20], ("header", "8 rows")),
        (_binary().replace(b"element face 4", b"element face x"), ("header", "'x'")),
        (_binary().replace(b"property float y", b"property quad y"), ("header", "quad")),
        (_binary().split(b"element face")[0] + b"end_header\n" + bytes(52), ("PLY", "faces")),
    ],
)
def test_damaged_files_are_refused_by_path(tmp_path: Path, content: bytes, names: tuple[object, ...]) -> None:
    path = tmp_path / "broken.ply"
    path.write_bytes(content)
    with refused(MeshError, path, *names):
        load_mesh(path)


def test_faces_beyond_the_vertices_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mesh.ply"
    write_binary_ply(path, VERTICES, np.array([[0, 1, 7]], np.int32))
    with refused(MeshError, path, "vertex 7", "4 vertices"):
        load_mesh(path)


def test_a_missing_mesh_is_none_until_it_is_needed(tmp_path: Path) -> None:
    library = MeshLibrary([tmp_path, tmp_path / "nowhere"])
    assert library.find("a") is None
    assert library.find("../a") is None
    with refused(MeshError, "scene_ply_a", tmp_path / "nowhere"):
        library.load("a")


def test_directories_are_searched_in_order(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_binary_ply(tmp_path / folder / mesh_file_name("a"), VERTICES, FACES)
    assert MeshLibrary([tmp_path / "two", tmp_path / "one"]).find("a") == tmp_path / "two" / "scene_ply_a.ply"


def test_the_cache_keeps_recent_meshes_within_its_bytes(tmp_path: Path) -> None:
    for name in "abc":
        write_binary_ply(tmp_path / mesh_file_name(name), VERTICES, FACES)
    size = load_mesh(tmp_path / mesh_file_name("a")).nbytes
    library = MeshLibrary([tmp_path], max_bytes=2 * size)
    first, second = library.load("a"), library.load("b")
    assert library.load("a") is first
    library.load("c")
    assert library.kept_bytes == 2 * size
    assert library.load("a") is first
    assert library.load("b") is not second
    none_kept = MeshLibrary([tmp_path], max_bytes=0)
    assert none_kept.load("a") is not none_kept.load("a")
    assert none_kept.kept_bytes == 0


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / mesh_file_name("a")
    write_binary_ply(path, VERTICES, FACES)
    library = MeshLibrary([tmp_path])
    before = library.load("a")
    write_binary_ply(path, VERTICES, FACES[:2])
    assert len(library.load("a").faces) == 2
    assert before.content_hash != library.load("a").content_hash


def test_a_file_that_cannot_be_read_is_no_fault_of_the_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.ply", "a.obj"):
        (tmp_path / name).write_bytes(_ascii())

        def failing(path: Path, *_: object, **__: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", failing)
            patch.setattr("builtins.open", failing)
            with refused(OSError, tmp_path / name, errno=errno.EIO) as caught:
                load_mesh(tmp_path / name)
        assert not isinstance(caught.value, MeshError)


def test_threads_share_one_load(tmp_path: Path) -> None:
    write_binary_ply(tmp_path / mesh_file_name("a"), VERTICES, FACES)
    library = MeshLibrary([tmp_path])
    loaded: list[TriangleMesh] = []
    threads = [threading.Thread(target=lambda: loaded.append(library.load("a"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 16
    assert len({id(mesh) for mesh in loaded}) == 1


def test_meshes_cannot_be_changed_by_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "mesh.ply"
    write_binary_ply(path, VERTICES, FACES)
    mesh = load_mesh(path)
    assert not mesh.vertices.flags.writeable and not mesh.faces.flags.writeable
