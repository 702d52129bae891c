"""The slow, obvious twin of candidate generation and rules: one row at a time, plain Python floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rollout_assets.candidates.mixture import DRAWS_PER_CANDIDATE, CandidateRequest
from rollout_assets.candidates.reasons import InvalidReason
from rollout_assets.candidates.rules import CollisionWorld
from rollout_assets.config import CandidateConfig
from rollout_assets.geometry.poses import look_along, transform, yaw_only

Vector = np.ndarray
UP = np.array([0.0, 1.0, 0.0])
AHEAD = np.array([0.0, 0.0, 1.0])


def naive_rows(request: CandidateRequest, config: CandidateConfig, world: CollisionWorld) -> list[dict[str, Any]]:
    """One dict per row. Only for states in which every direction and gaze is defined."""
    uniforms = request.rng.random((config.num_candidates, DRAWS_PER_CANDIDATE))
    rows: list[dict[str, Any]] = []
    for mixture_id, component in enumerate(config.mixture):
        for _ in range(component.count):
            pose = naive_pose(request, config, component.position, component.orientation, uniforms[len(rows)])
            row = naive_measures(request, config, world, pose)
            row["mixture_id"] = mixture_id
            row["duplicate"] = any(np.array_equal(pose, other["pose"]) for other in rows)
            row["bits"], row["primary"] = naive_verdict(row, config)
            rows.append(row)
    return rows


def naive_pose(request: CandidateRequest, config: CandidateConfig, position: str, gaze: str, u: Vector) -> Vector:
    frame = yaw_only(request.reference_pose_world_camera)
    here = request.reference_pose_world_camera[9:].astype(float)
    target = request.target_center_world.astype(float)
    local = frame[:9].reshape(3, 3).astype(float)
    to_target = local.T @ ((target - here) / math.dist(target, here))
    direction = naive_position(position, naive_direction(u[0], u[1], config), to_target)
    radius = config.radius_min_m + u[2] * (config.radius_max_m - config.radius_min_m)
    centre = transform(frame, (direction * radius)[None])[0].astype(float)
    look = {
        "forward_rig": request.reference_pose_world_camera[[2, 5, 8]].astype(float),
        "radial_away": centre - here,
        "radial_towards": here - centre,
        "target_point": target - centre,
    }[gaze]
    yaw = math.radians(config.yaw_jitter_deg) * (2 * u[3] - 1)
    pitch = math.radians(config.pitch_jitter_deg) * (2 * u[4] - 1)
    aside = np.array([math.sin(yaw) * math.cos(pitch), math.sin(pitch), math.cos(yaw) * math.cos(pitch)])
    look = look_along(centre, look)[:9].reshape(3, 3).astype(float) @ aside
    return look_along(centre, look)


def naive_direction(polar: float, turn: float, config: CandidateConfig) -> Vector:
    kappa = config.kappa if config.directions == "power_spherical" else 0.0
    z = 2 * polar ** (1 / (1 + kappa)) - 1
    x = math.sqrt(1 - z * z) * math.cos(2 * math.pi * turn)
    y = math.sqrt(1 - z * z) * math.sin(2 * math.pi * turn)
    low, high = (math.sin(math.radians(e)) for e in (config.elevation_min_deg, config.elevation_max_deg))
    y = low + (y + 1) / 2 * (high - low)
    azimuth = math.atan2(x, z) * config.azimuth_deg / 360
    return np.array([math.sqrt(1 - y * y) * math.sin(azimuth), y, math.sqrt(1 - y * y) * math.cos(azimuth)])


def naive_position(mode: str, drawn: Vector, to_target: Vector) -> Vector:
    def around(kept: Vector, spread: float) -> Vector:
        bent = kept + spread * (drawn - (drawn @ kept) * kept)
        return bent / np.linalg.norm(bent)

    match mode:
        case "upper_bound_free_shell":
            return drawn
        case "forward_local":
            return around(AHEAD, 0.45)
        case "target_bearing_local":
            return around(to_target, 0.40)
        case "local_refinement":
            return around(AHEAD, 0.25)
        case "revisit_backtrack":
            return around(-AHEAD, 0.35)
    side = 0.85 if drawn[0] >= 0 else -0.85
    bent = 0.55 * to_target + side * np.cross(UP, to_target) + UP * min(max(drawn[1], -0.35), 0.35)
    return bent / np.linalg.norm(bent)


def naive_measures(
    request: CandidateRequest, config: CandidateConfig, world: CollisionWorld, pose: Vector
) -> dict[str, Any]:
    centre, here = pose[9:].astype(float), request.reference_pose_world_camera[9:].astype(float)
    ahead = yaw_only(request.reference_pose_world_camera)[[2, 5, 8]].astype(float)
    faces = yaw_only(pose)[[2, 5, 8]].astype(float)
    turned = math.degrees(math.atan2(faces[1], faces[0]) - math.atan2(ahead[1], ahead[0]))
    to_target = request.target_center_world.astype(float) - centre
    low, high = request.extent
    clearance = min(
        float(world.distance_m((here + (centre - here) * i / (config.rules.path_samples - 1))[None])[0])
        for i in range(config.rules.path_samples)
    )
    return {
        "pose": pose,
        "mesh_distance_m": float(world.distance_m(pose[None, 9:])[0]),
        "path_min_clearance_m": clearance,
        "path_collision_mask": clearance < config.rules.min_path_clearance_m,
        "free_space_margin_m": float(min((centre - low).min(), (high - centre).min())),
        "motion_step_length_m": math.dist(centre, here),
        "motion_height_delta_m": centre[2] - here[2],
        "motion_backward_step_m": max(0.0, -float((centre - here) @ ahead)),
        "motion_yaw_delta_deg": abs((turned + 180) % 360 - 180),
        "target_distance_m": float(np.linalg.norm(to_target)),
        "target_bearing_yaw_deg": math.degrees(math.atan2(to_target[1], to_target[0])),
    }


def naive_verdict(row: dict[str, Any], config: CandidateConfig) -> tuple[int, int]:
    rules = config.rules
    motion = (
        row["motion_step_length_m"] > rules.max_step_m
        or abs(row["motion_height_delta_m"]) > rules.max_height_delta_m
        or row["motion_backward_step_m"] > rules.max_backward_m
        or row["motion_yaw_delta_deg"] > rules.max_yaw_deg
    )
    failing = []
    if row["free_space_margin_m"] < 0:
        failing.append(InvalidReason.POSE_OUT_OF_EXTENT)
    if motion:
        failing.append(InvalidReason.SAMPLER_RULE_REJECTED)
    if row["mesh_distance_m"] <= rules.min_mesh_distance_m:
        failing.append(InvalidReason.CLEARANCE_TOO_SMALL)
    if row["path_collision_mask"]:
        failing.append(InvalidReason.PATH_SEGMENT_COLLISION)
    if row["duplicate"]:
        failing.append(InvalidReason.CANDIDATE_DUPLICATE)
    if not failing:
        return 1 << InvalidReason.VALID, InvalidReason.VALID
    return sum(1 << reason for reason in failing), failing[0]
