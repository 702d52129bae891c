"""Simplified meshes: a share of the faces, the same shape, the same bytes everywhere, and a version of their own."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import trimesh

from rollout_assets.campaigns.plan import write_rollout_shard_manifest_from_config
from rollout_assets.config import CampaignConfig, OracleConfig
from rollout_assets.errors import ConfigError, MeshError
from rollout_assets.rollouts.roots import SceneLoader
from rollout_assets.sources.mesh_digests import MeshDigests
from rollout_assets.sources.meshes import MeshLibrary, content_hash, load_mesh, mesh_file_name
from rollout_assets.sources.ply import write_binary_ply
from tests.support.refusals import assert_names, refused

needs_package = pytest.mark.skipif(find_spec("fast_simplification") is None, reason="fast-simplification is missing")

LOAD = """
import sys
from pathlib import Path
from rollout_assets.sources.meshes import content_hash, load_mesh
mesh = load_mesh(Path(sys.argv[1]), 0.1)
print(mesh.content_hash, content_hash(mesh.vertices, mesh.faces))
"""


@pytest.fixture
def ball(tmp_path: Path) -> Path:
    """A ball of 1 m radius in 5,120 faces."""
    shape = trimesh.creation.icosphere(subdivisions=4)
    path = tmp_path / "meshes" / mesh_file_name("ball")
    path.parent.mkdir()
    write_binary_ply(path, shape.vertices.astype(np.float32), shape.faces.astype(np.int32))
    return path


@needs_package
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_share_of_the_faces_is_kept_and_the_shape_stays(ball: Path, share: float) -> None:
    whole, mesh = load_mesh(ball), load_mesh(ball, share)
    assert len(mesh.faces) == pytest.approx(share * len(whole.faces), abs=2)
    assert np.linalg.norm(mesh.vertices, axis=1) == pytest.approx(np.ones(len(mesh.vertices)), abs=0.03)
    assert not mesh.vertices.flags.writeable and (mesh.vertices.dtype, mesh.faces.dtype) == (np.float32, np.int32)


@needs_package
@pytest.mark.ci
def test_two_processes_and_two_threads_make_the_same_triangles(ball: Path) -> None:
    command = [sys.executable, "-c", LOAD, str(ball)]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second
    made: list[str] = []

    def load() -> None:
        mesh = load_mesh(ball, 0.1)
        made.append(f"{mesh.content_hash} {content_hash(mesh.vertices, mesh.faces)}\n")

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [first] * 4


@needs_package
def test_the_version_is_that_of_the_file_and_the_simplification(ball: Path) -> None:
    whole, tenth, half = load_mesh(ball), load_mesh(ball, 0.1), load_mesh(ball, 0.5)
    assert whole.whole_hash == tenth.whole_hash == half.whole_hash == whole.content_hash
    assert len({whole.content_hash, tenth.content_hash, half.content_hash}) == 3
    assert len(tenth.content_hash) == 64 and set(tenth.content_hash) <= set("0123456789abcdef")


@needs_package
def test_a_remembered_hash_serves_every_share(ball: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = MeshDigests(ball.parents[1] / "digests")
    shares = (None, 0.1, 0.5)
    loaded = [load_mesh(ball, share).content_hash for share in shares]
    assert MeshLibrary([ball.parent], digests=digests, simplify=0.1).known_hash("ball") == loaded[1]
    monkeypatch.setattr("rollout_assets.sources.meshes.load_mesh", lambda *_: pytest.fail("the mesh was read again"))
    known = [MeshLibrary([ball.parent], digests=digests, simplify=share).known_hash("ball") for share in shares]
    assert known == loaded


@needs_package
def test_a_mesh_of_which_nothing_is_left_is_named(tmp_path: Path) -> None:
    path = tmp_path / "two.ply"
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], np.float32)
    write_binary_ply(path, corners, np.array([[0, 1, 2], [1, 3, 2]], np.int32))
    try:
        assert len(load_mesh(path, 0.1).faces) >= 1
    except MeshError as error:
        assert_names(str(error), path, 0.1, "2 faces")


def test_without_the_package_nothing_is_begun(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fast_simplification", None)
    campaign = CampaignConfig(
        name="simple",
        source={"store_dir": small_store},
        oracle={"simplify": 0.1},
        shards={"output_dir": tmp_path / "campaign"},
    )
    with refused(ConfigError, "oracle.simplify = 0.1", "pip install fast-simplification") as caught:
        write_rollout_shard_manifest_from_config(campaign)
    assert "\n" not in str(caught.value) and not (tmp_path / "campaign").exists()


def test_meshes_simplified_otherwise_are_refused(ball: Path) -> None:
    meshes = MeshLibrary([ball.parent])
    assert SceneLoader(meshes, OracleConfig(device="cpu")).find("ball") is not None
    with refused(ConfigError, "simplify = None", "oracle.simplify", 0.2):
        SceneLoader(meshes, OracleConfig(device="cpu", simplify=0.2))


@pytest.mark.quick
def test_simplification_is_hashed_only_when_it_is_set() -> None:
    assert "simplify" not in OracleConfig().hashable()
    assert OracleConfig(simplify=0.1).hashable() == OracleConfig().hashable() | {"simplify": 0.1}


@pytest.mark.quick
@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan"), "0.1", True])
def test_a_share_lies_between_none_and_all(share: object) -> None:
    with refused(ValueError, "simplify"):
        OracleConfig(simplify=share)
