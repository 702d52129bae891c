"""The surface error against brute force in double precision, against analytic answers, and its promises about bits."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh

from rollout_assets.config import OracleConfig
from rollout_assets.errors import GeometryError, MeshError
from rollout_assets.oracle import naive
from rollout_assets.oracle.crops import MIN_TRIANGLE_AREA_M2
from rollout_assets.oracle.surface_error import PointClouds, Surface, SurfaceState, triangle_areas
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

PLENTY = 1 << 30
KINDS = ("soup", "slivers", "degenerate", "smooth", "far", "giant")


def random_mesh(rng: np.random.Generator, kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    if kind == "smooth":
        mesh = trimesh.creation.icosphere(subdivisions=2, radius=0.4)
        return mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32)
    size = {"giant": 2.0}.get(kind, 0.1)
    corners = rng.normal(0, 0.5, (count, 1, 3)) + rng.normal(0, size, (count, 3, 3))
    if kind == "slivers":
        corners[:, 2] = 0.3 * corners[:, 0] + 0.7 * corners[:, 1] + rng.normal(0, 1e-6, (count, 3))
    if kind == "degenerate":
        corners[::2, 2] = corners[::2, 1]
        corners[::4, 1] = corners[::4, 0]
    if kind == "far":
        corners += 200.0
    return corners.reshape(-1, 3).astype(np.float32), np.arange(3 * count, dtype=np.int32).reshape(-1, 3)


def random_points(rng: np.random.Generator, vertices: np.ndarray, faces: np.ndarray, count: int) -> np.ndarray:
    """Points near faces, exactly on corners and edges, twice the same, and far away."""
    chosen = vertices[faces[rng.integers(len(faces), size=count)]]
    share = rng.dirichlet(np.ones(3), count)
    share[::5] = [1, 0, 0]
    share[1::5] = [0.5, 0.5, 0]
    points = np.einsum("nk,nkc->nc", share, chosen) + rng.normal(0, 1, (count, 3)) * rng.choice(
        [0, 0.01, 0.3], (count, 1)
    )
    points[-1] = points[0]
    return points.astype(np.float32)


@pytest.mark.parametrize("case", range(200))
def test_equals_brute_force_within_1e_5(case: int) -> None:
    rng = np.random.default_rng(case)
    kind = KINDS[case % len(KINDS)]
    faces_wanted = [1, 2, 7, 33, 150][case % 5]
    vertices, faces = random_mesh(rng, kind, faces_wanted)
    config = OracleConfig(
        face_weighting="area" if case % 3 == 0 and kind != "degenerate" else "uniform",
        distance="pytorch3d" if case % 4 == 1 else "true",
        crop_policy="vertex_in_box",
    )
    current = random_points(rng, vertices, faces, int(rng.integers(1, 120)))
    new = random_points(rng, vertices, faces, int(rng.integers(2, 120)))[: 0 if case % 11 == 0 else None]
    min_area = MIN_TRIANGLE_AREA_M2 if config.distance == "pytorch3d" else 0.0
    surface = Surface.of_faces(vertices, faces, "cpu", config.face_weighting, min_area)
    state = surface.extended(surface.unseen(), current)
    joined = surface.joined([state], PointClouds.of([new], "cpu"), np.zeros(1, np.int64), PLENTY)
    before, after = float(surface.error(state)), float(surface.error(joined)[0])
    slow_before = naive.whole_faces(vertices, faces, config).error(current)
    slow_after = naive.whole_faces(vertices, faces, config).error(np.concatenate([current, new]))
    assert before == pytest.approx(slow_before, rel=1e-5, abs=1e-12)
    assert after == pytest.approx(slow_after, rel=1e-5, abs=1e-12)
    if slow_before > 1e-9:
        assert (before - after) / before == pytest.approx((slow_before - slow_after) / slow_before, abs=1e-5)
    if len(new) == 0:
        assert after == before


@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=pytest.mark.ci)])
def test_large_meshes_equal_brute_force(count: int) -> None:
    rng = np.random.default_rng(count)
    vertices, faces = random_mesh(rng, "soup", count)
    points = random_points(rng, vertices, faces, 16)
    surface = Surface.of_faces(vertices, faces, "cpu")
    slow = naive.whole_faces(vertices, faces, OracleConfig(face_weighting="uniform")).error(points)
    assert float(surface.error(surface.extended(surface.unseen(), points))) == pytest.approx(slow, rel=1e-5)


def test_points_off_a_sphere_are_off_by_their_distance() -> None:
    """An icosphere lies up to its sagitta inside the sphere; the accuracy tends to d² as it is refined."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(4000, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    gaps = []
    for subdivisions in (2, 3, 4):
        sphere = trimesh.creation.icosphere(subdivisions=subdivisions, radius=0.5)
        surface = Surface.of_faces(sphere.vertices.astype(np.float32), sphere.faces.astype(np.int32), "cpu")
        state = surface.extended(surface.unseen(), (directions * 0.55).astype(np.float32))
        gaps.append(abs(state.point_sum / state.point_count - 0.05**2) / 0.05**2)
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.02


def test_points_on_the_surface_have_no_accuracy_error() -> None:
    sphere = trimesh.creation.icosphere(subdivisions=3, radius=0.5)
    surface = Surface.of_faces(sphere.vertices.astype(np.float32), sphere.faces.astype(np.int32), "cpu")
    on_edges = sphere.vertices[sphere.edges].mean(axis=1).astype(np.float32)
    assert surface.extended(surface.unseen(), on_edges).point_sum / len(on_edges) < 1e-14


