"""The overview picture: a plan cut at door height, written as PNG or as one HTML file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rollout_assets.errors import ConfigError
from rollout_assets.reports.source_picture import height_map, plot_sample
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.store import build_synthetic_store
from tests.support.refusals import refused
from tests.synthetic.synthetic_homes import SMALL, home

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> VinOfflineStore:
    folder = tmp_path_factory.mktemp("picture") / "source"
    build_synthetic_store(folder, SMALL.model_copy(update={"scenes": 1, "snippets_per_scene": 1}))
    return VinOfflineStore.open(folder)


def test_the_plan_shows_floor_furniture_and_doors_but_no_ceiling() -> None:
    scene = home(0)
    plan = height_map(scene.vertices, scene.faces, 400)

    def height(x: float, y: float) -> float:
        return float(plan.heights_m[int((y - plan.y0) / plan.cell_m), int((x - plan.x0) / plan.cell_m)])

    assert np.nanmax(plan.heights_m) <= 2.02
    for item in scene.placed:
        if item.piece.class_name in ("table", "bed", "cabinet"):
            assert height(*item.footprint.centre) > 0.25
    for door in scene.plan.passages:
        across, along = (door.near + door.far) / 2, (door.start + door.stop) / 2
        assert abs(height(*((across, along) if door.axis == 0 else (along, across)))) < 0.05


def test_a_floor_of_two_faces_has_no_holes() -> None:
    corners = np.array([(0, 0, 0), (9, 0, 0), (9, 7, 0), (0, 7, 0)], np.float32)
    plan = height_map(corners, np.array([(0, 1, 2), (0, 2, 3)], np.int32), 900)
    assert np.isfinite(plan.heights_m[1:-2, 1:-2]).all()


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89png"), (".html", b"<!doctype html>")])
def test_pictures_are_written(store: VinOfflineStore, tmp_path: Path, ending: str, start: bytes) -> None:
    path = plot_sample(store, store.row(0), tmp_path / "deep" / f"picture{ending}")
    content = path.read_bytes()
    assert content.lower().startswith(start)
    assert len(content) > 20_000
    if ending == ".html":
        assert b"ground truth" in content
        assert b'src="https://' not in content


def test_other_endings_are_refused(store: VinOfflineStore, tmp_path: Path) -> None:
    with refused(ConfigError, "picture.gif", ".png", ".html"):
        plot_sample(store, store.row(0), tmp_path / "picture.gif")
