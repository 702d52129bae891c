"""Remembered mesh digests save a reading, are believed only for an untouched file, and never decide a label."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from rollout_assets.config import OracleConfig
from rollout_assets.files import FileStamp
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.sources import meshes
from rollout_assets.sources.mesh_digests import MeshDigests
from rollout_assets.sources.meshes import MeshLibrary, mesh_file_name
from rollout_assets.sources.ply import write_binary_ply
from tests.sources.test_meshes import FACES, VERTICES

MOVED = VERTICES + np.float32(0.03)


@pytest.fixture
def mesh(tmp_path: Path) -> Path:
    (tmp_path / "input").mkdir()
    path = tmp_path / "input" / mesh_file_name("a")
    write_binary_ply(path, VERTICES, FACES)
    return path


def library(mesh: Path) -> MeshLibrary:
    return MeshLibrary([mesh.parent], digests=MeshDigests(mesh.parents[1] / "digests"))


def move_in_place(mesh: Path) -> None:
    """Other vertices, in a file of the same size and modification time."""
    before = mesh.stat()
    write_binary_ply(mesh, MOVED, FACES)
    os.utime(mesh, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = mesh.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_an_untouched_file_is_not_read_again(mesh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = library(mesh).known_hash("a")
    assert known == meshes.content_hash(VERTICES, FACES)
    monkeypatch.setattr(meshes, "load_mesh", lambda _: pytest.fail("was read again"))
    assert library(mesh).known_hash("a") == known


def test_mesh_changed_at_equal_size_and_time_has_another_hash(mesh: Path) -> None:
    kept = library(mesh)
    before = kept.known_hash("a")
    move_in_place(mesh)
    assert kept.known_hash("a") == library(mesh).known_hash("a") == meshes.content_hash(MOVED, FACES) != before
    assert kept.load("a").content_hash == meshes.content_hash(MOVED, FACES)


def test_mesh_version_is_of_the_scored_mesh_not_the_cache(mesh: Path) -> None:
    digests = MeshDigests(mesh.parents[1] / "digests")
    digests.put(mesh, FileStamp.of(mesh), "0" * 64)
    lying = library(mesh)
    assert lying.known_hash("a") == "0" * 64
    loaded = SceneLoader(lying, OracleConfig(device="cpu")).find("a")
    assert loaded is not None and loaded[1] == meshes.content_hash(VERTICES, FACES)
    lying.forget_hash("a")
    assert lying.known_hash("a") == meshes.content_hash(VERTICES, FACES)


@pytest.mark.parametrize("junk", [b"", b"{}", b"[1]", b"3", b'{"content_hash": 3}', b"\xff"])
def test_a_damaged_note_is_replaced(mesh: Path, junk: bytes) -> None:
    library(mesh).known_hash("a")
    (note,) = (mesh.parents[1] / "digests").iterdir()
    note.write_bytes(junk)
    assert library(mesh).known_hash("a") == meshes.content_hash(VERTICES, FACES)
    assert json.loads(note.read_bytes())["content_hash"] == meshes.content_hash(VERTICES, FACES)


def test_a_place_that_cannot_be_written_to_is_no_error(mesh: Path) -> None:
    (mesh.parents[1] / "digests").write_text("in the way")
    assert library(mesh).known_hash("a") == meshes.content_hash(VERTICES, FACES)


def test_digests_are_written_only_into_an_existing_campaign(mesh: Path) -> None:
    nowhere = mesh.parents[1] / "campaign"
    MeshLibrary([mesh.parent], digests=MeshDigests(nowhere / "mesh_digests")).known_hash("a")
    MeshLibrary([mesh.parent]).known_hash("a")
    library(mesh).known_hash("a")
    assert [path.name for path in mesh.parent.iterdir()] == [mesh.name] and not nowhere.exists()
