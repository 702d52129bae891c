"""Synthetic homes: closed solids, connected rooms, furniture of real size standing apart, faces within the budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import trimesh
from pydantic import ValidationError

from rollout_assets.randomness import rng_for
from rollout_assets.sources.meshes import content_hash
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.floor_grid import FloorGrid, Footprint
from rollout_assets.synthetic.furnish import WALK_CLEARANCE_M
from rollout_assets.synthetic.furniture import KINDS
from rollout_assets.synthetic.furniture_files import BUILT_IN
from rollout_assets.synthetic.home import DOOR_WIDTH_M, INNER_WALL_M, draw_plan
from rollout_assets.synthetic.scene import STRUCTURE, build_scene
from rollout_assets.synthetic.solids import Ball, Leaves, Part, Sheet, Slab, Tube
from tests.support.refusals import refused
from tests.synthetic.synthetic_homes import SMALL, bvh_of, home

PARTS: dict[str, tuple[Part, float]] = {
    "slab": (Slab((1.0, 0.5, 0.2), (1, 2, 3)), 0.1),
    "tube": (Tube((0, 0, 0), (0, 0, 2), 0.5, 0.5), np.pi * 0.25 * 2),
    "slanted cone": (Tube((0, 0, 0), (1, 1, 1), 0.4, 0.2), np.pi * 3**0.5 * (0.16 + 0.08 + 0.04) / 3),
    "ball": (Ball((0.5, 0.4, 0.3), (0, 0, 0)), 4 / 3 * np.pi * 0.06),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("cell_m", [0.02, 0.3])
def test_solids_are_closed_and_outward(name: str, cell_m: float) -> None:
    part, volume = PARTS[name]
    patch = part.build(cell_m)
    assert len(patch.faces) == part.face_count(cell_m)
    mesh = trimesh.Trimesh(np.round(patch.vertices, 9), patch.faces, process=True)
    mesh.merge_vertices()
    assert mesh.is_watertight
    assert mesh.volume == pytest.approx(volume, rel=0.01 if cell_m < 0.1 else 0.25)


def test_a_rounded_slab_stays_inside_its_box() -> None:
    points = Slab((1.0, 0.6, 0.3), (0, 0, 0), radius=0.1).build(0.03).vertices
    np.testing.assert_allclose(np.ptp(points, axis=0), (1.0, 0.6, 0.3), atol=1e-9)
    assert np.linalg.norm(points, axis=1).max() < np.linalg.norm([0.5, 0.3, 0.15]) - 0.05


def test_a_sheet_leaves_its_holes_open() -> None:
    sheet = Sheet((0, 0, 0), (4, 0, 0), (0, 0, 2.5), ((1.0, 2.0, 0.0, 2.0), (2.5, 3.5, 0.9, 2.1)))
    patch = sheet.build(0.17)
    assert len(patch.faces) == sheet.face_count(0.17)
    assert trimesh.Trimesh(patch.vertices, patch.faces, process=False).area == pytest.approx(10.0 - 2.0 - 1.2)


def test_leaves_have_no_degenerate_face() -> None:
    rng = rng_for("leaves")
    leaves = Leaves(rng.random((50, 3)), rng.normal(size=(50, 3)), np.full(50, 0.2), np.full(50, 0.08))
    patch = leaves.build(0.05)
    assert len(patch.faces) == leaves.face_count(0.05)
    assert trimesh.Trimesh(patch.vertices, patch.faces, process=False).area_faces.min() > 1e-7


@pytest.mark.parametrize("kind", KINDS)
def test_furniture_has_real_proportions_and_stands_on_the_floor(kind: str) -> None:
    heights = {"table": (0.3, 1.3), "chair": (0.7, 1.1), "sofa": (0.6, 1.1), "bed": (0.6, 1.3), "shelf": (1.4, 2.1)}
    heights |= {"cabinet": (0.35, 2.15), "lamp": (1.3, 1.9), "plant": (0.5, 2.0)}
    for number in range(5):
        piece = KINDS[kind](rng_for("piece", kind, number))
        low, high = heights[piece.class_name]
        assert low < piece.height_m < high
        assert abs(float(piece.low[2])) < 0.011
        assert np.abs(piece.low[:2] + piece.high[:2]).max() < 0.2
        assert piece.face_count(0.05) == len(piece.build(0.05).faces) > 300


def test_plans_have_connected_rooms_and_walls_of_real_thickness() -> None:
    for seed in range(30):
        plan = draw_plan(rng_for("plan", seed))
        assert 3 <= len(plan.rooms) <= 5
        reached = {0}
        for _ in plan.rooms:
            reached |= {room for door in plan.passages if set(door.rooms) & reached for room in door.rooms}
        assert reached == set(range(len(plan.rooms)))
        for door in plan.passages:
            assert door.far - door.near == pytest.approx(INNER_WALL_M)
            assert door.stop - door.start == pytest.approx(DOOR_WIDTH_M)
        assert any(opening.kind == "window" for opening in plan.openings)


@pytest.mark.parametrize("faces", [30_000, 100_000, 300_000])
def test_faces_meet_their_budget(faces: int) -> None:
    scene = build_scene(SyntheticConfig(faces=faces), 0, BUILT_IN)
    assert 0.95 * faces <= len(scene.faces) <= faces
    corners = scene.vertices[scene.faces]
    edges = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2).max(axis=1)
    assert edges.max() < 1.2
    walls = scene.face_piece == STRUCTURE
    assert np.median(edges[~walls]) < 0.6 * np.median(edges[walls])


def test_furniture_stands_apart_and_inside_its_room() -> None:
    for index in range(2):
        scene = home(index)
        assert len(scene.placed) >= 15
        assert len(set(scene.class_ids.tolist())) >= 6
        for one, two in itertools.combinations(scene.placed, 2):
            assert not one.footprint.overlaps(two.footprint)
        for item in scene.placed:
            corners = item.footprint.corners()
            inside = [((corners >= room.low) & (corners <= room.high)).all() for room in scene.plan.rooms]
            assert sum(inside) == 1


def test_every_door_can_be_walked_to() -> None:
    for index in range(2):
        scene = home(index)
        grid = FloorGrid.of_plan(scene.plan, 0.05, WALK_CLEARANCE_M - 0.05)
        for item in scene.placed:
            grid.block(item.footprint)
        middles = []
        for door in scene.plan.passages:
            across, along = (door.near + door.far) / 2, (door.start + door.stop) / 2
            middle = (across, along) if door.axis == 0 else (along, across)
            middles.append(tuple(int(metres / grid.cell_m) for metres in middle))
        reached = grid.reachable(middles[0])
        assert all(reached[cell] for cell in middles)


def test_boxes_contain_their_furniture_and_hug_it() -> None:
    scene = home(0)
    for number in range(len(scene.placed)):
        points = scene.vertices[np.unique(scene.faces[scene.face_piece == number])]
        box = scene.boxes[number : number + 1]
        assert box.contains(points).all()
        assert not box.contains(points, margin_m=-0.006).all()


def test_a_home_is_closed_but_for_its_windows() -> None:
    scene = home(0)
    room = scene.plan.rooms[0]
    centre = np.array([*np.add(room.low, room.high) / 2, 2.2], np.float32)
    directions = rng_for("rays").normal(size=(20_000, 3)).astype(np.float32)
    _, face = bvh_of(0).cast_rays(np.broadcast_to(centre, directions.shape), directions)
    assert float((face < 0).float().mean()) < 0.05


def test_the_same_seed_gives_the_same_home() -> None:
    again = build_scene(SMALL, 0, BUILT_IN)
    np.testing.assert_array_equal(again.vertices, home(0).vertices)
    np.testing.assert_array_equal(again.faces, home(0).faces)
    other_seed = build_scene(SMALL.model_copy(update={"seed": 1}), 0, BUILT_IN)
    digests = {content_hash(scene.vertices, scene.faces) for scene in (home(0), home(1), other_seed)}
    assert len(digests) == 3


def test_footprints_know_distance_and_overlap() -> None:
    square = Footprint((0.0, 0.0), (1.0, 1.0), np.pi / 4)
    assert square.distance(np.array([[2.0, 0.0]]))[0] == pytest.approx(2.0 - 2**0.5)
    assert square.distance(np.array([[0.1, 0.1]]))[0] == 0.0
    assert square.overlaps(Footprint((1.9, 0.0), (0.5, 0.5), 0.0))
    assert not square.overlaps(Footprint((1.6, 1.6), (0.5, 0.5), 0.0))
    assert square.overlaps(Footprint((2.0, 0.0), (0.5, 0.5), 0.0), margin_m=0.2)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"scenes": 0}, "scenes"),
        ({"faces": -1}, "faces"),
        ({"snippets_per_scene": 0}, "snippets_per_scene"),
        ({"seed": -1}, "seed"),
        ({"min_points": 10, "max_points": 5}, "max_points"),
        ({"rooms": 3}, "rooms"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], key: str) -> None:
    with refused(ValidationError, key):
        SyntheticConfig.model_validate(options)


def test_splits_depend_on_the_scene_number_alone() -> None:
    config = SyntheticConfig()
    assert [config.split_of(scene) for scene in range(6)] == ["train", "val", "train", "train", "train", "val"]
    assert {SyntheticConfig(val_fraction=0).split_of(scene) for scene in range(9)} == {"train"}
