"""Rays and closest points against brute force in double precision, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
import trimesh

from rollout_assets.errors import DeviceError, GeometryError, MeshError
from rollout_assets.geometry.devices import resolve_device
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

ROOM = trimesh.creation.box((8.0, 6.0, 3.0))


def brute_distance_sq(points: np.ndarray, vertices: np.ndarray, faces: np.ndarray) -> np.ndarray:
    """(n, m) squared distances by clamping to the three edges and to the inside, in double precision."""
    p = np.asarray(points, np.float64)[:, None, :]
    a, b, c = np.moveaxis(np.asarray(vertices, np.float64)[faces], 1, 0)
    best = np.full((len(points), len(faces)), np.inf)
    for start, end in ((a, b), (b, c), (c, a)):
        edge = end - start
        length_sq = (edge * edge).sum(-1)
        t = np.clip(((p - start) * edge).sum(-1) / np.where(length_sq > 0, length_sq, 1), 0, 1)
        best = np.minimum(best, np.square(p - start - t[..., None] * edge).sum(-1))
    ab, ac, ap = b - a, c - a, p - a
    d00, d01, d11 = (ab * ab).sum(-1), (ab * ac).sum(-1), (ac * ac).sum(-1)
    d20, d21 = (ap * ab).sum(-1), (ap * ac).sum(-1)
    det = d00 * d11 - d01 * d01
    v = (d11 * d20 - d01 * d21) / np.where(det > 0, det, 1)
    w = (d00 * d21 - d01 * d20) / np.where(det > 0, det, 1)
    normal = np.cross(ab, ac)
    length = np.linalg.norm(normal, axis=-1)
    height = (ap * normal).sum(-1) / np.where(length > 0, length, 1)
    inside = (det > 0) & (length > 0) & (v >= 0) & (w >= 0) & (v + w <= 1)
    return np.where(inside, height**2, best)


def soup(rng: np.random.Generator, count: int, size: float) -> tuple[np.ndarray, np.ndarray]:
    corners = rng.normal(0, 1, (count, 1, 3)) + rng.normal(0, size, (count, 3, 3))
    return corners.reshape(-1, 3).astype(np.float32), np.arange(3 * count, dtype=np.int32).reshape(-1, 3)


@pytest.mark.parametrize("count", [1, 2, 5, 17, 400])
@pytest.mark.parametrize("size", [0.0, 0.02, 3.0])
def test_closest_equals_brute_force(count: int, size: float) -> None:
    rng = np.random.default_rng(count)
    vertices, faces = soup(rng, count, size)
    points = rng.normal(0, 1.5, (300, 3)).astype(np.float32)
    distance_sq, face = TriangleBvh(vertices, faces, "cpu").closest(points)
    brute = brute_distance_sq(points, vertices, faces)
    np.testing.assert_allclose(distance_sq, brute.min(axis=1), rtol=2e-6, atol=1e-12)
    np.testing.assert_allclose(brute[np.arange(300), face], brute.min(axis=1), rtol=1e-4, atol=1e-11)


@pytest.mark.parametrize("thin", [1e-1, 1e-3, 1e-5, 1e-7, 0.0])
def test_slivers_are_measured_exactly(thin: float) -> None:
    rng = np.random.default_rng(3)
    start = rng.normal(0, 1, (50, 3))
    along = rng.normal(0, 1, (50, 3))
    corners = np.stack([start, start + along, start + 0.4 * along + thin * rng.normal(0, 1, (50, 3))], axis=1)
    vertices, faces = corners.reshape(-1, 3).astype(np.float32), np.arange(150, dtype=np.int32).reshape(-1, 3)
    points = np.concatenate([rng.normal(0, 1, (200, 3)), corners.mean(axis=1) + 0.01 * rng.normal(0, 1, (50, 3))])
    distance_sq, _ = TriangleBvh(vertices, faces, "cpu").closest(points)
    brute = brute_distance_sq(points.astype(np.float32), vertices, faces).min(axis=1)
    np.testing.assert_allclose(distance_sq, brute, rtol=2e-6, atol=1e-12)


def test_far_from_the_origin_is_as_good() -> None:
    rng = np.random.default_rng(4)
    vertices, faces = soup(rng, 200, 0.1)
    vertices = vertices + np.float32(200)
    points = (rng.normal(0, 1, (200, 3)) + 200).astype(np.float32)
    distance_sq, _ = TriangleBvh(vertices, faces, "cpu").closest(points)
    np.testing.assert_allclose(
        distance_sq, brute_distance_sq(points, vertices, faces).min(axis=1), rtol=1e-5, atol=1e-11
    )


def test_closest_has_no_answer_at_the_limit_beyond_it_or_for_nan() -> None:
    bvh = TriangleBvh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]], "cpu")
    points = np.array([[0.2, 0.2, 0.5], [0.2, 0.2, 0.499], [0, 0, 9], [np.nan, 0, 0]], np.float32)
    distance_sq, face = bvh.closest(points, max_distance=0.5)
    assert face.tolist() == [-1, 0, -1, -1]
    assert distance_sq[[0, 2, 3]].tolist() == [np.inf] * 3


def test_edges_only_faces_measure_to_their_edges() -> None:
    vertices, faces = [[0, 0, 0], [4, 0, 0], [0, 4, 0]], [[0, 1, 2]]
    bvh = TriangleBvh(vertices, faces, "cpu", edges_only=np.array([True]))
    assert bvh.closest([[1.0, 1.0, 0.0]])[0].item() == pytest.approx(1.0)
    assert bvh.cast_rays([[1.0, 1.0, -1.0]], [[0.0, 0.0, 2.0]])[0].item() == pytest.approx(0.5)


def test_t_is_in_units_of_the_direction() -> None:
    bvh = TriangleBvh(ROOM.vertices, ROOM.faces, "cpu")
    t, face = bvh.cast_rays([[0, 0, 0]] * 3, [[0, 0, 1], [0, 0, -0.5], [4, 0, 0]])
    assert t.tolist() == [1.5, 3.0, 1.0]
    assert (face >= 0).all()
    assert face.dtype == torch.int32


def test_a_miss_is_infinite() -> None:
    bvh = TriangleBvh(ROOM.vertices, ROOM.faces, "cpu")
    t, face = bvh.cast_rays([[9, 0, 0], [0, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 0], [0, 0, 1]], max_t=1.5)
    assert t.tolist() == [np.inf] * 3
    assert face.tolist() == [-1] * 3


def test_no_ray_leaks_through_edges_or_corners() -> None:
    sphere = trimesh.creation.icosphere(subdivisions=3)
    targets = np.concatenate([sphere.vertices, sphere.triangles_center, sphere.vertices[sphere.edges].mean(axis=1)])
    for vertices, faces, aims in (
        (sphere.vertices, sphere.faces, targets),
        (ROOM.vertices, ROOM.faces, np.concatenate([ROOM.vertices, ROOM.vertices[ROOM.edges].mean(axis=1)])),
    ):
        for origin in ([0, 0, 0], [0.1, -0.2, 0.05]):
            aims32 = aims.astype(np.float32)
            start = np.repeat(np.array([origin], np.float32), len(aims), axis=0)
            t, _ = TriangleBvh(vertices, faces, "cpu").cast_rays(start, aims32 - start)
            np.testing.assert_allclose(t, 1.0, rtol=3e-6)


def test_rays_equal_brute_force() -> None:
    rng = np.random.default_rng(5)
    vertices, faces = soup(rng, 300, 0.4)
    origins = rng.normal(0, 2, (400, 3)).astype(np.float32)
    directions = (rng.normal(0, 0.5, (400, 3)) - origins).astype(np.float32)
    t, face = TriangleBvh(vertices, faces, "cpu").cast_rays(origins, directions)
    a, b, c = np.moveaxis(vertices[faces].astype(np.float64), 1, 0)
    o, d = origins.astype(np.float64)[:, None], directions.astype(np.float64)[:, None]
    p = np.cross(d, c - a)
    det = (p * (b - a)).sum(-1)
    u = ((o - a) * p).sum(-1) / det
    q = np.cross(o - a, b - a)
    v = (d * q).sum(-1) / det
    hit_t = (q * (c - a)).sum(-1) / det
    hit = (u >= 0) & (v >= 0) & (u + v <= 1) & (hit_t >= 0)
    brute = np.where(hit, hit_t, np.inf)
    np.testing.assert_allclose(t, brute.min(axis=1), rtol=2e-5)
    found = np.isfinite(brute.min(axis=1))
    assert (face.numpy() == np.where(found, brute.argmin(axis=1), -1)).all()


def test_cutting_large_faces_for_the_tree_changes_no_answer() -> None:
    rng = np.random.default_rng(6)
    small = trimesh.creation.icosphere(subdivisions=3, radius=0.3)
    mesh = trimesh.util.concatenate([ROOM, small])
    bvh = TriangleBvh(mesh.vertices, mesh.faces, "cpu")
    assert bvh.arrays[3].shape[0] > 2 * len(mesh.faces)
    points = rng.uniform(-4, 4, (500, 3)).astype(np.float32)
    distance_sq, face = bvh.closest(points)
    brute = brute_distance_sq(points, mesh.vertices.astype(np.float32), mesh.faces)
    np.testing.assert_allclose(distance_sq, brute.min(axis=1), rtol=2e-6, atol=1e-12)
    assert int(face.max()) < len(mesh.faces)


def test_many_giant_faces_do_not_explode_the_tree() -> None:
    vertices, faces = soup(np.random.default_rng(7), 20_000, 3.0)
    assert TriangleBvh(vertices, faces, "cpu").arrays[3].shape[0] < 60_000


def test_equal_and_pointlike_faces_build() -> None:
    vertices = np.zeros((3, 3), np.float32)
    bvh = TriangleBvh(vertices, np.zeros((100_000, 3), np.int32), "cpu")
    assert bvh.closest([[3.0, 4.0, 0.0]])[0].item() == 25.0


def test_no_queries_give_no_answers() -> None:
    bvh = TriangleBvh(ROOM.vertices, ROOM.faces, "cpu")
    assert bvh.closest(np.zeros((0, 3)))[0].shape == (0,)
    assert bvh.cast_rays(np.zeros((0, 3)), np.zeros((0, 3)))[0].shape == (0,)


@pytest.mark.parametrize(
    ("vertices", "faces", "names"),
    [
        (np.zeros((0, 3)), np.zeros((0, 3), int), ["0 vertices", "0 faces"]),
        (np.zeros((3, 3)), np.zeros((0, 3), int), ["3 vertices", "0 faces"]),
        (np.zeros((3, 3)), [[0, 1, 3]], ["face 0", "vertex 3", "3 vertices"]),
        (np.zeros((3, 3)), [[0, 1, 2], [0, -1, 2]], ["face 1", "vertex -1"]),
        ([[0, 0, 0], [np.nan, 0, 0], [0, 1, 0]], [[0, 1, 2]], ["vertex 1", "finite"]),
        ([[0, 0, 0], [0, 0, 0], [0, -1e30, 0]], [[0, 1, 2]], ["vertex 2", "beyond"]),
        (np.zeros((3, 2)), [[0, 1, 2]], ["(3, 2)"]),
        (np.zeros((3, 3)), [[0.0, 1.0, 2.0]], ["faces", "float64"]),
    ],
)
def test_unusable_meshes_are_refused_with_the_value(vertices: object, faces: object, names: list[str]) -> None:
    with refused(MeshError, *names):
        TriangleBvh(np.asarray(vertices), np.asarray(faces), "cpu")


def test_odd_shapes_are_refused() -> None:
    bvh = TriangleBvh(ROOM.vertices, ROOM.faces, "cpu")
    with refused(GeometryError, "points", "(n, 3)", "(4,)"):
        bvh.closest(np.zeros(4))
    with refused(GeometryError, "2 origins", "directions", 3):
        bvh.cast_rays(np.zeros((2, 3)), np.zeros((3, 3)))
    with refused(GeometryError, "max_distance", -1):
        bvh.closest(np.zeros((1, 3)), max_distance=-1)
    with refused(GeometryError, "max_t", "nan"):
        bvh.cast_rays(np.zeros((1, 3)), np.ones((1, 3)), max_t=np.nan)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA driver")
def test_cuda_without_a_driver_names_the_way_out() -> None:
    with refused(DeviceError, '"cpu"', '"auto"'):
        resolve_device("cuda")
    with refused(DeviceError, "'gpu'"):
        resolve_device("gpu")
    assert resolve_device("auto") == "cpu"


@pytest.mark.ci
def test_nothing_is_printed_on_stdout() -> None:
    code = (
        "from rollout_assets.geometry.triangle_bvh import TriangleBvh\n"
        "TriangleBvh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]], 'auto').closest([[0.0, 0.0, 1.0]])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize("side", [-1.0, 1.0])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_ray_along_the_rim_of_a_face_hits_it(side: float, axis: int) -> None:
    """The ray lies in a plane of the face's box and runs parallel to it: rounding must not lose it."""
    corners = np.roll(np.array([[0, -1, 2], [0, 1, 2], [side, 0, 2]], np.float32), axis, axis=1)
    start, ahead = np.zeros((1, 3), np.float32), np.roll(np.array([[0, 0, 1]], np.float32), axis, axis=1)
    assert TriangleBvh(corners, [[0, 1, 2]], "cpu").cast_rays(start, ahead)[0].item() == 2.0
