"""Labels against the naive twin, the promises about bits, refusals, and how states follow each other."""

from __future__ import annotations

import threading
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from rollout_assets.config import OracleConfig
from rollout_assets.errors import DeviceMemoryError, GeometryError
from rollout_assets.geometry.poses import look_along
from rollout_assets.oracle import naive
from rollout_assets.oracle.crops import crop_surface
from rollout_assets.oracle.raycast import render_depth
from rollout_assets.oracle.scene import OracleScene
from rollout_assets.oracle.scorer import (
    CandidateLabels,
    OracleScorer,
    OracleState,
    Refusal,
    Refused,
    RegionLabels,
    ScoreRequest,
    points_in,
)
from tests.oracle.rooms import CAMERA, begin, room_mesh, root_points, target_box, views
from tests.support.refusals import refused

pytestmark = pytest.mark.quick

ARIA_NBV: dict[str, Any] = {"crop_policy": "vertex_in_box", "face_weighting": "uniform", "voxel_origin": "zero"}
"""The definitions of the research code."""

CONFIGS = (
    OracleConfig(device="cpu", width_px=24, height_px=24),
    OracleConfig(device="cpu", width_px=24, height_px=20, face_weighting="uniform", surface_samples=600),
    OracleConfig(device="cpu", width_px=24, height_px=20, crop_policy="vertex_in_box", voxel_origin="zero"),
    OracleConfig(device="cpu", width_px=20, height_px=24, pixel_stride=2, **ARIA_NBV | {"distance": "pytorch3d"}),
)


def all_valid(state: OracleState, poses: np.ndarray) -> ScoreRequest:
    return ScoreRequest(state, poses, np.ones(len(poses), bool))


def same_bits(a: RegionLabels, b: RegionLabels) -> bool:
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(astuple(a), astuple(b), strict=True))


@pytest.mark.parametrize("config", CONFIGS)
def test_labels_equal_the_naive_twin(config: OracleConfig) -> None:
    scorer, state = begin(config)
    mesh = room_mesh()
    vertices, faces = mesh.vertices.astype(np.float32), mesh.faces.astype(np.int32)
    poses = views(4, seed=1)
    for step in range(2):
        labels = scorer.score([all_valid(state, poses)])[0].target
        depths = render_depth(state.scene.bvh, poses, state.camera, config.znear_m, config.zfar_m).depth_m.numpy()
        current = state.cloud.points
        root_error = state.target.root_error_m2
        for row, pose in enumerate(poses):
            seen = naive.back_project(depths[row], pose, state.camera, config.pixel_stride)
            slow = naive.label(current, seen, vertices, faces, target_box(), root_error, config)
            assert labels.before_m2[row] == pytest.approx(slow.before_m2, rel=1e-5)
            assert labels.after_m2[row] == pytest.approx(slow.after_m2, rel=1e-5)
            assert labels.rri[row] == pytest.approx(slow.rri, abs=1e-5)
            assert labels.root_gain[row] == pytest.approx(slow.root_gain, abs=1e-5)
            assert labels.log_error_gain[row] == pytest.approx(slow.log_error_gain, abs=1e-5)
            inside = target_box().contains(seen, config.crop_margin_m)[0]
            assert labels.candidate_support[row] == inside.sum()
            assert labels.current_support[row] == points_in(current, state.target.crop.box_row).sum()
        state = scorer.advance(state, poses[step])


def test_the_next_before_is_the_chosen_after_to_the_bit() -> None:
    scorer, state = begin(with_scene=True)
    for step in range(4):
        poses = views(6, seed=step)
        labels = scorer.score([all_valid(state, poses)])[0]
        assert labels.scene is not None
        state = scorer.advance(state, poses[step])
        following = scorer.score([all_valid(state, poses)])[0]
        assert state.target.error_m2 == labels.target.after_m2[step] == following.target.before_m2[0]
        assert following.scene is not None
        assert following.scene.before_m2[0] == labels.scene.after_m2[step]


def test_gains_of_a_chain_telescope() -> None:
    scorer, state = begin(subdivisions=3)
    total, root_error = 0.0, state.target.error_m2
    for step in range(6):
        poses = views(3, seed=10 + step, distance_m=1.0)
        total += scorer.score([all_valid(state, poses)])[0].target.root_gain[0]
        state = scorer.advance(state, poses[0])
    assert total == pytest.approx((root_error - state.target.error_m2) / root_error, abs=1e-6)
    assert total > 0.5


def test_taking_a_view_twice_gains_nothing() -> None:
    scorer, state = begin()
    pose = views(1)
    state = scorer.advance(state, pose[0])
    labels = scorer.score([all_valid(state, pose)])[0].target
    assert labels.new_support[0] == 0
    assert labels.rri[0] == labels.root_gain[0] == labels.log_error_gain[0] == 0.0


