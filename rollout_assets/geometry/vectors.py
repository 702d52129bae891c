"""Vector algebra on component-first arrays, (3, ...), by element-wise operations only.

A matrix product or an einsum may round a row differently when the shape of its batch changes (blocking, fused
multiply-add). Nothing here does: the bits of a row depend on that row alone, so a shell is the same whether its state
is generated alone or among others. All values are float64; NaN goes through without a word.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rollout_assets.geometry.poses import Float64

UNDEFINED = 1e-6
"""A direction shorter than this (metres, or the sine of an angle) is rounding noise and counts as undefined."""


def components(rows: ArrayLike) -> Float64:
    """rows: (..., c) -> (c, ...) contiguous float64."""
    return np.ascontiguousarray(np.moveaxis(np.asarray(rows, np.float64), -1, 0))


def dot(a: Float64, b: Float64) -> Float64:
    """(3, ...), (3, ...) -> (...), broadcast."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def cross(a: Float64, b: Float64) -> Float64:
    """(3, ...), (3, ...) -> (3, ...), broadcast."""
    return np.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def length(a: Float64) -> Float64:
    """(3, ...) -> (...)."""
    return np.sqrt(dot(a, a))


def unit(a: Float64) -> Float64:
    """(3, ...) -> unit vectors; NaN where ``a`` is too short to have a direction."""
    size = length(a)
    return a / np.where(size >= UNDEFINED, size, np.nan)


def heading(forward: Float64, up: Float64) -> Float64:
    """Horizontal unit direction (3, ...) that a camera with these axes faces.

    A camera that looks straight up or down has no horizontal forward; the way it would face after being levelled is
    given by its up axis: forwards when it looks down, backwards when it looks up.
    """
    vertical = np.sqrt(forward[0] * forward[0] + forward[1] * forward[1]) < UNDEFINED
    levelled = np.where(forward[2] > 0, -up, up)
    flat = np.where(vertical, levelled, forward)
    return unit(np.stack([flat[0], flat[1], np.zeros_like(flat[0])]))


def level_axes(ahead: Float64) -> Float64:
    """Horizontal unit ``ahead`` (3, ...) -> left, up and forward in the world as (3 axes, 3, ...)."""
    zero, one = np.zeros_like(ahead[0]), np.ones_like(ahead[0])
    return np.stack([np.stack([-ahead[1], ahead[0], zero]), np.stack([zero, zero, one]), ahead])


def roll_free_axes(forward: Float64) -> Float64:
    """Unit ``forward`` (3, ...) -> left, up and forward as (3 axes, 3, ...), with a horizontal left.

    Straight up or down takes left along world +Y, as ``geometry.poses.look_along`` does.
    """
    zero = np.zeros_like(forward[0])
    flat = np.sqrt(forward[0] * forward[0] + forward[1] * forward[1])
    vertical = flat < UNDEFINED
    over = 1.0 / np.where(vertical, 1.0, flat)
    left = np.stack([np.where(vertical, 0.0, -forward[1] * over), np.where(vertical, 1.0, forward[0] * over), zero])
    return np.stack([left, cross(forward, left), forward])


def to_world(axes: Float64, local: Float64) -> Float64:
    """axes: (3 axes, 3, ...), local: (3, ...) -> the same vectors in the world, (3, ...)."""
    return axes[0] * local[0] + axes[1] * local[1] + axes[2] * local[2]


def to_local(axes: Float64, world: Float64) -> Float64:
    """The inverse of ``to_world``."""
    return np.stack([dot(axes[0], world), dot(axes[1], world), dot(axes[2], world)])


def angle_deg(a: Float64, b: Float64) -> Float64:
    """Unsigned angle between horizontal unit vectors, (...), in 0..180 degrees."""
    return np.degrees(np.arctan2(np.abs(a[0] * b[1] - a[1] * b[0]), a[0] * b[0] + a[1] * b[1]))
