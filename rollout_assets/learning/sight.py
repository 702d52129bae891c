"""What a candidate would see of the target's box, computed from what the actor knows: no weights are in here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rollout_assets.observations.observation import Observations

CELLS = 12
"""Cells along each side of the coarse depth image that known points make for a candidate."""

OCCLUSION_M = 0.1
"""A known point this much nearer than a patch hides it."""

FAR_M = 2.0
"""Distances to known points are cut off here."""

PATCH_FEATURES = 3 + 3 + 3 + 6
PAIR_FEATURES = 8
CANDIDATE_FEATURES = 3 + 3 + 3 + 4 + 6 + 5
STATE_FEATURES = 3 + 1 + 3 + 3 + 1 + 2


@dataclass(frozen=True, eq=False)
class Sight:
    """Patches of the target's box, as b states of p patches know them and k candidates see them.

    patches: (b, p, PATCH_FEATURES), pairs: (b, k, p, PAIR_FEATURES), area: (b, p) share of the box's surface.
    """

    patches: Tensor
    pairs: Tensor
    area: Tensor


@torch.no_grad()
def sight_of(observations: Observations[Tensor], side: int) -> Sight:
    """The patches of every state, ``side`` x ``side`` on each of the box's six faces."""
    centers, normals, area = box_patches(observations.target_extents, side)
    known = _known(centers, observations)
    extents = observations.target_extents[:, None].expand_as(centers)
    patches = torch.cat([centers, normals, extents, known], dim=-1)
    return Sight(patches, _pairs(centers, normals, known[..., :1], observations), area)


