"""Trajectories that come with a scene: TUM, Aria Synthetic Environments, or JSON poses.

Poses are in the axes and units of the scene's mesh. Which way a pose looks is a convention of who wrote it, the
``camera``: ``opencv`` (x right, y down, z forward), ``opengl`` (x right, y up, z backward), ``luf`` (x left, y up,
z forward), ``rig`` (x down, y left, z forward: Aria's device). It is checked: heads are upright.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import SourceError
from rollout_assets.geometry.poses import RIG_FROM_LUF, Float32, Float64, compose, inverse, make_pose, rotation
from rollout_assets.importing.config import Camera
from rollout_assets.importing.frames import Frame
from rollout_assets.importing.object_file import check_rotation, read_json
from rollout_assets.parsing import open_regular, read_regular
from rollout_assets.synthetic.walk import Walk

UPRIGHT = 0.5
"""Mean cosine between a camera's up and the world's, below which the convention must be another one."""

DEVICE_FROM_LUF = {
    "opencv": np.diag([-1.0, -1.0, 1.0]),
    "opengl": np.diag([-1.0, 1.0, -1.0]),
    "luf": np.eye(3),
    "rig": rotation(RIG_FROM_LUF),
}
"""Columns: left, up and forward in the axes of a pose."""

_USUAL = {".csv": "rig", ".txt": "opencv", ".tum": "opencv", ".json": "opencv"}
_ORDER = ("opencv", "opengl", "rig", "luf")
_ASE_TIME = "tracking_timestamp_us"
_ASE_VALUES = tuple(f"t{axis}_world_device" for axis in "xyz") + tuple(f"q{axis}_world_device" for axis in "xyzw")
_QUATERNION_SLACK = 0.02


@dataclass(frozen=True)
class Trajectory:
    """n poses in a file's own frame: time_ns (n,) int64 or None, rotations (n, 3, 3), positions (n, 3)."""

    time_ns: NDArray[np.int64] | None
    rotations: Float64
    positions: Float64
    ending: str


@dataclass(frozen=True)
class CameraPath:
    """n camera poses (n, 12) float32 in our world, left-up-forward, at time_ns (n,) int64.

    ``camera`` is the convention; ``upright`` and ``forward`` are mean cosines of the camera's up with the world's, and
    of its gaze with its motion.
    """

    poses: Float32
    time_ns: NDArray[np.int64]
    camera: str
    upright: float
    forward: float

    def snippet(self, number: int, count: int, poses: int, rate_hz: float) -> Walk:
        """Window ``number`` of ``count`` that are spread over the path, as ``poses`` poses at ``rate_hz``."""
        step_ns = self.step_ns(rate_hz)
        spare = float(self.time_ns[-1] - self.time_ns[0]) - (poses - 1) * step_ns
        start = self.time_ns[0] + max(spare, 0.0) * (number / max(count - 1, 1))
        times = start + np.arange(poses) * step_ns
        after = np.clip(np.searchsorted(self.time_ns, times), 1, len(self.time_ns) - 1)
        nearer = times - self.time_ns[after - 1] < self.time_ns[after] - times
        raw = compose(self.poses[np.where(nearer, after - 1, after)], inverse(RIG_FROM_LUF))
        return Walk(raw, compose(raw, RIG_FROM_LUF), np.round(times - times[0]).astype(np.int64))

    def step_ns(self, rate_hz: float) -> float:
        """Time between poses of a snippet: that of ``rate_hz``, or of the path when it has fewer poses."""
        return max(1e9 / rate_hz, float(np.median(np.diff(self.time_ns))))

    def check_length(self, poses: int, rate_hz: float) -> None:
        """Refuse a path that is shorter than one snippet."""
        seconds, step = float(self.time_ns[-1] - self.time_ns[0]) / 1e9, self.step_ns(rate_hz) / 1e9
        if seconds < (poses - 1) * step * (1 - 1e-6):
            raise SourceError(
                f"the trajectory lasts {seconds:.2f} s, but a snippet of {poses} poses takes "
                f"{(poses - 1) * step:.2f} s; set --poses to at most {max(2, math.floor(seconds / step) + 1)}"
            )


def read_trajectory(path: Path) -> Trajectory:
    """Any trajectory file, by its ending."""
    readers = {".csv": _read_ase, ".json": _read_json_poses, ".txt": _read_tum, ".tum": _read_tum}
    trajectory = readers[path.suffix.lower()](path)
    if len(trajectory.positions) < 2:
        raise SourceError(f"{path.name}: {len(trajectory.positions)} poses; a trajectory needs at least 2")
    times = trajectory.time_ns
    if times is not None and (np.diff(times) <= 0).any():
        row = int(np.flatnonzero(np.diff(times) <= 0)[0]) + 1
        raise SourceError(f"{path.name}: pose {row} is not later than the one before it; sort the file by time")
    return trajectory


