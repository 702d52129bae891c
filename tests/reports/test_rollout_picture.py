"""A rollout in 3-D: cut honestly, with every clearance in the hover, and linked from the rows that look wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import trimesh

from rollout_assets.config import load_campaign
from rollout_assets.reports import suspicious_rows
from rollout_assets.reports.rollout_picture import StoredPictures, Surroundings
from rollout_assets.reports.rollout_traces import scene_cuts
from rollout_assets.reports.scene_cut import outline_at, slab, thinned
from rollout_assets.reports.store_report import write_store_report
from rollout_assets.rollouts.generator import RolloutGenerator
from rollout_assets.rollouts.trace import RolloutZarrRecord
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreConfig, RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreManifestContext
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.testing.tiny_campaign import write_tiny_campaign

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def generator(small_store, tmp_path_factory) -> RolloutGenerator:
    strict = {"suspicious": {"min_valid_candidates": 5}}
    campaign = load_campaign(write_tiny_campaign(tmp_path_factory.mktemp("pictures"), small_store), strict)
    return RolloutGenerator(campaign, VinOfflineStore.open(small_store))


@pytest.fixture(scope="module")
def records(generator) -> list[RolloutZarrRecord]:
    return list(generator.records(generator.store.rows("train")))


@pytest.fixture(scope="module")
def reader(generator, records, tmp_path_factory) -> RolloutZarrStoreReader:
    path = tmp_path_factory.mktemp("store") / "rollouts.zarr"
    context = RolloutStoreManifestContext.here(generator.config)
    write_rollout_zarr_store(path, records, RolloutZarrStoreConfig.from_campaign(generator.config), context=context)
    return RolloutZarrStoreReader(path)


def wall(*panels: tuple[float, float, float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Panels (x from, x to, z from, z to) of two triangles each, as tall as they are, in the plane y = 0."""
    corners = [[(a, 0, c), (b, 0, c), (b, 0, d), (a, 0, d)] for a, b, c, d in panels]
    faces = [[4 * n + k for k in face] for n in range(len(panels)) for face in ((0, 1, 2), (0, 2, 3))]
    return np.array(corners, np.float32).reshape(-1, 3), np.array(faces, np.int32)


DOORWAY = wall((-2.0, -0.5, 0.0, 2.5), (0.5, 2.0, 0.0, 2.5), (-0.5, 0.5, 2.05, 2.5))
"""A wall with a doorway a metre wide and a lintel above it."""


def test_a_doorway_is_open_and_no_wall_reaches_above_the_cut():
    cuts, shown = scene_cuts(*DOORWAY, focus=np.array([[0.0, -0.5, 1.5], [0.0, 0.5, 1.5]]), views_top_m=1.5)
    assert [cut.label for cut in cuts] == ["0.5 m", "1.0 m", "1.6 m", "nowhere"] and shown == 2
    assert max(cut.mesh.z.max() for cut in cuts[: shown + 1]) <= 1.6 + 1e-3
    assert cuts[3].mesh.z.min() >= 1.6 - 1e-3 and cuts[3].mesh.z.max() == pytest.approx(2.5)
    x = np.sort(cuts[shown].walls.x[np.isfinite(cuts[shown].walls.x)])
    assert (np.abs(x) >= 0.5 - 1e-6).all() and x[0] == pytest.approx(-2.0) and x[-1] == pytest.approx(2.0)
    np.testing.assert_allclose(cuts[shown].walls.z[np.isfinite(cuts[shown].walls.z)], 1.6, atol=1e-3)


def area(triangles: np.ndarray) -> float:
    edges = triangles[:, 1:] - triangles[:, :1]
    return float(np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1).sum() / 2)


def test_a_mesh_for_pictures_has_few_faces_and_keeps_its_shape():
    sphere = trimesh.creation.icosphere(subdivisions=6, radius=1.0)
    wall = trimesh.creation.box((4.0, 0.1, 2.0), transform=trimesh.transformations.translation_matrix((0, 3, 0)))
    for _ in range(6):
        wall = wall.subdivide()
    whole = trimesh.util.concatenate([sphere, wall])
    vertices, faces = thinned(whole.vertices.astype(np.float32), whole.faces.astype(np.int32), 20_000)
    assert 5_000 < len(faces) <= 20_000 < len(whole.faces)
    small = trimesh.Trimesh(vertices, faces, process=False)
    assert small.area == pytest.approx(whole.area, rel=0.02) and np.allclose(small.bounds, whole.bounds, atol=0.02)
    same = thinned(vertices, faces, len(faces))
    assert same[0] is vertices and same[1] is faces


