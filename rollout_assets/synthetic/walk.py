"""A person walking through a home: where the head is, and where it looks."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from rollout_assets.errors import SourceError
from rollout_assets.geometry.poses import RIG_FROM_LUF, Float32, Float64, compose, inverse, look_along, make_pose
from rollout_assets.synthetic.config import SnippetConfig
from rollout_assets.synthetic.floor_grid import FloorGrid
from rollout_assets.synthetic.furnish import WALK_CLEARANCE_M
from rollout_assets.synthetic.scene import LabelledScene, SyntheticScene

GRID_CELL_M = 0.05
HEAD_HEIGHT_M = 1.6
_SPEED_M_S = 0.7
_BOB_M = 0.015
_STEP_HZ = 1.8
_MAX_GAZE_YAW = math.radians(80.0)
_PITCH_RANGE = (math.radians(-35.0), math.radians(8.0))
_SEARCHES = 60
_ENDINGS = 8


@dataclass(frozen=True)
class Walk:
    """T poses: raw rig poses and their left-up-forward camera poses, (T, 12) float32 each; time_ns (T,) int64."""

    pose_world_rig: Float32
    pose_world_camera: Float32
    time_ns: np.ndarray[tuple[int], np.dtype[np.int64]]


def walking_grid(scene: SyntheticScene) -> FloorGrid:
    """Where the walker may be: the largest connected piece of free floor."""
    grid = FloorGrid.of_plan(scene.plan, GRID_CELL_M, WALK_CLEARANCE_M)
    for item in scene.placed:
        grid.block(item.footprint)
    grid.free = grid.largest_part()
    if not grid.free.any():
        raise SourceError(f"{scene.scene_id}: the furniture leaves no free floor to walk on")
    return grid


def draw_walk(config: SnippetConfig, scene: LabelledScene, grid: FloorGrid, rng: np.random.Generator) -> Walk:
    """A random walk with a head that looks around, mostly at furniture, and at a piece of it at the end."""
    length_m = _SPEED_M_S * (config.poses - 1) / config.rate_hz
    track = _draw_track(scene, grid, rng, length_m, config.poses)
    seconds = np.arange(config.poses) / config.rate_hz
    bob = _BOB_M * np.sin(2 * np.pi * _STEP_HZ * seconds + rng.uniform(0, 2 * np.pi))
    height = HEAD_HEIGHT_M + rng.uniform(-0.08, 0.08) + bob
    positions = np.concatenate([track, height[:, None]], axis=1)
    level = look_along(positions, _gaze(scene, positions, rng))
    roll = _smooth(rng.normal(0.0, math.radians(1.5), config.poses))
    camera = compose(level, _rolled(roll))
    raw = compose(camera, inverse(RIG_FROM_LUF))
    return Walk(raw, compose(raw, RIG_FROM_LUF), np.round(seconds * 1e9).astype(np.int64))


def _draw_track(
    scene: LabelledScene, grid: FloorGrid, rng: np.random.Generator, length_m: float, count: int
) -> Float64:
    """(count, 2) positions of a walk that, if at all possible, ends with furniture in front."""
    for _ in range(_ENDINGS):
        line = _draw_line(grid, rng, length_m)
        track = _resampled(line, min(length_m, _length(line)), count)
        ahead = track[-1] - track[-2]
        if _attention(scene, track[-1], math.atan2(ahead[1], ahead[0])).any():
            break
    return track


def _draw_line(grid: FloorGrid, rng: np.random.Generator, length_m: float) -> Float64:
    """A smooth free line of at least ``length_m`` metres, or the longest found."""
    cells = np.argwhere(grid.free)
    best: Float64 | None = None
    for _ in range(_SEARCHES):
        start, goal = cells[rng.integers(len(cells))], cells[rng.integers(len(cells))]
        if not 0.7 * length_m <= np.linalg.norm(goal - start) * grid.cell_m <= 2.5 * length_m:
            continue
        path = grid.path((int(start[0]), int(start[1])), (int(goal[0]), int(goal[1])))
        if path is None:
            continue
        line = _smoothed(grid, _pulled(grid, path))
        if best is None or _length(line) > _length(best):
            best = line
        if _length(best) >= length_m:
            return best
    if best is None:
        centre = grid.centres[tuple(cells[rng.integers(len(cells))])]
        return np.stack([centre, centre])
    return best


def _pulled(grid: FloorGrid, path: Float64) -> Float64:
    """The path with every corner left out that can be seen past."""
    kept = [0]
    while kept[-1] < len(path) - 1:
        here = kept[-1]
        ahead = len(path) - 1
        while ahead > here + 1 and not grid.sees(path[here], path[ahead]):
            ahead = here + max(1, (ahead - here) * 3 // 4)
        kept.append(ahead)
    return path[kept]


def _smoothed(grid: FloorGrid, line: Float64) -> Float64:
    """Corners cut three times, as long as the line stays free."""
    for _ in range(3):
        if len(line) < 3:
            break
        inner = np.stack([0.75 * line[:-1] + 0.25 * line[1:], 0.25 * line[:-1] + 0.75 * line[1:]], axis=1)
        cut = np.concatenate([line[:1], inner.reshape(-1, 2), line[-1:]])
        if not all(grid.sees(a, b) for a, b in itertools.pairwise(cut)):
            break
        line = cut
    return line


def _length(line: Float64) -> float:
    return float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum())


def _resampled(line: Float64, length: float, count: int) -> Float64:
    """(count, 2) points at equal steps along the first ``length`` metres."""
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(line, axis=0), axis=1))])
    at = np.linspace(0.0, length, count)
    return np.stack([np.interp(at, along, line[:, axis]) for axis in (0, 1)], axis=1)


def _gaze(scene: LabelledScene, positions: Float64, rng: np.random.Generator) -> Float64:
    """(T, 3) view directions: towards one piece of furniture after the other, held back by the walking direction."""
    count = len(positions)
    centres = scene.boxes.centers_world.astype(np.float64)
    ahead = np.gradient(positions[:, :2], axis=0)
    heading = np.unwrap(np.arctan2(ahead[:, 1], ahead[:, 0]))
    yaw, pitch = heading.copy(), np.full(count, math.radians(-8.0))
    changes = rng.choice(np.arange(1, max(2, count - 4)), size=min(2, count // 8), replace=False)
    for start, stop in itertools.pairwise([0, *sorted(changes.tolist()), count]):
        fit = _attention(scene, positions[stop - 1], heading[stop - 1])
        if not fit.any():
            continue
        target = int(rng.choice(len(fit), p=fit / fit.sum()))
        to = centres[target] - positions[start:stop]
        turn = np.arctan2(to[:, 1], to[:, 0]) - heading[start:stop]
        turn = (turn + np.pi) % (2 * np.pi) - np.pi
        yaw[start:stop] = heading[start:stop] + np.clip(turn, -_MAX_GAZE_YAW, _MAX_GAZE_YAW)
        pitch[start:stop] = np.arctan2(to[:, 2], np.linalg.norm(to[:, :2], axis=1))
    yaw = _smooth(yaw + _smooth(rng.normal(0.0, 0.06, count)))
    pitch = np.clip(_smooth(pitch + _smooth(rng.normal(0.0, 0.04, count))), *_PITCH_RANGE)
    return np.stack([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)], axis=1)


def _attention(scene: LabelledScene, position: Float64, heading: float) -> Float64:
    """(k,) how much each piece draws the eye of somebody here: only those ahead in the same room, nearer ones more."""
    centres = scene.boxes.centers_world.astype(np.float64)
    to = centres[:, :2] - position[:2]
    away = np.linalg.norm(to, axis=1)
    turn = np.abs((np.arctan2(to[:, 1], to[:, 0]) - heading + np.pi) % (2 * np.pi) - np.pi)
    near = (away < 5.0) & (away > 0.8) & (turn < _MAX_GAZE_YAW)
    return np.where(near & scene.in_same_room(position), 1.0 / (0.5 + away), 0.0)


def _smooth(values: Float64) -> Float64:
    """A five-tap moving average that keeps both ends."""
    padded = np.concatenate([values[:1], values[:1], values, values[-1:], values[-1:]])
    kernel = np.array([1.0, 2.0, 3.0, 2.0, 1.0]) / 9.0
    return np.convolve(padded, kernel, mode="valid")


def _rolled(angle: Float64) -> Float32:
    """(T, 12) turns about the view direction."""
    c, s, zero, one = np.cos(angle), np.sin(angle), np.zeros_like(angle), np.ones_like(angle)
    turns = np.stack([c, -s, zero, s, c, zero, zero, zero, one], axis=-1).reshape(-1, 3, 3)
    return make_pose(turns, np.zeros((len(angle), 3)))
