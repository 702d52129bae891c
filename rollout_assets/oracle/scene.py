"""A scene's true mesh on a device, the parts of it that belong to a target, and a bounded cache of scenes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import numpy as np
from cachetools import LRUCache
from numpy.typing import ArrayLike

from rollout_assets.errors import GeometryError, MeshError
from rollout_assets.geometry.devices import Array, to_host
from rollout_assets.geometry.poses import Float32
from rollout_assets.geometry.triangle_bvh import BuiltTree, TriangleBvh, checked_mesh

KEPT_SURFACE_BYTES = 256 << 20
"""Surfaces of one scene's targets that are kept for the next row that labels them."""


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


_Part = TypeVar("_Part", bound=_Sized)


class OracleScene:
    """One mesh with its tree, shared by every root of the scene. Satisfies ``candidates.CollisionWorld``.

    vertices: (n, 3) float32 world, faces: (m, 3) int32; ``built`` is the tree of these very faces, where it is known.
    """

    def __init__(self, vertices: Array, faces: Array, device: str = "auto", built: BuiltTree | None = None) -> None:
        self.vertices, self.faces = checked_mesh(vertices, faces)
        self.bvh = TriangleBvh(self.vertices, self.faces, device, built=built)
        self.device = self.bvh.device
        self._surfaces: LRUCache[Hashable, _Sized] = LRUCache(KEPT_SURFACE_BYTES, lambda kept: kept.nbytes)
        self._lock = threading.Lock()

    @property
    def bounds(self) -> tuple[Float32, Float32]:
        """Lowest and highest corner of the mesh, (3,) each."""
        return self.bvh.bounds

    @property
    def nbytes(self) -> int:
        """Bytes held on host and device."""
        with self._lock:
            surfaces = int(self._surfaces.currsize)
        return self.bvh.nbytes + self.vertices.nbytes + self.faces.nbytes + surfaces

    def kept(self, name: Hashable, build: Callable[[], _Part]) -> _Part:
        """A part of the scene by its name, built once while there is room for it: every row asks for the same boxes."""
        with self._lock:
            part: Any = self._surfaces.get(name)
        if part is None:
            part = build()
            with self._lock, suppress(ValueError):  # larger than all that may be kept
                self._surfaces[name] = part
        return part

    def distance_m(self, points: ArrayLike) -> Float32:
        """points: (n, 3) -> (n,) distance to the mesh; the answer to a point does not depend on the others."""
        distance_sq, _ = self.bvh.closest_arrays(_finite_points(points, "points"))
        return np.sqrt(to_host(distance_sq))

    def path_min_clearance_m(self, starts: ArrayLike, ends: ArrayLike, samples: int) -> Float32:
        """starts, ends: (n, 3) -> (n,) least distance to the mesh over ``samples`` points, both ends included."""
        if samples < 2:
            raise GeometryError(f"a path needs at least 2 samples, got {samples}")
        first, last = _finite_points(starts, "starts"), _finite_points(ends, "ends")
        if first.shape != last.shape:
            raise GeometryError(f"{len(first)} starts need as many ends, got {len(last)}")
        share = np.linspace(0.0, 1.0, samples)[:, None]
        path = first[:, None].astype(np.float64) * (1.0 - share) + last[:, None].astype(np.float64) * share
        return self.distance_m(path.astype(np.float32).reshape(-1, 3)).reshape(-1, samples).min(axis=1)


class SceneCache:
    """The most recently used scenes within ``max_bytes``, by mesh hash. Safe to share between threads.

    The scene asked for last always stays, even when it is larger than the budget. Two threads that ask for one scene
    get one scene: the second waits for the first.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise MeshError(f"a scene cache needs max_bytes >= 1, got {max_bytes}")
        self.max_bytes = max_bytes
        self._scenes: OrderedDict[str, OracleScene] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._scenes)

    @property
    def nbytes(self) -> int:
        """Bytes of all cached scenes."""
        return sum(scene.nbytes for scene in self._scenes.values())

    def get(self, key: str, build: Callable[[], OracleScene]) -> OracleScene:
        """The scene of ``key``, built by ``build`` when it is not cached."""
        with self._lock:
            scene = self._scenes.get(key)
            if scene is None:
                scene = self._scenes[key] = build()
            self._scenes.move_to_end(key)
            while len(self._scenes) > 1 and self.nbytes > self.max_bytes:
                self._scenes.popitem(last=False)
            return scene


def _finite_points(points: ArrayLike, name: str) -> Float32:
    array = np.asarray(points, np.float32)
    if array.ndim != 2 or array.shape[1] != 3:
        raise GeometryError(f"{name} must have shape (n, 3), got {array.shape}")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        row = int(np.flatnonzero(~finite)[0])
        raise GeometryError(f"{name}[{row}] is not finite: {array[row].tolist()}")
    return array
