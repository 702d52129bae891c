"""Up axis, units, floor and handedness of mesh files."""

from dataclasses import replace

import numpy as np
import pytest

from rollout_assets.errors import MeshError
from rollout_assets.importing.frames import Frame, recognise_frame
from rollout_assets.importing.raw_mesh import read_raw_mesh
from tests.importing.scene_files import HEIGHT_M, OBJECTS, ROOM, STRUCTURE, Y_UP, Part, triangles, write_glb, write_obj
from tests.support.refusals import assert_names, refused

X_UP = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
TURNS = {"x": X_UP, "y": Y_UP, "z": np.eye(3)}


def room(turn=TURNS["z"], scale=1.0, parts=ROOM, shift=(0.0, 0.0, 0.0)):
    """The room in a file's axes and units, moved by ``shift`` in ours before that."""
    vertices = np.concatenate([(part.corners + shift) @ turn.T * scale for part in parts])
    return vertices, np.concatenate([triangles() + 8 * n for n in range(len(parts))]).astype(np.int32)


@pytest.mark.parametrize("up", ["x", "y", "z"])
@pytest.mark.parametrize(("units", "scale"), [("m", 1.0), ("cm", 100.0), ("mm", 1000.0)])
@pytest.mark.parametrize("ending", [".ply", ".obj"])
def test_up_units_and_floor_of_a_room_are_recognised(up, units, scale, ending):
    vertices, faces = room(TURNS[up], scale, shift=(3.0, -2.0, 1.25))
    frame = recognise_frame(vertices, faces, ending, "auto", "auto")
    assert (frame.up, frame.units) == (up, units)
    assert frame.floor_m == pytest.approx(1.25, abs=0.01)
    world = frame.to_world(vertices)
    assert world[:, 2].min() == pytest.approx(-0.1, abs=0.01) and world[:, 2].max() == pytest.approx(2.7, abs=0.01)
    moved = room(shift=(3.0, -2.0, 0.0))[0]
    distances = np.linalg.norm(world[:200, None] - world[None, :200], axis=-1)
    np.testing.assert_allclose(distances, np.linalg.norm(moved[:200, None] - moved[None, :200], axis=-1), atol=1e-4)


@pytest.mark.parametrize("up", ["x", "y", "z"])
def test_no_frame_mirrors(up):
    assert np.linalg.det(Frame(up, "m", (1, 1, 1), 0.0).turn) == pytest.approx(1.0)


def test_what_is_given_is_not_guessed():
    cube = (Part("Floor", (0, 0, 0), (4, 4, 4)),)
    vertices, faces = room(parts=cube)
    assert recognise_frame(vertices, faces, ".ply", "x", "m").up == "x"
    assert recognise_frame(vertices, faces, ".ply", "auto", "auto").up == "z"
    assert recognise_frame(vertices * 2, faces, ".ply", "auto", "ft").size_m == pytest.approx((2.4384,) * 3)


def test_a_glb_file_is_y_up_even_if_a_wall_is_the_largest_face():
    hall = (Part("Floor", (0, 0, 0), (2.0, 9.0, 6.0)),)
    vertices, faces = room(Y_UP, parts=hall)
    assert recognise_frame(vertices, faces, ".glb", "auto", "auto").up == "y"


@pytest.mark.parametrize(("up", "units"), [("auto", "mm"), ("z", "cm"), ("y", "mm")])
def test_wrong_units_are_refused_with_those_that_fit(up, units):
    vertices, faces = room()
    with refused(MeshError, "6.1 x 5.1 x 2.8", f"up {up}", f"units {units}", "--units m"):
        recognise_frame(vertices, faces, ".ply", up, units)


@pytest.mark.parametrize("scale", [1e-3, 37.0, 1e6])
def test_what_is_no_room_in_any_unit_is_refused(scale):
    vertices, faces = room(scale=scale)
    with refused(MeshError, "--units", "--up", "1.5 to 50 m"):
        recognise_frame(vertices, faces, ".ply", "auto", "auto")


def test_the_floor_is_the_top_of_its_slab_and_not_a_table():
    table = Part("Table", (0, 0, 0.7), (3.0, 2.0, 0.05))
    vertices, faces = room(parts=(*STRUCTURE, table))
    assert recognise_frame(vertices, faces, ".ply", "auto", "auto").floor_m == pytest.approx(0.0, abs=0.01)


def storeys(count):
    """Rooms on top of each other, with their furniture."""
    raised = [(part, 2.7 * storey) for storey in range(count) for part in ROOM]
    return tuple(replace(part, at=(part.at[0], part.at[1], part.at[2] + height)) for part, height in raised)


@pytest.mark.parametrize("count", [2, 3])
def test_several_storeys_are_said_and_the_lowest_is_the_floor(count):
    vertices, faces = room(parts=storeys(count), shift=(0.0, 0.0, 0.5))
    frame = recognise_frame(vertices, faces, ".ply", "auto", "auto")
    assert (frame.up, frame.units) == ("z", "m") and frame.floor_m == pytest.approx(0.5, abs=0.03)
    floors = ", ".join(f"{2.7 * storey:.1f}" for storey in range(count))
    assert_names(frame.notes[0], f"{count} storeys", f"{floors} m")


def test_a_mirrored_scene_is_refused_with_what_to_do(tmp_path):
    write_glb(tmp_path / "mesh.glb", mirror=[part.name for part in ROOM])
    with refused(MeshError, "mesh.glb", "left-handed", "26 of 26"):
        read_raw_mesh(tmp_path / "mesh.glb")


def test_one_mirrored_copy_is_turned_right_side_out(tmp_path):
    write_glb(tmp_path / "plain.glb")
    write_glb(tmp_path / "mirrored.glb", mirror=[OBJECTS[3].name])
    plain, mirrored = read_raw_mesh(tmp_path / "plain.glb"), read_raw_mesh(tmp_path / "mirrored.glb")
    (note,) = mirrored.notes
    assert "1 mirrored" in note
    volumes = [_volume(mesh, OBJECTS[3].name) for mesh in (plain, mirrored)]
    assert volumes[0] == pytest.approx(volumes[1]) and abs(volumes[0]) > 0.01


def _volume(mesh, name):
    corners = np.asarray(mesh.vertices, np.float64)[mesh.faces[mesh.face_label == mesh.names.index(name)]]
    return float(np.einsum("ni,ni->n", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])).sum() / 6)


def test_obj_files_of_quads_without_their_materials_are_read(tmp_path):
    write_obj(tmp_path / "mesh.obj")
    mesh = read_raw_mesh(tmp_path / "mesh.obj")
    assert mesh.names == tuple(part.name for part in ROOM) and len(mesh.faces) == 12 * len(ROOM)
    assert np.ptp(mesh.vertices[:, 1]) == pytest.approx(HEIGHT_M + 0.2)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("v 0 0 zero\n", ["line 1", "'v 0 0 zero'"]),
        ("v 0 0 0\nf 1 2 9\n", ["vertex 8", 1]),
        ("v 0 0 0\nf 0 1 1\n", ["line 2", "'f 0 1 1'"]),
        ("v 1 2 3\nv 1\n", ["vertex", "coordinates"]),
        ("\x00\x01\x02", ["0 vertices", "no faces"]),
        ("", ["0 vertices", "no faces"]),
    ],
)
def test_a_broken_obj_file_is_one_clear_line(tmp_path, text, names):
    (tmp_path / "mesh.obj").write_text(text)
    with refused(MeshError, "mesh.obj", *names):
        read_raw_mesh(tmp_path / "mesh.obj")
