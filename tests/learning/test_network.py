"""The reference network: it sees geometry, and what it says of a view does not depend on its place in a list."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rollout_assets.config.network import NetworkConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import IDENTITY_POSE, look_along
from rollout_assets.learning.network import ViewNetwork, augmented
from rollout_assets.learning.sight import box_patches, sight_of
from rollout_assets.observations.assemble import ObservedState, ObservedTarget, observe
from rollout_assets.observations.cloud import TargetCloud
from rollout_assets.observations.observation import Observations

pytestmark = pytest.mark.quick

CONFIG = ObservationConfig(points=128)
EXTENTS = np.array([0.6, 1.0, 0.8], np.float32)


def observations(states: int = 4, k: int = 9, seed: int = 0) -> Observations[Tensor]:
    rng = np.random.default_rng(seed)
    return observe([state(rng, k) for _ in range(states)], CONFIG).mapped(torch.from_numpy).mapped(as_double)


def as_double(values: Tensor) -> Tensor:
    return values.double() if values.is_floating_point() else values


def state(rng: np.random.Generator, k: int) -> ObservedState:
    around = rng.normal(size=(k + 1, 3)) * 0.4 + np.array([2.5, 0.0, 0.3])
    poses = look_along(around, -around)
    cloud = TargetCloud.of(rng.normal(size=(300, 3)).astype(np.float32) * 0.5, IDENTITY_POSE, EXTENTS, CONFIG)
    return ObservedState(
        target=ObservedTarget(IDENTITY_POSE, EXTENTS, "chair", 0.9, (12.0, 0.0, 12.0)),
        camera=PinholeCamera(30.0, 30.0, 24.0, 24.0, 48, 48),
        cloud=cloud,
        poses_world_camera=poses[1:],
        position_id=np.arange(k, dtype=np.int32) % 6,
        motion=rng.random((k, 4)).astype(np.float32),
        takeable=rng.random(k) > 0.3,
        taken_world_camera=poses[:1],
        steps_left=2,
    )


@pytest.fixture(scope="module")
def network() -> ViewNetwork:
    torch.manual_seed(0)
    return ViewNetwork(NetworkConfig()).double().eval()


def test_it_is_small(network):
    assert sum(weights.numel() for weights in network.parameters()) < 2_000_000


def test_the_order_of_views_changes_nothing(network):
    given = observations()
    order = torch.randperm(given.candidate_mask.shape[1])
    columns = {name: value[:, order] for name, value in given.arrays().items() if name.startswith("candidate_")}
    mask = given.candidate_mask[:, order]
    values, turned = network(given), network(replace(given, **columns))
    assert torch.allclose(values.gain[:, order][mask], turned.gain[mask], atol=1e-12)
    assert torch.allclose(values.q[:, order][mask], turned.q[mask], atol=1e-12)


def test_views_that_cannot_be_taken_and_states_beside_change_nothing(network):
    given = observations()
    wide = {
        name: torch.nn.functional.pad(value, [0, 0] * (value.ndim - 2) + [0, 5])
        for name, value in given.arrays().items()
        if name.startswith("candidate_")
    }
    values, padded = network(given), network(replace(given, **wide))
    mask = given.candidate_mask
    assert torch.allclose(values.gain[mask], padded.gain[:, : mask.shape[1]][mask], atol=1e-12)
    alone = network(given.mapped(lambda rows: rows[1:2]))
    assert torch.allclose(values.gain[1][mask[1]], alone.gain[0][mask[1]], atol=1e-12)


def test_a_state_without_any_view_gives_numbers_all_the_same(network):
    given = observations()
    nothing = replace(given, candidate_mask=torch.zeros_like(given.candidate_mask))
    assert torch.isfinite(network(nothing).gain).all()


def test_a_mirrored_state_is_seen_as_in_a_mirror():
    torch.manual_seed(3)
    given = observations(16)
    mirrored = augmented(given)
    flipped = (mirrored.points[..., 1] != given.points[..., 1]).any(dim=1)
    assert 0 < int(flipped.sum()) < len(flipped)
    side = 4
    centers, _, _ = box_patches(given.target_extents, side)
    image = centers[0] * torch.tensor([1.0, -1.0, 1.0], dtype=centers.dtype)
    partner = torch.cdist(image, centers[0]).argmin(dim=1)
    before, after = sight_of(given, side), sight_of(mirrored, side)
    mask = given.candidate_mask & flipped[:, None]
    assert torch.allclose(before.pairs[mask], after.pairs[:, :, partner][mask], atol=1e-9)


def test_a_patch_is_seen_from_its_front_only_and_not_through_points():
    given = observations(1, k=1)
    pose = torch.from_numpy(look_along(np.array([3.0, 0.0, 0.0]), np.array([-1.0, 0.0, 0.0]))).double()
    wall = torch.zeros_like(given.points)
    wall[0, :, 0] = 1.5
    wall[0, :, 1:] = torch.rand(CONFIG.points, 2, dtype=torch.float64) - 0.5
    looking = replace(given, candidate_pose_target=pose[None, None], candidate_mask=torch.ones(1, 1, dtype=torch.bool))
    _, normals, _ = box_patches(given.target_extents, 4)
    front = normals[0, :, 0] > 0
    facing = sight_of(replace(looking, point_mask=torch.zeros_like(given.point_mask)), 4).pairs[0, 0, :, 4]
    assert (facing[front] > 0.8).all() and (facing[normals[0, :, 0] < 0] == 0).all()
    behind_wall = sight_of(replace(looking, points=wall, point_mask=torch.ones_like(given.point_mask)), 4)
    assert (behind_wall.pairs[0, 0, front, 4] < 0.01).float().mean() > 0.8


def test_patches_cover_the_box():
    extents = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    centers, normals, area = box_patches(extents, 4)
    assert centers.shape == (1, 96, 3)
    assert torch.allclose(area.sum(dim=1), torch.ones(1, dtype=torch.float64))
    on_face = (centers.abs() * normals.abs()).sum(-1)
    assert torch.allclose(on_face, (normals.abs() * extents[:, None] / 2).sum(-1))
