"""Synthetic inputs of any size for measuring the oracle: bumpy objects in a room, clouds on them, views of them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollout_assets.config import OracleConfig
from rollout_assets.errors import GeometryError
from rollout_assets.geometry.boxes import OrientedBoxes
from rollout_assets.geometry.cameras import PinholeCamera
from rollout_assets.geometry.poses import IDENTITY_POSE, Float32, look_along
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import OracleScorer, OracleState, ScoreRequest

Mesh = tuple[Float32, NDArray[np.int32]]
"""Vertices (n, 3) and faces (m, 3)."""

TARGET_RADIUS_M = 0.5
_ROOM_FACES = 12


def bumpy_sphere(faces: int, radius_m: float, centre: tuple[float, float, float] = (0.0, 0.0, 0.0)) -> Mesh:
    """A closed surface of about ``faces`` triangles of similar size."""
    rows = max(round(np.sqrt(faces / 4)), 2)
    columns = max(round(faces / 2 / rows), 3)
    polar = np.linspace(0.0, np.pi, rows + 1)[:, None]
    turn = np.linspace(0.0, 2 * np.pi, columns, endpoint=False)[None, :]
    distance = radius_m * (0.9 + 0.1 * np.sin(5 * polar) * np.cos(4 * turn))
    shape = (rows + 1, columns)
    x = distance * np.sin(polar) * np.cos(turn)
    y = distance * np.sin(polar) * np.sin(turn)
    z = np.broadcast_to(distance * np.cos(polar), shape)
    vertices = np.stack([x, y, z], axis=-1).reshape(-1, 3) + np.array(centre)
    i, j = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    a, b = i * columns + j, i * columns + (j + 1) % columns
    quads = np.stack([a, a + columns, b + columns, a, b + columns, b], axis=-1)
    return vertices.astype(np.float32), quads.reshape(-1, 3).astype(np.int32)


def furnished_room(faces: int, target_faces: int, rng: np.random.Generator) -> Mesh:
    """A room of two faces per wall with the target at its centre and other objects that make up the face count."""
    size = np.array([8.0, 6.0, 3.0])
    corners = (np.stack(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij"), axis=-1).reshape(-1, 3) - 0.5) * size
    quads = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
    walls = np.array([[q[0], q[k], q[k + 1]] for q in quads for k in (1, 2)], np.int32)
    parts: list[Mesh] = [(corners.astype(np.float32), walls), bumpy_sphere(target_faces, TARGET_RADIUS_M)]
    left = faces - _ROOM_FACES - target_faces
    others = 20 if left >= 20 * 16 else 0
    for index in range(others):
        angle = 2 * np.pi * (index + rng.uniform(0, 0.5)) / others
        away = rng.uniform(1.8, 2.4)
        centre = (away * np.cos(angle) * 1.3, away * np.sin(angle), rng.uniform(-0.9, 0.9))
        parts.append(bumpy_sphere(left // others, 0.35, centre))
    return _joined(parts)


def surface_points(mesh: Mesh, count: int, rng: np.random.Generator, facing: Float32 | None = None) -> Float32:
    """``count`` noisy points on the faces, or on those whose centre lies on the side ``facing`` (3,) points to."""
    vertices, faces = mesh
    centres = vertices[faces].mean(axis=1)
    pool = np.flatnonzero(centres @ facing > 0.1) if facing is not None else np.arange(len(faces))
    corners = vertices[faces[rng.choice(pool, count)]]
    points = np.einsum("nk,nkc->nc", rng.dirichlet(np.ones(3), count), corners)
    return (points + rng.normal(0, 0.003, points.shape)).astype(np.float32)


def directions(count: int, rng: np.random.Generator) -> Float32:
    """(count, 3) random unit vectors."""
    vectors = rng.normal(size=(count, 3))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ScoringCase:
    """A root state and candidates that look at its target."""

    scorer: OracleScorer
    request: ScoreRequest

    @property
    def state(self) -> OracleState:
        return self.request.state


def scoring_case(mesh: Mesh, config: OracleConfig, candidates: int, rng: np.random.Generator) -> ScoringCase:
    """Views from 1.2 m of the target of a ``furnished_room``, with 20,000 points seen at the root."""
    scene = OracleScene(*mesh, config.device)
    scorer = OracleScorer(config)
    cloud = scorer.fuse(scene, surface_points(mesh, 20_000, rng))
    size = np.full((1, 3), 2 * TARGET_RADIUS_M, np.float32)
    camera = PinholeCamera(fx_px=125.0, fy_px=125.0, cx_px=120.0, cy_px=120.0, height_px=240, width_px=240)
    state = scorer.begin(scene, camera, cloud, OrientedBoxes(IDENTITY_POSE[None], size))
    if not isinstance(state, OracleState):
        raise GeometryError(f"the synthetic room cannot be scored: {state.reason}: {state.detail}")
    forward = directions(candidates, rng) * np.array([1.0, 1.0, 0.5])
    poses = look_along(-1.2 * forward / np.linalg.norm(forward, axis=1, keepdims=True), forward)
    return ScoringCase(scorer, ScoreRequest(state, poses, np.ones(candidates, bool)))


def first_score(device: str) -> tuple[float, float]:
    """Score a small case; the time of day and the CPU seconds of this process when its labels are there."""
    rng = np.random.default_rng(0)
    case = scoring_case(furnished_room(3_000, 900, rng), OracleConfig(device=device), 2, rng)
    case.scorer.score([case.request])
    return time.time(), time.process_time()


def _joined(parts: list[Mesh]) -> Mesh:
    starts = np.cumsum([0] + [len(vertices) for vertices, _ in parts])
    faces = [faces + start for (_, faces), start in zip(parts, starts, strict=False)]
    return np.concatenate([vertices for vertices, _ in parts]), np.concatenate(faces).astype(np.int32)
