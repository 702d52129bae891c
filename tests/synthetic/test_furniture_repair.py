"""Messy furniture files: what is repaired, what is refused, and that every step is told."""

from pathlib import Path

import numpy as np
import pytest
import trimesh

from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.config import load_campaign
from rollout_assets.errors import MeshError
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.synthetic.furniture_files import load_furniture
from rollout_assets.synthetic.furniture_repair import FurnitureFile, RepairedFurniture, class_of, repair_furniture
from rollout_assets.testing.tiny_campaign import write_tiny_campaign
from tests.support.commands import call
from tests.support.refusals import assert_names, refused

QUADS = ((1, 2, 4, 3), (5, 7, 8, 6), (1, 5, 6, 2), (3, 4, 8, 7), (1, 3, 7, 5), (2, 6, 8, 4))
"""Sides of a box of eight corners, seen from outside in OBJ's counting."""


def write_box(path: Path, size=(0.5, 0.9, 0.4), quads=QUADS, more=(), at=(0.0, 0.0, 0.0)) -> Path:
    corners = [(x, y, z) for x in (0, size[0]) for y in (0, size[1]) for z in (0, size[2])]
    lines = ["mtllib lost.mtl", *(f"v {x + at[0]} {y + at[1]} {z + at[2]}" for x, y, z in corners), "usemtl gone"]
    lines += ["f " + " ".join(f"{corner}/1/1" for corner in quad) for quad in quads]
    path.write_text("\n".join([*lines, *more]) + "\n")
    return path


def repaired(path: Path, max_faces: int = 5_000) -> RepairedFurniture:
    result = repair_furniture(path, max_faces)
    assert isinstance(result, RepairedFurniture), result
    return result


def volume(result: RepairedFurniture) -> float:
    mesh = trimesh.Trimesh(result.patch.vertices, result.patch.faces, process=False)
    return float(mesh.volume)


def test_a_clean_file_is_used_as_it_is(tmp_path):
    result = repaired(write_box(tmp_path / "chair_2.obj"))
    assert result.report == FurnitureFile("chair_2.obj", "chair", 12, 12, pytest.approx((0.4, 0.5, 0.9)), ())
    assert result.patch.vertices[:, 2].min() == 0.0
    assert volume(result) == pytest.approx(0.18)


def test_inverted_faces_of_a_closed_part_are_flipped(tmp_path):
    result = repaired(write_box(tmp_path / "chair.obj", quads=[quad[::-1] for quad in QUADS]))
    assert result.report.done == ("12 inside-out faces flipped",)
    assert volume(result) == pytest.approx(0.18)


def test_only_the_inverted_part_of_two_is_flipped(tmp_path):
    write_box(tmp_path / "good.obj")
    write_box(tmp_path / "bad.obj", quads=[quad[::-1] for quad in QUADS], at=(0.7, 0.0, 0.0))
    lines = [(tmp_path / name).read_text().replace("mtllib lost.mtl\n", "") for name in ("good.obj", "bad.obj")]
    second = lines[1].splitlines()
    shifted = [_shifted(line, 8) if line.startswith("f ") else line for line in second]
    (tmp_path / "chair.obj").write_text(lines[0] + "\n".join(shifted) + "\n")
    result = repaired(tmp_path / "chair.obj")
    assert result.report.done == ("12 inside-out faces flipped",) and volume(result) == pytest.approx(0.36)


def _shifted(line: str, by: int) -> str:
    return "f " + " ".join(str(int(word.split("/")[0]) + by) for word in line.split()[1:])


def test_an_open_sheet_is_left_as_it_is_wound(tmp_path):
    assert repaired(write_box(tmp_path / "chair.obj", quads=QUADS[:4])).report.done == ()


def test_doubled_faces_are_dropped_whatever_their_orientation(tmp_path):
    doubled = [QUADS[0], (5, 6, 8, 7)]
    own = ["v 0 0 0", "v 0 0 0.4", "v 0 0.9 0.4", "v 0 0.9 0", "f 9 10 11 12"]
    result = repaired(write_box(tmp_path / "chair.obj", quads=[*QUADS, *doubled], more=own))
    assert result.report.faces_in_file == 18 and result.report.faces_used == 12
    assert result.report.done == ("6 doubled faces dropped",)


def test_faces_without_area_are_dropped(tmp_path):
    result = repaired(write_box(tmp_path / "chair.obj", more=["f 1 1 2", "f 1 2 2 1"]))
    assert result.report.faces_used == 12 and result.report.done == ("3 faces without area dropped",)


