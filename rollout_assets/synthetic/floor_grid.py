"""Where a person can stand: a grid over the floor that knows walls, doorways and furniture footprints."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.geometry.poses import Float64
from rollout_assets.synthetic.home import HomePlan

Mask = NDArray[np.bool_]
Point = tuple[float, float]
_STEPS = tuple((dx, dy, math.hypot(dx, dy)) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if (dx, dy) != (0, 0))


@dataclass(frozen=True)
class Footprint:
    """A rectangle on the floor: ``centre`` (2,), ``half`` (2,) along its own axes, turned by ``yaw`` radians."""

    centre: tuple[float, float]
    half: tuple[float, float]
    yaw: float

    def distance(self, points: Float64) -> Float64:
        """points: (..., 2) -> (...) metres to the rectangle, 0 inside."""
        local = self._local(points)
        return np.linalg.norm(np.maximum(np.abs(local) - np.asarray(self.half), 0.0), axis=-1)

    def corners(self) -> Float64:
        """(4, 2)."""
        signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * np.asarray(self.half)
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        return signs @ np.array([[c, s], [-s, c]]) + np.asarray(self.centre)

    def overlaps(self, other: Footprint, margin_m: float = 0.0) -> bool:
        """Whether the two come closer than ``margin_m``, by separating axes."""
        for one, two in ((self, other), (other, self)):
            local = one._local(two.corners())
            half = np.asarray(one.half) + margin_m
            if ((local.min(axis=0) >= half) | (local.max(axis=0) <= -half)).any():
                return False
        return True

    def _local(self, points: Float64) -> Float64:
        c, s = math.cos(self.yaw), math.sin(self.yaw)
        return (points - np.asarray(self.centre)) @ np.array([[c, -s], [s, c]])


class FloorGrid:
    """Cells of ``cell_m`` from ``origin`` on; ``free`` marks those whose centre is ``clearance_m`` from everything."""

    def __init__(self, size_m: tuple[float, float], cell_m: float, clearance_m: float, origin: Point = (0, 0)) -> None:
        self.cell_m = cell_m
        self.clearance_m = clearance_m
        self.origin: Float64 = np.asarray(origin, np.float64)
        shape = (math.ceil(size_m[0] / cell_m), math.ceil(size_m[1] / cell_m))
        i, j = np.meshgrid(np.arange(shape[0]), np.arange(shape[1]), indexing="ij")
        self.centres: Float64 = (np.stack([i, j], axis=-1).astype(np.float64) + 0.5) * cell_m + self.origin
        self.free: Mask = np.ones(shape, bool)

    @classmethod
    def of_plan(cls, plan: HomePlan, cell_m: float, clearance_m: float) -> FloorGrid:
        """The grid of an unfurnished home."""
        grid = cls((plan.width_m, plan.depth_m), cell_m, clearance_m)
        grid.free = _away_from_walls(plan, grid.centres, clearance_m)
        return grid

    def block(self, footprint: Footprint) -> None:
        """Take away what a piece of furniture stands on, with clearance."""
        self.free = self.without(footprint)

    def without(self, footprint: Footprint) -> Mask:
        """``free`` as it would be with one more piece."""
        return self.free & (footprint.distance(self.centres) >= self.clearance_m)

    def is_free(self, points: Float64) -> Mask:
        """points: (n, 2) -> (n,)."""
        cells = np.floor((points - self.origin) / self.cell_m).astype(int)
        inside = ((cells >= 0) & (cells < self.free.shape)).all(axis=1)
        cells = np.clip(cells, 0, np.array(self.free.shape) - 1)
        return np.asarray(self.free[cells[:, 0], cells[:, 1]] & inside)

    def sees(self, start: Float64, stop: Float64) -> bool:
        """Whether the straight line between two points stays free."""
        steps = max(2, math.ceil(float(np.linalg.norm(stop - start)) / (0.4 * self.cell_m)))
        return bool(self.is_free(start + np.linspace(0, 1, steps)[:, None] * (stop - start)).all())

    def connects(self, cells: list[tuple[int, int]], free: Mask) -> bool:
        """Whether all cells can be walked to from the first of them over ``free``."""
        rows, cols = zip(*cells, strict=True)
        return any(reached[rows, cols].all() for reached in _flood(cells[0], free))

    def reachable(self, start: tuple[int, int]) -> Mask:
        """Every free cell that can be walked to from ``start``."""
        *_, reached = _flood(start, self.free)
        return reached

    def largest_part(self) -> Mask:
        """The largest piece of free floor in which every cell can be walked to."""
        best = np.zeros_like(self.free)
        left = self.free.copy()
        while left.sum() > best.sum():
            i, j = np.argwhere(left)[0]
            part = self.reachable((int(i), int(j)))
            left &= ~part
            best = part if part.sum() > best.sum() else best
        return best

    def nearest_free(self, point: Float64) -> tuple[int, int]:
        """The free cell closest to a point."""
        away = np.where(self.free, np.linalg.norm(self.centres - point, axis=-1), np.inf)
        i, j = np.unravel_index(int(np.argmin(away)), away.shape)
        return int(i), int(j)

    def path(self, start: tuple[int, int], goal: tuple[int, int]) -> Float64 | None:
        """(n, 2) cell centres of a shortest eight-connected path, or None."""
        width = self.free.shape[1]
        free = self.free.ravel().tolist()
        limit = self.free.shape[0]
        source, target = start[0] * width + start[1], goal[0] * width + goal[1]
        best = {source: 0.0}
        before: dict[int, int] = {}
        queue = [(0.0, source)]
        while queue:
            estimate, here = heapq.heappop(queue)
            if here == target:
                break
            x, y = divmod(here, width)
            cost = best[here]
            if estimate > cost + math.hypot(x - goal[0], y - goal[1]) + 1e-9:
                continue
            for dx, dy, step in _STEPS:
                i, j = x + dx, y + dy
                there = i * width + j
                if not (0 <= i < limit and 0 <= j < width and free[there]):
                    continue
                if cost + step < best.get(there, math.inf) - 1e-12:
                    best[there] = cost + step
                    before[there] = here
                    heapq.heappush(queue, (cost + step + math.hypot(i - goal[0], j - goal[1]), there))
        if target not in best:
            return None
        chain = [target]
        while chain[-1] != source:
            chain.append(before[chain[-1]])
        cells = np.array(chain[::-1])
        return np.asarray(self.centres[cells // width, cells % width])


def _away_from_walls(plan: HomePlan, centres: Float64, clearance_m: float) -> Mask:
    """Inside a room or a doorway and at least ``clearance_m`` from everything else."""
    height, width = len(centres), len(centres[0])
    inside = np.zeros((height, width), bool)
    for room in plan.rooms:
        inside |= _within(centres, room.low, room.high)
    for door in plan.passages:
        low, high = (door.near, door.start), (door.far, door.stop)
        inside |= _within(centres, low, high) if door.axis == 0 else _within(centres, low[::-1], high[::-1])
    cell = float(centres[1, 0, 0] - centres[0, 0, 0])
    reach = math.ceil(clearance_m / cell)
    wall = np.ones((height + 2 * reach, width + 2 * reach), bool)
    wall[reach : reach + height, reach : reach + width] = ~inside
    near = np.zeros((height, width), bool)
    for dx in range(-reach, reach + 1):
        for dy in range(-reach, reach + 1):
            if math.hypot(dx, dy) * cell < clearance_m:
                near |= wall[reach + dx : reach + dx + height, reach + dy : reach + dy + width]
    return ~near


def _flood(start: tuple[int, int], free: Mask) -> Iterator[Mask]:
    """The free cells reached from ``start`` after 0, 8, 16, ... steps without diagonals, until there are no more."""
    reached = np.zeros_like(free)
    reached[start] = free[start]
    count = -1
    while count != (count := int(reached.sum())):
        yield reached
        for _ in range(8):
            grown = reached.copy()
            grown[1:] |= reached[:-1]
            grown[:-1] |= reached[1:]
            grown[:, 1:] |= reached[:, :-1]
            grown[:, :-1] |= reached[:, 1:]
            reached = grown & free


def _within(points: Float64, low: tuple[float, ...], high: tuple[float, ...]) -> Mask:
    return np.asarray(((points >= low) & (points <= high)).all(axis=-1))
