"""Built-in furniture of real proportions, each piece assembled from parts.

A piece stands on z = 0 around the origin of its own frame; +X is its front, -X the side that goes against a wall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rollout_assets.geometry.poses import Float64
from rollout_assets.synthetic.solids import Ball, Leaves, Part, Patch, Slab, Tube, combine

CLASS_NAMES = {1: "table", 2: "chair", 3: "sofa", 4: "bed", 5: "shelf", 6: "cabinet", 7: "lamp", 8: "plant"}
"""Semantic ids of the built-in kinds."""

CLASS_IDS = {name: number for number, name in CLASS_NAMES.items()}

MOVEABLE_CLASSES = frozenset({"chair", "lamp", "plant"})
"""Classes that people shift around."""


@dataclass(frozen=True)
class Piece:
    """One piece of furniture in its own frame; low, high: (3,) bounds in metres."""

    class_name: str
    parts: tuple[Part, ...]
    low: Float64
    high: Float64

    @property
    def height_m(self) -> float:
        """How tall it is."""
        return float(self.high[2])

    def face_count(self, cell_m: float) -> int:
        """Triangles that ``build`` makes."""
        return sum(part.face_count(cell_m) for part in self.parts)

    def build(self, cell_m: float) -> Patch:
        """All parts as one patch."""
        return combine([part.build(cell_m) for part in self.parts])


def make_piece(class_name: str, parts: list[Part]) -> Piece:
    """A piece with bounds around all its parts."""
    lows, highs = zip(*(part.bounds() for part in parts), strict=True)
    return Piece(class_name, tuple(parts), np.min(lows, axis=0), np.max(highs, axis=0))


def table(rng: np.random.Generator) -> Piece:
    """A dining table: four legs and an apron, or round on a column."""
    height, length, width = rng.uniform(0.72, 0.77), rng.uniform(1.2, 1.8), rng.uniform(0.75, 0.95)
    if rng.random() < 0.3:
        radius = rng.uniform(0.45, 0.6)
        return make_piece("table", _round_table(height, radius))
    return make_piece("table", _legged_top(height, width, length, leg=rng.uniform(0.045, 0.075)))


def coffee_table(rng: np.random.Generator) -> Piece:
    """A low table, often with a board below the top."""
    height, length, width = rng.uniform(0.36, 0.46), rng.uniform(0.85, 1.2), rng.uniform(0.5, 0.65)
    parts = _legged_top(height, width, length, leg=rng.uniform(0.035, 0.05))
    if rng.random() < 0.6:
        parts.append(Slab((width - 0.1, length - 0.1, 0.02), (0, 0, height * 0.35)))
    if rng.random() < 0.5:
        parts.append(Slab((0.2, 0.28, 0.03), (0.05, 0.1, height + 0.015)))
        parts.append(Slab((0.18, 0.25, 0.025), (0.05, 0.1, height + 0.0425)))
    return make_piece("table", parts)


def desk(rng: np.random.Generator) -> Piece:
    """A desk with drawers on one side and a screen."""
    height, length, depth = rng.uniform(0.72, 0.76), rng.uniform(1.2, 1.6), rng.uniform(0.6, 0.75)
    side = rng.choice([-1.0, 1.0])
    drawers_y = side * (length / 2 - 0.22)
    parts: list[Part] = [
        Slab((depth, length, 0.03), (0, 0, height - 0.015)),
        Slab((depth - 0.06, 0.03, height - 0.03), (0, -side * (length / 2 - 0.03), (height - 0.03) / 2)),
        Slab((0.02, length - 0.1, 0.35), (-depth / 2 + 0.05, 0, height - 0.205)),
        Slab((depth - 0.1, 0.4, height - 0.03), (0, drawers_y, (height - 0.03) / 2)),
    ]
    for level in range(3):
        z = 0.14 + level * (height - 0.1) / 3
        parts.append(Slab((0.02, 0.37, (height - 0.2) / 3), (depth / 2 - 0.045, drawers_y, z)))
        parts.append(Slab((0.02, 0.12, 0.012), (depth / 2 - 0.03, drawers_y, z + 0.04)))
    screen_y = rng.uniform(-0.2, 0.2)
    back = -depth / 2 + 0.18
    parts += [
        Tube((back, screen_y, height), (back, screen_y, height + 0.012), 0.11, 0.11),
        Tube((back, screen_y, height + 0.012), (back, screen_y, height + 0.16), 0.018, 0.018),
        Slab((0.03, 0.56, 0.33), (back + 0.02, screen_y, height + 0.28)),
    ]
    return make_piece("table", parts)


def chair(rng: np.random.Generator) -> Piece:
    """A dining chair: tapered legs, a seat, and a back of slats or of one board."""
    seat, side, top = rng.uniform(0.44, 0.48), rng.uniform(0.42, 0.48), rng.uniform(0.82, 1.0)
    inset = side / 2 - 0.03
    parts: list[Part] = [Slab((side, side, 0.045), (0, 0, seat - 0.0225), radius=0.018)]
    ends = (-inset, inset)
    parts += [Tube((x * 1.08, y * 1.08, 0), (x, y, seat - 0.04), 0.014, 0.022) for x in ends for y in ends]
    parts += [Tube((-inset, y, seat - 0.04), (-inset - 0.06, y, top), 0.02, 0.015) for y in ends]
    lean = -inset - 0.03
    if rng.random() < 0.55:
        for y in np.linspace(-inset, inset, int(rng.integers(3, 6)) + 2)[1:-1]:
            parts.append(Slab((0.014, 0.035, top - seat - 0.1), (lean, float(y), (seat + top) / 2)))
        parts.append(Slab((0.025, side - 0.02, 0.07), (lean - 0.02, 0, top - 0.05)))
    else:
        board = (0.03, side - 0.03, (top - seat) * 0.6)
        parts.append(Slab(board, (lean - 0.01, 0, top - (top - seat) * 0.32), radius=0.012))
    if rng.random() < 0.3:
        for y in (-inset - 0.01, inset + 0.01):
            parts.append(Slab((side - 0.06, 0.04, 0.025), (-0.01, y, seat + 0.22)))
            parts.append(Tube((inset - 0.03, y, seat - 0.02), (inset - 0.05, y, seat + 0.21), 0.015, 0.015))
    return make_piece("chair", parts)


def sofa(rng: np.random.Generator) -> Piece:
    """Two or three seats: base, cushions, back, arms and feet."""
    seats = int(rng.integers(2, 4))
    return _upholstered(rng, seats * rng.uniform(0.62, 0.7) + 0.4, seats)


def armchair(rng: np.random.Generator) -> Piece:
    """A sofa for one."""
    return _upholstered(rng, rng.uniform(0.8, 0.95), 1)


def bed(rng: np.random.Generator) -> Piece:
    """Frame, mattress, blanket, pillows and a headboard at the wall."""
    width, length = float(rng.choice([0.9, 1.4, 1.6, 1.8])) + 0.08, rng.uniform(2.02, 2.12)
    frame, mattress, head = rng.uniform(0.28, 0.34), rng.uniform(0.18, 0.24), rng.uniform(0.9, 1.15)
    top = frame + mattress
    parts: list[Part] = [
        Slab((length, width, 0.14), (0, 0, frame - 0.07)),
        Slab((length - 0.08, width - 0.08, mattress), (0.02, 0, frame + mattress / 2), radius=0.06),
        Slab((length * 0.62, width - 0.02, 0.06), (length * 0.17, 0, top + 0.01), radius=0.028),
        Slab((0.06, width + 0.06, head), (-length / 2 - 0.02, 0, head / 2), radius=0.02),
    ]
    pillows = 1 if width < 1.2 else 2
    pillow = (0.42, min(0.68, width / pillows - 0.06), 0.15)
    for y in (np.arange(pillows) - (pillows - 1) / 2) * (width / pillows):
        parts.append(Slab(pillow, (-length / 2 + 0.3, float(y), top + 0.07), radius=0.07))
    x, y = length / 2 - 0.08, width / 2 - 0.07
    parts += _legs((-x, x), (-y, y), frame - 0.13, 0.028, 0.035)
    return make_piece("bed", parts)


def shelf(rng: np.random.Generator) -> Piece:
    """An open bookcase: sides, boards, a back, books and a vase or two."""
    width, depth, height = rng.uniform(0.75, 1.2), rng.uniform(0.28, 0.35), rng.uniform(1.5, 2.0)
    levels = int(rng.integers(4, 6))
    parts: list[Part] = [Slab((0.012, width, height), (-depth / 2 + 0.006, 0, height / 2))]
    for y in (-width / 2 + 0.011, width / 2 - 0.011):
        parts.append(Slab((depth, 0.022, height), (0, y, height / 2)))
    gap = (height - 0.06) / levels
    for level in range(levels + 1):
        board = 0.05 + level * gap
        parts.append(Slab((depth - 0.01, width - 0.044, 0.022), (0, 0, min(board, height - 0.011))))
        if level < levels:
            parts += _books(rng, width - 0.06, depth, board + 0.012, gap - 0.03)
    return make_piece("shelf", parts)


def sideboard(rng: np.random.Generator) -> Piece:
    """A low cabinet on feet."""
    return _doored(rng, rng.uniform(1.1, 1.6), rng.uniform(0.4, 0.46), rng.uniform(0.55, 0.85), feet=0.12)


def wardrobe(rng: np.random.Generator) -> Piece:
    """A tall cabinet on a plinth."""
    return _doored(rng, rng.uniform(1.0, 1.6), rng.uniform(0.56, 0.62), rng.uniform(1.8, 2.0), feet=0.0)


def nightstand(rng: np.random.Generator) -> Piece:
    """A bedside cabinet."""
    return _doored(rng, rng.uniform(0.4, 0.5), rng.uniform(0.36, 0.42), rng.uniform(0.42, 0.55), feet=0.1)


def counter(rng: np.random.Generator) -> Piece:
    """A kitchen cabinet with a worktop."""
    width, depth, height = rng.uniform(1.2, 2.0), 0.6, 0.88
    body = _doored(rng, width, depth - 0.02, height, feet=0.0)
    top = Slab((depth + 0.02, width + 0.02, 0.04), (0.01, 0, height + 0.02))
    return make_piece("cabinet", [*body.parts, top])


def lamp(rng: np.random.Generator) -> Piece:
    """A floor lamp."""
    height, shade = rng.uniform(1.45, 1.75), rng.uniform(0.16, 0.24)
    drop = rng.uniform(0.24, 0.34)
    return make_piece(
        "lamp",
        [
            Tube((0, 0, 0), (0, 0, 0.025), 0.15, 0.14),
            Tube((0, 0, 0.025), (0, 0, height - drop * 0.5), 0.013, 0.013),
            Tube((0, 0, height - drop), (0, 0, height), shade, shade * rng.uniform(0.55, 0.9)),
            Ball((0.03, 0.03, 0.04), (0, 0, height - drop - 0.02)),
        ],
    )


def plant(rng: np.random.Generator) -> Piece:
    """A pot with stems and many small leaves."""
    pot, radius = rng.uniform(0.25, 0.4), rng.uniform(0.13, 0.19)
    tall = rng.uniform(0.5, 1.1)
    stems = int(rng.integers(3, 7))
    angle = rng.uniform(0, 2 * np.pi, stems)
    lean = rng.uniform(0.04, 0.16, stems)
    tips = np.stack([np.cos(angle) * lean, np.sin(angle) * lean, pot + tall * rng.uniform(0.6, 1.0, stems)], axis=1)
    parts: list[Part] = [
        Tube((0, 0, 0), (0, 0, pot), radius * 0.75, radius),
        Tube((0, 0, pot), (0, 0, pot + 0.01), radius * 0.9, radius * 0.9),
    ]
    parts += [Tube((0, 0, pot - 0.02), (float(x), float(y), float(z)), 0.012, 0.006) for x, y, z in tips]
    count = int(rng.integers(90, 180))
    share = rng.uniform(0.3, 1.0, count)[:, None]
    base = np.array([0, 0, pot]) * (1 - share) + tips[rng.integers(0, stems, count)] * share
    turn, rise = rng.uniform(0, 2 * np.pi, count), rng.uniform(-0.2, 1.0, count)
    direction = np.stack([np.cos(turn) * np.cos(rise), np.sin(turn) * np.cos(rise), np.sin(rise)], axis=1)
    length = rng.uniform(0.1, 0.24, count)
    parts.append(Leaves(base, direction, length, length * rng.uniform(0.3, 0.5, count), droop=rng.uniform(0.2, 0.6)))
    return make_piece("plant", parts)


KINDS: dict[str, Callable[[np.random.Generator], Piece]] = {
    maker.__name__: maker
    for maker in (
        *(table, coffee_table, desk, chair, sofa, armchair, bed),
        *(shelf, sideboard, wardrobe, nightstand, counter, lamp, plant),
    )
}
"""Every built-in kind by name."""


def _legged_top(height: float, width: float, length: float, leg: float) -> list[Part]:
    x, y = width / 2 - leg, length / 2 - leg
    parts: list[Part] = [Slab((width, length, 0.035), (0, 0, height - 0.0175), radius=0.008)]
    parts += [Slab((leg, leg, height - 0.035), (i, j, (height - 0.035) / 2)) for i in (-x, x) for j in (-y, y)]
    parts += [Slab((0.022, 2 * y - leg, 0.08), (i, 0, height - 0.075)) for i in (-x, x)]
    parts += [Slab((2 * x - leg, 0.022, 0.08), (0, j, height - 0.075)) for j in (-y, y)]
    return parts


def _legs(xs: tuple[float, ...], ys: tuple[float, ...], top: float, foot: float, knee: float) -> list[Tube]:
    """A leg at every x and y from the floor to ``top``, with radius ``foot`` below and ``knee`` above."""
    return [Tube((x, y, 0), (x, y, top), foot, knee) for x in xs for y in ys]


def _round_table(height: float, radius: float) -> list[Part]:
    return [
        Tube((0, 0, height - 0.03), (0, 0, height), radius, radius),
        Tube((0, 0, 0.03), (0, 0, height - 0.03), 0.055, 0.04),
        Tube((0, 0, 0), (0, 0, 0.03), radius * 0.55, radius * 0.5),
    ]


def _upholstered(rng: np.random.Generator, length: float, seats: int) -> Piece:
    depth, seat = rng.uniform(0.82, 0.95), rng.uniform(0.4, 0.46)
    back, arm = rng.uniform(0.78, 0.9), rng.uniform(0.14, 0.2)
    inner = length - 2 * arm
    parts: list[Part] = [
        Slab((depth - 0.04, length - 0.04, seat - 0.22), (0, 0, 0.1 + (seat - 0.22) / 2)),
        Slab((0.18, length, back - 0.1), (-depth / 2 + 0.09, 0, 0.1 + (back - 0.1) / 2), radius=0.06),
    ]
    for y in (-(length - arm) / 2, (length - arm) / 2):
        parts.append(Slab((depth, arm, seat + 0.06), (0, y, 0.1 + (seat + 0.06) / 2), radius=0.05))
    for number in range(seats):
        y = (number - (seats - 1) / 2) * inner / seats
        wide = inner / seats - 0.015
        parts.append(Slab((depth - 0.22, wide, 0.16), (0.09, y, seat - 0.05), radius=0.05))
        parts.append(Slab((0.16, wide, 0.4), (-depth / 2 + 0.24, y, seat + 0.21), radius=0.06))
    x, y = depth / 2 - 0.1, length / 2 - 0.1
    return make_piece("sofa", [*parts, *_legs((-x, x), (-y, y), 0.11, 0.018, 0.026)])


def _doored(rng: np.random.Generator, width: float, depth: float, height: float, feet: float) -> Piece:
    plinth = feet if feet > 0 else 0.06
    parts: list[Part] = [Slab((depth - 0.02, width, height - plinth), (-0.01, 0, plinth + (height - plinth) / 2))]
    if feet > 0:
        sides = (-width / 2 + 0.06, width / 2 - 0.06)
        parts += _legs((-depth / 2 + 0.06, depth / 2 - 0.08), sides, plinth, 0.016, 0.024)
    else:
        parts.append(Slab((depth - 0.08, width - 0.02, plinth), (-0.03, 0, plinth / 2)))
    doors = max(1, round(width / 0.5))
    wide = width / doors
    rows = 1 if height > 1.2 or rng.random() < 0.6 else 2
    tall = (height - plinth - 0.02) / rows
    for door in range(doors):
        y = (door - (doors - 1) / 2) * wide
        for row in range(rows):
            z = plinth + 0.01 + (row + 0.5) * tall
            parts.append(Slab((0.018, wide - 0.012, tall - 0.012), (depth / 2 - 0.011, y, z)))
            grip = y + (wide / 2 - 0.06) * (1 if door % 2 == 0 else -1)
            parts.append(Tube((depth / 2 + 0.02, grip, z - 0.06), (depth / 2 + 0.02, grip, z + 0.06), 0.007, 0.007))
    return make_piece("cabinet", parts)


def _books(rng: np.random.Generator, width: float, depth: float, z: float, room: float) -> list[Part]:
    parts: list[Part] = []
    y = -width / 2 + 0.02 + rng.uniform(0, 0.1)
    while y < width / 2 - 0.1:
        if rng.random() < 0.12:
            radius = rng.uniform(0.04, 0.06)
            if y + 2 * radius < width / 2 - 0.02:
                top = z + room * rng.uniform(0.4, 0.7)
                parts.append(Tube((0, y + radius, z), (0, y + radius, top), radius, radius * 0.6))
            y += 2 * radius + 0.05
            continue
        thick, tall = rng.uniform(0.025, 0.06), min(room - 0.03, rng.uniform(0.16, 0.28))
        deep = min(depth - 0.05, tall * rng.uniform(0.65, 0.8))
        parts.append(Slab((deep, thick, tall), (-0.01 + rng.uniform(-0.015, 0.015), y + thick / 2, z + tall / 2)))
        y += thick + (rng.uniform(0.05, 0.3) if rng.random() < 0.12 else 0.003)
    return parts