def test_completeness_is_from_the_whole_triangle_not_its_centre() -> None:
    vertices = np.array([[0, 0, 0], [100, 0, 0], [0, 100, 0]], np.float32)
    surface = Surface.of_faces(vertices, np.array([[0, 1, 2]], np.int32), "cpu")
    state = surface.extended(surface.unseen(), np.array([[0.25, 0.25, 0.5]], np.float32))
    assert float(surface.error(state)) == pytest.approx(2 * 0.5**2, rel=1e-7)


def test_area_weights_count_area() -> None:
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [5, 0, 0], [7, 0, 0], [5, 2, 0]], np.float32)
    faces = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    point = np.array([[0.1, 0.1, 0.0]], np.float32)
    far_sq = 4.9**2 + 0.0  # from (0.1, 0.1) to the edge x = 5
    for weighting, share in (("uniform", 1 / 2), ("area", 4 / 5)):
        surface = Surface.of_faces(vertices, faces, "cpu", weighting)  # type: ignore[arg-type]
        assert float(surface.error(surface.extended(surface.unseen(), point))) == pytest.approx(
            share * far_sq, rel=1e-6
        )


def test_pytorch3d_distance_sees_small_triangles_as_edges() -> None:
    vertices = np.array([[0, 0, 0], [0.09, 0, 0], [0, 0.09, 0], [1, 0, 0], [2, 0, 0], [1, 1, 0]], np.float32)
    faces = np.array([[0, 1, 2], [3, 4, 5]], np.int32)
    assert (triangle_areas(vertices, faces) < MIN_TRIANGLE_AREA_M2).tolist() == [True, False]
    surface = Surface.of_faces(vertices, faces, "cpu", min_area_m2=MIN_TRIANGLE_AREA_M2)
    inside = np.array([[0.02, 0.02, 0], [1.2, 0.2, 0]], np.float32)
    assert surface.extended(surface.unseen(), inside).point_sum == pytest.approx(0.02**2, rel=1e-5)


def test_adding_in_steps_equals_adding_at_once() -> None:
    rng = np.random.default_rng(1)
    vertices, faces = random_mesh(rng, "soup", 500)
    points = random_points(rng, vertices, faces, 900)
    surface = Surface.of_faces(vertices, faces, "cpu")
    state = surface.unseen()
    for part in np.split(points, [100, 101, 500]):
        state = surface.extended(state, part)
    at_once = surface.extended(surface.unseen(), points)
    assert state.point_count == at_once.point_count
    np.testing.assert_allclose(state.minima_sq.numpy(), at_once.minima_sq.numpy(), rtol=1e-6, atol=1e-14)
    assert float(surface.error(state)) == pytest.approx(float(surface.error(at_once)), rel=1e-7)


def _case() -> tuple[Surface, list[SurfaceState], list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(2)
    vertices, faces = random_mesh(rng, "soup", 700)
    surface = Surface.of_faces(vertices, faces, "cpu")
    states = [surface.extended(surface.unseen(), random_points(rng, vertices, faces, n)) for n in (50, 400)]
    clouds = [random_points(rng, vertices, faces, int(n)) for n in rng.integers(2, 300, 23)]
    clouds[5] = clouds[5][:0]
    return surface, states, clouds, rng.integers(0, 2, 23)


@pytest.mark.parametrize("max_bytes", [1, 10_000, 100_000])
def test_the_byte_budget_changes_no_bit(max_bytes: int) -> None:
    surface, states, clouds, owner = _case()
    whole = surface.joined(states, PointClouds.of(clouds, "cpu"), owner, PLENTY)
    split = surface.joined(states, PointClouds.of(clouds, "cpu"), owner, max_bytes)
    assert (surface.error(whole) == surface.error(split)).all()


def test_the_order_of_clouds_changes_no_bit() -> None:
    surface, states, clouds, owner = _case()
    forward = surface.error(surface.joined(states, PointClouds.of(clouds, "cpu"), owner, PLENTY))
    turned = surface.error(surface.joined(states, PointClouds.of(clouds[::-1], "cpu"), owner[::-1], PLENTY))
    assert (forward == turned[::-1]).all()


def test_extended_equals_joined_to_the_bit() -> None:
    surface, states, clouds, owner = _case()
    joined = surface.error(surface.joined(states, PointClouds.of(clouds, "cpu"), owner, PLENTY))
    for index, (cloud, which) in enumerate(zip(clouds, owner, strict=True)):
        assert float(surface.error(surface.extended(states[which], cloud))) == joined[index]


def test_no_points_is_an_infinite_error() -> None:
    surface, *_ = _case()
    assert float(surface.error(surface.unseen())) == np.inf


def test_a_point_that_is_not_finite_is_refused() -> None:
    with refused(GeometryError, "point 1", "[nan, 0.0, 0.0]"):
        PointClouds.of([np.array([[0, 0, 0], [np.nan, 0, 0]], np.float32)], "cpu")


def test_area_weights_without_area_are_refused() -> None:
    with refused(MeshError, "0.0"):
        Surface.of_faces(np.zeros((3, 3), np.float32), np.array([[0, 1, 2]], np.int32), "cpu", "area")
