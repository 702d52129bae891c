"""Distances and paths for the simulator, crops, and the bounded cache of scenes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import trimesh

from rollout_assets.candidates.rules import CollisionWorld
from rollout_assets.errors import GeometryError, MeshError
from rollout_assets.oracle.scene import OracleScene, SceneCache
from tests.oracle.rooms import room_mesh
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

BOX = trimesh.creation.box((4.0, 4.0, 4.0))


def box_scene() -> OracleScene:
    return OracleScene(BOX.vertices, BOX.faces, "cpu")


def test_is_a_collision_world() -> None:
    world: CollisionWorld = box_scene()
    low, high = world.bounds
    assert low.tolist() == [-2, -2, -2]
    assert high.tolist() == [2, 2, 2]


def test_distance_to_walls() -> None:
    distance = box_scene().distance_m([[0, 0, 0], [1.5, 0, 0], [3, 0, 0], [3, 3, 2]])
    np.testing.assert_allclose(distance, [2, 0.5, 1, np.sqrt(2)], rtol=1e-6)
    assert distance.dtype == np.float32


def test_path_clearance_looks_at_every_sample_and_both_ends() -> None:
    scene = box_scene()
    starts, ends = [[0, 0, 0], [0, 0, 0], [-3, 0, 0]], [[1.5, 0, 0], [0, 0, 0], [3, 0, 0]]
    np.testing.assert_allclose(scene.path_min_clearance_m(starts, ends, 2), [0.5, 2, 1], rtol=1e-6)
    np.testing.assert_allclose(scene.path_min_clearance_m(starts, ends, 7), [0.5, 2, 0], atol=1e-6)
    assert scene.path_min_clearance_m(np.zeros((0, 3)), np.zeros((0, 3)), 32).shape == (0,)


def test_an_answer_does_not_depend_on_its_company() -> None:
    mesh = room_mesh()
    scene = OracleScene(mesh.vertices, mesh.faces, "cpu")
    points = np.random.default_rng(0).uniform(-2, 2, (50, 3)).astype(np.float32)
    alone = np.concatenate([scene.distance_m(points[i : i + 1]) for i in range(50)])
    assert np.array_equal(scene.distance_m(points), alone)


def test_bad_queries_are_refused_with_the_value() -> None:
    with refused(GeometryError, "points[1]", "[nan, 0.0, 0.0]"):
        box_scene().distance_m([[0, 0, 0], [np.nan, 0, 0]])
    with refused(GeometryError, "samples", 2, 1):
        box_scene().path_min_clearance_m([[0, 0, 0]], [[0, 0, 0]], 1)
    with refused(GeometryError, "starts", "ends", 1, 2):
        box_scene().path_min_clearance_m([[0, 0, 0]], [[0, 0, 0], [0, 0, 0]], 3)


def test_the_cache_builds_a_scene_once_and_forgets_the_oldest() -> None:
    built: list[str] = []

    def build(key: str) -> OracleScene:
        built.append(key)
        return box_scene()

    cache = SceneCache(max_bytes=int(2.5 * box_scene().nbytes))
    first = cache.get("a", lambda: build("a"))
    assert cache.get("b", lambda: build("b")) is not first
    assert cache.get("a", lambda: build("a")) is first
    cache.get("c", lambda: build("c"))
    assert len(cache) == 2
    assert cache.nbytes <= cache.max_bytes
    cache.get("a", lambda: build("a"))
    cache.get("b", lambda: build("b"))
    assert built == ["a", "b", "c", "b"]


def test_a_scene_larger_than_the_cache_is_still_served() -> None:
    cache = SceneCache(max_bytes=1)
    scene = cache.get("a", box_scene)
    assert cache.get("a", box_scene) is scene
    with refused(MeshError, "max_bytes", 0):
        SceneCache(0)


def test_threads_share_one_scene() -> None:
    cache, scenes = SceneCache(1 << 30), []
    threads = [threading.Thread(target=lambda: scenes.append(cache.get("a", box_scene))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(scene) for scene in scenes}) == 1
