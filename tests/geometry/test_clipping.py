"""The surface inside a box: areas against formulas, obvious twins, and no trace of how a mesh was cut."""

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_assets.geometry.clipping import LATTICE_AXES, clip_to_box, lattice_samples, touching_box
from tests.geometry import naive_clipping

pytestmark = pytest.mark.quick

HALF = np.array([0.4, 0.45, 0.6])


def areas(triangles: np.ndarray) -> np.ndarray:
    return 0.5 * np.linalg.norm(np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]), axis=1)


def cut_in_four(triangles: np.ndarray) -> np.ndarray:
    """Every triangle at the middles of its edges, rounded as a float32 mesh would be."""
    a, b, c = np.moveaxis(triangles, 1, 0)
    ab, bc, ca = (((x + y) / 2).astype(np.float32).astype(np.float64) for x, y in ((a, b), (b, c), (c, a)))
    return np.concatenate([np.stack(part, 1) for part in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))])


def ball(subdivisions: int = 3) -> np.ndarray:
    mesh = trimesh.creation.icosphere(subdivisions, 0.5)
    return (np.asarray(mesh.triangles, np.float32) + np.float32(0.013)).astype(np.float64)


def drawn_triangles(seed: int, count: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (count, 3, 3))


def clip_one_by_one(triangles: np.ndarray, half: np.ndarray) -> list[float]:
    """The obvious twin: each triangle as a polygon, cut by the six planes one after another; areas of what is left."""
    left = []
    for triangle in triangles:
        polygon = list(triangle)
        for axis in range(3):
            for sign in (1.0, -1.0):
                cut = []
                for p, q in zip(polygon, [*polygon[1:], *polygon[:1]], strict=True):
                    dp, dq = half[axis] - sign * p[axis], half[axis] - sign * q[axis]
                    cut += [p] if dp > 0 else []
                    cut += [p + (q - p) * dp / (dp - dq)] if (dp > 0) != (dq > 0) else []
                polygon = cut
        fans = [np.cross(polygon[i] - polygon[0], polygon[i + 1] - polygon[0]) for i in range(1, len(polygon) - 1)]
        left.append(0.5 * float(np.linalg.norm(np.sum(fans, axis=0))) if fans else 0.0)
    return left


@given(st.integers(0, 10_000))
def test_clipped_area_equals_polygon_by_polygon(seed):
    triangles = drawn_triangles(seed)
    assert areas(clip_to_box(triangles, HALF)[0]).sum() == pytest.approx(
        sum(clip_one_by_one(triangles, HALF)), abs=1e-12
    )


@given(st.integers(0, 10_000))
def test_clipped_faces_lie_inside_and_reaching_faces_are_found(seed):
    triangles = drawn_triangles(seed)
    assert (np.abs(clip_to_box(triangles, HALF)[0]) <= HALF + 1e-12).all()
    faces = np.arange(18, dtype=np.int32).reshape(6, 3)
    reaching = {row for row, area in enumerate(clip_one_by_one(triangles, HALF)) if area > 0}
    assert reaching <= set(touching_box(triangles.reshape(-1, 3), faces, HALF).tolist())


def test_a_square_has_its_area_and_a_tilted_one_too():
    for angle in (0.0, 0.3, 0.7):
        turn = trimesh.transformations.rotation_matrix(angle, [1.0, 2.0, -1.0])[:3, :3]
        corners = np.array([[-0.3, -0.3, 0.0], [0.3, -0.3, 0.0], [0.3, 0.3, 0.0], [-0.3, 0.3, 0.0]]) @ turn.T
        square = corners[[[0, 1, 2], [0, 2, 3]]]
        samples = lattice_samples(square, 0.005)
        assert samples.area_m2.sum() == pytest.approx(0.36, rel=0.02)
        assert np.abs(samples.points @ turn[:, 2]).max() < 1e-12


def test_the_area_of_a_cut_ball_is_met_the_closer_the_finer():
    exact = areas(clip_to_box(ball(), HALF)[0]).sum()
    errors = [
        abs(lattice_samples(clip_to_box(ball(), HALF)[0], pitch).area_m2.sum() / exact - 1)
        for pitch in (0.1, 0.03, 0.01)
    ]
    assert errors[2] < 5e-4 and errors[2] < errors[0]


