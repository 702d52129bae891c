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

DENSE_M = 0.1
"""How far around a patch known points count towards its density."""

NEAR_M = 0.05
"""What is nearer to a camera is not seen."""

EVERY_NTH_POINT = 2
"""Which share of the known points is looked at for what hides a patch."""

IMAGE_PX = 48
"""Pixels a side of the image in which a patch's size is counted."""

OWN_MARGIN_M = 0.1
"""Known points this close to the target's box count as its own."""

OWN_NEAREST_M = 0.3
"""A point that is nearer counts as if it were this far."""

POINT_FEATURES = 3 + 3 + 1
PATCH_FEATURES = 3 + 3 + 3 + 3
PAIR_FEATURES = 8
KNOWN_FEATURES = 3
CANDIDATE_FEATURES = 3 + 3 + 3 + 4 + 6 + 5
STATE_FEATURES = 3 + 1 + 3 + 3 + 1 + 2


@dataclass(frozen=True, eq=False)
class Sight:
    """Patches of the target's box, as b states of p patches know them and k candidates see them.

    patches: (b, p, PATCH_FEATURES), pairs: (b, k, p, PAIR_FEATURES), area: (b, p) share of the box's surface.
    known: (b, k, KNOWN_FEATURES), how much of what is known of the target a candidate keeps in sight.
    """

    patches: Tensor
    pairs: Tensor
    area: Tensor
    known: Tensor


@torch.no_grad()
def sight_of(observations: Observations[Tensor], side: int) -> Sight:
    """The patches of every state, ``side`` x ``side`` on each of the box's six faces."""
    centers, normals, area = box_patches(observations.target_extents, side)
    around = _around(centers, observations)
    extents = observations.target_extents[:, None].expand_as(centers)
    patches = torch.cat([centers, normals, extents, around], dim=-1)
    points = _KnownPoints.of(observations)
    pairs = _pairs(centers, normals, area, around[..., 0], points, observations)
    return Sight(patches, pairs, area, points.kept_in_sight())


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


def _around(centers: Tensor, observations: Observations[Tensor]) -> Tensor:
    """(b, p, 3) what is known near each patch: distances to the nearest point and to the nearest of the newest points,
    and how many points lie within ``DENSE_M``, as a logarithm."""
    points, far = observations.points, 2 * FAR_M**2
    length = points.square().sum(dim=-1).masked_fill(~observations.point_mask, far)
    square = torch.baddbmm(length[:, None], centers, points.transpose(1, 2), alpha=-2)
    square += centers.square().sum(dim=-1, keepdim=True)
    newest = square + (observations.point_age > 0)[:, None] * far
    dense = torch.log1p((square < DENSE_M**2).sum(dim=-1).to(square.dtype))
    return torch.stack([_nearest(square), _nearest(newest), dense], dim=-1)


def _nearest(square: Tensor) -> Tensor:
    return square.amin(dim=-1).clamp(0.0, FAR_M**2).sqrt()


def _pairs(
    centers: Tensor,
    normals: Tensor,
    area: Tensor,
    nearest: Tensor,
    points: _KnownPoints,
    observations: Observations[Tensor],
) -> Tensor:
    """(b, k, p, PAIR_FEATURES): how each candidate sees each patch; nearest: (b, p) distance to a known point."""
    pose = observations.candidate_pose_target
    origin = pose[..., 9:]
    to_view = origin[:, :, None] - centers[:, None]
    distance = torch.linalg.vector_norm(to_view, dim=-1).clamp(min=1e-3)
    cosine = (to_view * normals[:, None]).sum(-1) / distance
    image = _Image.of(centers, pose, observations.camera)
    inside = image.inside().to(cosine.dtype)
    hidden_by = image.depth - points.depth_before(image)
    clear = torch.sigmoid((OCCLUSION_M - hidden_by) * 20.0) * inside
    facing = cosine.clamp(min=0.0) * clear
    unknown = nearest[:, None].expand_as(cosine)
    pixels = facing * (_area(observations.target_extents, area) * _focal(observations))[:, None] / distance.square()
    return torch.stack(
        [
            cosine,
            distance / 2.0,
            inside,
            clear,
            facing,
            facing * unknown,
            facing * unknown.square(),
            torch.log1p(pixels),
        ],
        dim=-1,
    )


