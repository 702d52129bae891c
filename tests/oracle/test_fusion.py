"""Voxel fusion on the device against doing it point by point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_assets.config import OracleConfig
from rollout_assets.errors import GeometryError
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.geometry.voxels import VoxelGrid, voxel_keys
from rollout_assets.oracle import naive
from rollout_assets.oracle.fusion import FusedCloud, fusion_grid
from rollout_assets.oracle.raycast import EVERYWHERE, ViewPoints, render_depth
from tests.oracle.rooms import CAMERA, room_mesh, root_points, views
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

NO_BOXES = np.zeros((0, 15))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 300), st.integers(0, 300))
def test_extending_keeps_the_first_point_of_every_voxel(seed: int, current: int, new: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = (rng.integers(-9, 9, (n, 3)).astype(np.float32) * np.float32(0.005) for n in (current, new))
    cloud = FusedCloud.of(first, VoxelGrid(0.02), "cpu")
    slow = naive.fuse(np.zeros((0, 3), np.float32), first, VoxelGrid(0.02))
    assert np.array_equal(cloud.points, slow)
    assert np.array_equal(cloud.extended(second).points, naive.fuse(slow, second, VoxelGrid(0.02)))


@pytest.mark.parametrize(("origin", "undecided_mm"), [("zero", 0), ("half_voxel", 10), ("off_grid", None)])
def test_rounding_decides_only_on_the_borders_of_the_grid(origin: str, undecided_mm: int | None) -> None:
    """Which voxel a surface at a whole millimetre is in, with noise to both sides of it."""
    grid = fusion_grid(OracleConfig(voxel_origin=origin))
    millimetres = np.arange(-6_000, 6_000)
    places = np.repeat(millimetres[:, None] * 1e-3, 3, axis=1)
    undecided = millimetres[grid.keys(places - 1e-6) != grid.keys(places + 1e-6)]
    expected = [] if undecided_mm is None else millimetres[millimetres % 20 == undecided_mm]
    assert undecided.tolist() == list(expected)


def test_a_table_holds_exactly_the_voxels_of_its_points() -> None:
    cloud = FusedCloud.of(root_points(room_mesh()), VoxelGrid(0.02), "cpu")
    table = cloud.table.numpy()
    keys = table[table >= 0]
    assert sorted(keys.tolist()) == sorted(voxel_keys(cloud.points, 0.02).tolist())
    assert 2 * len(keys) <= len(table)


@pytest.mark.parametrize("stride", [1, 2, 5])
def test_new_points_of_views_equal_the_naive_twin(stride: int) -> None:
    mesh = room_mesh()
    config = OracleConfig(device="cpu", pixel_stride=stride, voxel_origin="zero")
    bvh = TriangleBvh(mesh.vertices, mesh.faces, "cpu")
    camera = CAMERA.resized(48, 44)
    poses = views(9)
    clouds = [FusedCloud.of(root_points(mesh, count, seed=count), VoxelGrid(0.02), "cpu") for count in (0, 500, 3000)]
    of_view = np.arange(9) % 3
    counts, new = ViewPoints(bvh, poses, camera, clouds, of_view, config).new_in(NO_BOXES, np.full(9, EVERYWHERE))
    depths = render_depth(bvh, poses, camera, config.znear_m, config.zfar_m).depth_m.numpy()
    for view in range(9):
        seen = naive.back_project(depths[view], poses[view], camera, stride)
        current = clouds[of_view[view]].points
        expected = naive.fuse(current, seen, VoxelGrid(0.02))[len(current) :]
        got = new.points.numpy()[new.offsets[view] : new.offsets[view + 1]]
        assert np.array_equal(got, expected)
        assert counts[view].tolist() == [len(seen), len(seen), len(expected)]


def test_points_that_are_not_finite_are_refused() -> None:
    with refused(GeometryError, "point 1", "[0.0, inf, 0.0]"):
        FusedCloud.of(np.array([[0, 0, 0], [0, np.inf, 0]]), VoxelGrid(0.02), "cpu")
