"""Trees on disk: the same tree again, and never a wrong one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollout_assets.geometry.triangle_bvh import BuiltTree, TriangleBvh, build_tree
from rollout_assets.oracle.tree_files import TreeFiles, read_tree, write_tree
from tests.oracle.rooms import room_mesh


@pytest.fixture(scope="module")
def mesh() -> tuple[np.ndarray, np.ndarray]:
    room = room_mesh(3)
    return room.vertices.astype(np.float32), room.faces.astype(np.int32)


@pytest.fixture(scope="module")
def tree(mesh: tuple[np.ndarray, np.ndarray]) -> BuiltTree:
    return build_tree(*mesh)


def refuse() -> BuiltTree:
    raise AssertionError("the tree is on disk and must not be built")


def test_a_tree_comes_back_as_it_was(mesh: tuple[np.ndarray, np.ndarray], tree: BuiltTree, tmp_path: Path) -> None:
    files = TreeFiles(tmp_path / "trees", min_faces=1)
    assert files.get("a" * 64, tree.face_count, lambda: tree) is tree
    again = files.get("a" * 64, tree.face_count, refuse)
    fresh, stored = (TriangleBvh(*mesh, "cpu", built=built) for built in (tree, again))
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(fresh.arrays, stored.arrays, strict=True))
    assert np.array_equal(np.stack(fresh.bounds), np.stack(stored.bounds))
    assert fresh.face_count == stored.face_count == len(mesh[1])


@pytest.mark.parametrize("at", [10, 4096, 5000, -1])
def test_a_damaged_file_is_built_again(tree: BuiltTree, tmp_path: Path, at: int) -> None:
    path = tmp_path / "x.tree"
    write_tree(path, tree)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert read_tree(path) is None
    assert TreeFiles(tmp_path, 1).get("x", tree.face_count, lambda: tree) is tree
    assert read_tree(path) is not None


def test_a_file_that_was_cut_short_or_is_missing_is_no_tree(tree: BuiltTree, tmp_path: Path) -> None:
    path = tmp_path / "x.tree"
    assert read_tree(path) is None
    write_tree(path, tree)
    for size in (0, 100, 4096, path.stat().st_size - 1):
        path.write_bytes(path.read_bytes()[:size])
        assert read_tree(path) is None


def test_small_meshes_leave_no_file_and_old_files_make_room(tree: BuiltTree, tmp_path: Path) -> None:
    TreeFiles(tmp_path / "none").get("a", tree.face_count, lambda: tree)
    assert not (tmp_path / "none").exists()
    write_tree(tmp_path / "size.tree", tree)
    size = (tmp_path / "size.tree").stat().st_size
    files = TreeFiles(tmp_path / "few", min_faces=1, max_bytes=2 * size)
    for name in "abc":
        files.get(name, tree.face_count, lambda: tree)
    assert sorted(path.stem for path in (tmp_path / "few").iterdir()) == ["b", "c"]


def test_a_folder_that_cannot_be_written_is_no_error(tree: BuiltTree, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert TreeFiles(tmp_path / "file", 1).get("a", tree.face_count, lambda: tree) is tree