def _area(extents: Tensor, share: Tensor) -> Tensor:
    """(b, p) square metres of each patch."""
    x, y, z = extents.unbind(-1)
    return share * (2 * (x * y + y * z + x * z))[:, None]


def _focal(observations: Observations[Tensor]) -> Tensor:
    """(b, 1) pixels of an image that one square metre fills at one metre."""
    return (observations.camera[:, :1] * observations.camera[:, 1:2]) * IMAGE_PX**2


@dataclass(frozen=True, eq=False)
class _Image:
    """Where n points fall in the images of k candidates, (b, k, n) each: across and down from 0 to 1, and depth."""

    u: Tensor
    v: Tensor
    depth: Tensor

    @classmethod
    def of(cls, points: Tensor, pose: Tensor, camera: Tensor) -> _Image:
        """points: (b, n, 3) in the target's frame, pose: (b, k, 12), camera: (b, 4). The axes are left, up, forward."""
        axes = pose[..., :9].reshape(*pose.shape[:2], 3, 3).permute(0, 3, 1, 2)  # (b, axis, k, 3)
        origin = (axes * pose[:, None, :, 9:]).sum(dim=-1)
        turned = torch.matmul(axes.flatten(1, 2), points.transpose(1, 2))
        local = turned.reshape(*axes.shape[:3], -1) - origin[..., None]
        left, up, depth = local.unbind(1)
        front = depth.clamp(min=1e-3).reciprocal()
        fx, fy, cx, cy = (camera[:, index, None, None] for index in range(4))
        return cls(cx - fx * left * front, cy - fy * up * front, depth)

    def inside(self) -> Tensor:
        """(b, k, n) bool: in the image and before the camera."""
        return ((self.u - 0.5).abs() < 0.5) & ((self.v - 0.5).abs() < 0.5) & (self.depth > NEAR_M)

    def cells(self) -> Tensor:
        """(b, k, n) cell of the coarse image in which each point lies, or the nearest one."""
        across, down = ((value * CELLS).clamp(0, CELLS - 1).to(torch.int64) for value in (self.u, self.v))
        return down * CELLS + across


@dataclass(frozen=True, eq=False)
class _KnownPoints:
    """Known points in the images of k candidates, and the coarse depth image that they make there.

    seen: (b, k, n) which of them lie in the image, own: (b, n) which belong to the target, nearest: (b, k, cells).
    """

    image: _Image
    seen: Tensor
    own: Tensor
    nearest: Tensor

    @classmethod
    def of(cls, observations: Observations[Tensor]) -> _KnownPoints:
        """A share of the known points, for what hides a patch and for what stays in sight."""
        some = slice(None, None, EVERY_NTH_POINT)
        points, mask = observations.points[:, some], observations.point_mask[:, some]
        image = _Image.of(points, observations.candidate_pose_target, observations.camera)
        seen = image.inside() & mask[:, None]
        depth = image.depth.masked_fill(~seen, 5 * FAR_M)
        nearest = depth.new_full((*depth.shape[:2], CELLS * CELLS), 5 * FAR_M)
        own = (points.abs() < 0.5 * observations.target_extents[:, None] + OWN_MARGIN_M).all(dim=-1) & mask
        return cls(image, seen, own, nearest.scatter_reduce(2, image.cells(), depth, "amin"))

    def depth_before(self, image: _Image) -> Tensor:
        """(b, k, p) depth of the nearest known point in the cell of each place; far away where there is none."""
        return self.nearest.gather(2, image.cells())

    def kept_in_sight(self) -> Tensor:
        """(b, k, KNOWN_FEATURES): of the target's own points, how many nothing hides, their share, and how large."""
        clear = self.seen & self.own[:, None] & (self.image.depth < self.depth_before(self.image) + OCCLUSION_M)
        count = clear.sum(dim=-1).to(self.nearest.dtype)
        share = count / self.own.sum(dim=-1, keepdim=True).clamp(min=1)
        size = (clear / self.image.depth.clamp(min=OWN_NEAREST_M).square()).sum(dim=-1)
        return torch.stack([torch.log1p(count), share, torch.log1p(size)], dim=-1)


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


def point_features(observations: Observations[Tensor]) -> Tensor:
    """(b, n, POINT_FEATURES): where a point lies, in metres and in shares of the target's box, and how old it is."""
    extents = observations.target_extents[:, None].clamp(min=0.05)
    return torch.cat(
        [observations.points, observations.points / extents, observations.point_age[..., None] / 2], dim=-1
    )