def box_patches(extents: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """extents: (b, 3) -> centres and normals (b, p, 3) in the box's frame and shares of its surface (b, p)."""
    steps = (torch.arange(side, dtype=extents.dtype, device=extents.device) + 0.5) / side - 0.5
    u, v = (grid.reshape(-1) for grid in torch.meshgrid(steps, steps, indexing="ij"))
    centers, normals, areas = [], [], []
    for axis in range(3):
        for sign in (-0.5, 0.5):
            place = torch.zeros(len(u), 3, dtype=extents.dtype, device=extents.device)
            normal = torch.zeros_like(place)
            place[:, axis], normal[:, axis] = sign, 2 * sign
            place[:, (axis + 1) % 3], place[:, (axis + 2) % 3] = u, v
            centers.append(place * extents[:, None])
            normals.append(normal.expand(len(extents), -1, -1))
            size = extents[:, (axis + 1) % 3] * extents[:, (axis + 2) % 3]
            areas.append(size[:, None].expand(-1, len(u)))
    area = torch.cat(areas, dim=1)
    return torch.cat(centers, dim=1), torch.cat(normals, dim=1), area / area.sum(dim=1, keepdim=True)


def _known(centers: Tensor, observations: Observations[Tensor]) -> Tensor:
    """(b, p, 6) what is known near each patch: distances to the nearest point, also among the newest and the
    recording's own points, how many lie within three radii, all in metres or logarithms of counts."""
    distance = torch.cdist(centers, observations.points)
    absent = ~observations.point_mask[:, None]
    distance = distance.masked_fill(absent, FAR_M)
    newest = distance.masked_fill(observations.point_age[:, None] > 0, FAR_M)
    near = [((distance < radius) & ~absent).sum(dim=-1) for radius in (0.05, 0.1, 0.2)]
    counts = [torch.log1p(count.to(distance.dtype)) for count in near]
    return torch.stack([_nearest(distance), _nearest(newest), _soft(distance), *counts], dim=-1)


def _nearest(distance: Tensor) -> Tensor:
    return distance.min(dim=-1).values.clamp(max=FAR_M)


def _soft(distance: Tensor) -> Tensor:
    """How densely known the neighbourhood is: the sum of a bump of 0.1 m around every point, as a logarithm."""
    return torch.log1p(torch.exp(-((distance / 0.1) ** 2)).sum(dim=-1))


def _pairs(centers: Tensor, normals: Tensor, nearest: Tensor, observations: Observations[Tensor]) -> Tensor:
    """(b, k, p, PAIR_FEATURES): how each candidate sees each patch."""
    pose = observations.candidate_pose_target
    origin = pose[..., 9:]
    to_view = origin[:, :, None] - centers[:, None]
    distance = torch.linalg.vector_norm(to_view, dim=-1).clamp(min=1e-3)
    cosine = (to_view * normals[:, None]).sum(-1) / distance
    image = _in_image(centers, pose, observations.camera)
    inside = _inside(image)
    hidden_by = image[..., 2] - _depth_before(image, observations)
    clear = torch.sigmoid((OCCLUSION_M - hidden_by) * 20.0) * inside
    facing = cosine.clamp(min=0.0)
    unknown = nearest[:, None, :, 0].expand_as(cosine)
    return torch.stack(
        [
            cosine,
            distance / 2.0,
            inside,
            clear,
            facing * clear,
            facing * clear * unknown,
            facing * clear * unknown * unknown,
            facing * clear / distance.square().clamp(min=0.04),
        ],
        dim=-1,
    )


def _in_image(points: Tensor, pose: Tensor, camera: Tensor) -> Tensor:
    """points: (b, n, 3) in the target's frame, pose: (b, k, 12) -> (b, k, n, 3): place in the image, 0 to 1, and depth.

    The camera's axes are left, up and forward.
    """
    turned = pose[..., :9].unflatten(-1, (3, 3))
    shift = (pose[..., None, 9:] * turned.transpose(-1, -2)).sum(-1)
    local = torch.matmul(points[:, None], turned) - shift[:, :, None]
    depth = local[..., 2]
    front = depth.clamp(min=1e-3)
    fx, fy, cx, cy = (camera[:, index, None, None] for index in range(4))
    return torch.stack([cx - fx * local[..., 0] / front, cy - fy * local[..., 1] / front, depth], dim=-1)


def _inside(image: Tensor) -> Tensor:
    u, v, depth = image.unbind(-1)
    return ((u > 0) & (u < 1) & (v > 0) & (v < 1) & (depth > 0.05)).to(image.dtype)


def _depth_before(image: Tensor, observations: Observations[Tensor]) -> Tensor:
    """(b, k, p) depth of the nearest known point in the image's cell of each patch; far away where there is none."""
    points = _in_image(observations.points, observations.candidate_pose_target, observations.camera)
    seen = (_inside(points) > 0) & observations.point_mask[:, None]
    depth = points[..., 2].masked_fill(~seen, 5 * FAR_M)
    buffer = torch.full((*depth.shape[:2], CELLS * CELLS), 5 * FAR_M, dtype=depth.dtype, device=depth.device)
    buffer = buffer.scatter_reduce(2, _cells(points), depth, "amin")
    return buffer.gather(2, _cells(image))


def _cells(image: Tensor) -> Tensor:
    u, v = ((image[..., axis] * CELLS).clamp(0, CELLS - 1).to(torch.int64) for axis in (0, 1))
    return v * CELLS + u


def candidate_features(observations: Observations[Tensor]) -> Tensor:
    """(b, k, CANDIDATE_FEATURES): where a candidate stands and looks, how it gets there, how new its direction is."""
    pose = observations.candidate_pose_target
    place = pose[..., 9:]
    half = 0.5 * observations.target_extents[:, None]
    distance = torch.linalg.vector_norm(place, dim=-1, keepdim=True).clamp(min=1e-3)
    size = torch.linalg.vector_norm(half, dim=-1, keepdim=True)
    outside = torch.linalg.vector_norm((place.abs() - half).clamp(min=0.0), dim=-1, keepdim=True)
    direction = place / distance
    motion = observations.candidate_motion * torch.tensor(
        [1.0, 4.0, 4.0, 1 / 60], dtype=place.dtype, device=place.device
    )
    position = torch.nn.functional.one_hot(observations.candidate_position.clamp(min=0), 6).to(place.dtype)
    forward = pose[..., [2, 5, 8]]
    turn = _turns(direction, observations)
    scalars = torch.cat([distance / 2, outside, size / distance], dim=-1)
    return torch.cat(
        [place / 2, direction, scalars, motion, position, turn, (forward * direction).sum(-1, True)], dim=-1
    )


def _turns(direction: Tensor, observations: Observations[Tensor]) -> Tensor:
    """(b, k, 4): cosines of the angle around the target to the nearest pose taken and to the present one, and how much
    nearer the candidate is than each of the two."""
    taken = observations.taken_pose_target[..., 9:]
    length = torch.linalg.vector_norm(taken, dim=-1, keepdim=True).clamp(min=1e-3)
    cosine = torch.matmul(direction, (taken / length).transpose(1, 2))
    nearest = cosine.masked_fill(~observations.taken_mask[:, None], -1.0).max(dim=-1)
    own = torch.linalg.vector_norm(observations.candidate_pose_target[..., 9:], dim=-1).clamp(min=1e-3)
    chosen = length[..., 0].gather(1, nearest.indices)
    return torch.stack([nearest.values, cosine[..., 0], own / chosen, own / length[:, :1, 0]], dim=-1)


def state_features(observations: Observations[Tensor]) -> Tensor:
    """(b, STATE_FEATURES): the target, how well it is supported, where the actor stands, and how long it may go on."""
    age = (observations.point_age * observations.point_mask).sum(-1, True) / observations.point_mask.sum(
        -1, True
    ).clamp(min=1)
    taken = observations.taken_mask.sum(-1, True).to(age.dtype)
    return torch.cat(
        [
            observations.target_extents,
            observations.target_confidence[:, None],
            torch.log1p(observations.target_support),
            observations.taken_pose_target[:, 0, 9:] / 2,
            age,
            taken / 4,
            observations.steps_left[:, None].to(age.dtype) / 4,
        ],
        dim=-1,
    )
