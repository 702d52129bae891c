"""Depth of a scene from rays that are not the renderer's: Embree's where it is installed, else brute force.

Embree answers which triangle a ray meets first; how far away that triangle is, is then computed in double precision,
because Embree's own distances are rounded to single precision. Brute force tries every triangle in double precision.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import Float32, Float64, inverse, transform
from rollout_assets.oracle import naive

_TILE_PX = 6


class Rays(Protocol):
    """Whoever can say what a camera sees of one mesh."""

    def depth(self, pose_world_camera: Float32, camera: PinholeCamera, znear_m: float, zfar_m: float) -> Float64:
        """(height, width): Z of the first triangle along each pixel's ray, 0 where there is none in range."""


def library() -> str:
    """Whose rays ``rays_of`` casts."""
    if importlib.util.find_spec("embreex") is None:
        return "brute force"
    return f"embreex {importlib.metadata.version('embreex')}"


def rays_of(vertices: Float32, faces: NDArray[np.int32]) -> Rays:
    """Rays into one mesh, by the library of that name."""
    return BruteForceRays(vertices, faces) if library() == "brute force" else EmbreeRays(vertices, faces)


class BruteForceRays:
    """Every triangle against every ray, in double precision."""

    def __init__(self, vertices: Float32, faces: NDArray[np.int32]) -> None:
        self._vertices, self._faces = vertices, faces

    def depth(self, pose_world_camera: Float32, camera: PinholeCamera, znear_m: float, zfar_m: float) -> Float64:
        """See ``Rays``."""
        return tiled_depth(self._vertices, self._faces, pose_world_camera, camera, znear_m, zfar_m)


class EmbreeRays:
    """Embree's choice of the first triangle, and the distance to its plane in double precision."""

    def __init__(self, vertices: Float32, faces: NDArray[np.int32]) -> None:
        self._scene: Any = importlib.import_module("embreex.rtcore_scene").EmbreeScene()  # an optional package
        mesh = importlib.import_module("embreex.mesh_construction").TriangleMesh
        self._mesh = mesh(self._scene, np.ascontiguousarray(vertices, np.float32), np.asarray(faces, np.int32))
        corners = np.asarray(vertices, np.float64)[faces]
        self._corner = corners[:, 0]
        self._normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])

    def depth(self, pose_world_camera: Float32, camera: PinholeCamera, znear_m: float, zfar_m: float) -> Float64:
        """See ``Rays``."""
        origin, directions = naive.rays(pose_world_camera, camera)
        flat = directions.reshape(-1, 3)
        origins = np.broadcast_to(origin, flat.shape)
        face = self._scene.run(origins.astype(np.float32), flat.astype(np.float32), query="INTERSECT")
        normal = self._normal[face]
        with np.errstate(divide="ignore", invalid="ignore"):
            z = ((self._corner[face] - origin) * normal).sum(axis=1) / (flat * normal).sum(axis=1)
        image = np.where(face >= 0, z, np.inf).reshape(camera.height_px, camera.width_px)
        return naive.in_range(image, znear_m, zfar_m)


def tiled_depth(
    vertices: Float32,
    faces: NDArray[np.int32],
    pose_world_camera: Float32,
    camera: PinholeCamera,
    znear_m: float,
    zfar_m: float,
) -> Float64:
    """``naive.depth``, tile by tile, each with the faces that reach into its pyramid: the same image, much sooner.

    A face is left out only when all its corners lie beyond one side plane of the tile, or behind the camera.
    """
    corners = transform(inverse(pose_world_camera), vertices).astype(np.float64)[faces]
    x, y, z = corners[..., 0], corners[..., 1], corners[..., 2]
    slack = 1e-4
    ahead = (z > -slack).any(axis=1)
    image = np.zeros((camera.height_px, camera.width_px))
    for top in range(0, camera.height_px, _TILE_PX):
        bottom = min(top + _TILE_PX, camera.height_px)
        above, below = (camera.cy_px - top) / camera.fy_px, (camera.cy_px - bottom) / camera.fy_px
        band = ahead & (y - above * z < slack).any(axis=1) & (y - below * z > -slack).any(axis=1)
        for left in range(0, camera.width_px, _TILE_PX):
            right = min(left + _TILE_PX, camera.width_px)
            near, far = (camera.cx_px - left) / camera.fx_px, (camera.cx_px - right) / camera.fx_px
            inside = band & (x - near * z < slack).any(axis=1) & (x - far * z > -slack).any(axis=1)
            if inside.any():
                principal = {"cx_px": camera.cx_px - left, "cy_px": camera.cy_px - top}
                tile = replace(camera, height_px=bottom - top, width_px=right - left, **principal)
                seen = naive.depth(vertices, faces[inside], pose_world_camera, tile, znear_m, zfar_m)
                image[top:bottom, left:right] = seen
    return image
