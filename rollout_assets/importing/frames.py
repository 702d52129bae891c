"""Up axis, units and floor of a mesh file, recognised by what a room can be, and the way from there to our world.

Our world is in metres, right-handed, with +Z up and the floor at z = 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import MeshError
from rollout_assets.geometry.poses import Float32, Float64
from rollout_assets.importing.config import Units, Up

WIDTH_M = (1.5, 50.0)
HEIGHT_M = (1.8, 10.0)
"""What a room, a home or a hall can measure."""

METRES = {"m": 1.0, "cm": 0.01, "mm": 0.001, "in": 0.0254, "ft": 0.3048}
RECOGNISED_UNITS = ("m", "cm", "mm")
"""Units that are tried; a room in feet or inches is too much like one in metres or centimetres to tell."""

_AXES = ("x", "y", "z")
_WORLD_FROM_FILE = {
    "x": np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]),
    "y": np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]),
    "z": np.eye(3),
}
_UP_OF_FORMAT = {".glb": "y", ".obj": "y", ".ply": "z"}
_CLEARLY_LARGER = 1.4
_LEVELS = 400
_FLAT = 0.97
_FLOOR_SHARE = 0.7
_FLOOR_BELOW = 0.4
_FACES_AT_ONCE = 1 << 19
_STOREY_SHARE = 0.5
_SLAB_M = 1.0
_STANDING_M = 1.8


@dataclass(frozen=True)
class Frame:
    """How a file's coordinates become ours: turned so that ``up`` is +Z, scaled to metres, floor moved to z = 0.

    ``size_m`` is width, depth and height of the scene, ``floor_m`` where its floor was.
    """

    up: str
    units: str
    size_m: tuple[float, float, float]
    floor_m: float
    notes: tuple[str, ...] = ()

    @property
    def metres_per_unit(self) -> float:
        """Scale."""
        return METRES[self.units]

    @property
    def turn(self) -> Float64:
        """(3, 3) rotation from the file's axes to ours: a signed permutation."""
        return _WORLD_FROM_FILE[self.up]

    def to_world(self, points: NDArray[Any]) -> Float32:
        """(n, 3) file coordinates -> world coordinates."""
        world = np.empty(points.shape, np.float32)
        shift = np.array([0.0, 0.0, self.floor_m])
        for start in range(0, len(points), _FACES_AT_ONCE):
            part = np.asarray(points[start : start + _FACES_AT_ONCE], np.float64)
            world[start : start + _FACES_AT_ONCE] = part @ self.turn.T * self.metres_per_unit - shift
        return world


@dataclass(frozen=True)
class _Levels:
    """How much level area lies at each height along one axis: area and mean height (levels,) in file units."""

    area: Float64
    height: Float64

    @property
    def floor(self) -> int:
        """The highest of the large levels in the lower part: the top of the slab, not its underside."""
        low = self.area[: max(1, int(_FLOOR_BELOW * len(self.area)))]
        return int(np.flatnonzero(low >= _FLOOR_SHARE * low.max())[-1])

    @property
    def floor_area(self) -> float:
        """Area of that level."""
        return float(self.area[self.floor])

    def storeys(self, scale: float, top: float) -> list[float]:
        """Heights in metres of floors with standing room below ``top`` (in file units), the lowest first.

        Large level areas that are close to each other are one slab, whose upper side is the floor.
        """
        large = np.sort(self.height[self.area >= _STOREY_SHARE * self.floor_area]) * scale
        slabs = np.split(large, np.flatnonzero(np.diff(large) > _SLAB_M) + 1)
        return [float(slab[-1]) for slab in slabs if slab[-1] + _STANDING_M <= top * scale]


def recognise_frame(vertices: NDArray[Any], faces: NDArray[np.int32], ending: str, up: Up, units: Units) -> Frame:
    """The frame of a mesh; what is not given is chosen among what makes it the size of a room."""
    used = np.zeros(len(vertices), bool)
    used[faces] = True
    finite = np.asarray(vertices)[used & np.isfinite(vertices).all(axis=1)]
    if not len(finite):
        raise MeshError("the mesh has no finite vertex")
    low, high = finite.min(axis=0).astype(np.float64), finite.max(axis=0).astype(np.float64)
    fitting = _fitting(high - low, up, units)
    if not fitting:
        raise MeshError(_not_a_room(high - low, up, units))
    levels = {axis: _levels(vertices, faces, _AXES.index(axis), low, high) for axis in fitting}
    chosen, why = _choose_up(levels, _UP_OF_FORMAT[ending], spec=ending == ".glb", given=up)
    unit = fitting[chosen]
    scale = METRES[unit]
    floor = levels[chosen]
    size = _size_m(high - low, chosen, scale)
    storeys = floor.storeys(scale, float(high[_AXES.index(chosen)]))
    floor_m = storeys[0] if len(storeys) > 1 else float(floor.height[floor.floor]) * scale
    return Frame(chosen, unit, size, floor_m, tuple(filter(None, (why, _about_storeys(storeys)))))


