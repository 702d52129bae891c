"""The simple policies: what they prefer where the answer is known, and that a state's scores are its own."""

from pathlib import Path

import numpy as np
import pytest

from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import PolicyRefused
from rollout_assets.geometry.poses import look_along
from rollout_assets.learning import policies
from rollout_assets.learning.unseen_surface import BEHIND_M, NEAREST_M, SEEN_WITHIN_M, SurfaceCells, unseen_area_m2
from rollout_assets.observations.observation import Arrays, Observations
from rollout_assets.testing.fake_observations import fake_observations
from tests.support.refusals import refused

SIMPLE = (policies.nearest_to_target, policies.largest_turn, policies.most_new_points)
CAMERA = np.array([0.5, 0.5, 0.5, 0.5], np.float32)
"""90 degrees wide and high."""

CUBE = np.ones(3, np.float32)


def looking_at_target(*centers: tuple[float, float, float]) -> np.ndarray:
    places = np.array(centers, np.float64)
    return look_along(places, -places).astype(np.float32)


def only(observations: Observations[Arrays], *rows: int) -> Observations[Arrays]:
    return observations.mapped(lambda values: values[list(rows)])


@pytest.mark.parametrize("make", SIMPLE)
def test_scores_of_a_state_do_not_depend_on_its_batch(make):
    policy = make(None)
    observations = fake_observations(17, 13, policy.observation, seed=3)
    scores, mask = policy.scores(observations), observations.candidate_mask
    assert scores.shape == mask.shape and scores.dtype == np.float64 and np.isfinite(scores[mask]).all()
    assert len(np.unique(scores[mask])) > 17
    order = np.random.default_rng(0).permutation(17)
    assert np.array_equal(policy.scores(only(observations, *order)), scores[order])
    for row in range(17):
        assert np.array_equal(policy.scores(only(observations, row))[0], scores[row])
    few = {name: values[:, :5] for name, values in observations.arrays().items() if name.startswith("candidate_")}
    assert np.array_equal(policy.scores(Observations(**(observations.arrays() | few))), scores[:, :5])


def test_the_nearest_view_has_the_shortest_way_to_the_target():
    observations = fake_observations(5, 9, policies.POSES_ONLY)
    distance = np.linalg.norm(observations.candidate_pose_target[..., 9:].astype(np.float64), axis=-1)
    assert policies.minus_target_distance_m(observations) == pytest.approx(-distance)


def test_the_turn_is_the_angle_to_the_nearest_direction_taken():
    observations = fake_observations(2, 4, ObservationConfig(points=1, history=3))
    arrays = observations.arrays()
    arrays["candidate_pose_target"][0] = looking_at_target((0, 2, 0), (1, 0, 0), (-3, 0, 0), (2, 2, 0))
    arrays["taken_pose_target"][0] = looking_at_target((5, 0, 0), (0, 0, 1), (0, 4, 0))
    arrays["taken_mask"][0] = (True, True, False)
    scores = policies.turn_around_target_deg(observations)
    assert scores[0] == pytest.approx([90, 0, 90, 45], abs=1e-6)


def test_the_cells_of_a_box_have_its_whole_area():
    extents = np.array([1, 2, 3], np.float32)
    cells = SurfaceCells.of_box(extents)
    assert cells.area_m2.sum() == pytest.approx(2 * (2 + 3 + 6))
    on_face = np.isclose(np.abs(cells.centers), extents / 2)
    assert (on_face.sum(axis=1) == 1).all()
    assert ((cells.centers * cells.normals).sum(axis=1) > 0).all()


def test_a_view_shows_the_faces_turned_to_it_unless_they_are_known():
    front, corner, inside_out = looking_at_target((3, 0, 0), (3, 3, 3), (3, 0, 0))
    inside_out = look_along(np.array([[3.0, 0, 0]]), np.array([[1.0, 0, 0]]))[0].astype(np.float32)
    poses = np.stack([front, corner, inside_out])
    nothing = np.zeros((0, 3), np.float32)
    assert unseen_area_m2(poses, CUBE, nothing, CAMERA) == pytest.approx([1, 3, 0])
    surface = SurfaceCells.of_box(CUBE)
    known = surface.centers[surface.normals[:, 0] > 0].astype(np.float32)
    seen = unseen_area_m2(poses, CUBE, known, CAMERA)
    assert seen[0] == 0 and 1.5 < seen[1] < 2.1, "edges of the other faces are near known points too"
    assert unseen_area_m2(poses, CUBE, surface.centers.astype(np.float32), CAMERA) == pytest.approx([0, 0, 0])


def test_known_points_hide_what_is_behind_them():
    wall = np.stack(np.meshgrid([1.5], np.linspace(-1, 1, 60), np.linspace(-1, 1, 60)), -1).reshape(-1, 3)
    poses = looking_at_target((3, 0, 0), (0, 3, 0))
    assert unseen_area_m2(poses, CUBE, wall.astype(np.float32), CAMERA) == pytest.approx([0, 1])


def plain_unseen_area(pose: np.ndarray, extents: np.ndarray, known: np.ndarray, camera: np.ndarray) -> float:
    """The slow, obvious twin: cell by cell, point by point, for one view."""
    rotation, place = pose[:9].reshape(3, 3).astype(float), pose[9:].astype(float)
    fx, fy, cx, cy = camera.astype(float)

    def pixel(point: np.ndarray) -> tuple[int, int, float] | None:
        x, y, z = rotation.T @ (point - place)
        if z <= NEAREST_M:
            return None
        column, row = np.floor(24 * (cx - fx * x / z)), np.floor(24 * (cy - fy * y / z))
        return (int(row), int(column), z) if 0 <= row < 24 and 0 <= column < 24 else None

    buffer: dict[tuple[int, int], float] = {}
    for point in known.astype(float):
        if (at := pixel(point)) is not None:
            buffer[at[:2]] = min(buffer.get(at[:2], np.inf), at[2])
    total = 0.0
    cells = SurfaceCells.of_box(extents)
    for center, normal, area in zip(cells.centers, cells.normals, cells.area_m2, strict=True):
        seen = any(np.linalg.norm(center - point) <= SEEN_WITHIN_M for point in known.astype(float))
        at = pixel(center)
        if seen or at is None or normal @ (place - center) <= 0:
            continue
        total += area if at[2] <= buffer.get(at[:2], np.inf) + BEHIND_M else 0.0
    return total


def test_the_unseen_area_equals_that_of_its_slow_twin():
    observations = fake_observations(3, 5, ObservationConfig(points=60), seed=7)
    scores = policies.unseen_target_area_m2(observations)
    for row, view in np.argwhere(observations.candidate_mask):
        known = observations.points[row, observations.point_mask[row]]
        pose, extents = observations.candidate_pose_target[row, view], observations.target_extents[row]
        assert scores[row, view] == pytest.approx(plain_unseen_area(pose, extents, known, observations.camera[row]))


def test_only_a_learned_policy_takes_a_checkpoint():
    for make in SIMPLE:
        with refused(PolicyRefused, f"policy {make.__name__}", "weights.safetensors"):
            make(Path("weights.safetensors"))
    with refused(PolicyRefused, "policy learned", "checkpoint"):
        policies.learned(None)
