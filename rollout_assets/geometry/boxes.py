"""Oriented boxes: the 34-float layout, containment and exact intersection over union.

Layout: bb3 xmin, xmax, ymin, ymax, zmin, zmax in the object frame (0:6); 2-D boxes rgb (6:10), slam-left (10:14),
slam-right (14:18) as xmin, xmax, ymin, ymax with -1 when absent; pose T_frame_object (18:30); sem id (30); instance id
(31); probability (32); moveable (33). A padded box is all -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollout_assets.errors import GeometryError
from rollout_assets.geometry.poses import Float32, Float64, compose, rotation, transform, translation

BOX_WIDTH = 34
"""Floats in one packed box."""

BB3 = slice(0, 6)
BB2 = slice(6, 18)
POSE = slice(18, 30)
SEM_ID, INST_ID, PROBABILITY, MOVEABLE = 30, 31, 32, 33

_FACES = np.array(
    [[0, 4, 6, 2], [1, 3, 7, 5], [0, 1, 5, 4], [2, 6, 7, 3], [0, 2, 3, 1], [4, 5, 7, 6]],
)
"""Corner indices of -x, +x, -y, +y, -z, +z, each counter-clockwise from outside. Corner bit 0 is x, 1 is y, 2 is z."""

_COPLANAR_M = 1e-9


@dataclass(frozen=True)
class OrientedBoxes:
    """n boxes: ``pose_world_object`` puts the *centre* frame of each into the world; ``extents_m`` are full sizes.

    pose_world_object: (n, 12) float32, extents_m: (n, 3) float32.
    """

    pose_world_object: Float32
    extents_m: Float32

    def __post_init__(self) -> None:
        n = len(self.pose_world_object)
        if self.pose_world_object.shape != (n, 12) or self.extents_m.shape != (n, 3):
            shapes = f"{self.pose_world_object.shape} and {self.extents_m.shape}"
            raise GeometryError(f"boxes need poses (n, 12) and extents (n, 3), got {shapes}")

    def __len__(self) -> int:
        return len(self.extents_m)

    def __getitem__(self, rows: slice | NDArray[np.int64] | NDArray[np.bool_]) -> OrientedBoxes:
        return OrientedBoxes(self.pose_world_object[rows], self.extents_m[rows])

    @property
    def centers_world(self) -> Float32:
        """(n, 3)."""
        return translation(self.pose_world_object).astype(np.float32)

    def corners_world(self) -> Float32:
        """(n, 8, 3); bit 0 of a corner's index is x, bit 1 is y, bit 2 is z."""
        return transform(self.pose_world_object, _corner_signs() * 0.5 * self.extents_m[:, None, :])

    def contains(self, points_world: ArrayLike, margin_m: float = 0.0) -> NDArray[np.bool_]:
        """points_world: (m, 3) -> (n, m): strictly inside the box grown by ``margin_m`` on every side."""
        points = np.asarray(points_world, np.float64)
        turned = rotation(self.pose_world_object)
        centres = translation(self.pose_world_object)
        half = np.asarray(self.extents_m, np.float64) * 0.5 + margin_m
        inside = np.ones((len(self), len(points)), bool)
        for axis in range(3):
            direction = turned[:, :, axis]
            along = direction @ points.T - np.einsum("nk,nk->n", direction, centres)[:, None]
            inside &= np.abs(along) < half[:, axis, None]
        return inside


def unpack_boxes(packed: ArrayLike, pose_world_frame: ArrayLike) -> OrientedBoxes:
    """packed: (n, 34) in some frame, pose_world_frame: (12,) -> boxes in the world, recentred on their bb3."""
    rows = np.asarray(packed, np.float32)
    if rows.ndim != 2 or rows.shape[1] != BOX_WIDTH:
        raise GeometryError(f"packed boxes must have shape (n, {BOX_WIDTH}), got {rows.shape}")
    low, high = rows[:, 0:6:2].astype(np.float64), rows[:, 1:6:2].astype(np.float64)
    centre_object = np.zeros((len(rows), 12), np.float32)
    centre_object[:, [0, 4, 8]] = 1.0
    with np.errstate(invalid="ignore"):  # a box may be stored with infinite sides; whoever selects boxes refuses it
        centre_object[:, 9:] = (low + high) * 0.5
        pose = compose(pose_world_frame, compose(rows[:, POSE], centre_object))
        return OrientedBoxes(pose_world_object=pose, extents_m=(high - low).astype(np.float32))