@pytest.mark.parametrize("times", [1, 2])
def test_cutting_every_triangle_in_four_moves_nothing(times):
    coarse = fine = ball()
    for _ in range(times):
        fine = cut_in_four(fine)
    one, other = (lattice_samples(clip_to_box(triangles, HALF)[0], 0.02) for triangles in (coarse, fine))
    assert len(one.points) == len(other.points)
    gaps = [np.abs(other.points - point).max(axis=1) for point in one.points[::7]]
    assert max(gap.min() for gap in gaps) < 2e-6
    twins = other.area_m2[[int(gap.argmin()) for gap in gaps]]
    assert np.abs(one.area_m2[::7] - twins).max() < 1e-8
    assert areas(clip_to_box(coarse, HALF)[0]).sum() == pytest.approx(areas(clip_to_box(fine, HALF)[0]).sum(), rel=1e-6)


def test_a_line_on_a_shared_edge_is_counted_once():
    pitch = 0.1
    corners = np.array([[0.1, -1.0, 0.0], [0.1, 1.0, 0.0], [-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]) @ LATTICE_AXES.T
    kite = corners[[[0, 1, 2], [0, 3, 1]]]
    hits = lattice_samples(kite, pitch).points @ LATTICE_AXES
    on_edge = np.round(hits[np.abs(hits[:, 0] - 0.1) < 1e-9, 1], 6)
    assert len(on_edge) == len(np.unique(on_edge)) >= 19


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_samples_equal_a_line_by_line_search(seed):
    triangles, pitch = drawn_triangles(seed, 2), 0.21
    expected = []
    ticks = np.arange(-9, 10) * pitch
    for axis in range(3):
        u, v = (LATTICE_AXES[:, (axis + step) % 3] for step in (1, 2))
        for a, b, c in triangles:
            for x in ticks:
                for y in ticks:
                    matrix = np.array([[(b - a) @ u, (c - a) @ u], [(b - a) @ v, (c - a) @ v]])
                    s, t = np.linalg.solve(matrix, [x - a @ u, y - a @ v])
                    if s >= 0 and t >= 0 and s + t <= 1:
                        expected.append(a + s * (b - a) + t * (c - a))
    samples = lattice_samples(triangles, pitch)
    assert len(samples.points) == len(expected)
    if expected:
        order, order_twin = np.lexsort(np.round(samples.points, 6).T), np.lexsort(np.round(expected, 6).T)
        assert np.allclose(samples.points[order], np.array(expected)[order_twin], atol=1e-9)


SHAPES = ["drawn", "ball", "wall", "on_the_sides", "degenerate", "none"]


def shape(name: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    if name == "ball":
        return ball()
    if name == "wall":  # two faces much larger than the box
        return np.array([[[-9.0, -8, 0.1], [9, -8, 0.2], [9, 8, 0.1]], [[-9, -8, 0.1], [9, 8, 0.1], [-9, 8, 0.3]]])
    if name == "on_the_sides":
        return rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], (200, 3, 3)) * HALF
    if name == "degenerate":
        return np.repeat(rng.uniform(-0.3, 0.3, (5, 1, 3)), 3, axis=1)
    return drawn_triangles(7, 0 if name == "none" else 500)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("room", [4, 1 << 14])
def test_compiled_clipping_has_the_bits_of_the_twin(name, room):
    triangles = shape(name)
    parts, source = clip_to_box(triangles, HALF, room)
    parts_twin, source_twin = naive_clipping.clip_to_box(triangles, HALF)
    assert same_bits(parts, parts_twin) and same_bits(source, source_twin)
    samples, twin = lattice_samples(parts, 0.031, room), naive_clipping.lattice_samples(parts, 0.031)
    assert same_bits(samples.points, twin.points)
    assert same_bits(samples.area_m2, twin.area_m2) and same_bits(samples.triangle, twin.triangle)


@pytest.mark.parametrize("name", SHAPES)
def test_the_faces_that_reach_a_box_are_those_of_the_twin(name):
    corners, centre = shape(name).reshape(-1, 3).astype(np.float32), np.array([0.1, -0.2, 0.05])
    faces = np.random.default_rng(1).permutation(len(corners)).astype(np.int32).reshape(-1, 3)
    assert same_bits(touching_box(corners, faces, HALF), naive_clipping.touching_box(corners, faces, HALF))
    moved = corners - centre.astype(np.float32)
    twin = naive_clipping.touching_box(moved, faces, HALF)
    assert same_bits(touching_box(corners, faces, HALF, centre), twin)
