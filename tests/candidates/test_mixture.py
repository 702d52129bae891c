"""Shells: against the naive twin, the same to the bit in any batch, invariants for any state and configuration."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_assets.candidates.mixture import CandidateRequest, generate_candidates
from rollout_assets.candidates.reasons import InvalidReason, bitset_is_consistent
from rollout_assets.candidates.rules import RULES, with_no_hit
from rollout_assets.candidates.shell import POSITION_IDS, STRATEGY_IDS, CandidateDiagnostics, CandidateShell
from rollout_assets.config import CandidateConfig, MixtureComponent
from rollout_assets.geometry.poses import finite_rigid, look_along
from rollout_assets.randomness import rng_for
from tests.candidates.collision_worlds import (
    EXTENT,
    FAR_EXTENT,
    ROOM_HIGH,
    ROOM_LOW,
    AnalyticRoom,
    FixedAnswers,
    mesh_room,
    request,
    scattered_requests,
)
from tests.candidates.naive_shell import naive_rows

pytestmark = pytest.mark.quick

EVERYTHING = CandidateConfig(
    mixture=tuple(
        MixtureComponent(position=position, orientation=orientation, count=2)
        for position in POSITION_IDS
        for orientation in STRATEGY_IDS
    ),
    yaw_jitter_deg=15.0,
    pitch_jitter_deg=8.0,
)
MEASURES = [field.name for field in fields(CandidateDiagnostics)]


def same_bits(a: CandidateShell, b: CandidateShell) -> bool:
    columns = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.name != "diagnostics"]
    columns += [(getattr(a.diagnostics, name), getattr(b.diagnostics, name)) for name in MEASURES]
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in columns)


@pytest.mark.parametrize("config", [CandidateConfig(), EVERYTHING], ids=["default", "everything"])
def test_generation_equals_the_naive_twin(config):
    world = AnalyticRoom()
    shells = generate_candidates(scattered_requests(6, 1), config, world)
    for asked, shell in zip(scattered_requests(6, 1), shells, strict=True):
        rows = naive_rows(asked, config, world)
        assert np.allclose(shell.pose_world_camera, [row["pose"] for row in rows], atol=3e-6)
        for name in MEASURES:
            expected = np.array([row[name] for row in rows], float)
            assert np.allclose(getattr(shell.diagnostics, name), expected, atol=1e-3 if "deg" in name else 1e-5), name
        assert shell.invalid_reason_bitset.tolist() == [row["bits"] for row in rows]
        assert shell.primary_invalid_reason.tolist() == [row["primary"] for row in rows]
        assert shell.mixture_id.tolist() == [row["mixture_id"] for row in rows]


def test_a_shell_is_the_same_to_the_bit_alone_and_in_any_batch():
    n = 41
    together = generate_candidates(scattered_requests(n, 2), EVERYTHING, AnalyticRoom())
    alone = [generate_candidates([asked], EVERYTHING, AnalyticRoom())[0] for asked in scattered_requests(n, 2)]
    backwards = generate_candidates(scattered_requests(n, 2)[::-1], EVERYTHING, AnalyticRoom())[::-1]
    few = scattered_requests(n, 2)
    in_threes = [s for i in range(0, n, 3) for s in generate_candidates(few[i : i + 3], EVERYTHING, AnalyticRoom())]
    for other in (alone, backwards, in_threes):
        assert all(same_bits(a, b) for a, b in zip(together, other, strict=True))


def test_shell_against_a_mesh_is_independent_of_its_batch():
    world = mesh_room()
    together = generate_candidates(scattered_requests(15, 6), EVERYTHING, world)
    alone = [generate_candidates([asked], EVERYTHING, world)[0] for asked in scattered_requests(15, 6)]
    assert all(same_bits(a, b) for a, b in zip(together, alone, strict=True))


def test_another_seed_or_state_gives_other_views():
    first, second = generate_candidates([request(key=(1,)), request(key=(2,))], CandidateConfig(), AnalyticRoom())
    assert not np.isin(first.pose_world_camera[:, 9], second.pose_world_camera[:, 9]).any()


def test_jitter_moves_no_position():
    still, moved = (
        generate_candidates([request()], CandidateConfig(yaw_jitter_deg=jitter), AnalyticRoom())[0]
        for jitter in (0.0, 20.0)
    )
    assert np.array_equal(still.pose_world_camera[:, 9:], moved.pose_world_camera[:, 9:])
    assert not np.array_equal(still.pose_world_camera, moved.pose_world_camera)


def test_rows_follow_the_mixture_and_share_one_probability():
    (shell,) = generate_candidates([request()], CandidateConfig(), AnalyticRoom())
    assert len(shell) == 60
    assert shell.position_id.tolist() == [1] * 24 + [2] * 24 + [3] * 12
    assert shell.mixture_id.tolist() == [0] * 24 + [1] * 24 + [2] * 12
    assert (shell.strategy_id == STRATEGY_IDS["target_point"]).all()
    assert (shell.sampler_probability == np.float32(1 / 60)).all()
    assert shell.pose_world_camera.dtype == np.float32


def test_every_state_is_asked_about_in_one_query_each():
    world = AnalyticRoom()
    generate_candidates(scattered_requests(20, 3), CandidateConfig(), world)
    assert world.queries == ["distance", "path"]
    assert generate_candidates([], CandidateConfig(), world) == ()


def test_target_point_views_have_the_target_in_their_middle():
    target = np.array([1.6, 0.2, 1.0])
    (shell,) = generate_candidates([request(target=target)], CandidateConfig(), AnalyticRoom())
    towards = target - shell.pose_world_camera[:, 9:]
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    assert np.allclose(shell.pose_world_camera[:, [2, 5, 8]], towards, atol=1e-6)


def test_the_sampling_frame_drops_the_pitch_of_the_reference():
    level, tilted = (
        generate_candidates([request(forward=forward)], CandidateConfig(), AnalyticRoom())[0]
        for forward in ((1.0, 0.0, 0.0), (1.0, 0.0, -0.8))
    )
    assert np.allclose(level.pose_world_camera, tilted.pose_world_camera, atol=1e-6)


def test_a_target_at_the_camera_leaves_rows_without_pose():
    (shell,) = generate_candidates([request(target=(0.0, 0.0, 1.5))], CandidateConfig(), AnalyticRoom())
    nowhere = np.isin(shell.position_id, [2, 3])
    assert np.isnan(shell.pose_world_camera[nowhere]).all()
    assert (shell.primary_invalid_reason[nowhere] == InvalidReason.POSE_NONFINITE).all()
    assert np.isfinite(shell.pose_world_camera[~nowhere]).all()
    assert len(shell) == 60


def test_a_view_at_its_target_keeps_its_row():
    config = CandidateConfig(
        mixture=(MixtureComponent(position="target_bearing_local", count=3),), radius_min_m=1.0, radius_max_m=1.0,
        azimuth_deg=1e-9, elevation_min_deg=0.0, elevation_max_deg=0.0,
    )  # fmt: skip
    (shell,) = generate_candidates([request(target=(1.0, 0.0, 1.5))], config, FixedAnswers())
    assert (shell.primary_invalid_reason == InvalidReason.POSE_NONFINITE).all()


def test_a_target_straight_above_gives_finite_views():
    for target in ((0.0, 0.0, 2.5), (0.0, 0.0, 0.1)):
        (shell,) = generate_candidates([request(target=target)], EVERYTHING, AnalyticRoom())
        assert finite_rigid(shell.pose_world_camera).all()


def test_a_broken_state_does_not_disturb_its_neighbours():
    broken = CandidateRequest(np.full(12, np.nan, np.float32), np.zeros(3, np.float32), EXTENT, rng_for("broken"))
    states = scattered_requests(3, 4)
    with_it = generate_candidates([states[0], broken, *states[1:]], EVERYTHING, AnalyticRoom())
    without = generate_candidates(scattered_requests(3, 4), EVERYTHING, AnalyticRoom())
    assert (with_it[1].invalid_reason_bitset == 1 << InvalidReason.POSE_NONFINITE).all()
    assert all(same_bits(a, b) for a, b in zip([with_it[0], *with_it[2:]], without, strict=True))


def test_one_repeated_view_is_a_duplicate_of_the_first():
    config = CandidateConfig(
        mixture=(MixtureComponent(position="forward_local", count=5),), radius_min_m=0.5, radius_max_m=0.5,
        azimuth_deg=1e-12, elevation_min_deg=0.0, elevation_max_deg=0.0,
    )  # fmt: skip
    (shell,) = generate_candidates([request((0.5, 1.0, 1.5), extent=FAR_EXTENT)], config, FixedAnswers())
    assert shell.primary_invalid_reason.tolist() == [0] + [InvalidReason.CANDIDATE_DUPLICATE] * 4


@st.composite
def states_and_configs(draw: st.DrawFn) -> tuple[list[CandidateRequest], CandidateConfig]:
    components = draw(
        st.lists(
            st.builds(
                MixtureComponent,
                position=st.sampled_from(sorted(POSITION_IDS)),
                orientation=st.sampled_from(sorted(STRATEGY_IDS)),
                count=st.integers(1, 8),
            ),
            min_size=1,
            max_size=4,
        )
    )
    radius = draw(st.floats(0.01, 3.0))
    lowest = draw(st.floats(-90, 90))
    config = CandidateConfig(
        mixture=tuple(components),
        directions=draw(st.sampled_from(["power_spherical", "uniform_sphere"])),
        kappa=draw(st.floats(0, 100)),
        radius_min_m=radius,
        radius_max_m=radius + draw(st.floats(0, 2)),
        elevation_min_deg=lowest,
        elevation_max_deg=draw(st.floats(lowest, 90)),
        azimuth_deg=draw(st.floats(0.1, 360)),
        yaw_jitter_deg=draw(st.floats(0, 180)),
        pitch_jitter_deg=draw(st.floats(0, 90)),
    )
    axis = [st.floats(float(low), float(high)) for low, high in zip(ROOM_LOW, ROOM_HIGH, strict=True)]
    forward = st.tuples(*[st.sampled_from([-1.0, 0.0, 0.3, 1.0])] * 3).filter(any)
    place = st.tuples(*axis)
    places = draw(st.lists(st.tuples(place, forward, place), min_size=1, max_size=3))
    return [request(*state, key=(i,)) for i, state in enumerate(places)], config


@settings(max_examples=150)
@given(states_and_configs(), st.data())
def test_every_row_is_either_valid_or_has_its_reasons(drawn, data):
    requests, config = drawn
    order = [reason for reason, _ in RULES]
    for shell in generate_candidates(requests, config, AnalyticRoom()):
        assert len(shell) == config.num_candidates
        hits = data.draw(st.lists(st.integers(0, 2), min_size=len(shell), max_size=len(shell)))
        after = with_no_hit(shell, hits)
        for one in (shell, after):
            valid = one.actor_action_mask
            assert bitset_is_consistent(one.invalid_reason_bitset, valid).all()
            assert np.array_equal(valid, one.primary_invalid_reason == 0)
            assert ((one.invalid_reason_bitset >> one.primary_invalid_reason) & 1 == 1).all()
            finite = np.isfinite(one.pose_world_camera).all(axis=1)
            assert np.array_equal(~finite, one.primary_invalid_reason == InvalidReason.POSE_NONFINITE)
            assert not (valid & ~finite).any()
            collides = (one.invalid_reason_bitset >> InvalidReason.PATH_SEGMENT_COLLISION) & 1 == 1
            assert np.array_equal(collides, one.diagnostics.path_collision_mask)
            assert finite_rigid(one.pose_world_camera[finite]).all()
        assert not (after.actor_action_mask & ~shell.actor_action_mask).any()
        for bitset, primary in zip(shell.invalid_reason_bitset, shell.primary_invalid_reason, strict=True):
            failing = [reason for reason in order if (int(bitset) >> reason) & 1]
            assert not failing or primary == failing[0]


def test_shells_do_not_share_what_the_rules_decided():
    first, second = generate_candidates([request(key=(1,)), request(key=(2,))], CandidateConfig(), AnalyticRoom())
    for name in ("pose_world_camera", "invalid_reason_bitset", "primary_invalid_reason"):
        assert getattr(first, name).base is None
        assert not np.shares_memory(getattr(first, name), getattr(second, name))


def test_reference_from_a_vertical_gaze_still_has_a_frame():
    asked = CandidateRequest(
        look_along((0.0, 0.0, 1.5), (0.0, 0.0, -1.0)), np.array([1.0, 0.0, 1.0], np.float32), EXTENT, rng_for("down")
    )
    (shell,) = generate_candidates([asked], CandidateConfig(), AnalyticRoom())
    assert finite_rigid(shell.pose_world_camera).all()