def test_a_view_that_hits_nothing_gains_nothing_and_says_so() -> None:
    scorer, state = begin()
    outside = look_along(np.array([[50.0, 0, 0], [0.9, 0, 0]]), np.array([[1.0, 0, 0], [-1.0, 0, 0]]))
    labels = scorer.score([all_valid(state, outside)])[0]
    assert labels.hit_pixels[0] == 0 < labels.hit_pixels[1]
    assert labels.target.after_m2[0] == labels.target.before_m2[0]
    assert labels.target.rri[0] == labels.target.log_error_gain[0] == 0.0
    assert scorer.advance(state, outside[0]).target.error_m2 == state.target.error_m2


def test_invalid_candidates_keep_their_row() -> None:
    scorer, state = begin()
    poses = views(5)
    valid = np.array([True, False, True, False, True])
    poses[1] = np.nan
    labels = scorer.score([ScoreRequest(state, poses, valid)])[0]
    assert np.isfinite(labels.target.rri).tolist() == valid.tolist()
    assert (labels.hit_pixels < 0).tolist() == (~valid).tolist()
    alone = scorer.score([all_valid(state, poses[valid])])[0]
    assert np.array_equal(labels.target.after_m2[valid], alone.target.after_m2)


def test_nothing_to_score_is_fine() -> None:
    scorer, state = begin()
    assert scorer.score([]) == []
    empty = scorer.score([ScoreRequest(state, np.zeros((0, 12), np.float32), np.zeros(0, bool))])[0]
    assert empty.target.rri.shape == (0,)
    nothing = scorer.score([ScoreRequest(state, views(2), np.zeros(2, bool))])[0]
    assert np.isnan(nothing.target.rri).all()


def _frontier() -> tuple[OracleScorer, list[ScoreRequest]]:
    """Requests from four states and two targets of one scene, in mixed order."""
    scorer, first = begin(with_scene=True)
    other = scorer.begin(first.scene, CAMERA, first.cloud, target_box((-1.5, 0.5, -0.5), 1.1), first.scene_region)
    lonely = scorer.begin(first.scene, CAMERA, first.cloud, target_box((-1.5, 0.5, -0.5), 1.1))
    assert isinstance(other, OracleState)
    assert isinstance(lonely, OracleState)
    states = [first, other, scorer.advance(first, views(1, seed=5)[0]), lonely]
    return scorer, [all_valid(state, views(5 + k, seed=k)) for k, state in enumerate(states)]


def _same(a: list[CandidateLabels], b: list[CandidateLabels]) -> bool:
    def scenes(x: CandidateLabels, y: CandidateLabels) -> bool:
        return (x.scene is None and y.scene is None) or (
            x.scene is not None and y.scene is not None and same_bits(x.scene, y.scene)
        )

    return all(same_bits(x.target, y.target) and scenes(x, y) for x, y in zip(a, b, strict=True))


def test_batching_states_changes_no_bit() -> None:
    scorer, requests = _frontier()
    together = scorer.score(requests)
    assert together[3].scene is None
    assert _same(together, [scorer.score([request])[0] for request in requests])
    assert _same(together[::-1], scorer.score(requests[::-1]))


def test_the_order_of_candidates_changes_no_bit() -> None:
    scorer, state = begin()
    poses = views(12)
    order = np.random.default_rng(0).permutation(12)
    straight = scorer.score([all_valid(state, poses)])[0].target
    mixed = scorer.score([all_valid(state, poses[order])])[0].target
    assert np.array_equal(straight.after_m2[order], mixed.after_m2)


def test_the_byte_budget_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, requests = _frontier()
    whole = scorer.score(requests)
    small = OracleScorer(scorer.config.model_copy(update={"batch_mib": 1}))
    assert _same(whole, small.score(requests))
    monkeypatch.setattr("rollout_assets.oracle.scorer.bytes_per_view", lambda *_: 1 << 20)
    assert _same(whole, small.score(requests))


def test_exhausted_memory_shrinks_batches_and_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, requests = _frontier()
    whole = scorer.score(requests)
    after = scorer.advance_all([request.state for request in requests], views(len(requests)))
    sizes: list[int] = []
    views_of = OracleScorer._views

    def small_device(self: OracleScorer, states: Any, poses: np.ndarray, state_of_view: Any) -> Any:
        sizes.append(len(poses))
        if len(poses) > 3:
            raise DeviceMemoryError("cuda:0 has no memory left")
        return views_of(self, states, poses, state_of_view)

    monkeypatch.setattr(OracleScorer, "_views", small_device)
    assert _same(whole, scorer.score(requests))
    assert max(sizes) == 26 and min(sizes) <= 3
    again = scorer.advance_all([request.state for request in requests], views(len(requests)))
    assert [state.target.error_m2 for state in again] == [state.target.error_m2 for state in after]
    monkeypatch.setattr(OracleScorer, "_views", lambda *_: (_ for _ in ()).throw(DeviceMemoryError("none at all")))
    with refused(DeviceMemoryError, "none at all"):
        scorer.score(requests)


