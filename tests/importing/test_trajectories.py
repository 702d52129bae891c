"""Trajectories and points that come with a scene."""

import gzip

import numpy as np
import pytest

from rollout_assets.errors import SourceError
from rollout_assets.geometry.poses import rotation
from rollout_assets.importing.config import ImportConfig
from rollout_assets.importing.frames import Frame
from rollout_assets.importing.points import read_points, seen_points
from rollout_assets.importing.scene_folder import SceneFolder
from rollout_assets.importing.trajectories import Trajectory, camera_path, read_trajectory
from rollout_assets.importing.understanding import understand
from rollout_assets.randomness import rng_for
from tests.importing.scene_files import (
    LUF_AXES,
    Y_UP,
    device_rotations,
    head_path,
    write_ase,
    write_ase_points,
    write_glb,
    write_ply,
    write_poses,
    write_tum,
)
from tests.support.refusals import refused

METRES = Frame("z", "m", (6.0, 5.0, 2.6), 0.0)
CONFIG = ImportConfig(poses=6, min_points=100, max_points=900, workers=1)


def assert_is_the_heads_path(path):
    places, turns = head_path()
    np.testing.assert_allclose(path.poses[:, 9:], places, atol=1e-5)
    np.testing.assert_allclose(rotation(path.poses), turns, atol=1e-5)
    assert path.upright > 0.9


@pytest.mark.parametrize("camera", sorted(LUF_AXES))
@pytest.mark.parametrize("kind", ["tum", "poses", "flat"])
def test_every_format_and_convention_gives_the_same_path(tmp_path, camera, kind):
    if kind == "tum":
        write_tum(file := tmp_path / "trajectory.txt", camera)
    else:
        write_poses(file := tmp_path / "poses.json", camera, flat=kind == "flat")
    path = camera_path(read_trajectory(file), METRES, camera, 5.0)
    assert_is_the_heads_path(path)
    assert (path.time_ns[-1] - path.time_ns[0]) / 1e9 == pytest.approx(59 / 5.0)


def test_an_ase_trajectory_is_read_by_its_columns(tmp_path):
    write_ase(tmp_path / "trajectory.csv")
    path = camera_path(read_trajectory(tmp_path / "trajectory.csv"), METRES, "auto", 5.0)
    assert_is_the_heads_path(path)
    assert path.camera == "rig"


@pytest.mark.parametrize("camera", ["opencv", "opengl", "rig"])
def test_the_convention_is_recognised_by_upright_heads(tmp_path, camera):
    write_tum(tmp_path / "trajectory.txt", camera)
    assert camera_path(read_trajectory(tmp_path / "trajectory.txt"), METRES, "auto", 5.0).camera == camera


def test_a_wrong_convention_is_refused_with_the_one_that_fits(tmp_path):
    write_tum(tmp_path / "trajectory.txt", "opengl")
    with refused(SourceError, "--camera opencv", "--camera opengl"):
        camera_path(read_trajectory(tmp_path / "trajectory.txt"), METRES, "opencv", 5.0)


def test_a_trajectory_is_turned_and_scaled_with_its_mesh():
    places, turns = head_path()
    file = Trajectory(None, Y_UP @ device_rotations("opencv", turns), places @ Y_UP.T * 100.0 + [0, 30.0, 0], ".json")
    path = camera_path(file, Frame("y", "cm", (6.0, 5.0, 2.6), 0.3), "opencv", 5.0)
    assert_is_the_heads_path(path)


def test_snippets_are_spread_over_the_path_and_keep_its_pace(tmp_path):
    write_tum(tmp_path / "trajectory.txt", rate_hz=20.0)
    path = camera_path(read_trajectory(tmp_path / "trajectory.txt"), METRES, "auto", 5.0)
    first, last = path.snippet(0, 3, 6, 5.0), path.snippet(2, 3, 6, 5.0)
    np.testing.assert_allclose(first.time_ns, np.arange(6) * 2e8)
    np.testing.assert_allclose(first.pose_world_camera, path.poses[0:21:4], atol=1e-6)
    np.testing.assert_allclose(last.pose_world_camera[-1], path.poses[-1], atol=1e-6)
    slow = path.snippet(0, 1, 6, 1000.0)
    np.testing.assert_allclose(slow.pose_world_camera, path.poses[:6], atol=1e-6)


def test_a_path_shorter_than_a_snippet_names_the_poses_that_fit(tmp_path):
    write_tum(tmp_path / "trajectory.txt")
    path = camera_path(read_trajectory(tmp_path / "trajectory.txt"), METRES, "auto", 5.0)
    path.check_length(60, 5.0)
    with refused(SourceError, "11.80 s", "12.00 s", 61, "--poses", 60):
        path.check_length(61, 5.0)


