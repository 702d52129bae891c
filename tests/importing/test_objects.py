"""Objects of named nodes, instance columns and objects.json, and the boxes around them."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from rollout_assets.errors import MeshError, SourceError
from rollout_assets.importing.config import ImportConfig
from rollout_assets.importing.objects import class_name_of, is_structure, upright_box
from rollout_assets.importing.scene_folder import SceneFolder
from rollout_assets.importing.understanding import understand
from rollout_assets.sources.ply import read_labelled_ply
from rollout_assets.synthetic.scene import STRUCTURE as NO_OBJECT
from tests.importing.scene_files import OBJECTS, ROOM, STRUCTURE, write_glb, write_objects, write_ply
from tests.support.refusals import refused

CONFIG = ImportConfig(workers=1)
CLASSES = sorted({part.name.split("_")[0].lower() for part in OBJECTS})


def understood(folder, config=CONFIG):
    return understand(SceneFolder(folder.name, folder), config)


def assert_boxes_are_those_of_the_room(scene, parts=OBJECTS, margin_m=0.004):
    """Every object has the box it was made with, up to which of its axes is called the first."""
    assert len(scene.boxes) == len(parts)
    for part in parts:
        away = np.linalg.norm(scene.boxes.centers_world - part.centre, axis=1)
        index = int(np.argmin(away))
        assert away[index] < 0.01
        reach = scene.boxes[index : index + 1].corners_world()[0].astype(np.float64)
        nearest = np.linalg.norm(reach[:, None] - part.corners[None], axis=-1).min(axis=1)
        assert nearest.max() < 2 * margin_m + 1e-3
        own = scene.faces[scene.face_piece == index]
        assert len(own) == 12 and np.ptp(scene.vertices[own][..., 2]) == pytest.approx(part.size[2], abs=1e-5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Chair_01", "chair"),
        ("chair.002", "chair"),
        ("OfficeChair 3", "chair"),
        ("Floor_Lamp_2", "lamp"),
        ("drum-kit", "drum_kit"),
        ("Bedroom_Wall_12", "bedroom_wall"),
        ("42", "object"),
    ],
)
def test_a_name_gives_the_class(name, expected):
    assert class_name_of(name) == expected


@pytest.mark.parametrize(
    "name", ["Wall", "wall_north.003", "Floor", "Ceiling_mesh", "WINDOW frame", "Bed Room wall", "ceiling_upstairs"]
)
def test_structure_is_known_by_name(name):
    assert is_structure(class_name_of(name))


@pytest.mark.parametrize("name", ["Floor_Lamp", "wall_art", "doorstop", "Bed", "window_cleaner", "drum"])
def test_objects_named_almost_like_structure_stay_objects(name):
    assert not is_structure(class_name_of(name))


@pytest.mark.parametrize(
    "write",
    [
        write_glb,
        write_ply,
        lambda path: write_ply(path, corners=4),
        lambda path: write_ply(path, of="vertex"),
        lambda path: write_ply(path, of="vertex", corners=4),
    ],
)
def test_a_mesh_gives_twenty_objects_with_exact_boxes(tmp_path, write):
    ending = "glb" if write is write_glb else "ply"
    write(tmp_path / "room" / f"mesh.{ending}")
    (tmp_path / "room" / "classes.json").write_text(
        json.dumps({str(number + 1): part.name for number, part in enumerate(ROOM)})
    )
    known = understood(tmp_path / "room")
    assert known.class_names == tuple(CLASSES)
    assert_boxes_are_those_of_the_room(known.scene)
    named = {part.name.split("_")[0].lower() for part in OBJECTS if part.name.startswith(("Chair", "Lamp"))}
    moveable = {known.class_names[i] for i in known.scene.class_ids[known.scene.moveable]}
    assert moveable == named
    assert (known.scene.face_piece == NO_OBJECT).sum() == 12 * len(STRUCTURE)


@pytest.mark.parametrize("column", ["object_id", "instance", "instance_id", "objectId"])
def test_instances_without_class_names_are_objects_of_one_class(tmp_path, column):
    write_ply(tmp_path / "room" / "mesh.ply", column=column)
    known = understood(tmp_path / "room")
    assert known.class_names == ("object",) and known.objects_from == f"column {column}"
    assert len(known.scene.boxes) == len(OBJECTS)


def test_a_face_belongs_to_the_instance_of_most_corners():
    vertices = np.zeros(5, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("instance", "<u2")])
    vertices["instance"] = [7, 8, 8, 9, 7]
    faces = np.zeros(4, [("count", "u1"), ("corners", "<i4", (3,))])
    faces["count"], faces["corners"] = 3, [(0, 1, 2), (1, 3, 2), (3, 0, 1), (4, 0, 1)]
    assert _labels_of(vertices, faces) == [8, 8, 9, 7]
    faces["corners"][0] = (0, 1, 5)
    with refused(MeshError, "mesh.ply", "vertex 5", "5 vertices"):
        _labels_of(vertices, faces)


def _labels_of(vertices, faces):
    header = (
        "ply\nformat binary_little_endian 1.0\nelement vertex 5\nproperty float x\nproperty float y\n"
        "property float z\nproperty ushort instance\nelement face 4\nproperty list uchar int vertex_indices\n"
        "end_header\n"
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mesh.ply"
        path.write_bytes(header.encode() + vertices.tobytes() + faces.tobytes())
        return read_labelled_ply(path, ("instance",)).labels.tolist()


def test_replicas_semantic_file_names_instances(tmp_path):
    write_ply(tmp_path / "room" / "habitat" / "mesh_semantic.ply", corners=4)
    listed = [{"id": number + 1, "class_name": "tv-screen"} for number in range(len(STRUCTURE), len(ROOM))]
    (tmp_path / "room" / "habitat" / "info_semantic.json").write_text(json.dumps({"objects": listed}))
    known = understood(tmp_path / "room")
    assert known.class_names == ("tv_screen",) and len(known.scene.boxes) == len(OBJECTS)


def test_boxes_of_objects_json_are_kept_and_get_their_faces(tmp_path):
    write_ply(tmp_path / "room" / "mesh.ply", column=None)
    write_objects(tmp_path / "room" / "objects.json", extra={"moveable": True})
    known = understood(tmp_path / "room")
    assert_boxes_are_those_of_the_room(known.scene, margin_m=0.0)
    assert known.scene.moveable.all() and known.objects_from == "objects.json"


def test_boxes_of_objects_json_are_in_the_meshs_axes_and_units(tmp_path):
    write_glb(tmp_path / "room" / "mesh.glb", scale=100.0)
    sofa = next(part for part in OBJECTS if part.name.startswith("Sofa"))
    x, y, z = sofa.centre * 100.0
    box = {"class": "sofa", "center": [x, z, -y], "size": [sofa.size[0] * 100, sofa.size[2] * 100, sofa.size[1] * 100]}
    box["yaw_degrees"] = float(np.degrees(sofa.yaw))
    (tmp_path / "room" / "objects.json").write_text(json.dumps({"objects": [box]}))
    known = understood(tmp_path / "room")
    assert (known.frame.up, known.frame.units) == ("y", "cm")
    assert_boxes_are_those_of_the_room(known.scene, [sofa], margin_m=0.0)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"colour": "red"}, ["objects[0].colour"]),
        ({"size": [1, 0, 1]}, ["objects[0].size[1]"]),
        ({"size": ["1", 1, 1]}, ["objects[0].size[0]"]),
        ({"center": [1, 2]}, ["objects[0].center[2]"]),
        ({"rotation": [[-1, 0, 0], [0, 1, 0], [0, 0, 1]]}, ["objects[0]", "determinant", -1]),
        ({"rotation": [[2, 0, 0], [0, 1, 0], [0, 0, 1]]}, ["objects[0]", "orthonormal"]),
        ({"rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "yaw_degrees": 3}, ["objects[0]", "yaw_degrees", "rotation"]),
        ({"center": [90, 90, 90]}, ["face", "1 box"]),
    ],
)
def test_a_wrong_objects_json_is_one_clear_line(tmp_path, change, names):
    write_ply(tmp_path / "room" / "mesh.ply", column=None)
    box = {"class": "chair", "center": [0, 0, 1], "size": [1, 1, 1]} | change
    (tmp_path / "room" / "objects.json").write_text(json.dumps({"objects": [box]}))
    with refused(SourceError, *names) as caught:
        understood(tmp_path / "room")
    assert str(caught.value).startswith("objects.json: ") and "\n" not in str(caught.value)


def test_a_scene_without_objects_says_what_it_looked_for(tmp_path):
    write_ply(tmp_path / "room" / "mesh.ply", column=None)
    with refused(SourceError, "object_id, instance", "objects.json"):
        understood(tmp_path / "room")
    write_glb(tmp_path / "shell" / "mesh.glb", STRUCTURE)
    with refused(SourceError, "6 parts", "ceiling, floor, wall"):
        understood(tmp_path / "shell")


def test_the_least_footprint_of_many_points_is_found():
    rng = np.random.default_rng(3)
    local = rng.uniform(-0.5, 0.5, (20_000, 3)) * [2.0, 0.7, 1.0]
    c, s = np.cos(0.4), np.sin(0.4)
    pose, extent = upright_box((local @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1.0]])).astype(np.float32))
    assert np.arctan2(pose[3], pose[0]) == pytest.approx(0.4, abs=0.02)
    assert extent == pytest.approx([2.0, 0.7, 1.0], abs=0.03)
