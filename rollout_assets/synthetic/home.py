"""Floor plans: a rectangular home cut into rooms, with walls of real thickness, doors and windows.

Room rectangles are the inner surfaces of the walls. Only surfaces that can be seen are made: floors, ceilings, both
sides of every wall with its openings cut out, the reveals inside the openings, window frames and the facade.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rollout_assets.synthetic.solids import Part, Sheet, Slab

OUTER_WALL_M = 0.28
INNER_WALL_M = 0.12
DOOR_WIDTH_M = 0.95
DOOR_HEIGHT_M = 2.06
MIN_ROOM_SIDE_M = 2.7

Cell = tuple[float, float, float, float]
Hole = tuple[float, float, float, float]
Vector = tuple[float, float, float]

RoomKind = Literal["living", "bedroom", "dining", "study"]
_KINDS_BY_SIZE: tuple[RoomKind, ...] = ("living", "dining", "bedroom", "study", "bedroom")


@dataclass(frozen=True)
class Room:
    """One room between its wall surfaces; low, high: its corners (x, y) in metres."""

    kind: RoomKind
    low: tuple[float, float]
    high: tuple[float, float]


@dataclass(frozen=True)
class Opening:
    """A box cut through a wall: ``near`` to ``far`` along its normal ``axis``, ``start`` to ``stop`` along the wall.

    ``rooms`` are the rooms it opens into; an outer opening has one.
    """

    kind: Literal["door", "entrance", "window"]
    axis: int
    near: float
    far: float
    start: float
    stop: float
    sill: float
    head: float
    rooms: tuple[int, ...]


@dataclass(frozen=True)
class HomePlan:
    """Everything but the furniture."""

    width_m: float
    depth_m: float
    height_m: float
    rooms: tuple[Room, ...]
    openings: tuple[Opening, ...]

    @property
    def passages(self) -> tuple[Opening, ...]:
        """The openings people walk through."""
        return tuple(opening for opening in self.openings if opening.kind == "door")

    def parts(self) -> list[Part]:
        """All surfaces of the building."""
        parts: list[Part] = []
        for number, room in enumerate(self.rooms):
            parts += _room_sheets(room, self.height_m, [o for o in self.openings if number in o.rooms])
        for opening in self.openings:
            parts += _reveals(opening)
            parts += _fittings(opening)
        return parts + self._facade()

    def _facade(self) -> list[Part]:
        t = OUTER_WALL_M
        shell = Room("living", (-t, -t), (self.width_m + t, self.depth_m + t))
        outer = [opening for opening in self.openings if len(opening.rooms) == 1]
        return list(_wall_sheets(shell, self.height_m, outer, inward=False))


def draw_plan(rng: np.random.Generator) -> HomePlan:
    """A random home of three to five rooms in which every room can be reached."""
    width, depth = float(rng.uniform(7.5, 10.5)), float(rng.uniform(6.5, 8.5))
    room_count = int(rng.integers(3, 6))
    cells = [(0.0, 0.0, width, depth)]
    while len(cells) < room_count:
        largest = max(cells, key=_area)
        halves = _cut(rng, largest)
        if halves is None:
            break
        cells = [cell for cell in cells if cell != largest] + halves
    rooms = _rooms(cells, width, depth)
    doors = _doors(rng, rooms)
    entrance = _entrance(rng, rooms, width, depth)
    windows = _windows(rng, rooms, width, depth, entrance)
    return HomePlan(width, depth, float(rng.uniform(2.45, 2.8)), rooms, (*doors, entrance, *windows))


def _area(cell: Cell) -> float:
    return (cell[2] - cell[0]) * (cell[3] - cell[1])


def _cut(rng: np.random.Generator, cell: Cell) -> list[Cell] | None:
    """Two halves of a cell across its longer side, or None when they would be too small for rooms."""
    x0, y0, x1, y1 = cell
    axis = 0 if x1 - x0 >= y1 - y0 else 1
    low, high = (x0, x1) if axis == 0 else (y0, y1)
    least = MIN_ROOM_SIDE_M + INNER_WALL_M
    if high - low < 2 * least:
        return None
    middle, slack = (low + high) / 2, (high - low) / 2 - least
    at = float(middle + rng.uniform(-1, 1) * min(slack, 0.15 * (high - low)))
    if axis == 0:
        return [(x0, y0, at, y1), (at, y0, x1, y1)]
    return [(x0, y0, x1, at), (x0, at, x1, y1)]


def _rooms(cells: list[Cell], width: float, depth: float) -> tuple[Room, ...]:
    half = INNER_WALL_M / 2
    order = sorted(cells, key=_area, reverse=True)
    rooms = []
    for (x0, y0, x1, y1), kind in zip(order, _KINDS_BY_SIZE, strict=False):
        left, right = (x0 if x0 == 0 else x0 + half), (x1 if x1 == width else x1 - half)
        near, far = (y0 if y0 == 0 else y0 + half), (y1 if y1 == depth else y1 - half)
        rooms.append(Room(kind, (left, near), (right, far)))
    return tuple(rooms)


def _doors(rng: np.random.Generator, rooms: tuple[Room, ...]) -> tuple[Opening, ...]:
    """A door for every edge of a random spanning tree of neighbours, and for some of the other edges."""
    edges = []
    for a, first in enumerate(rooms):
        for b, second in enumerate(rooms):
            for axis in (0, 1):
                if abs(second.low[axis] - first.high[axis] - INNER_WALL_M) > 1e-6:
                    continue
                start = max(first.low[1 - axis], second.low[1 - axis]) + 0.2
                stop = min(first.high[1 - axis], second.high[1 - axis]) - 0.2
                if stop - start >= DOOR_WIDTH_M:
                    edges.append((a, b, axis, start, stop))
    group = list(range(len(rooms)))
    doors = []
    for index in rng.permutation(len(edges)):
        a, b, axis, start, stop = edges[index]
        joined = group[a] == group[b]
        at = float(rng.uniform(start, stop - DOOR_WIDTH_M))
        if joined and rng.random() > 0.35:
            continue
        group = [group[a] if member == group[b] else member for member in group]
        near, far = rooms[a].high[axis], rooms[b].low[axis]
        doors.append(Opening("door", axis, near, far, at, at + DOOR_WIDTH_M, 0.0, DOOR_HEIGHT_M, (a, b)))
    return tuple(doors)


def _outer_walls(rooms: tuple[Room, ...], width: float, depth: float) -> list[tuple[int, int, float, float]]:
    """(room, axis, lower surface, upper surface) of every outer wall."""
    walls = []
    for number, room in enumerate(rooms):
        for axis, limit in ((0, width), (1, depth)):
            if room.low[axis] == 0.0:
                walls.append((number, axis, -OUTER_WALL_M, 0.0))
            if room.high[axis] == limit:
                walls.append((number, axis, limit, limit + OUTER_WALL_M))
    return walls


def _entrance(rng: np.random.Generator, rooms: tuple[Room, ...], width: float, depth: float) -> Opening:
    walls = _outer_walls(rooms, width, depth)
    number, axis, near, far = walls[int(rng.integers(len(walls)))]
    start, stop = rooms[number].low[1 - axis] + 0.25, rooms[number].high[1 - axis] - 0.25
    at = float(rng.uniform(start, stop - DOOR_WIDTH_M))
    return Opening("entrance", axis, near, far, at, at + DOOR_WIDTH_M, 0.0, DOOR_HEIGHT_M, (number,))


def _windows(
    rng: np.random.Generator, rooms: tuple[Room, ...], width: float, depth: float, entrance: Opening
) -> tuple[Opening, ...]:
    windows = []
    for number, axis, near, far in _outer_walls(rooms, width, depth):
        room = rooms[number]
        start, stop = room.low[1 - axis] + 0.4, room.high[1 - axis] - 0.4
        wide = float(min(rng.uniform(1.0, 1.8), stop - start))
        at = float(rng.uniform(start, stop - wide))
        sill = float(rng.uniform(0.85, 1.0))
        is_entrance = entrance.rooms == (number,) and (entrance.axis, entrance.near) == (axis, near)
        if rng.random() < 0.75 and not is_entrance:
            windows.append(Opening("window", axis, near, far, at, at + wide, sill, 2.1, (number,)))
    return tuple(windows)


def _point(axis: int, normal: float, along: float, z: float) -> Vector:
    return (normal, along, z) if axis == 0 else (along, normal, z)


def _facing(origin: Vector, a: Vector, b: Vector, towards: Vector, holes: tuple[Hole, ...] = ()) -> Sheet:
    """A sheet over a and b whose front looks ``towards``; holes are (a0, a1, b0, b1)."""
    if np.dot(np.cross(a, b), towards) > 0:
        return Sheet(origin, a, b, holes)
    return Sheet(origin, b, a, tuple((b0, b1, a0, a1) for a0, a1, b0, b1 in holes))


def _room_sheets(room: Room, height: float, openings: list[Opening]) -> list[Part]:
    wide, deep = (room.high[0] - room.low[0], 0.0, 0.0), (0.0, room.high[1] - room.low[1], 0.0)
    floor = _facing((*room.low, 0.0), wide, deep, (0, 0, 1))
    ceiling = _facing((*room.low, height), wide, deep, (0, 0, -1))
    return [floor, ceiling, *_wall_sheets(room, height, openings, inward=True)]


def _wall_sheets(room: Room, height: float, openings: list[Opening], inward: bool) -> list[Sheet]:
    """The four walls of a rectangle, each with its openings cut out, seen from inside or from outside."""
    sheets = []
    for axis in (0, 1):
        start, length = room.low[1 - axis], room.high[1 - axis] - room.low[1 - axis]
        for surface, side in ((room.low[axis], 1.0), (room.high[axis], -1.0)):
            cuts = [o for o in openings if o.axis == axis and surface in (o.near, o.far)]
            holes = tuple((o.start - start, o.stop - start, o.sill, o.head) for o in cuts)
            origin, along = _point(axis, surface, start, 0.0), _point(axis, 0.0, length, 0.0)
            towards = _point(axis, side if inward else -side, 0.0, 0.0)
            sheets.append(_facing(origin, along, (0.0, 0.0, height), towards, holes))
    return sheets


def _reveals(opening: Opening) -> list[Part]:
    """The four surfaces inside an opening."""
    o = opening
    through, along = _point(o.axis, o.far - o.near, 0.0, 0.0), _point(o.axis, 0.0, o.stop - o.start, 0.0)
    up = (0.0, 0.0, o.head - o.sill)
    corner, over = _point(o.axis, o.near, o.start, o.sill), _point(o.axis, o.near, o.start, o.head)
    right = _point(o.axis, o.near, o.stop, o.sill)
    return [
        _facing(corner, through, along, (0, 0, 1)),
        _facing(over, through, along, (0, 0, -1)),
        _facing(corner, through, up, along),
        _facing(right, through, up, _point(o.axis, 0.0, -1.0, 0.0)),
    ]


def _fittings(opening: Opening) -> list[Part]:
    """A closed leaf in the entrance, a frame with a cross in a window."""
    o = opening
    middle, centre, wide = (o.near + o.far) / 2, (o.start + o.stop) / 2, o.stop - o.start
    tall, level = o.head - o.sill, (o.head + o.sill) / 2

    def bar(along: float, up: float, at: float, z: float, thick: float) -> Slab:
        return Slab(_point(o.axis, thick, along, up), _point(o.axis, middle, at, z))

    if o.kind == "entrance":
        return [bar(wide, tall, centre, level, 0.045)]
    if o.kind == "door":
        return []
    return [
        bar(0.05, tall, o.start + 0.025, level, 0.06),
        bar(0.05, tall, o.stop - 0.025, level, 0.06),
        bar(wide - 0.1, 0.05, centre, o.sill + 0.025, 0.06),
        bar(wide - 0.1, 0.05, centre, o.head - 0.025, 0.06),
        bar(0.04, tall - 0.1, centre, level, 0.05),
    ]