def camera_path(trajectory: Trajectory, frame: Frame, camera: Camera, rate_hz: float) -> CameraPath:
    """Poses in our world; ``auto`` is what is usual for the file, or the first convention with upright heads."""
    positions = frame.to_world(trajectory.positions)
    turned = frame.turn @ trajectory.rotations
    upright = {name: float((turned @ axes)[:, 2, 1].mean()) for name, axes in DEVICE_FROM_LUF.items()}
    usual = _USUAL[trajectory.ending]
    fitting = [name for name in (usual, *_ORDER) if upright[name] >= UPRIGHT]
    chosen = camera if camera != "auto" else (fitting or [usual])[0]
    if upright[chosen] < UPRIGHT:
        advice = f"--camera {fitting[0]} would have it upright" if fitting else "no convention has it upright"
        raise SourceError(
            f"the camera of the trajectory is not upright with --camera {chosen} (mean cosine with up "
            f"{upright[chosen]:.2f}); {advice}; are its axes those of the mesh?"
        )
    poses = make_pose(turned @ DEVICE_FROM_LUF[chosen], positions)
    times = trajectory.time_ns
    if times is None:
        times = np.round(np.arange(len(poses)) / rate_hz * 1e9).astype(np.int64)
    return CameraPath(poses, times, chosen, upright[chosen], _forward_share(poses))


def _forward_share(poses: Float32) -> float:
    """Mean cosine between gaze and motion over the metres moved; 0 for a camera that only turns."""
    steps = np.diff(poses[:, 9:].astype(np.float64), axis=0)
    gaze = rotation(poses)[:-1, :, 2]
    return float(np.einsum("nk,nk->n", steps, gaze).sum() / max(np.linalg.norm(steps, axis=1).sum(), 1e-9))


def _read_tum(path: Path) -> Trajectory:
    """Lines of ``timestamp tx ty tz qx qy qz qw``, seconds; ``#`` starts a comment."""
    rows = []
    for number, line in enumerate(read_regular(path).decode("utf-8", "replace").splitlines(), 1):
        text = line.split("#", 1)[0].replace(",", " ").strip()
        if text:
            rows.append(_numbers(path, number, text.split(), 8))
    values = np.array(rows, np.float64).reshape(-1, 8)
    return _of_quaternions(path, np.round(values[:, 0] * 1e9), values[:, 1:4], values[:, 4:])


def _read_ase(path: Path) -> Trajectory:
    """``trajectory.csv`` of Aria Synthetic Environments, by the names of its columns."""
    with io.TextIOWrapper(open_regular(path), "utf-8", errors="replace", newline="") as stream:
        lines = csv.reader(stream)
        header = [name.strip() for name in next(lines, [])]
        missing = [name for name in (_ASE_TIME, *_ASE_VALUES) if name not in header]
        if missing:
            raise SourceError(f"{path.name}: no column {missing[0]}; it has {', '.join(header[:6]) or 'no header'}")
        columns = [header.index(name) for name in (_ASE_TIME, *_ASE_VALUES)]
        rows = []
        for number, words in enumerate(lines, 2):
            if len(words) < len(header):
                _numbers(path, number, words, len(header))
            rows.append(_numbers(path, number, [words[column] for column in columns], len(columns)))
    values = np.array(rows, np.float64).reshape(-1, 8)
    return _of_quaternions(path, np.round(values[:, 0] * 1e3), values[:, 1:4], values[:, 4:])


def _read_json_poses(path: Path) -> Trajectory:
    """A list of poses: matrices of 4 or 3 rows and 4 columns, or 12 numbers, the rotation row by row before the
    translation."""
    content = read_json(path)
    listed = content.get("poses") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise SourceError(f"{path.name}: not a list of poses")
    rotations, positions = [], []
    for number, pose in enumerate(listed):
        try:
            values = np.array(pose, np.float64)
            turn, shift = _split_pose(values)
            if not np.isfinite(values).all():
                raise ValueError("it has a value that is not finite")
            check_rotation(turn)
        except (ValueError, TypeError) as error:
            raise SourceError(f"{path.name}: pose {number}: {error}") from None
        rotations.append(turn)
        positions.append(shift)
    shape = (-1, 3, 3)
    return Trajectory(None, np.array(rotations).reshape(shape), np.array(positions).reshape(-1, 3), ".json")


def _split_pose(values: Float64) -> tuple[Float64, Float64]:
    if values.shape == (12,):
        return values[:9].reshape(3, 3), values[9:]
    if values.shape == (16,):
        values = values.reshape(4, 4)
    if values.shape in ((4, 4), (3, 4)):
        return values[:3, :3], values[:3, 3]
    raise ValueError(f"expected a 4 x 4 matrix or 12 numbers, got shape {values.shape}")


def _of_quaternions(path: Path, time_ns: Float64, positions: Float64, quaternions: Float64) -> Trajectory:
    length = np.linalg.norm(quaternions, axis=1)
    wrong = np.flatnonzero(~(np.abs(length - 1.0) < _QUATERNION_SLACK))
    if len(wrong):
        row = int(wrong[0])
        raise SourceError(f"{path.name}: pose {row} has a quaternion of length {length[row]:.3g}, not 1")
    x, y, z, w = (quaternions / length[:, None]).T
    turns = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    return Trajectory(time_ns.astype(np.int64), np.moveaxis(turns, -1, 0), positions, path.suffix.lower())


def _numbers(path: Path, line: int, words: list[str], count: int) -> list[float]:
    if len(words) != count:
        raise SourceError(
            f"{path.name}: line {line} has {len(words)} values, expected {count}; "
            "is the file cut, or still being written?"
        )
    try:
        values = [float(word) for word in words]
    except ValueError:
        raise SourceError(
            f"{path.name}: line {line} has a value that is not a number: {' '.join(words)[:60]!r}"
        ) from None
    if not all(math.isfinite(value) for value in values):
        raise SourceError(f"{path.name}: line {line} has a value that is not finite")
    return values
