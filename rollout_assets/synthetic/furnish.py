"""Furnishing: pieces stand against walls, around tables and in corners, never overlapping, never in front of a door.

Every piece is tried where such a piece belongs and is left out when it fits nowhere, or when with it a doorway could no
longer be walked to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rollout_assets.geometry.poses import Float32, Float64, make_pose
from rollout_assets.synthetic.floor_grid import FloorGrid, Footprint
from rollout_assets.synthetic.furniture import Piece
from rollout_assets.synthetic.home import HomePlan, Opening, Room

WALK_CLEARANCE_M = 0.3
"""Free distance around a walking person."""

_GRID_CELL_M = 0.1
_GAP_M = 0.05
_WALL_GAP_M = 0.04
_DOOR_ZONE_M = 0.85
_WINDOW_ZONE_M = 0.5
_SILL_M = 1.0
_TRIES = 30

Maker = Callable[[np.random.Generator], Piece]


@dataclass(frozen=True)
class PlacedPiece:
    """A piece in the world: ``x``, ``y`` of its frame's origin on the floor, ``yaw`` radians about +Z."""

    piece: Piece
    x: float
    y: float
    yaw: float

    @property
    def footprint(self) -> Footprint:
        """The rectangle it stands in."""
        middle = (self.piece.low[:2] + self.piece.high[:2]) / 2
        half = (self.piece.high[:2] - self.piece.low[:2]) / 2
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        x, y = self.x + c * middle[0] - s * middle[1], self.y + s * middle[0] + c * middle[1]
        return Footprint((float(x), float(y)), (float(half[0]), float(half[1])), self.yaw)

    @property
    def pose_world_object(self) -> Float32:
        """(12,) pose of its frame."""
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        return make_pose(np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]]), [self.x, self.y, 0.0])

    def beside(self, piece: Piece, forward: float, left: float, turn: float) -> PlacedPiece:
        """Another piece at an offset in this one's frame."""
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        x, y = self.x + c * forward - s * left, self.y + s * forward + c * left
        return PlacedPiece(piece, x, y, self.yaw + turn)