def is_padding(packed: ArrayLike) -> NDArray[np.bool_]:
    """packed: (..., 34) -> (...): the all -1 filler, or a row stacked up with NaN or zeros."""
    rows = np.asarray(packed, np.float32)
    return np.asarray((rows == -1).all(axis=-1) | np.isnan(rows).all(axis=-1) | (rows == 0).all(axis=-1))


def pairwise_iou(a: OrientedBoxes, b: OrientedBoxes) -> Float64:
    """(n, m) exact intersection over union of every pair."""
    rows, cols = np.divmod(np.arange(len(a) * len(b)), max(len(b), 1))
    return oriented_iou(a[rows], b[cols]).reshape(len(a), len(b))


def oriented_iou(a: OrientedBoxes, b: OrientedBoxes) -> Float64:
    """Exact intersection over union of box i of ``a`` with box i of ``b``: (n,)."""
    if len(a) != len(b):
        raise GeometryError(f"oriented_iou pairs boxes one to one, got {len(a)} and {len(b)}")
    both = intersection_volume(a, b)
    union = _volume(a) + _volume(b) - both
    return np.where(union > 0, both / np.where(union > 0, union, 1.0), 0.0)


def intersection_volume(a: OrientedBoxes, b: OrientedBoxes) -> Float64:
    """Exact volume shared by box i of ``a`` and box i of ``b``: (n,), by clipping each one's faces with the other.

    The faces of the shared polyhedron are faces of ``a`` inside ``b`` and faces of ``b`` inside ``a``; its volume is
    the sum of the cones from them to a common point (divergence theorem). A face that lies on a face of the other box
    is counted once, with ``a``.
    """
    origin = translation(a.pose_world_object)
    apart = np.linalg.norm(translation(b.pose_world_object) - origin, axis=-1)
    reach = 0.5 * (np.linalg.norm(a.extents_m, axis=-1) + np.linalg.norm(b.extents_m, axis=-1))
    near = (apart <= reach) & (_volume(a) > 0) & (_volume(b) > 0)
    volume = np.zeros(len(a))
    if near.any():
        corners_a = _corners64(a[near], origin[near])
        corners_b = _corners64(b[near], origin[near])
        both = np.concatenate([corners_a, corners_b])
        normals, offsets = _planes(both)
        others = np.roll(np.arange(len(normals)), len(corners_a))  # of each box of both sets the one it is paired with
        keep_m = np.repeat([_COPLANAR_M, -_COPLANAR_M], len(corners_a))
        cones = _cones(both, (normals, offsets), (normals[others], offsets[others]), keep_m).reshape(2, -1)
        volume[near] = np.maximum(cones[0] + cones[1], 0.0)
    return volume


def sampled_iou(a: OrientedBoxes, b: OrientedBoxes, samples: int, rng: np.random.Generator) -> Float64:
    """The obvious twin of ``oriented_iou``: throw points into each ``a`` and count those inside its ``b``."""
    result = np.zeros(len(a))
    for i in range(len(a)):
        local = (rng.random((samples, 3)) - 0.5) * a.extents_m[i]
        inside = b[i : i + 1].contains(transform(a.pose_world_object[i], local))[0].mean()
        both = inside * _volume(a[i : i + 1])[0]
        result[i] = both / (_volume(a[i : i + 1])[0] + _volume(b[i : i + 1])[0] - both)
    return result


def _volume(boxes: OrientedBoxes) -> Float64:
    return np.prod(np.maximum(np.asarray(boxes.extents_m, np.float64), 0.0), axis=-1)


