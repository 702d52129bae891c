"""Depth images against analytic answers and against the naive twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import trimesh

from rollout_assets.errors import GeometryError
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import IDENTITY_POSE, look_along
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.oracle import naive
from rollout_assets.oracle.raycast import checked_poses, render_depth
from tests.oracle.rooms import CAMERA, room_mesh, views
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

WALL = TriangleBvh([[-50, -50, 2], [50, -50, 2], [50, 50, 2], [-50, 50, 2]], [[0, 1, 2], [0, 2, 3]], "cpu")


def test_a_plane_has_the_same_depth_in_every_pixel() -> None:
    images = render_depth(WALL, IDENTITY_POSE[None], CAMERA, 0.001, 20.0)
    assert images.depth_m.shape == (1, 480, 480)
    assert images.valid.all()
    torch.testing.assert_close(images.depth_m, torch.full((1, 480, 480), 2.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("znear", "zfar", "seen"), [(0.001, 2.0, False), (0.001, 2.03, True), (1.99, 20, False), (1.97, 20, True)]
)
def test_depth_counts_between_near_and_far(znear: float, zfar: float, seen: bool) -> None:
    images = render_depth(WALL, IDENTITY_POSE[None], CAMERA.resized(8, 8), znear, zfar)
    assert bool(images.valid.all()) == bool(images.valid.any()) == seen
    assert (images.depth_m > 0).all() == seen


def test_a_near_surface_hides_what_is_behind_it() -> None:
    two = TriangleBvh(
        [[-9, -9, 0.5], [9, -9, 0.5], [0, 9, 0.5], [-9, -9, 2], [9, -9, 2], [0, 9, 2]], [[0, 1, 2], [3, 4, 5]], "cpu"
    )
    assert not render_depth(two, IDENTITY_POSE[None], CAMERA.resized(4, 4), 1.0, 20.0).valid.any()


def test_left_up_forward_is_right_in_the_image() -> None:
    """A surface at +X (left) appears at small u, one at +Y (up) at small v."""
    patch = np.array([[0.5, 0.5, 1], [2, 0.5, 1], [2, 2, 1], [0.5, 2, 1]], np.float32)
    bvh = TriangleBvh(patch, [[0, 1, 2], [0, 2, 3]], "cpu")
    valid = render_depth(bvh, IDENTITY_POSE[None], PinholeCamera(10, 10, 10, 10, 20, 20), 0.001, 20.0).valid[0]
    assert valid[:5, :5].all()
    assert not valid[5:].any()
    assert not valid[:, 5:].any()


def test_equals_the_naive_twin() -> None:
    mesh = room_mesh()
    vertices, faces = mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32)
    camera = CAMERA.resized(24, 20)
    poses = views(6)
    fast = render_depth(TriangleBvh(vertices, faces, "cpu"), poses, camera, 0.001, 20.0).depth_m.numpy()
    slow = np.stack([naive.depth(vertices, faces, pose, camera, 0.001, 20.0) for pose in poses])
    np.testing.assert_allclose(fast, slow, rtol=2e-6)


def test_far_from_the_origin_equals_the_naive_twin() -> None:
    mesh = trimesh.creation.box((4.0, 4.0, 4.0))
    vertices, faces = (mesh.vertices + 200).astype(np.float32), mesh.faces.astype(np.int32)
    pose = look_along(np.array([[200.1, 199.7, 200.2]]), np.array([[0.3, 1.0, 0.2]]))
    camera = CAMERA.resized(12, 12)
    fast = render_depth(TriangleBvh(vertices, faces, "cpu"), pose, camera, 0.001, 20.0).depth_m.numpy()[0]
    np.testing.assert_allclose(fast, naive.depth(vertices, faces, pose[0], camera, 0.001, 20.0), rtol=2e-6)


def test_a_view_does_not_depend_on_its_batch() -> None:
    mesh = room_mesh()
    bvh = TriangleBvh(mesh.vertices, mesh.faces, "cpu")
    poses = views(7)
    together = render_depth(bvh, poses, CAMERA.resized(240, 240), 0.001, 20.0).depth_m
    alone = torch.cat(
        [render_depth(bvh, poses[i : i + 1], CAMERA.resized(240, 240), 0.001, 20.0).depth_m for i in range(7)]
    )
    assert torch.equal(together, alone)


def test_no_views_give_no_images() -> None:
    assert render_depth(WALL, np.zeros((0, 12)), CAMERA, 0.001, 20.0).depth_m.shape == (0, 480, 480)


def test_bad_poses_and_cameras_are_refused_with_the_value() -> None:
    poses = views(3)
    poses[1, 4] = np.nan
    with refused(GeometryError, "pose 1", "nan"):
        render_depth(WALL, poses, CAMERA, 0.001, 20.0)
    with refused(GeometryError, "(n, 12)", "(3, 4)"):
        checked_poses(np.zeros((3, 4)))
    with refused(GeometryError, "fx_px", 0):
        PinholeCamera(0, 1, 1, 1, 2, 2)
    with refused(GeometryError, "height_px", -2):
        PinholeCamera(1, 1, 1, 1, -2, 2)