def test_advancing_together_changes_no_bit() -> None:
    scorer, requests = _frontier()
    states, poses = [request.state for request in requests], views(len(requests), seed=9)
    together = scorer.advance_all(states, poses)
    for state, pose, advanced in zip(states, poses, together, strict=True):
        alone = scorer.advance(state, pose)
        assert alone.target.state.minima_sq.numpy().tobytes() == advanced.target.state.minima_sq.numpy().tobytes()
        assert alone.target.error_m2 == advanced.target.error_m2
        assert np.array_equal(alone.cloud.points, advanced.cloud.points)
        assert (alone.scene_region is None) == (advanced.scene_region is None)
        table = advanced.cloud.added.numpy()
        added = advanced.cloud.points[len(state.cloud.parts[0]) :]
        assert sorted(table[table >= 0].tolist()) == sorted(advanced.cloud.grid.keys(added).tolist())


def test_threads_change_no_bit() -> None:
    scorer, requests = _frontier()
    expected = scorer.score(requests)
    results: dict[int, list[CandidateLabels]] = {}
    threads = [threading.Thread(target=lambda k=k: results.update({k: scorer.score(requests)})) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(_same(expected, results[k]) for k in range(4))


def test_an_oriented_box_crops_by_its_own_axes() -> None:
    _, state = begin()
    box = target_box(size=0.6)
    turned = look_along(np.zeros((1, 3)), np.array([[1.0, 1.0, 0.3]]))
    box = type(box)(turned, box.extents_m)
    old = OracleConfig(device="cpu", **ARIA_NBV)
    mesh = room_mesh()
    inside = box.contains(mesh.vertices.astype(np.float32), old.crop_margin_m)[0]
    surface = crop_surface(state.scene, box, old)
    assert surface is not None and surface.face_count == inside[mesh.faces].any(axis=1).sum() > 0


def test_targets_without_labels_have_a_reason() -> None:
    mesh = room_mesh()
    scene = OracleScene(mesh.vertices, mesh.faces, "cpu")
    scorer = OracleScorer(OracleConfig(device="cpu", min_current_points=50))
    cloud = scorer.fuse(scene, root_points(mesh))

    def reason(scene_or_none: OracleScene | None, box: object) -> Refusal:
        refused = scorer.begin(scene_or_none, CAMERA, cloud, box)  # type: ignore[arg-type]
        assert isinstance(refused, Refused)
        assert refused.detail
        return refused.reason

    assert reason(None, target_box()) is Refusal.MESH_REFERENCE_MISSING
    assert reason(scene, target_box((0, 0, 1.0), 0.1)) is Refusal.TARGET_CROP_EMPTY
    assert reason(scene, target_box((0.4, 0, 0), 0.3)) is Refusal.TARGET_SUPPORT_TOO_LOW
    by_area = OracleScorer(OracleConfig(device="cpu", face_weighting="area"))
    flat = OracleScene(np.zeros((3, 3)), [[0, 1, 2]], "cpu")
    nothing = by_area.begin(flat, CAMERA, by_area.fuse(flat, np.zeros((1, 3))), target_box())
    assert isinstance(nothing, Refused)
    assert nothing.reason is Refusal.TARGET_CROP_EMPTY


def test_bad_input_is_refused_with_its_value() -> None:
    scorer, state = begin()
    poses = views(2)
    poses[1, 9] = np.inf
    with refused(GeometryError, "pose 1", "inf"):
        scorer.score([all_valid(state, poses)])
    with refused(GeometryError, "(2, 12)", "(3,)"):
        scorer.score([ScoreRequest(state, poses, np.ones(3, bool))])
    with refused(GeometryError, "crop", 2):
        scorer.region(
            state.scene, state.cloud, type(target_box())(np.zeros((2, 12), np.float32), np.ones((2, 3), np.float32))
        )
    huge = OracleScene(np.float32([[0, 0, 0], [3e4, 0, 0], [0, 3e4, 0]]), [[0, 1, 2]], "cpu")
    with refused(GeometryError, "30000.0 m"):
        scorer.fuse(huge, np.zeros((0, 3)))
