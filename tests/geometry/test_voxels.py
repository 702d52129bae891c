import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rollout_assets.errors import GeometryError
from rollout_assets.geometry.voxels import VoxelGrid, voxel_keys
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

POINTS = arrays.arrays(
    np.float32, st.tuples(st.integers(0, 60), st.just(3)), elements=st.floats(-0.125, 0.125, width=32)
)


def naive_first(points: np.ndarray, voxel_m: float) -> list[int]:
    seen, kept = set(), []
    for i, point in enumerate(points.astype(np.float64)):
        cell = tuple(np.floor(point / voxel_m).tolist())
        if cell not in seen:
            seen.add(cell)
            kept.append(i)
    return kept


@given(POINTS)
def test_first_point_of_each_voxel_stays(points):
    assert VoxelGrid(0.02).first(points).tolist() == naive_first(points, 0.02)


def test_cells_start_at_their_lower_corner():
    keys = voxel_keys([[0, 0, 0], [0.99, 0, 0], [1, 0, 0], [-1e-6, 0, 0]], 1.0)
    assert keys[0] == keys[1] and len(set(keys.tolist())) == 3


def test_far_apart_points_have_different_keys():
    rng = np.random.default_rng(0)
    points = rng.integers(-(2**20), 2**20, (10_000, 3)).astype(np.float64)
    assert len(np.unique(voxel_keys(points, 1.0))) == len(np.unique(points, axis=0))


@pytest.mark.parametrize(
    ("points", "voxel_m", "names"),
    [
        ([[0, 0, 0]], 0.0, ["voxel_m", "got 0"]),
        ([[0, 0]], 1.0, ["(n, 3)", "(1, 2)"]),
        ([[0, 0, 0], [0, np.nan, 0]], 1.0, ["point 1", "finite"]),
        ([[3e6, 0, 0]], 1.0, [1048576]),
    ],
)
def test_bad_points_are_refused_with_their_value(points, voxel_m, names):
    with refused(GeometryError, *names):
        voxel_keys(points, voxel_m)
