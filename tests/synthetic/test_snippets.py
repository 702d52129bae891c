"""Synthetic snippets: the walk stays free, points are what is really seen, boxes and detections fit the home."""

from __future__ import annotations

import numpy as np
import pytest

from rollout_assets.geometry.boxes import (
    INST_ID,
    PROBABILITY,
    SEM_ID,
    OrientedBoxes,
    is_padding,
    pairwise_iou,
    unpack_boxes,
)
from rollout_assets.geometry.poses import (
    RIG_FROM_LUF,
    compose,
    finite_rigid,
    inverse,
    look_along,
    make_pose,
    rotation,
    transform,
    translation,
)
from rollout_assets.randomness import rng_for
from rollout_assets.sources import layout
from rollout_assets.synthetic.detections import project_boxes
from rollout_assets.synthetic.sight import NOISE_CLIP, camera_of
from rollout_assets.synthetic.snippet import evidence_voxels
from rollout_assets.synthetic.walk import HEAD_HEIGHT_M
from tests.synthetic.synthetic_homes import SMALL, bvh_of, home, sight_in, snippet_in, walk_in

pytestmark = pytest.mark.quick

ROWS = [(scene, number) for scene in range(2) for number in range(3)]


def _points(scene: int, number: int) -> np.ndarray:
    arrays = snippet_in(scene, number)
    return arrays[layout.POINTS_WORLD][: int(arrays[layout.LENGTHS][0])]


@pytest.mark.parametrize(("scene", "number"), ROWS)
def test_the_walk_keeps_clear_of_the_mesh(scene: int, number: int) -> None:
    camera = walk_in(scene, number).pose_world_camera
    track = translation(camera)
    between = np.concatenate([track[:-1] + share * (track[1:] - track[:-1]) for share in (0.0, 0.25, 0.5, 0.75, 1.0)])
    distance = bvh_of(scene).closest(between.astype(np.float32))[0].sqrt()
    assert float(distance.min()) > 0.22
    assert np.abs(track[:, 2] - HEAD_HEIGHT_M).max() < 0.12
    steps = np.linalg.norm(np.diff(track[:, :2], axis=0), axis=1)
    assert 0.02 < steps.max() < 0.2
    assert finite_rigid(camera, 1e-5).all()


@pytest.mark.parametrize(("scene", "number"), ROWS)
def test_the_head_is_upright_and_turns_smoothly(scene: int, number: int) -> None:
    turn = rotation(walk_in(scene, number).pose_world_camera)
    assert turn[:, 2, 1].min() > 0.75
    assert np.abs(turn[:, 2, 0]).max() < 0.1
    cosine = np.einsum("tk,tk->t", turn[1:, :, 2], turn[:-1, :, 2])
    assert np.degrees(np.arccos(np.clip(cosine, -1, 1))).max() < 60


def test_raw_rig_poses_become_cameras_by_one_right_multiplication() -> None:
    for scene, number in ROWS:
        walk = walk_in(scene, number)
        np.testing.assert_array_equal(compose(walk.pose_world_rig, RIG_FROM_LUF), walk.pose_world_camera)
        arrays = snippet_in(scene, number)
        last = compose(arrays[layout.T_WORLD_RIG][-1], RIG_FROM_LUF)
        np.testing.assert_array_equal(last, arrays[layout.REFERENCE_POSE])


@pytest.mark.parametrize(("scene", "number"), ROWS)
def test_points_lie_on_what_was_seen_within_their_noise(scene: int, number: int) -> None:
    points = _points(scene, number)
    assert SMALL.min_points <= len(points) <= SMALL.max_points
    assert np.isnan(snippet_in(scene, number)[layout.POINTS_WORLD][len(points) :]).all()
    track = translation(snippet_in(scene, number)[layout.REFERENCE_POSE][None])
    farthest = np.linalg.norm(points[:, :3] - track, axis=1) + 3.0
    distance = bvh_of(scene).closest(points[:, :3])[0].sqrt().numpy()
    assert (distance <= NOISE_CLIP * points[:, 3] * farthest**2 + 1e-3).all()
    assert np.median(distance) < 0.02


@pytest.mark.parametrize(("scene", "number"), ROWS[::2])
def test_every_point_is_visible_from_some_pose(scene: int, number: int) -> None:
    points = _points(scene, number)[::5]
    poses = compose(snippet_in(scene, number)[layout.T_WORLD_RIG], RIG_FROM_LUF)
    camera = camera_of(SMALL)
    visible = np.zeros(len(points), bool)
    for pose in poses:
        pixels, depth = camera.project(transform(inverse(pose), points[:, :3]))
        origin = translation(pose)
        away = np.linalg.norm(points[:, :3] - origin, axis=1)
        slack = (NOISE_CLIP * points[:, 3] * (away + 0.5) ** 2 + 2e-3) / away
        t, _ = bvh_of(scene).cast_rays(np.broadcast_to(origin, (len(points), 3)), points[:, :3] - origin)
        inside = (pixels > -3).all(axis=1) & (pixels < SMALL.image_px + 3).all(axis=1) & (depth > 0)
        visible |= inside & (np.abs(t.numpy() - 1.0) <= slack)
    assert visible.mean() > 0.995


def test_objects_are_seen_sparsely_and_from_one_side() -> None:
    support, covered = [], []
    for scene, number in ROWS:
        points = _points(scene, number)[:, :3]
        rows = snippet_in(scene, number)[layout.GT_OBBS][-1]
        for piece in rows[~is_padding(rows), INST_ID].astype(int).tolist():
            box = home(scene).boxes[piece : piece + 1]
            support.append(int(box.contains(points, margin_m=0.03).sum()))
            faces = np.flatnonzero(home(scene).face_piece == piece)
            centres = home(scene).vertices[home(scene).faces[faces]].mean(axis=1)
            own = points[box.contains(points, margin_m=0.1)[0]]
            near = np.linalg.norm(centres[:, None] - own[None], axis=-1).min(axis=1, initial=9.0) < 0.05
            covered.append(near.mean())
    assert 3 <= np.median(support) < 128
    assert np.median(covered) < 0.4


