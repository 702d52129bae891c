"""`source import` as a whole: scenes of every kind into one store, and that store through a campaign."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rollout_assets.campaigns.promotion import promote_rollout_campaign
from rollout_assets.campaigns.run import run_campaign
from rollout_assets.config import load_campaign
from rollout_assets.errors import ImportRefused, SourceError
from rollout_assets.files import tree_digests
from rollout_assets.importing.config import ImportConfig
from rollout_assets.importing.import_store import import_scenes
from rollout_assets.reports.store_report import write_store_report
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.sources.audit import audit_store
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.testing.tiny_campaign import write_tiny_campaign
from tests.importing.scene_files import (
    OBJECTS,
    ROOM,
    STRUCTURE,
    write_ase,
    write_ase_points,
    write_fine_ply,
    write_glb,
    write_obj,
    write_objects,
    write_ply,
    write_poses,
    write_tum,
)
from tests.support.commands import call
from tests.support.refusals import assert_names, refused
from tests.support.unreadable import unreadable

SMALL = ImportConfig(snippets_per_scene=1, poses=5, min_points=300, max_points=1_500, workers=1)


def write_scenes(folder):
    """One scene of each kind: GLB, instances, Aria-like, centimetres and Y-up, boxes with poses and detections."""
    write_glb(folder / "glb" / "mesh.glb")
    write_ply(folder / "instances" / "mesh.ply", ROOM[:-1])
    write_ply(folder / "aria" / "scene_ply_7.ply", ROOM[:-2])
    write_ase(folder / "aria" / "trajectory.csv")
    write_ase_points(folder / "aria" / "semidense_points.csv.gz")
    write_obj(folder / "centimetres" / "mesh.obj", ROOM[:-3], scale=100.0)
    write_ply(folder / "boxes" / "mesh.ply", column=None)
    write_objects(folder / "boxes" / "objects.json")
    write_tum(folder / "boxes" / "trajectory.txt")
    sofas = [part for part in OBJECTS if part.name.startswith("Sofa")]
    write_objects(folder / "boxes" / "detections.json", sofas, {"confidence": 0.8, "class": "sofa"})
    boxes = folder / "boxes" / "detections.json"
    boxes.write_text(json.dumps({"detections": json.loads(boxes.read_text())["objects"]}))


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Scenes, the store made of them, and what was understood."""
    folder = tmp_path_factory.mktemp("imported")
    write_scenes(folder / "scenes")
    return folder, import_scenes(folder / "scenes", folder / "store", SMALL)


def test_every_kind_of_scene_becomes_rows_of_a_sound_store(imported):
    folder, summary = imported
    assert not summary.left_out
    reports = {report.scene_id: report for report in summary.scenes}
    assert sorted(reports) == ["aria", "boxes", "centimetres", "glb", "instances"]
    counts = {"glb": 20, "instances": 19, "aria": 18, "centimetres": 17, "boxes": 20}
    assert {name: report.objects for name, report in reports.items()} == counts
    assert [(reports[name].up, reports[name].units) for name in ("glb", "centimetres", "aria")] == [
        ("y", "m"),
        ("y", "cm"),
        ("z", "m"),
    ]
    assert "camera rig" in reports["aria"].walks and reports["aria"].points == "4,000 given"
    assert "camera opencv" in reports["boxes"].walks and reports["boxes"].detections == "4 given"
    assert all(report.mesh_in_view > 0.99 for report in reports.values())
    audit = audit_store(folder / "store")
    assert audit.ok, audit.problems
    assert (summary.num_samples, summary.num_train, summary.num_val) == (5, 4, 1)
    assert not list((folder / "store").glob(".*")), "nothing that waited is left"


def test_rows_hold_the_objects_that_were_given(imported):
    folder, _ = imported
    store = VinOfflineStore.open(folder / "store")
    for row in store.rows():
        truth = store.sample(row).truth.gt_boxes
        boxes = truth.boxes
        centres = np.array([part.centre for part in OBJECTS])
        away = np.linalg.norm(boxes.centers_world[:, None] - centres[None], axis=-1)
        assert len(boxes) >= 3 and away.min(axis=1).max() < 0.01, row.scene_id
        expected = {"object"} if row.scene_id in ("aria", "instances") else {"chair", "table", "sofa", "lamp", "drum"}
        assert set(truth.class_names) <= expected


def test_an_imported_store_is_promoted_and_its_input_unchanged(imported, tmp_path):
    folder, _ = imported
    before = tree_digests(folder)
    config = load_campaign(str(write_tiny_campaign(tmp_path, folder / "store", rows_per_shard=5)))
    run_campaign(config)
    promoted = promote_rollout_campaign(config)
    assert sorted(split.split for split in promoted.splits) == ["train", "val"]
    for split in promoted.splits:
        result = validate_rollout_zarr_store(promoted.store_dir / split.split, deep=True)
        assert result.ok, result.findings
    assert tree_digests(folder) == before


