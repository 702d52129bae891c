"""Depth images of selected views, with ``deep``: in range, of one size of scene, and the same for the same view.

Which depth a pixel has only the mesh can say; ``inspect replay`` renders it anew. What tables can hold is held here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32
from rollout_assets.rollouts.zarr_store.checks.store_under_check import StoreUnderCheck
from rollout_assets.rollouts.zarr_store.findings import Findings, bad_rows
from rollout_assets.rollouts.zarr_store.schema import CANDIDATE_DIAGNOSTICS, CANDIDATES, ROLLOUTS, SELECTED_DEPTH, STEPS

_IMAGES = 256
_HALF_PRECISION = 2e-3
"""Twice the rounding of float16, relative."""

_NEARNESS_M = 1e-3
"""How much nearer than the nearest surface a pixel may seem."""


def depth_rasters(store: StoreUnderCheck) -> Findings:
    """With ``deep``: depth within the renderer's range where valid, 0 where not, and nowhere valid without a view."""
    if not store.deep or not store.rows(SELECTED_DEPTH):
        return
    selected = store.column(STEPS, "selected_candidate_row_id")
    near, far = _depth_range(store)
    lowest, highest = max(_bits(near), np.uint16(1)), _bits(far)
    views = _Views(store)
    for start in range(store.deep_from_step, len(selected), _IMAGES):
        depth = store.read(SELECTED_DEPTH.path("depth_m"), start, start + _IMAGES)
        valid = store.read(SELECTED_DEPTH.path("valid_mask"), start, start + _IMAGES)
        bits = depth.view(np.uint16)
        wrong = np.where(valid, (bits < lowest) | (bits > highest), bits != 0)
        text = f"must be {near:g} to {far:g} m where valid and 0 where not"
        yield from bad_rows(SELECTED_DEPTH.path("depth_m"), _images(wrong), text, first_row=start)
        unseen = _images(valid) & (selected[start : start + _IMAGES] < 0)
        text = "must be false where nothing was selected"
        yield from bad_rows(SELECTED_DEPTH.path("valid_mask"), unseen, text, first_row=start)
        yield from views.findings(start, depth, valid)


RASTER_CHECKS: tuple[Callable[[StoreUnderCheck], Findings], ...] = (depth_rasters,)
"""Checks of depth images."""


def _depth_range(store: StoreUnderCheck) -> tuple[float, float]:
    """The renderer's limits, as wide as half precision may round them; all of it where a store does not say."""
    near, far = (store.attributes.get(f"selected_depth_{name}") for name in ("znear_m", "zfar_m"))
    if not isinstance(near, float) or not isinstance(far, float):
        return 0.0, np.inf
    return near * (1 - _HALF_PRECISION), far * (1 + _HALF_PRECISION)


def _images(pixels: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n, h, w) -> (n,): any pixel of each image."""
    return np.asarray(pixels.any(axis=(1, 2)))


def _bits(value: float) -> np.uint16:
    """A depth as the bits of its half, which order numbers >= 0 as they are ordered, with infinity and NaN last."""
    return np.float16(value).view(np.uint16)


class _Views:
    """Images of a campaign's selected views: equal poses see the same, and nothing nearer than the nearest surface."""

    def __init__(self, store: StoreUnderCheck) -> None:
        self.store = store
        self._digests: dict[bytes, int] = {}
        self._ray_lengths: dict[bytes, Float32] = {}

    def findings(self, start: int, depth: NDArray[np.float16], valid: NDArray[np.bool_]) -> Findings:
        """What is wrong with the images from row ``start`` on; nothing is known without a campaign."""
        selected = self.store.column(STEPS, "selected_candidate_row_id")[start : start + len(depth)]
        inside = (selected >= 0) & (selected < self.store.rows(CANDIDATES))
        if self.store.campaign is None or not inside.any():
            return
        at = np.flatnonzero(inside)
        low, high = int(selected[at].min()), int(selected[at].max()) + 1
        poses = self.store.read(CANDIDATES.path("pose_world_cam"), low, high)[selected[at] - low]
        nearest = self.store.read(CANDIDATE_DIAGNOSTICS.path("mesh_distance_m"), low, high)[selected[at] - low]
        other, too_near = np.zeros(len(depth), np.bool_), np.zeros(len(depth), np.bool_)
        for image, pose, distance in zip(at.tolist(), poses, nearest.tolist(), strict=True):
            digest = zlib.crc32(depth[image].tobytes())
            other[image] = self._digests.setdefault(self._key(start + image, pose), digest) != digest
            least_m = distance * (1 - _HALF_PRECISION) - _NEARNESS_M
            too_near[image] = least_m > 0 and self._sees_nearer(start + image, depth[image], valid[image], least_m)
        text = "must be the same image wherever the same view of a scene was selected"
        yield from bad_rows(SELECTED_DEPTH.path("depth_m"), other, text, first_row=start)
        text = "must see nothing nearer than the view's mesh_distance_m"
        yield from bad_rows(SELECTED_DEPTH.path("depth_m"), too_near, text, first_row=start)

    def _sees_nearer(self, row: int, depth: NDArray[np.float16], valid: NDArray[np.bool_], least_m: float) -> bool:
        close = np.flatnonzero(valid & (depth.view(np.uint16) < _bits(least_m)))  # a ray is longer than its depth
        return bool((depth.reshape(-1)[close] * self._lengths(row).reshape(-1)[close] < least_m).any())

    def _key(self, row: int, pose: Float32) -> bytes:
        rollout = self.store.column(STEPS, "rollout_row_id")[row]
        scene = self.store.column(ROLLOUTS, "scene_id")[np.clip(rollout, 0, self.store.rows(ROLLOUTS) - 1)]
        return scene.tobytes() + pose.tobytes() + self._intrinsics(row).tobytes()

    def _intrinsics(self, row: int) -> Float32:
        columns = (self.store.column(SELECTED_DEPTH, name)[row] for name in ("focal_px", "principal_point_px"))
        return np.concatenate(list(columns))

    def _lengths(self, row: int) -> Float32:
        """(h, w): metres along each pixel's ray per metre of depth."""
        intrinsics = self._intrinsics(row)
        key = intrinsics.tobytes()
        if key not in self._ray_lengths:
            height, width = self.store.array(SELECTED_DEPTH.path("depth_m")).shape[1:]
            fx, fy, cx, cy = intrinsics.tolist()
            camera = PinholeCamera(fx, fy, cx, cy, height, width)
            self._ray_lengths[key] = np.linalg.norm(camera.pixel_directions(), axis=-1).astype(np.float32)
        return self._ray_lengths[key]