def _about_storeys(storeys: list[float]) -> str:
    if len(storeys) < 2:
        return ""
    heights = ", ".join(f"{height - storeys[0]:.1f}" for height in storeys)
    return (
        f"{len(storeys)} storeys, with floors at {heights} m: walks are made on the lowest; "
        "cut the mesh at a floor to walk on the others, or give a trajectory"
    )


def _fitting(extent: Float64, up: Up, units: Units) -> dict[str, str]:
    """Up axis -> the first unit with which the scene is as large as a room."""
    axes = _AXES if up == "auto" else (up,)
    tried = RECOGNISED_UNITS if units == "auto" else (units,)
    fitting: dict[str, str] = {}
    for axis in axes:
        for unit in tried:
            if axis not in fitting and _is_room(_size_m(extent, axis, METRES[unit])):
                fitting[axis] = unit
    return fitting


def _choose_up(levels: dict[str, _Levels], usual: str, spec: bool, given: Up) -> tuple[str, str]:
    """The up axis and, when it is not what the format says, why: the floor is the largest level area."""
    largest = max(levels, key=lambda axis: levels[axis].floor_area)
    if usual in levels:
        ratio = levels[largest].floor_area / max(levels[usual].floor_area, 1e-12)
        if spec or ratio < _CLEARLY_LARGER:
            return usual, ""
    why = f"{usual} is usual for the format, but the largest level area is across {largest}"
    return largest, why if given == "auto" and largest != usual else ""


def _size_m(extent: Float64, up: str, scale: float) -> tuple[float, float, float]:
    width, depth, height = np.abs(_WORLD_FROM_FILE[up] @ extent) * scale
    return float(width), float(depth), float(height)


def _is_room(size: tuple[float, float, float]) -> bool:
    widths = all(WIDTH_M[0] <= side <= WIDTH_M[1] for side in size[:2])
    return widths and HEIGHT_M[0] <= size[2] <= HEIGHT_M[1]


def _not_a_room(extent: Float64, up: Up, units: Units) -> str:
    measured = " x ".join(f"{side:.4g}" for side in extent)
    widths, heights = (f"{low:g} to {high:g} m" for low, high in (WIDTH_M, HEIGHT_M))
    rule = f"a scene must be {widths} wide and deep and {heights} high"
    tried = f"with up {up} and units {units}" if (up, units) != ("auto", "auto") else "with no up axis in m, cm or mm"
    others = _fitting(extent, "auto", "auto")
    advice = "; set --units and --up, or scale it"
    if others and (up, units) != ("auto", "auto"):
        axis, unit = next(iter(others.items()))
        advice = f"; it would be one with --up {axis} --units {unit}"
    return f"measures {measured} units along x, y, z, which is no room {tried}: {rule}{advice}"


def _levels(vertices: NDArray[Any], faces: NDArray[np.int32], axis: int, low: Float64, high: Float64) -> _Levels:
    """Area of faces across ``axis`` by height."""
    area, moment = np.zeros(_LEVELS), np.zeros(_LEVELS)
    step = (high[axis] - low[axis]) / _LEVELS
    for corners in _corners(vertices, faces):
        normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        size = np.linalg.norm(normal, axis=1) / 2
        height = corners[:, :, axis].mean(axis=1)
        level = np.isfinite(size) & (np.abs(normal[:, axis]) > 2 * _FLAT * size) & (size > 0)
        cells = np.clip(((height[level] - low[axis]) / step).astype(np.int64), 0, _LEVELS - 1)
        area += np.bincount(cells, size[level], _LEVELS)
        moment += np.bincount(cells, size[level] * height[level], _LEVELS)
    middle = low[axis] + (np.arange(_LEVELS) + 0.5) * step
    return _Levels(area, np.where(area > 0, moment / np.where(area > 0, area, 1.0), middle))


def _corners(vertices: NDArray[Any], faces: NDArray[np.int32]) -> Iterator[Float64]:
    for start in range(0, len(faces), _FACES_AT_ONCE):
        with np.errstate(invalid="ignore", over="ignore"):
            yield np.asarray(vertices[faces[start : start + _FACES_AT_ONCE]], np.float64)