def test_equal_files_give_equal_stores_scene_by_scene(imported, tmp_path):
    folder, summary = imported
    again = import_scenes(folder / "scenes", tmp_path / "again", SMALL)
    assert again.source_manifest_hash == summary.source_manifest_hash
    assert tree_digests(tmp_path / "again") == tree_digests(folder / "store")
    write_glb(tmp_path / "one" / "glb" / "mesh.glb")
    alone = import_scenes(tmp_path / "one", tmp_path / "alone", SMALL)
    assert alone.scenes[0].rows_hash == next(report.rows_hash for report in summary.scenes if report.scene_id == "glb")


def write_bad_scenes(folder):
    """Write one scene for each way to be bad; scene -> what the line about it must name."""
    write_glb(folder / "shell" / "mesh.glb", STRUCTURE)
    write_ply(folder / "cut" / "mesh.ply")
    write_tum(folder / "cut" / "trajectory.txt")
    (folder / "cut" / "trajectory.txt").write_bytes((folder / "cut" / "trajectory.txt").read_bytes()[:-30])
    write_glb(folder / "mirrored" / "mesh.glb", mirror=[part.name for part in (*STRUCTURE, *OBJECTS)])
    write_glb(folder / "tiny" / "mesh.glb", scale=1e-3)
    (folder / "empty").mkdir()
    (folder / "no-faces").mkdir()
    (folder / "no-faces" / "mesh.obj").write_text("v 0 0 0\n")
    (folder / "nonsense").mkdir()
    (folder / "nonsense" / "mesh.glb").write_bytes(os.urandom(2_000))
    write_ply(folder / "damaged" / "mesh.ply")
    (folder / "damaged" / "mesh.ply").write_bytes((folder / "damaged" / "mesh.ply").read_bytes()[:-50])
    write_glb(folder / "a b" / "mesh.glb")
    write_ply(folder / "two" / "mesh.ply")
    write_tum(folder / "two" / "trajectory.txt")
    write_poses(folder / "two" / "poses.json")
    return {
        "shell": ("6 parts",),
        "cut": ("trajectory.txt", "line 61"),
        "mirrored": ("left-handed",),
        "tiny": ("up axis",),
        "empty": ("mesh",),
        "no-faces": ("mesh.obj", "empty"),
        "nonsense": ("mesh.glb", "GLB"),
        "damaged": ("truncated",),
        "a b": ("name",),
        "two": ("poses.json", "trajectory.txt"),
    }


def test_bad_scenes_are_named_in_a_line_each_and_others_imported(tmp_path):
    expected = write_bad_scenes(tmp_path / "scenes")
    write_glb(tmp_path / "scenes" / "good" / "mesh.glb")
    before = tree_digests(tmp_path / "scenes")
    options = ("--snippets", "1", "--poses", "4", "--workers", "1")
    done = call("source", "import", str(tmp_path / "scenes"), str(tmp_path / "store"), *options)
    assert done.code == 2
    lines = {line.split(": ")[1]: line for line in done.out.splitlines() if line.startswith("left out: ")}
    assert sorted(lines) == sorted(expected)
    for scene, names in expected.items():
        assert_names(lines[scene], *names)
    assert [row.scene_id for row in VinOfflineStore.open(tmp_path / "store").rows()] == ["good"]
    assert tree_digests(tmp_path / "scenes") == before


