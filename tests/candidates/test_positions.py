"""Where views stand: statistics of the draws, and analytic answers of the six modes."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_assets.candidates.positions import (
    around,
    bypass,
    capped,
    draw_directions,
    draw_radius,
    offset_directions,
    sphere_directions,
)
from rollout_assets.candidates.shell import POSITION_IDS
from rollout_assets.config import CandidateConfig
from rollout_assets.randomness import rng_for

pytestmark = pytest.mark.quick

DRAWS = 200_000


def uniforms(*key: str) -> tuple[np.ndarray, np.ndarray]:
    polar, turn = rng_for("positions", *key).random((2, DRAWS))
    return polar, turn


def place(mode: str, drawn, to_target=(0.0, 0.0, 1.0)) -> np.ndarray:
    """One candidate of one state, as a plain 3-vector."""
    ids = np.array([POSITION_IDS[mode]], np.int32)
    one = np.reshape(np.asarray(drawn, float), (3, 1, 1))
    return offset_directions(ids, one, np.reshape(np.asarray(to_target, float), (3, 1, 1)))[:, 0, 0]


@pytest.mark.parametrize("kappa", [0.0, 1.0, 8.0, 50.0])
def test_power_spherical_has_its_mean_and_its_distribution(kappa):
    directions = sphere_directions(*uniforms(f"{kappa}"), kappa)
    assert np.allclose(np.linalg.norm(directions, axis=0), 1.0)
    # The share with (1 + cos t) / 2 <= q is q^(kappa + 1); the mean of cos t is kappa / (kappa + 2).
    assert directions[2].mean() == pytest.approx(kappa / (kappa + 2), abs=5e-3)
    for q in (0.3, 0.6, 0.9):
        assert ((1 + directions[2]) / 2 <= q).mean() == pytest.approx(q ** (kappa + 1), abs=5e-3)
    assert np.abs(directions[:2].mean(axis=1)).max() < 5e-3


def test_uniform_sphere_is_kappa_zero_whatever_kappa_says():
    config = CandidateConfig(directions="uniform_sphere", kappa=30.0)
    polar, turn = uniforms("uniform")
    expected = capped(sphere_directions(polar, turn, 0.0), config)
    assert np.array_equal(draw_directions(polar, turn, config), expected)


def test_caps_hold_every_draw_and_are_reached():
    config = CandidateConfig(directions="uniform_sphere")
    directions = draw_directions(*uniforms("caps"), config)
    azimuth = np.degrees(np.arctan2(directions[0], directions[2]))
    elevation = np.degrees(np.arcsin(directions[1]))
    assert azimuth.min() >= -50 - 1e-9
    assert azimuth.max() <= 50 + 1e-9
    assert elevation.min() >= -12 - 1e-9
    assert elevation.max() <= 18 + 1e-9
    assert np.ptp(azimuth) > 99.9
    assert np.ptp(elevation) > 29.9
    assert np.allclose(np.linalg.norm(directions, axis=0), 1.0)


def test_full_caps_change_nothing():
    config = CandidateConfig(azimuth_deg=360.0, elevation_min_deg=-90.0, elevation_max_deg=90.0)
    directions = sphere_directions(*uniforms("full"), 8.0)
    assert np.allclose(capped(directions, config), directions, atol=1e-7)


def test_uniform_sphere_stays_uniform_in_the_caps():
    config = CandidateConfig(directions="uniform_sphere")
    directions = draw_directions(*uniforms("flat"), config)
    azimuth = np.arctan2(directions[0], directions[2]) / np.radians(50.0)
    low, high = np.sin(np.radians([-12.0, 18.0]))
    rise = (directions[1] - low) / (high - low) * 2 - 1
    for value in (azimuth, rise):
        histogram, _ = np.histogram(value, bins=20, range=(-1, 1))
        assert np.abs(histogram / DRAWS * 20 - 1).max() < 0.06


def test_radius_is_uniform_between_its_limits():
    config = CandidateConfig(radius_min_m=0.5, radius_max_m=2.0)
    assert draw_radius(np.array([0.0, 0.5, 1.0]), config).tolist() == [0.5, 1.25, 2.0]


def test_around_adds_only_what_is_orthogonal():
    kept = np.array([0.0, 0.0, 1.0])
    assert np.allclose(around(kept, np.array(0.45), np.array([0.0, 0.0, -1.0])), kept)
    bent = around(kept, np.array(0.45), np.array([1.0, 0.0, 0.0]))
    assert np.allclose(bent, np.array([0.45, 0.0, 1.0]) / np.hypot(0.45, 1.0))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("upper_bound_free_shell", [1.0, 0.0, 0.0]),
        ("forward_local", [0.45, 0.0, 1.0]),
        ("target_bearing_local", [0.40, 0.0, 1.0]),
        ("lateral_target_bypass", [0.85, 0.0, 0.55]),
        ("local_refinement", [0.25, 0.0, 1.0]),
        ("revisit_backtrack", [0.35, 0.0, -1.0]),
    ],
)
def test_a_draw_to_the_left_in_every_mode(mode, expected):
    assert np.allclose(place(mode, (1.0, 0.0, 0.0)), np.array(expected) / np.linalg.norm(expected))


def test_bypass_goes_to_the_side_of_the_draw_and_limits_the_rise():
    left = place("lateral_target_bypass", (0.0, 1.0, 0.0))
    right = place("lateral_target_bypass", (-1e-9, -1.0, 0.0))
    size = np.sqrt(0.55**2 + 0.85**2 + 0.35**2)
    assert np.allclose(left, np.array([0.85, 0.35, 0.55]) / size)
    assert np.allclose(right, np.array([-0.85, -0.35, 0.55]) / size)


def test_target_modes_follow_a_target_aside():
    aside = (1.0, 0.0, 0.0)
    assert np.allclose(place("target_bearing_local", aside, aside), aside)
    assert np.allclose(
        place("lateral_target_bypass", (1.0, 0.0, 0.0), aside), np.array([0.55, 0.0, -0.85]) / np.hypot(0.55, 0.85)
    )


@pytest.mark.parametrize("rise", [1.0, -1.0])
def test_target_above_or_below_has_a_position_in_every_mode(rise):
    drawn = np.array([0.6, 0.0, 0.8])
    overhead = np.array([0.0, rise, 0.0])
    for mode in POSITION_IDS:
        assert np.isfinite(place(mode, drawn, overhead)).all()
    assert np.allclose(place("target_bearing_local", drawn, overhead), (overhead + 0.4 * drawn) / np.hypot(1, 0.4))
    assert np.allclose(bypass(overhead, drawn), overhead)


def test_target_at_the_reference_leaves_target_modes_undefined():
    nowhere = (np.nan, np.nan, np.nan)
    for mode in POSITION_IDS:
        undefined = mode in ("target_bearing_local", "lateral_target_bypass")
        assert np.isnan(place(mode, (0.6, 0.0, 0.8), nowhere)).all() == undefined