TUM_LINES = "0.0 0 0 1 0 0 0 1\n0.1 0 0 1 0 0 0 1\n"


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("trajectory.txt", TUM_LINES + "0.2 0 0 1 0", ["line 3", 5, 8]),
        ("trajectory.txt", TUM_LINES + "0.05 0 0 1 0 0 0 1", ["pose 2", "time"]),
        ("trajectory.txt", TUM_LINES + "0.3 0 0 1 0 0 0 7", ["pose 2", "quaternion", 7]),
        ("trajectory.txt", TUM_LINES + "0.3 0 0 nan 0 0 0 1", ["line 3", "finite"]),
        ("trajectory.txt", "hello world is this it or not yes\n", ["line 1", "'hello world is this it or not yes'"]),
        ("trajectory.txt", "", ["0 poses", 2]),
        ("trajectory.csv", "", ["tracking_timestamp_us", "header"]),
        ("trajectory.csv", "a,b\n1,2\n", ["tracking_timestamp_us", "a, b"]),
        ("poses.json", "[[1, 2], [3, 4]]", ["pose 0", "4 x 4", "(2,)"]),
        ("poses.json", "[", ["JSON", "line 1"]),
        ("poses.json", '{"frames": 3}', ["list", "poses"]),
        ("poses.json", "[[-1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1]]", ["pose 0", "determinant", -1]),
        ("poses.json", '[["a","b"]]', ["pose 0", "'a'"]),
    ],
)
def test_a_broken_trajectory_is_one_clear_line(tmp_path, name, text, names):
    (tmp_path / name).write_text(text)
    with refused(SourceError, *names) as caught:
        read_trajectory(tmp_path / name)
    assert str(caught.value).startswith(f"{name}: ")


def test_a_cut_ase_trajectory_is_named_by_its_line(tmp_path):
    write_ase(tmp_path / "trajectory.csv")
    whole = (tmp_path / "trajectory.csv").read_text()
    (tmp_path / "trajectory.csv").write_text(whole[: len(whole) - 40])
    with refused(SourceError, "trajectory.csv", "line 61", 11):
        read_trajectory(tmp_path / "trajectory.csv")


def test_a_trajectory_elsewhere_is_refused(tmp_path):
    write_glb(tmp_path / "room" / "mesh.glb")
    write_poses(tmp_path / "room" / "poses.json")
    with refused(SourceError, "--camera opencv", 0.27):
        understand(SceneFolder("room", tmp_path / "room"), CONFIG)


def test_points_of_a_snippet_are_those_it_sees(tmp_path):
    write_ply(tmp_path / "room" / "mesh.ply")
    write_ase(tmp_path / "room" / "trajectory.csv")
    given = write_ase_points(tmp_path / "room" / "semidense_points.csv.gz")
    known = understand(SceneFolder("room", tmp_path / "room"), CONFIG)
    np.testing.assert_allclose(known.points[:, :3], given, atol=1e-5)
    assert (known.points[:, 3] == np.float32(0.002)).all()
    walk = known.path.snippet(0, 1, CONFIG.poses, CONFIG.rate_hz)
    seen = seen_points(CONFIG, known.points, known.scene.bvh, walk, rng_for("points"))
    assert 100 < len(seen) <= CONFIG.max_points
    assert (seen[:, 1] > -0.3).all(), "the head looks north, and what is behind it is not seen"
    assert (seen[:, 2] > -0.07).all() and (seen[:, 1] < 2.52).all(), "nothing behind floor and walls is seen"


def test_points_of_a_ply_file_have_the_typical_deviation(tmp_path):
    write_ply(tmp_path / "points.ply", column=None)
    points = read_points(tmp_path / "points.ply", METRES)
    assert points.shape[1] == 4 and (points[:, 3] == np.float32(0.0025)).all()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (gzip.compress(b"uid,px_world\n1,2\n"), ["py_world", "uid, px_world"]),
        (gzip.compress(b"px_world,py_world,pz_world,inv_dist_std\n1,2,3,0.1\n")[:-9], ["end-of-stream"]),
        (b"no gzip at all", ["gzip"]),
        (gzip.compress(b"px_world,py_world,pz_world,inv_dist_std\n1,2,three,0.1\n"), ["'three'"]),
        (gzip.compress(b"px_world,py_world,pz_world,inv_dist_std\nnan,2,3,0.1\n"), ["point", 1]),
    ],
    ids=("no column", "cut", "no gzip", "no number", "no point"),  # compressed bytes hold the time they were made
)
def test_broken_points_are_one_clear_line(tmp_path, content, names):
    (tmp_path / "semidense_points.csv.gz").write_bytes(content)
    with refused(SourceError, "semidense_points.csv.gz: ", *names):
        read_points(tmp_path / "semidense_points.csv.gz", METRES)