def test_when_no_scene_is_good_nothing_is_written(tmp_path):
    expected = write_bad_scenes(tmp_path / "scenes")
    with refused(ImportRefused, tmp_path / "scenes", len(expected)) as caught:
        import_scenes(tmp_path / "scenes", tmp_path / "store", SMALL)
    assert len(caught.value.problems) == len(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["scenes"]


def test_scenes_with_the_same_mesh_share_a_split(tmp_path):
    for name in "abcdef":
        write_glb(tmp_path / "scenes" / f"room-{name}.glb")
    write_glb(tmp_path / "scenes" / "other.glb", ROOM[:-1])
    import_scenes(tmp_path / "scenes", tmp_path / "store", SMALL.model_copy(update={"poses": 2}))
    rows = VinOfflineStore.open(tmp_path / "store").rows()
    rooms = {row.split for row in rows if row.scene_id != "other"}
    assert len(rooms) == 1 and {row.split for row in rows} == {"train", "val"}


def test_a_house_of_two_storeys_is_walked_on_the_lower_one(tmp_path):
    upstairs = [replace(part, at=(part.at[0], part.at[1], part.at[2] + 2.7)) for part in ROOM]
    write_glb(tmp_path / "scenes" / "house.glb", (*ROOM, *(replace(p, name=f"{p.name}_up") for p in upstairs)))
    summary = import_scenes(tmp_path / "scenes", tmp_path / "store", SMALL)
    report = summary.scenes[0]
    assert report.objects == 2 * len(OBJECTS) and any("2 storeys" in note for note in report.notes)
    row = VinOfflineStore.open(tmp_path / "store").rows()[0]
    sample = VinOfflineStore.open(tmp_path / "store").sample(row)
    assert sample.truth.gt_boxes.boxes.centers_world[:, 2].max() < 2.6


def test_a_mesh_file_by_itself_is_a_scene(tmp_path):
    write_glb(tmp_path / "scenes" / "kitchen.glb")
    summary = import_scenes(tmp_path / "scenes", tmp_path / "store", SMALL)
    assert [report.scene_id for report in summary.scenes] == ["kitchen"]


def test_wrong_units_are_refused_and_the_right_ones_work(tmp_path):
    write_glb(tmp_path / "scenes" / "room.glb", scale=1 / 0.3048)
    with refused(ImportRefused, "room", "--up y --units m"):
        import_scenes(tmp_path / "scenes", tmp_path / "store", SMALL.model_copy(update={"units": "mm"}))
    summary = import_scenes(tmp_path / "scenes", tmp_path / "store", SMALL.model_copy(update={"units": "ft"}))
    assert summary.scenes[0].size_m == pytest.approx((6.1, 5.1, 2.8), abs=0.01)


@pytest.mark.parametrize(
    ("scenes", "store", "named"),
    [
        ("nowhere", "store", ["nowhere"]),
        ("hollow", "store", ["hollow"]),
        ("scenes", "scenes/store", ["scenes/store", "scenes"]),
        ("scenes", "taken", ["taken"]),
        ("twice", "store", ["twice", "room"]),
    ],
)
def test_places_that_cannot_be_used_are_refused(tmp_path, scenes, store, named):
    (tmp_path / "hollow").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    write_glb(tmp_path / "scenes" / "room.glb")
    write_glb(tmp_path / "twice" / "room.glb")
    write_obj(tmp_path / "twice" / "room.obj")
    with refused(SourceError, tmp_path / named[0], *named[1:]):
        import_scenes(tmp_path / scenes, tmp_path / store, SMALL)


def test_an_unreadable_file_leaves_out_its_scene_only(tmp_path):
    write_obj(tmp_path / "scenes" / "locked.obj")
    write_glb(tmp_path / "scenes" / "room.glb")
    with unreadable(tmp_path / "scenes" / "locked.obj", errno.EACCES):
        summary = import_scenes(tmp_path / "scenes", tmp_path / "store", SMALL)
    assert [(scene.scene_id, scene.reason) for scene in summary.left_out] == [
        ("locked", "locked.obj: Permission denied")
    ]


_INTERRUPTED = """
import os, signal
from rollout_assets import cli
from rollout_assets.importing import scene_rows

write = scene_rows.write_binary_ply

def write_and_interrupt(*arguments):
    write(*arguments)
    os.kill(os.getpid(), signal.SIGINT)

scene_rows.write_binary_ply = write_and_interrupt
cli.main()
"""
"""An import that gets SIGINT as soon as the first scene's mesh is in the unfinished store."""


@pytest.mark.ci
def test_an_interrupted_import_leaves_no_half_store(tmp_path):
    for name in ("one", "two"):
        write_glb(tmp_path / "scenes" / f"{name}.glb")
    arguments = ["source", "import", str(tmp_path / "scenes"), str(tmp_path / "store"), "--workers", "1"]
    ended = subprocess.run([sys.executable, "-c", _INTERRUPTED, *arguments], capture_output=True, text=True)
    assert ended.returncode == 130 and ended.stdout == "", ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scenes"]


def test_only_faults_of_the_machine_end_an_import(tmp_path, monkeypatch):
    write_glb(tmp_path / "scenes" / "room.glb")

    def full(*_arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "elsewhere"))

    monkeypatch.setattr("rollout_assets.importing.scene_rows.write_binary_ply", full)
    with refused(OSError, tmp_path / "elsewhere", errno=errno.ENOSPC):
        import_scenes(tmp_path / "scenes", tmp_path / "store", SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["scenes"]


_MEASURED = """
import resource, sys
from pathlib import Path
from rollout_assets.importing.config import ImportConfig
from rollout_assets.importing.import_store import import_scenes
summary = import_scenes(Path(sys.argv[1]), Path(sys.argv[2]), ImportConfig(snippets_per_scene=1, workers=1))
print(summary.scenes[0].faces, summary.scenes[0].objects, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_five_million_faces_are_imported_within_two_gigabytes(tmp_path):
    write_fine_ply(tmp_path / "scenes" / "fine" / "mesh.ply", cells=127)
    command = [sys.executable, "-c", _MEASURED, str(tmp_path / "scenes"), str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    faces, objects, peak_kb = (int(word) for word in done.stdout.split())
    assert faces > 5_000_000 and objects == len(OBJECTS)
    assert peak_kb < 2_000_000
    config = load_campaign(str(write_tiny_campaign(tmp_path, tmp_path / "store")))
    assert run_campaign(config).ok
    promoted = promote_rollout_campaign(config)
    page = tmp_path / "page.html"
    write_store_report(RolloutZarrStoreReader(promoted.store_dir / "train"), page, campaign=config)
    assert max(path.stat().st_size for path in (page, *tmp_path.glob("page_rollouts/*"))) < 20_000_000
