"""Where candidate views stand: directions drawn around the state's heading, bent by one of six position modes.

All vectors are component-first, (3, ...), in the sampling frame: at the reference position, x left, y up, z along the
reference's heading, without its pitch and roll.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollout_assets.candidates.shell import POSITION_IDS
from rollout_assets.config import CandidateConfig
from rollout_assets.geometry.poses import Float64
from rollout_assets.geometry.vectors import cross, dot, unit

AROUND: dict[str, tuple[str, float]] = {
    "forward_local": ("forward", 0.45),
    "target_bearing_local": ("target", 0.40),
    "local_refinement": ("forward", 0.25),
    "revisit_backtrack": ("backward", 0.35),
}
"""Position mode -> the direction it keeps to, and how far the drawn direction may pull it aside."""

BYPASS_AHEAD, BYPASS_ASIDE, BYPASS_MAX_RISE = 0.55, 0.85, 0.35
"""Weights of ``lateral_target_bypass``: towards the target, past it, and the limit of going up or down."""

_FREE_SHELL = POSITION_IDS["upper_bound_free_shell"]
_BYPASS = POSITION_IDS["lateral_target_bypass"]
_FORWARD: Float64 = np.array([0.0, 0.0, 1.0])
_UP: Float64 = np.array([0.0, 1.0, 0.0])


def sphere_directions(polar: Float64, turn: Float64, kappa: float) -> Float64:
    """Power-spherical unit directions around +Z from two uniforms in [0, 1): (...), (...) -> (3, ...).

    The density is proportional to (1 + cos t)^kappa, so cos t = 2 U^(1 / (1 + kappa)) - 1; kappa 0 is uniform.
    """
    along = 2.0 * np.power(polar, 1.0 / (1.0 + kappa)) - 1.0
    aside = np.sqrt(np.maximum(1.0 - along * along, 0.0))
    angle = 2.0 * np.pi * turn
    return np.stack([aside * np.cos(angle), aside * np.sin(angle), along])


def capped(directions: Float64, config: CandidateConfig) -> Float64:
    """Squeeze unit directions (3, ...) into the azimuth and elevation caps: every draw is used, none rejected."""
    low, high = np.sin(np.radians([config.elevation_min_deg, config.elevation_max_deg]))
    rise = low + (directions[1] + 1.0) * 0.5 * (high - low)
    azimuth = np.arctan2(directions[0], directions[2]) * (config.azimuth_deg / 360.0)
    flat = np.sqrt(np.maximum(1.0 - rise * rise, 0.0))
    return np.stack([flat * np.sin(azimuth), rise, flat * np.cos(azimuth)])


def draw_directions(polar: Float64, turn: Float64, config: CandidateConfig) -> Float64:
    """Two uniforms per candidate, (...) each -> capped unit directions (3, ...)."""
    kappa = config.kappa if config.directions == "power_spherical" else 0.0
    return capped(sphere_directions(polar, turn, kappa), config)


def draw_radius(uniform: Float64, config: CandidateConfig) -> Float64:
    """One uniform per candidate -> radius in metres, uniform between the limits."""
    return config.radius_min_m + uniform * (config.radius_max_m - config.radius_min_m)


def around(kept: Float64, spread: Float64, drawn: Float64) -> Float64:
    """normalise(kept + spread * the part of ``drawn`` orthogonal to ``kept``), with ``kept`` of unit length."""
    return unit(kept + spread * (drawn - dot(drawn, kept) * kept))


def bypass(to_target: Float64, drawn: Float64) -> Float64:
    """Past the target, to the left where ``drawn`` points left (x >= 0), otherwise to the right."""
    side = np.where(drawn[0] >= 0.0, BYPASS_ASIDE, -BYPASS_ASIDE)
    up = _UP.reshape(3, *(1,) * (to_target.ndim - 1))
    rise = np.clip(drawn[1], -BYPASS_MAX_RISE, BYPASS_MAX_RISE)
    return unit(BYPASS_AHEAD * to_target + side * cross(up, to_target) + rise * up)


def offset_directions(position_id: NDArray[np.int32], drawn: Float64, to_target: Float64) -> Float64:
    """Unit directions (3, n, k) from the reference to each candidate.

    position_id: (k,). drawn: (3, n, k) capped unit directions. to_target: (3, n, 1) unit, NaN where the target is at
    the reference; modes that need it are then NaN too.
    """
    spread = np.zeros(len(position_id))
    along = np.zeros(len(position_id))
    at_target = np.zeros(len(position_id), bool)
    for mode, (kept, pull) in AROUND.items():
        rows = position_id == POSITION_IDS[mode]
        spread[rows] = pull
        along[rows] = -1.0 if kept == "backward" else 1.0
        at_target[rows] = kept == "target"
    kept_to = np.where(at_target, to_target, along * _FORWARD[:, None, None])
    bent = around(kept_to, spread, drawn)
    bent = np.where(position_id == _BYPASS, bypass(to_target, drawn), bent)
    return np.where(position_id == _FREE_SHELL, drawn, bent)