def test_slabs_add_up_and_the_outline_of_a_box_is_its_perimeter():
    triangles = np.random.default_rng(3).normal(size=(200, 3, 3))
    heights = [-9.0, -0.4, 0.1, 0.8, 9.0]
    parts = [slab(triangles, low, high) for low, high in pairwise(heights)]
    assert sum(area(part) for part in parts) == pytest.approx(area(triangles))
    sides = [wall((0.0, 2.0, 0.0, 1.0)), wall((0.0, 3.0, 0.0, 1.0))]
    box = [vertices[faces].astype(np.float64) for vertices, faces in sides]
    box[1] = box[1][:, :, [1, 0, 2]]
    outline = outline_at(np.concatenate([*box, box[0] + [0, 3, 0], box[1] + [2, 0, 0]]), 0.7)
    assert np.linalg.norm(outline[:, 1] - outline[:, 0], axis=1).sum() == pytest.approx(2 * (2 + 3))
    assert len(outline_at(triangles, 99.0)) == 0


def test_the_points_on_the_target_are_those_that_the_oracle_counted(generator, records):
    record = next(record for record in records if any(len(chain.steps) > 1 for chain in record.chains))
    chain = next(chain for chain in record.chains if len(chain.steps) > 1)
    prepared = generator.prepare(generator.store.row(record.lineage.source_sample_index))
    root = next(root for root in prepared.roots if root.match.target.target_id == record.lineage.target_id)
    once = replace(chain, steps=chain.steps[:1])
    around = Surroundings.of(
        root.oracle_state, prepared.actor.points_world, record.root.pose_world_camera, once, generator.scorer
    )
    before, after = (np.nanmax(step.labels.target_current_support) for step in chain.steps[:2])
    assert (len(around.before), len(around.after)) == (before, after)


def test_every_view_tells_its_clearance_and_everything_can_be_switched(generator, reader):
    figure = StoredPictures(reader, generator.config).picture(0)
    chain = reader.rollout(0).chain
    for index, step in enumerate(chain.steps):
        traces = [trace for trace in figure.data if trace.legendgroup == f"step {index}"]
        texts = [text for trace in traces if trace.mode == "markers" for text in trace.hovertext]
        finite = np.isfinite(step.shell.pose_world_camera).all(axis=1)
        assert len(texts) == (step.oracle_label_mask | (~step.shell.actor_action_mask & finite)).sum()
        about = step.shell.diagnostics
        for text in texts:
            row = int(text.split(",")[0].removeprefix("view "))
            assert f"distance to the mesh {about.mesh_distance_m[row]:.3f} m" in text
            assert f"least clearance on the way {about.path_min_clearance_m[row]:.3f} m" in text
            assert ("refused: " in text) == (not step.shell.actor_action_mask[row])
    in_legend = " | ".join(trace.name for trace in figure.data if trace.showlegend is not False)
    for name in ("mesh, 0.0 to 0.5 m", "target: ", "points on it before", "points on it after", "their frusta"):
        assert name in in_legend
    assert figure.layout.legend.groupclick == "toggleitem"


def test_rows_that_look_wrong_link_to_pages_that_are_there(generator, reader, tmp_path, monkeypatch):
    page = write_store_report(reader, tmp_path / "a b#.html", campaign=generator.config)
    text = page.read_text("utf-8")
    links = re.findall(r'href="(a%20b%23_rollouts/(rollout-\d+\.html)#step-\d+)"', text)
    assert links
    assert {name for _, name in links} <= {path.name for path in (tmp_path / "a b#_rollouts").glob("rollout-*.html")}
    sizes = [path.stat().st_size for path in (tmp_path / "a b#_rollouts").iterdir() if path.suffix == ".html"]
    assert max(sizes) < 3_000_000, "the script is there once, not in every page"
    monkeypatch.setattr(suspicious_rows, "MAX_PICTURES", 1)
    text = write_store_report(reader, page, campaign=generator.config).read_text("utf-8")
    assert "at most 1 page" in text
    (only,) = (tmp_path / "a b#_rollouts").glob("rollout-*.html")
    assert re.findall(r'<script[^>]+src="([^"]+)"', only.read_text("utf-8")) == ["plotly.min.js"]
    assert only.with_name("plotly.min.js").exists()


def test_a_report_without_a_source_says_why_it_has_no_pictures(generator, reader, tmp_path):
    gone = generator.config.source.model_copy(update={"store_dir": tmp_path / "gone"})
    config = generator.config.model_copy(update={"source": gone})
    text = write_store_report(reader, tmp_path / "report.html", campaign=config).read_text("utf-8")
    assert f"No rollout is shown in 3-D: {tmp_path / 'gone'}" in text and not (tmp_path / "report_rollouts").exists()
    text = write_store_report(reader, tmp_path / "report.html").read_text("utf-8")
    assert "3-D" in text and not (tmp_path / "report_rollouts").exists()