class Furnisher:
    """Places pieces in one home, one after the other."""

    def __init__(self, plan: HomePlan, makers: Mapping[str, Maker], rng: np.random.Generator) -> None:
        self.plan = plan
        self.makers = makers
        self.rng = rng
        self.placed: list[PlacedPiece] = []
        self._grid = FloorGrid.of_plan(plan, _GRID_CELL_M, WALK_CLEARANCE_M)
        self._doors = [self._grid.nearest_free(_middle(door)) for door in plan.passages]
        self._door_zones = [_zone(o, _DOOR_ZONE_M) for o in plan.openings if o.kind != "window"]
        self._window_zones = [_zone(o, _WINDOW_ZONE_M) for o in plan.openings if o.kind == "window"]

    def furnish(self) -> list[PlacedPiece]:
        """Furnish every room after its kind."""
        ways = {"living": self._living, "dining": self._dining, "bedroom": self._bedroom, "study": self._study}
        for room in self.plan.rooms:
            ways[room.kind](room)
        return self.placed

    def _living(self, room: Room) -> None:
        sofa = self._at_wall(room, "sofa")
        if sofa is not None:
            self._beside(room, sofa, "coffee_table", forward=float(self.rng.uniform(1.0, 1.15)), left=0.0, turn=0.0)
        self._at_wall(room, "sideboard")
        self._at_wall(room, "shelf")
        self._in_corner(room, "lamp")
        self._at_wall(room, "armchair", jitter=0.4)
        self._in_corner(room, "plant")
        self._at_wall(room, "shelf")
        self._in_corner(room, "plant")

    def _dining(self, room: Room) -> None:
        table = self._in_middle(room, "table")
        if table is not None:
            self._chairs_around(room, table)
        self._at_wall(room, "counter")
        self._at_wall(room, "sideboard")
        self._in_corner(room, "plant")
        self._at_wall(room, "counter")
        self._in_corner(room, "lamp")

    def _bedroom(self, room: Room) -> None:
        bed = self._at_wall(room, "bed")
        if bed is not None:
            for side in (-1.0, 1.0):
                stand = self.makers["nightstand"](self.rng)
                back = bed.piece.low[0] - stand.low[0]
                left = side * (bed.piece.high[1] + stand.high[1] + 0.08)
                self._try(room, bed.beside(stand, float(back), float(left), 0.0))
        self._at_wall(room, "wardrobe")
        self._at_wall(room, "chair", jitter=0.5)
        self._in_corner(room, "lamp")
        self._in_corner(room, "plant")

    def _study(self, room: Room) -> None:
        desk = self._at_wall(room, "desk")
        if desk is not None:
            self._beside(room, desk, "chair", forward=float(self.rng.uniform(0.55, 0.7)), left=0.05, turn=math.pi)
        self._at_wall(room, "shelf")
        self._at_wall(room, "shelf")
        self._at_wall(room, "sideboard")
        self._in_corner(room, "plant")
        self._in_corner(room, "lamp")

    def _chairs_around(self, room: Room, table: PlacedPiece) -> None:
        low, high = table.piece.low, table.piece.high
        places = []
        seats = 2 if high[1] - low[1] > 1.3 else 1
        for number in range(seats):
            left = (number - (seats - 1) / 2) * (high[1] - low[1]) / seats
            places += [(high[0] + 0.2, left, math.pi), (low[0] - 0.2, left, 0.0)]
        places += [(0.0, high[1] + 0.2, -math.pi / 2), (0.0, low[1] - 0.2, math.pi / 2)]
        for forward, left, turn in places:
            chair = self.makers["chair"](self.rng)
            away = 0.06 + self.rng.uniform(0.0, 0.12)
            out = 1.0 + away / max(math.hypot(forward, left), 0.3)
            twist = self.rng.normal(0.0, 0.12)
            self._try(room, table.beside(chair, float(forward * out), float(left * out), turn + twist))

    def _at_wall(self, room: Room, kind: str, jitter: float = 0.02) -> PlacedPiece | None:
        """With its back to a random wall."""
        piece = self.makers[kind](self.rng)
        half = float(piece.high[1] - piece.low[1]) / 2
        for _ in range(_TRIES):
            side = int(self.rng.integers(4))
            axis, inward = side % 2, 1.0 if side < 2 else -1.0
            surface = room.low[axis] if inward > 0 else room.high[axis]
            yaw = math.atan2(*((0.0, inward) if axis == 0 else (inward, 0.0))) + self.rng.normal(0.0, jitter)
            swing = abs(math.sin(yaw - round(yaw / (math.pi / 2)) * math.pi / 2)) * half
            off = surface + inward * (_WALL_GAP_M + swing - float(piece.low[0]))
            start, stop = room.low[1 - axis] + half + 0.03, room.high[1 - axis] - half - 0.03
            if stop <= start:
                continue
            along = float(self.rng.uniform(start, stop))
            x, y = (off, along) if axis == 0 else (along, off)
            if placed := self._try(room, PlacedPiece(piece, x, y, yaw)):
                return placed
        return None

    def _in_corner(self, room: Room, kind: str) -> PlacedPiece | None:
        """In or near a corner."""
        piece = self.makers[kind](self.rng)
        reach = float(np.abs(np.concatenate([piece.low[:2], piece.high[:2]])).max()) * 1.3 + _WALL_GAP_M
        for spread in np.linspace(0.05, 0.8, _TRIES // 2):
            dx, dy = self.rng.uniform(0.0, spread, 2) + reach
            x = room.low[0] + dx if self.rng.random() < 0.5 else room.high[0] - dx
            y = room.low[1] + dy if self.rng.random() < 0.5 else room.high[1] - dy
            yaw = float(self.rng.uniform(-math.pi, math.pi))
            if placed := self._try(room, PlacedPiece(piece, float(x), float(y), yaw)):
                return placed
        return None

    def _in_middle(self, room: Room, kind: str) -> PlacedPiece | None:
        """Near the middle of the room, along its longer side."""
        piece = self.makers[kind](self.rng)
        yaw = math.pi / 2 if room.high[0] - room.low[0] > room.high[1] - room.low[1] else 0.0
        for _ in range(_TRIES):
            x = (room.low[0] + room.high[0]) / 2 + self.rng.uniform(-0.5, 0.5)
            y = (room.low[1] + room.high[1]) / 2 + self.rng.uniform(-0.5, 0.5)
            if placed := self._try(room, PlacedPiece(piece, float(x), float(y), yaw + self.rng.normal(0.0, 0.04))):
                return placed
        return None

    def _beside(self, room: Room, anchor: PlacedPiece, kind: str, forward: float, left: float, turn: float) -> None:
        piece = self.makers[kind](self.rng)
        self._try(room, anchor.beside(piece, forward, left, turn + self.rng.normal(0.0, 0.05)))

    def _try(self, room: Room, candidate: PlacedPiece) -> PlacedPiece | None:
        """Place the piece if it fits and people can still get everywhere."""
        footprint = candidate.footprint
        corners = footprint.corners()
        low, high = np.add(room.low, 0.01), np.subtract(room.high, 0.01)
        zones = self._door_zones + (self._window_zones if candidate.piece.height_m > _SILL_M else [])
        if (
            (corners < low).any()
            or (corners > high).any()
            or any(footprint.overlaps(zone) for zone in zones)
            or any(footprint.overlaps(other.footprint, _GAP_M) for other in self.placed)
            or not self._grid.connects(self._doors, self._grid.without(footprint))
        ):
            return None
        self._grid.block(footprint)
        self.placed.append(candidate)
        return candidate


def _middle(door: Opening) -> Float64:
    across, along = (door.near + door.far) / 2, (door.start + door.stop) / 2
    return np.array([across, along] if door.axis == 0 else [along, across])


def _zone(opening: Opening, depth_m: float) -> Footprint:
    """Floor on both sides of an opening, ``depth_m`` deep."""
    x, y = _middle(opening)
    across, along = (opening.far - opening.near) / 2 + depth_m, (opening.stop - opening.start) / 2
    return Footprint((float(x), float(y)), (across, along) if opening.axis == 0 else (along, across), 0.0)
