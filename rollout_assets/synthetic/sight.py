"""What the views of a walk see: rays through the mesh, and the semi-dense points a tracker would keep of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64, rotation, translation
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.geometry.voxels import voxel_keys
from rollout_assets.synthetic.config import SnippetConfig
from rollout_assets.synthetic.scene import STRUCTURE, LabelledScene
from rollout_assets.synthetic.walk import Walk

VIEW_SIDE = 96
"""Rays along each side of a view."""

NEAR_M, FAR_M = 0.3, 6.0
"""Depth range in which points are tracked."""

NOISE_CLIP = 2.5
"""Standard deviations beyond which a point would have been rejected."""

_INV_STD_RANGE = (0.0008, 0.008)
_INV_STD_TYPICAL = 0.0025
_TEXTURE_M = 0.35
_POINTS_PER_OBJECT = (12.0, 220.0)
_NOWHERE = -2
_EVERY, _ALL_BUT_LAST, _ALL_BUT_FIRST = slice(None), slice(None, -1), slice(1, None)
_NEIGHBOURS = (
    ((_EVERY, _ALL_BUT_LAST, _EVERY), (_EVERY, _ALL_BUT_FIRST, _EVERY)),
    ((_EVERY, _EVERY, _ALL_BUT_LAST), (_EVERY, _EVERY, _ALL_BUT_FIRST)),
)


@dataclass(frozen=True)
class Sight:
    """Every ray of a walk, T views of n rays each.

    origins, directions (T, n, 3) float64 with camera Z = 1, depth_m (T, n) +inf where nothing is hit, piece (T, n)
    int64 piece index, ``STRUCTURE``, or -2 for a miss, normals (T, n, 3) float64.
    """

    origins: Float64
    directions: Float64
    depth_m: Float64
    piece: NDArray[np.int64]
    normals: Float64

    @property
    def points(self) -> Float64:
        """(T, n, 3) world points; NaN for misses."""
        depth = np.where(np.isfinite(self.depth_m), self.depth_m, np.nan)
        return self.origins + self.directions * depth[..., None]

    def rays_on(self, pieces: int) -> NDArray[np.int64]:
        """(T, pieces) rays of each view that end on each piece."""
        counts = np.zeros((len(self.piece), pieces), np.int64)
        for view, piece in enumerate(self.piece):
            counts[view] = np.bincount(piece[piece >= 0], minlength=pieces)
        return counts


def camera_of(config: SnippetConfig) -> PinholeCamera:
    """The walker's camera."""
    focal, middle = config.focal_px, config.image_px / 2.0
    return PinholeCamera(focal, focal, middle, middle, config.image_px, config.image_px)


def look(config: SnippetConfig, scene: LabelledScene, bvh: TriangleBvh, walk: Walk, rng: np.random.Generator) -> Sight:
    """Cast one jittered ray per cell of every view."""
    camera = camera_of(config).resized(VIEW_SIDE, VIEW_SIDE)
    views = len(walk.pose_world_camera)
    local = np.broadcast_to(camera.pixel_directions().astype(np.float64), (views, VIEW_SIDE, VIEW_SIDE, 3)).copy()
    local[..., :2] += rng.uniform(-0.5, 0.5, local[..., :2].shape) / camera.fx_px
    local = local.reshape(views, -1, 3)
    directions = np.einsum("tij,tnj->tni", rotation(walk.pose_world_camera), local)
    origins = np.broadcast_to(translation(walk.pose_world_camera)[:, None], directions.shape)
    depth, face = bvh.cast_rays(origins.reshape(-1, 3), directions.reshape(-1, 3), 1e3)
    hit = face.numpy().reshape(views, -1).astype(np.int64)
    piece = np.where(hit >= 0, scene.face_piece[hit], _NOWHERE)
    corners = scene.vertices[scene.faces[hit]].astype(np.float64)
    normals = np.cross(corners[..., 1, :] - corners[..., 0, :], corners[..., 2, :] - corners[..., 0, :])
    normals /= np.linalg.norm(normals, axis=-1, keepdims=True)
    return Sight(origins, directions, depth.numpy().reshape(views, -1).astype(np.float64), piece, normals)