@pytest.mark.parametrize(("scene", "number"), ROWS)
def test_true_boxes_are_those_of_the_home(scene: int, number: int) -> None:
    arrays = snippet_in(scene, number)
    packed = arrays[layout.GT_OBBS]
    assert packed.shape == (SMALL.poses, layout.MAX_BOXES, 34)
    for time in (0, -1):
        rows = packed[time][~is_padding(packed[time])]
        boxes = unpack_boxes(rows, arrays[layout.T_WORLD_RIG][0])
        source = home(scene).boxes[rows[:, INST_ID].astype(np.int64)]
        np.testing.assert_allclose(boxes.centers_world, source.centers_world, atol=1e-4)
        np.testing.assert_allclose(boxes.extents_m, source.extents_m, atol=1e-5)
        assert (rows[:, SEM_ID] == home(scene).class_ids[rows[:, INST_ID].astype(np.int64)]).all()
        flat = rows[:, 6:10]
        assert ((flat == -1).all(axis=1) | ((flat[:, 0] < flat[:, 1]) & (flat[:, 2] < flat[:, 3]))).all()
        assert flat.max(initial=0) <= SMALL.image_px


def test_detections_are_good_on_average_miss_some_and_invent_some() -> None:
    found, missed, invented, confidence, quality = 0, 0, 0, [], []
    for scene, number in [(scene, number) for scene in range(2) for number in range(8)]:
        arrays = snippet_in(scene, number)
        frame = arrays[layout.T_WORLD_RIG][0]
        gt, detected = arrays[layout.GT_OBBS][-1], arrays[layout.DETECTED_OBBS][0]
        gt, detected = gt[~is_padding(gt)], detected[~is_padding(detected)]
        assert (np.diff(detected[:, PROBABILITY]) <= 0).all()
        if not len(detected) or not len(gt):
            continue
        iou = pairwise_iou(unpack_boxes(detected, frame), unpack_boxes(gt, frame))
        found += int((iou.max(axis=0) > 0.1).sum())
        missed += int((iou.max(axis=0) <= 0.1).sum())
        invented += int((iou.max(axis=1) <= 0.1).sum())
        confidence += detected[:, PROBABILITY].tolist()
        quality += iou.max(axis=1).tolist()
    assert found > 3 * missed > 0
    assert 0 < invented < found / 2
    assert np.corrcoef(confidence, quality)[0, 1] > 0.4


def test_projection_of_a_box_ahead_is_analytic() -> None:
    camera = camera_of(SMALL)
    pose = look_along([0.0, 0.0, 1.0], [1.0, 0.0, 0.0])
    box = OrientedBoxes(make_pose(np.eye(3), [3.0, 0.0, 1.0])[None], np.array([[2.0, 1.0, 1.0]], np.float32))
    reach = 130.0 * 0.5 / 2.0
    np.testing.assert_allclose(project_boxes(camera, pose, box)[0], [120 - reach, 120 + reach] * 2, atol=1e-3)
    behind = OrientedBoxes(make_pose(np.eye(3), [-3.0, 0.0, 1.0])[None], np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(project_boxes(camera, pose, behind)[0], [-1, -1, -1, -1])
    around = OrientedBoxes(make_pose(np.eye(3), [0.0, 0.0, 1.0])[None], np.ones((1, 3), np.float32))
    np.testing.assert_array_equal(project_boxes(camera, pose, around)[0], [0, 240, 0, 240])


def test_projection_contains_every_visible_point_of_the_object() -> None:
    camera = camera_of(SMALL)
    pose = walk_in(0, 0).pose_world_camera[-1]
    bounds = project_boxes(camera, pose, home(0).boxes)
    for number in range(len(home(0).placed)):
        points = home(0).vertices[np.unique(home(0).faces[home(0).face_piece == number])]
        pixels, depth = camera.project(transform(inverse(pose), points))
        shown = pixels[((pixels >= 0) & (pixels < SMALL.image_px)).all(axis=1) & (depth > 0.06)]
        if len(shown):
            x0, x1, y0, y1 = bounds[number]
            assert (shown >= (x0 - 0.01, y0 - 0.01)).all()
            assert (shown <= (x1 + 0.01, y1 + 0.01)).all()


def test_the_last_view_usually_has_furniture_in_it() -> None:
    seen = [int((sight_in(*row).rays_on(len(home(row[0]).placed))[-1] >= 6).sum()) for row in ROWS]
    assert np.count_nonzero(seen) >= len(seen) - 1


def test_evidence_counts_rays_in_the_voxels_they_end_in() -> None:
    points, counts = evidence_voxels(walk_in(0, 0), sight_in(0, 0))
    assert points.shape == (1, layout.EVIDENCE_SIDE**3, 3)
    assert counts.shape == (1, *[layout.EVIDENCE_SIDE] * 3)
    assert counts.dtype == np.int64
    occupied = points[0][counts.reshape(-1) > 0]
    distance = bvh_of(0).closest(occupied)[0].sqrt()
    assert len(occupied) > 500
    assert float(distance.max()) <= 4.0 / 48 * 3**0.5 / 2 + 1e-4


def test_a_snippet_does_not_depend_on_what_was_drawn_before() -> None:
    rng_for("something else").random(10)
    snippet_in.cache_clear()
    first = snippet_in(0, 2)
    snippet_in.cache_clear()
    snippet_in(1, 0)
    again = snippet_in(0, 2)
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
