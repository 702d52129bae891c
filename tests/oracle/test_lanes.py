"""Sixteen at a time on the CPU gives the bits of one at a time on a GPU, also where two things are equally near."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_assets.config import OracleConfig
from rollout_assets.geometry.triangle_bvh import TriangleBvh
from rollout_assets.oracle import raycast, surface_error
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.scorer import ScoreRequest
from rollout_assets.oracle.surface_error import PointClouds, Surface
from tests.oracle.rooms import CAMERA, begin, views


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let the CPU run the kernels that a GPU runs."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (raycast, surface_error):
            patch.setattr(module, "in_lanes", lambda _device: False)
        yield


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(4, 4), (5, 7), (16, 3), (33, 18)]), st.sampled_from([0.05, 1.0]))
def test_depth_of_tiles_is_that_of_single_rays(seed: int, shape: tuple[int, int], size: float) -> None:
    rng = np.random.default_rng(seed)
    corners = rng.normal(0, 1, (60, 1, 3)) + rng.normal(0, size, (60, 3, 3))
    corners[::7] = np.round(corners[::7])  # axis-aligned, flat and shared edges
    bvh = TriangleBvh(corners.reshape(-1, 3), np.arange(180).reshape(-1, 3), "cpu")
    poses, camera = views(4, seed % 1000, distance_m=float(rng.uniform(0, 3))), CAMERA.resized(*shape)
    together = render_depth(bvh, poses, camera, 0.001, 20.0).depth_m.numpy()
    with one_at_a_time():
        alone = render_depth(bvh, poses, camera, 0.001, 20.0).depth_m.numpy()
    assert (together > 0).any() or size < 0.1
    assert together.tobytes() == alone.tobytes()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.booleans())
def test_samples_in_lanes_have_the_sums_of_single_samples(seed: int, count: int, on_a_grid: bool) -> None:
    """On a grid of few places many points are equally near to a sample, and their order decides the last bit."""
    rng = np.random.default_rng(seed)

    def places(n: int) -> np.ndarray:
        drawn = rng.integers(-3, 4, (n, 3)) * np.float32(0.1) if on_a_grid else rng.normal(0, 0.3, (n, 3))
        return (drawn + np.float32(0.7)).astype(np.float32)

    triangles = places(3 * 20).reshape(-1, 3, 3)
    surface = Surface.of_samples(triangles, places(count), rng.uniform(0.1, 1, count), "cpu")
    assert surface.all_samples
    clouds = PointClouds.of([places(int(n)) for n in rng.integers(0, 120, 4)], "cpu")
    outcomes = []
    for alone in (False, True):
        with one_at_a_time() if alone else _as_it_is():
            state = surface.extended(surface.unseen(), places(5) * 0 + np.float32(0.7))
            joined = surface.joined([state], clouds, np.zeros(4, np.int64), 1 << 30)
            kept = surface.extended(state, clouds.points)
        outcomes.append((joined.point_sum.tobytes(), joined.face_sum.tobytes(), kept.minima_sq.numpy().tobytes()))
    assert outcomes[0] == outcomes[1]


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield


@pytest.mark.parametrize("policy", ["clipped_surface", "vertex_in_box"])
def test_labels_are_those_of_the_kernels_for_a_gpu(policy: str) -> None:
    config = OracleConfig(device="cpu", width_px=22, height_px=19, crop_policy=policy, scene_labels=True)
    scorer, state = begin(config, with_scene=True)
    poses = views(5)

    def labels() -> list[bytes]:
        after = scorer.advance(state, poses[2])
        scored = scorer.score([ScoreRequest(each, poses, np.ones(5, bool)) for each in (state, after)])
        regions = [region for each in scored for region in (each.target, each.scene)]
        return [getattr(region, name).tobytes() for region in regions for name in ("after_m2", "new_support", "rri")]

    together = labels()
    with one_at_a_time():
        assert labels() == together
