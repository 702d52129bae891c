"""Clouds of a target: fused as the oracle fuses, grown view by view, and sampled without regard to company."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import IDENTITY_POSE, look_along, transform
from rollout_assets.observations.cloud import TakenView, TargetCloud

pytestmark = pytest.mark.quick

EXTENTS = np.ones(3, np.float32)


def cloud_of(world: list[list[float]] | np.ndarray, **config: float) -> TargetCloud:
    return TargetCloud.of(np.array(world, np.float32), IDENTITY_POSE, EXTENTS, ObservationConfig(**config))


def test_the_first_point_of_a_voxel_stays_and_keeps_its_age() -> None:
    cloud = cloud_of([[0.1, 0, 0], [0.101, 0, 0]]).extended(np.array([[0.102, 0, 0], [0.3, 0, 0]], np.float32))
    points, age, mask = cloud.sample(np.array([0, 0, 3], np.float32))
    shown = sorted(zip(points[mask][:, 0].tolist(), age[mask].tolist(), strict=True))
    assert shown == [(pytest.approx(0.1), 1.0), (pytest.approx(0.3), 0.0)]


def test_only_points_of_the_target_or_on_the_way_to_it_are_shown() -> None:
    own, between, behind, aside = [0, 0, 0.5], [0, 0.5, 2.0], [0, 0, -2.0], [2.0, 0, 1.5]
    points, _, mask = cloud_of([own, between, behind, aside]).sample(np.array([0, 0, 3], np.float32))
    assert points[mask].tolist() == [own, between]


def test_points_of_the_target_leave_room_for_existing_others() -> None:
    rng = np.random.default_rng(0)
    own = rng.uniform(-0.4, 0.4, (400, 3))
    alone, *_ = cloud_of(own, points=64).sample(np.array([0, 0, 3], np.float32))
    assert (np.abs(alone).max(axis=1) > 0).all()
    both = np.concatenate([own, rng.uniform(-0.3, 0.3, (400, 3)) + np.array([0, 0, 2])])
    points, _, mask = cloud_of(both, points=64).sample(np.array([0, 0, 3], np.float32))
    assert mask.all() and (points[:, 2] < 1).sum() == 32


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_sample_is_independent_of_point_order_across_voxels(seed: int, views: int) -> None:
    rng = np.random.default_rng(seed)
    cells = np.unique(rng.integers(-20, 20, (60, 3)), axis=0)
    points = (cells * 0.02).astype(np.float32)
    here = np.array([0, 0, 2], np.float32)
    parts, shuffled = np.array_split(points, views), rng.permutation(points)
    grown = cloud_of(parts[0])
    for part in parts[1:]:
        grown = grown.extended(part)
    assert np.array_equal(grown.sample(here)[0], cloud_of(shuffled).sample(here)[0])


def test_a_view_shows_the_points_that_the_camera_unprojects() -> None:
    camera = PinholeCamera(30.0, 40.0, 23.0, 25.0, 48, 48)
    pose = look_along(np.array([1.0, 2.0, 1.5]), np.array([1.0, 0.3, -0.1]))
    depth = np.random.default_rng(1).uniform(0.5, 4.0, (48, 48)).astype(np.float16)
    valid = np.random.default_rng(2).random((48, 48)) > 0.3
    view = TakenView.of(pose, depth, valid, (30.0, 40.0), (23.0, 25.0))
    expected = camera.unproject(depth.astype(np.float32), pose)[valid]
    assert np.allclose(view.points_world(48), expected, atol=1e-5)


def test_a_large_image_is_thinned_to_the_middles_of_equal_parts() -> None:
    depth = np.full((240, 240), 2.0)
    view = TakenView.of(IDENTITY_POSE, depth, depth > 0, (120.0, 120.0), (120.0, 120.0))
    small = PinholeCamera(24.0, 24.0, 24.0, 24.0, 48, 48)
    expected = small.unproject(np.full((48, 48), 2.0), IDENTITY_POSE).reshape(-1, 3)
    assert np.allclose(view.points_world(48), expected, atol=1e-6)


def test_depth_is_rounded_as_a_store_rounds_it() -> None:
    view = TakenView.of(IDENTITY_POSE, np.full((2, 2), 1.23456), np.ones((2, 2), bool), (1.0, 1.0), (1.0, 1.0))
    assert view.depth_m.dtype == np.float16
    assert (view.points_world(2)[:, 2] == np.float32(np.float16(1.23456))).all()


def test_points_are_in_the_targets_frame() -> None:
    pose = look_along(np.array([3.0, 1.0, 0.5]), np.array([0.0, 1.0, 0.0]))
    inside = np.array([[0.1, -0.2, 0.3]], np.float32)
    cloud = TargetCloud.of(transform(pose, inside), pose, EXTENTS, ObservationConfig())
    points, _, mask = cloud.sample(np.array([0, 0, 3], np.float32))
    assert np.allclose(points[mask], inside, atol=1e-6)