def _corner_signs() -> Float64:
    index = np.arange(8)
    return np.stack([index & 1, (index >> 1) & 1, (index >> 2) & 1], axis=-1) * 2.0 - 1.0


def _corners64(boxes: OrientedBoxes, origin: Float64) -> Float64:
    """(n, 8, 3) corners relative to ``origin`` (n, 3), kept in double."""
    local = _corner_signs() * 0.5 * np.asarray(boxes.extents_m, np.float64)[:, None, :]
    turned = np.einsum("nij,nkj->nki", rotation(boxes.pose_world_object), local)
    return turned + (translation(boxes.pose_world_object) - origin)[:, None, :]


def _planes(corners: Float64) -> tuple[Float64, Float64]:
    """(n, 8, 3) -> outward unit normals (n, 6, 3) and offsets (n, 6), with n.x <= offset inside."""
    quads = corners[:, _FACES]
    normal = np.cross(quads[:, :, 1] - quads[:, :, 0], quads[:, :, 3] - quads[:, :, 0])
    length = np.linalg.norm(normal, axis=-1, keepdims=True)
    normal = normal / np.where(length > 0, length, 1.0)
    return normal, np.einsum("nfk,nfk->nf", normal, quads[:, :, 0])


def _cones(corners: Float64, own: tuple[Float64, Float64], other: tuple[Float64, Float64], keep_m: Float64) -> Float64:
    """Signed volume between the origin and those parts of each box's faces that lie inside the other box: (n,).

    keep_m: (n,) decides a face that lies on a face of the other box and looks the same way; one that looks the other
    way only touches it and goes.
    """
    n = len(corners)
    polygons = np.zeros((n * 6, 10, 3))
    polygons[:, :4] = corners[:, _FACES].reshape(n * 6, 4, 3)
    counts, kept_m = np.full(n * 6, 4), np.repeat(keep_m, 6)
    for face in range(6):
        normal = np.repeat(other[0][:, face], 6, axis=0)
        offset = np.repeat(other[1][:, face], 6)
        same_side = np.einsum("pc,pc->p", normal, own[0].reshape(-1, 3)) > 0
        polygons, counts = _clip(polygons, counts, normal, offset + np.where(same_side, kept_m, -_COPLANAR_M))
    fan = np.cross(polygons, np.roll(polygons, -1, axis=1))
    doubled_area = np.einsum("pkc,pc->p", fan, own[0].reshape(-1, 3))
    return (doubled_area * own[1].reshape(-1)).reshape(n, 6).sum(axis=1) / 6.0


def _clip(
    polygons: Float64, counts: NDArray[np.int64], normal: Float64, offset: Float64
) -> tuple[Float64, NDArray[np.int64]]:
    """Cut convex polygons (p, 10, 3) by one half-space each. Slots past a polygon's count repeat its first vertex."""
    slots = polygons.shape[1]
    used = np.arange(slots) < counts[:, None]
    here = np.where(used[..., None], polygons, polygons[:, :1])
    ahead = np.roll(here, -1, axis=1)
    depth = np.einsum("psc,pc->ps", here, normal) - offset[:, None]
    depth_ahead = np.roll(depth, -1, axis=1)
    inside = depth <= 0
    crosses = inside != (depth_ahead <= 0)
    gap = np.where(crosses, depth - depth_ahead, 1.0)
    cut = here + (depth / gap)[..., None] * (ahead - here)
    emitted = np.stack([here, cut], axis=2).reshape(len(polygons), 2 * slots, 3)
    kept = np.stack([inside & used, crosses], axis=2).reshape(len(polygons), 2 * slots)
    order = np.argsort(~kept, axis=1, kind="stable")[:, :slots]
    clipped = np.take_along_axis(emitted, order[..., None], axis=1)
    new_counts = np.minimum(kept.sum(axis=1), slots)
    clipped = np.where((np.arange(slots) < new_counts[:, None])[..., None], clipped, clipped[:, :1])
    return np.where((new_counts > 0)[:, None, None], clipped, 0.0), new_counts