@pytest.mark.parametrize(
    ("name", "scale", "height_m", "done"),
    [
        ("chair", 100.0, 0.9, "taken as centimetres"),
        ("chair", 1000.0, 0.9, "taken as millimetres"),
        ("wardrobe", 275.0, 2.2, "taken as centimetres, made 2.4 m long instead of 2.48 m"),
        ("chair", 0.001, 0.9, "scaled by 1e+03 to 0.9 m"),
        ("chair", 1e7, 0.9, "scaled by 1e-07 to 0.9 m"),
    ],
)
def test_units_are_recognised_or_a_typical_size_is_taken(tmp_path, name, scale, height_m, done):
    size = (0.5 * scale, 0.9 * scale, 0.4 * scale)
    report = repaired(write_box(tmp_path / f"{name}.obj", size)).report
    assert report.done[0] == done and report.size_m[2] == pytest.approx(height_m)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["faces", "0 vertices"]),
        ("v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n", ["face", 1]),
        ("v 0 0 0\nv 1 0 0\nv 2 0 1e-5\nf 1 2 3\n", ["line", "2 units"]),
        ("v 0 0 0\nf 1 2 3\n", ["vertex 2", 1]),
        ("v 0 0 spam\n", ["line 1", "spam"]),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(tmp_path, text, names):
    (tmp_path / "chair.obj").write_text(text)
    result = repair_furniture(tmp_path / "chair.obj", 1_000)
    assert isinstance(result, FurnitureFile) and result.refused is not None
    assert_names(result.refused, *names)
    with refused(MeshError, "chair.obj"):
        load_furniture(tmp_path, 1_000)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("antiqueChair", "chair"),
        ("bed1", "bed"),
        ("writing_desk", "table"),
        ("armchair3", "sofa"),
        ("table_football", "table"),
        ("vase2", "vase"),
        ("full-bookcase", "shelf"),
        ("couch", "sofa"),
    ],
)
def test_camel_case_and_special_names_tell_the_class(name, expected):
    assert class_of(Path(f"{name}.obj")) == expected


def test_files_of_unpacked_archives_are_found_in_their_folders(tmp_path):
    for name in ("kator/chair/chair.obj", "scopia/chair/chair.obj", "scopia/table.obj"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_box(tmp_path / name)
    (tmp_path / "scopia/chair/chair.mtl").touch()
    furniture = load_furniture(tmp_path, 1_000)
    named = {report.file: report.class_name for report in furniture.files}
    assert named == {"kator/chair/chair.obj": "chair", "scopia/chair/chair.obj": "chair", "scopia/table.obj": "table"}


@pytest.mark.slow
def test_homes_of_messy_files_become_a_promoted_store(tmp_path):
    folder = tmp_path / "furniture"
    sizes = {"chair": (50, 90, 45), "table": (120, 74, 80), "sofa": (190, 80, 85), "bed": (200, 50, 140)}
    sizes |= {"bookcase": (80, 180, 30), "lamp": (40, 150, 40), "plant": (50, 90, 50), "dresser": (100, 90, 50)}
    for name, size in sizes.items():
        (folder / name).mkdir(parents=True)
        write_box(folder / name / f"{name}.obj", size, quads=[*(quad[::-1] for quad in QUADS), QUADS[0]])
    options = ("--scenes", "2", "--snippets", "1", "--faces", "30000", "--furniture", str(folder), "--workers", "1")
    assert call("source", "build", str(tmp_path / "store"), *options).code == 0
    config = load_campaign(str(write_tiny_campaign(tmp_path, tmp_path / "store")))
    assert run_campaign(config).ok
    promoted = promote_rollout_campaign(config)
    assert sorted(split.split for split in promoted.splits) == ["train", "val"]
    for split in promoted.splits:
        assert not validate_rollout_zarr_store(promoted.store_dir / split.split, deep=True).findings


def test_a_build_tells_what_was_done_to_each_file(tmp_path):
    folder = tmp_path / "furniture"
    folder.mkdir()
    write_box(folder / "chair.obj", (50, 90, 40), quads=[quad[::-1] for quad in QUADS])
    write_box(folder / "table.obj", (1.2, 0.7, 0.8))
    (folder / "broken.obj").write_text("v 1 2\nnothing\nf 1\n")
    options = ("--scenes", "1", "--snippets", "1", "--faces", "30000", "--furniture", str(folder), "--workers", "1")
    done = call("source", "build", str(tmp_path / "store"), *options)
    assert done.code == 0, done.err
    rows = {line.split("│")[1].strip(): line for line in done.out.splitlines() if ".obj" in line}
    assert_names(rows["chair.obj"], "12 inside-out faces", "centimetres")
    assert "face" not in rows["table.obj"] and "refused: " in rows["broken.obj"]
    before = np.array([path.stat().st_mtime_ns for path in folder.iterdir()])
    assert len(before) == 3, "nothing is written beside the files"
