"""Real collision worlds for tests: an analytic room with a block in it, and the same as a mesh."""

from __future__ import annotations

import numpy as np
import trimesh

from rollout_assets.candidates.mixture import CandidateRequest
from rollout_assets.candidates.rules import Extent
from rollout_assets.geometry.poses import Float32, look_along
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.randomness import rng_for

ROOM_LOW, ROOM_HIGH = np.array([-3.0, -3.0, 0.0]), np.array([3.0, 3.0, 2.6])
BLOCK_LOW, BLOCK_HIGH = np.array([1.2, -0.4, 0.0]), np.array([2.0, 0.4, 1.7])
EXTENT: Extent = (ROOM_LOW.astype(np.float32), ROOM_HIGH.astype(np.float32))
FAR_EXTENT: Extent = (np.full(3, -100, np.float32), np.full(3, 100, np.float32))


def path_points(starts: np.ndarray, ends: np.ndarray, samples: int) -> np.ndarray:
    """(n, samples, 3), both ends included."""
    share = np.linspace(0.0, 1.0, samples)[:, None]
    return starts[:, None, :] + share * (ends - starts)[:, None, :].astype(np.float64)


class AnalyticRoom:
    """Inside of a box-shaped room with one solid block standing on its floor. Counts its queries."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    @property
    def bounds(self) -> Extent:
        return EXTENT

    def distance_m(self, points: Float32) -> Float32:
        self.queries.append("distance")
        return self.distance(points)

    def path_min_clearance_m(self, starts: Float32, ends: Float32, samples: int) -> Float32:
        self.queries.append("path")
        points = path_points(starts, ends, samples)
        return self.distance(points.reshape(-1, 3)).reshape(len(starts), samples).min(axis=1)

    @staticmethod
    def distance(points: Float32) -> Float32:
        p = np.asarray(points, np.float64)
        if not np.isfinite(p).all():
            raise AssertionError("a non-finite point reached the world")
        return np.minimum(
            np.abs(box_distance(p, ROOM_LOW, ROOM_HIGH)), np.abs(box_distance(p, BLOCK_LOW, BLOCK_HIGH))
        ).astype(np.float32)


class FixedAnswers:
    """A world that says the same of every point and path; open space by default."""

    bounds = FAR_EXTENT

    def __init__(self, near: float = np.inf, clearance: float = np.inf) -> None:
        self.near, self.clearance = near, clearance

    def distance_m(self, points: Float32) -> Float32:
        return np.full(len(points), self.near, np.float32)

    def path_min_clearance_m(self, starts: Float32, ends: Float32, samples: int) -> Float32:
        assert len(starts) == len(ends)
        assert samples >= 2
        return np.full(len(starts), self.clearance, np.float32)


def mesh_room() -> OracleScene:
    """The analytic room as triangles, asked through the oracle's own kernels."""
    room = trimesh.creation.box(bounds=[ROOM_LOW, ROOM_HIGH])
    block = trimesh.creation.box(bounds=[BLOCK_LOW, BLOCK_HIGH])
    mesh = trimesh.util.concatenate([room, block])
    return OracleScene(mesh.vertices, mesh.faces, device="cpu")


def box_distance(points: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Signed distance to an axis-aligned box, negative inside."""
    beyond = np.maximum(low - points, points - high)
    outside = np.linalg.norm(np.maximum(beyond, 0.0), axis=1)
    return np.where((beyond > 0).any(axis=1), outside, beyond.max(axis=1))


def request(
    position=(0.0, 0.0, 1.5),
    forward=(1.0, 0.0, 0.0),
    target=(1.6, 0.0, 1.0),
    extent: Extent = EXTENT,
    key: tuple[int, ...] = (0,),
) -> CandidateRequest:
    return CandidateRequest(
        reference_pose_world_camera=look_along(position, forward),
        target_center_world=np.array(target, np.float32),
        extent=extent,
        rng=rng_for("tests", *key),
    )


def scattered_requests(n: int, seed: int) -> list[CandidateRequest]:
    """States all over the room, looking and wanting to look anywhere. The same call gives the same requests."""
    rng = rng_for("states", seed)
    places = rng.uniform(ROOM_LOW + 0.3, ROOM_HIGH - 0.3, (n, 3))
    forwards = rng.normal(size=(n, 3))
    targets = rng.uniform(ROOM_LOW, ROOM_HIGH, (n, 3))
    return [request(places[i], forwards[i], targets[i], key=(seed, i)) for i in range(n)]