def semidense_points(config: SnippetConfig, sight: Sight, texture_seed: int, rng: np.random.Generator) -> Float32:
    """(n, 4) float32: noisy world points, most of them on edges and texture, and their inverse-distance deviation.

    An object keeps only some of its points, so that there is something left to see of it.
    """
    weight = _trackable(sight, texture_seed).ravel()
    views_rays = np.flatnonzero(weight > 0)
    keys = rng.random(len(views_rays)) ** (1.0 / weight[views_rays])
    order = views_rays[np.argsort(-keys, kind="stable")]
    piece = sight.piece.ravel()[order]
    low, high = np.log(_POINTS_PER_OBJECT)
    allowed = np.exp(rng.uniform(low, high, int(max(piece.max(initial=0), 0)) + 1))
    kept = order[(piece == STRUCTURE) | (_rank_within(piece) < allowed[np.maximum(piece, 0)])]
    chosen = kept[: int(rng.integers(config.min_points, config.max_points + 1))]
    return _measured(sight, chosen, rng)


def _measured(sight: Sight, rays: NDArray[np.int64], rng: np.random.Generator) -> Float32:
    origins, directions = sight.origins.reshape(-1, 3)[rays], sight.directions.reshape(-1, 3)[rays]
    stretch = np.linalg.norm(directions, axis=1)
    distance = sight.depth_m.ravel()[rays] * stretch
    inv_std = np.clip(_INV_STD_TYPICAL * np.exp(rng.normal(0.0, 0.5, len(rays))), *_INV_STD_RANGE)
    noise = np.clip(rng.normal(0.0, 1.0, len(rays)), -NOISE_CLIP, NOISE_CLIP) * inv_std * distance**2
    points = origins + directions / stretch[:, None] * (distance + noise)[:, None]
    return np.concatenate([points, inv_std[:, None]], axis=1).astype(np.float32)


def _trackable(sight: Sight, texture_seed: int) -> Float64:
    """(T, n) how likely each ray's end is tracked: edges most, then textured patches; 0 for what cannot be."""
    side = (len(sight.depth_m), VIEW_SIDE, VIEW_SIDE)
    depth = np.where(np.isfinite(sight.depth_m), sight.depth_m, 1e3).reshape(side)
    normals = sight.normals.reshape(*side, 3)
    edge = np.zeros(side)
    for first, second in _NEIGHBOURS:
        jump = np.clip(np.abs(np.log(depth[first] / depth[second])) * 6.0, 0.0, 1.0)
        bend = 1.0 - np.abs(np.einsum("...k,...k->...", normals[first], normals[second]))
        step = np.maximum(np.where(jump > 0.3, jump, 0.0), bend)
        edge[first] = np.maximum(edge[first], step)
        edge[second] = np.maximum(edge[second], step)
    usable = (sight.depth_m > NEAR_M) & (sight.depth_m < FAR_M)
    texture = np.zeros(usable.shape)
    texture[usable] = _texture(sight.points[usable], texture_seed)
    weight = (0.02 + edge.reshape(usable.shape) + 0.5 * texture) * np.exp(-np.minimum(sight.depth_m, FAR_M) / 4.0)
    return np.where(usable, weight, 0.0)


def _texture(points: Float64, seed: int) -> Float64:
    """A fixed random value per cell of the world, mostly small: some patches of a wall have texture, most do not."""
    mixed = voxel_keys(points, _TEXTURE_M).astype(np.uint64) ^ np.uint64(seed & (2**64 - 1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 0x9E3779B97F4A7C15)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(((mixed >> np.uint64(11)).astype(np.float64) / 2.0**53) ** 4)


def _rank_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) how many earlier entries have the same group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(starts, len(groups)))
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(starts, lengths)
    return rank
