"""Synthetic stores: the exact layout, the same bytes for the same seed, atomic builds and appends, clear refusals."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from pathlib import Path

import msgpack
import numpy as np
import pytest
import trimesh
import zarr

from rollout_assets.errors import ConfigError, MeshError, SourceDamaged, SourceError
from rollout_assets.files import file_lock
from rollout_assets.progress import ProgressEvent
from rollout_assets.sources import layout
from rollout_assets.sources.meshes import MeshLibrary, mesh_file_name
from rollout_assets.sources.versions import name_problems
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.furniture_files import load_furniture
from rollout_assets.synthetic.furniture_repair import class_of
from rollout_assets.synthetic.scene import build_scene
from rollout_assets.synthetic.store import append_synthetic_snippets, build_synthetic_store
from tests.support.refusals import refused
from tests.synthetic.synthetic_homes import SMALL


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("built") / "source"
    build_synthetic_store(store, SMALL)
    return store


def _files(root: Path) -> dict[str, str]:
    """Digest of every file, by relative path."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _manifest(store: Path) -> layout.Manifest:
    return layout.Manifest.model_validate_json((store / layout.MANIFEST_FILE).read_bytes())


def _index(store: Path) -> list[layout.IndexRow]:
    lines = (store / layout.INDEX_FILE).read_bytes().splitlines()
    return [layout.IndexRow.model_validate_json(line) for line in lines]


def _rows(store: Path) -> dict[str, dict[str, np.ndarray]]:
    """Every decoded array of every row, by sample key."""
    found = {}
    shards = {shard.shard_id: shard for shard in _manifest(store).shards}
    for row in _index(store):
        shard = shards[row.shard_id]
        group = zarr.open_group(store / shard.relative_dir, mode="r")
        arrays = [block for block in shard.blocks.values() if block.kind == layout.ZARR_ARRAY]
        found[row.sample_key] = {block.name: np.asarray(group[block.paths[0]][row.row]) for block in arrays}
    return found


def _assert_same_rows(
    found: dict[str, dict[str, np.ndarray]], expected: dict[str, dict[str, np.ndarray]], keys: list[str]
) -> None:
    for key in keys:
        assert found[key].keys() == expected[key].keys()
        for name, array in expected[key].items():
            np.testing.assert_array_equal(found[key][name], array)


def test_the_layout_is_the_format(built: Path) -> None:
    manifest = _manifest(built)
    assert manifest.version == layout.FORMAT_VERSION
    assert (manifest.stats.num_samples, manifest.stats.num_train, manifest.stats.num_val) == (4, 2, 2)
    for number, shard in enumerate(manifest.shards):
        assert shard.shard_id == layout.shard_name(number)
        group = zarr.open_group(built / shard.relative_dir, mode="r")
        assert group.metadata.zarr_format == 3
        assert list(name_problems(layout.FORMAT_VERSION, shard.blocks)) == []
        assert shard.blocks.keys() <= layout.KNOWN_BLOCKS.keys()
        for name, spec in shard.blocks.items():
            known = layout.KNOWN_BLOCKS[name]
            assert (spec.kind, spec.dtype, spec.optional) == (known.kind, known.dtype, known.optional)
            if spec.kind == layout.ZARR_ARRAY:
                array = group[spec.paths[0]]
                assert isinstance(array, zarr.Array)
                assert (array.dtype.name, array.shape) == (spec.dtype, spec.shape)
                assert known.fitting(array.shape[1:]) is not None
                assert array.nbytes // shard.num_rows < 65_536 or array.chunks[0] == 1
            else:
                payload = (built / shard.relative_dir / spec.paths[0]).read_bytes()
                offsets = np.load(built / shard.relative_dir / spec.paths[1], allow_pickle=False)
                assert offsets.dtype == np.int64
                assert offsets.tolist()[-1] == len(payload)
                names = msgpack.unpackb(payload[offsets[0] : offsets[1]], strict_map_key=False)
                assert names[2] == "chair"


def test_splits_are_by_scene_and_agree_with_the_index(built: Path) -> None:
    rows = _index(built)
    assert {(row.scene_id, row.split) for row in rows} == {
        ("synthetic-0-00000", "train"),
        ("synthetic-0-00001", "val"),
    }
    for split in layout.SPLIT_FILES:
        members = np.load(built / layout.split_file(split), allow_pickle=False)
        assert members.dtype == np.int64
        assert members.tolist() == [row.sample_index for row in rows if split in (layout.ALL, row.split)]


def test_the_reader_opens_it(built: Path) -> None:
    store = VinOfflineStore.open(built)
    for row in store.rows():
        sample = store.sample(row)
        assert sample.truth.mesh_path is not None
        assert len(sample.truth.gt_boxes) > 0


def test_meshes_differ_between_scenes_and_load_unchanged(built: Path) -> None:
    library = MeshLibrary([built / layout.MESHES_DIR])
    meshes = [library.load(f"synthetic-0-0000{number}") for number in range(2)]
    assert meshes[0].content_hash != meshes[1].content_hash
    for mesh in meshes:
        assert sum(mesh.dropped_faces.values()) == 0
        assert 0.9 * SMALL.faces < len(mesh.faces) <= SMALL.faces


def test_the_same_seed_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    build_synthetic_store(tmp_path / "again", SMALL)
    assert _files(tmp_path / "again") == _files(built)
    other = SMALL.model_copy(update={"seed": 1, "scenes": 1, "snippets_per_scene": 1})
    build_synthetic_store(tmp_path / "other", other)
    assert not set(_rows(tmp_path / "other")) & set(_rows(built))


@pytest.mark.ci
def test_processes_do_not_change_a_byte(tmp_path: Path) -> None:
    config = SMALL.model_copy(update={"scenes": 3, "snippets_per_scene": 1})
    events: list[ProgressEvent] = []
    build_synthetic_store(tmp_path / "one", config)
    build_synthetic_store(tmp_path / "two", config.model_copy(update={"workers": 2}), events.append)
    assert _files(tmp_path / "one") == _files(tmp_path / "two")
    assert [event.done for event in events] == [0, 1, 2, 3]


def test_a_larger_build_or_an_append_contains_the_same_rows(built: Path, tmp_path: Path) -> None:
    larger = SMALL.model_copy(update={"snippets_per_scene": 3})
    build_synthetic_store(tmp_path / "larger", larger)
    expected, before = _rows(tmp_path / "larger"), _rows(built)
    _assert_same_rows(expected, before, list(before))
    grown = tmp_path / "grown"
    shutil.copytree(built, grown)
    files_before = _files(built)
    summary = append_synthetic_snippets(grown, 1, workers=1)
    assert (summary.new_samples, summary.num_samples, summary.new_scenes) == (2, 6, 0)
    found = _rows(grown)
    assert found.keys() == expected.keys()
    _assert_same_rows(found, expected, list(expected))
    metadata = {layout.MANIFEST_FILE, layout.INDEX_FILE, *(layout.split_file(split) for split in layout.SPLIT_FILES)}
    after = _files(grown)
    assert all(after[name] == digest for name, digest in files_before.items() if name not in metadata)
    assert _index(grown)[: len(_index(built))] == _index(built)


def test_new_scenes_are_appended_with_meshes_and_their_own_split(built: Path, tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    shutil.copytree(built, grown)
    append_synthetic_snippets(grown, 0, 1)
    append_synthetic_snippets(grown, 1, scene_ids=["synthetic-0-00002"])
    rows = _index(grown)
    assert [row.scene_id for row in rows[4:]] == ["synthetic-0-00002"] * 3
    assert [row.snippet_id for row in rows[4:]] == ["snippet-0000", "snippet-0001", "snippet-0002"]
    assert {row.split for row in rows[4:]} == {"train"}
    assert (grown / layout.MESHES_DIR / mesh_file_name("synthetic-0-00002")).is_file()
    assert len(VinOfflineStore.open(grown)) == 7


@pytest.mark.ci
def test_readers_see_all_of_an_append_or_nothing(built: Path, tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    shutil.copytree(built, grown)
    done = threading.Event()
    sizes: list[int] = []

    def watch() -> None:
        while not done.is_set():
            sizes.append(len(VinOfflineStore.open(grown).rows()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        append_synthetic_snippets(grown, 2)
    finally:
        done.set()
        watcher.join()
    assert set(sizes) <= {4, 8}
    assert len(VinOfflineStore.open(grown)) == 8


def test_an_existing_destination_is_replaced_only_on_request(built: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(built, store)
    tiny = SMALL.model_copy(update={"scenes": 1, "snippets_per_scene": 1})
    with refused(SourceError, store):
        build_synthetic_store(store, tiny)
    assert _files(store) == _files(built)
    build_synthetic_store(store, tiny, overwrite=True)
    assert len(_index(store)) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with refused(SourceError, tmp_path / "precious"):
        build_synthetic_store(tmp_path / "precious", tiny, overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").is_file()


def test_a_dead_build_is_cleared_away_and_a_live_one_respected(tmp_path: Path) -> None:
    tiny = SMALL.model_copy(update={"scenes": 1, "snippets_per_scene": 1})
    building = tmp_path / ".building-store"
    (building / "shards").mkdir(parents=True)
    with file_lock(building, "a build"), refused(SourceError, tmp_path / "store"):
        build_synthetic_store(tmp_path / "store", tiny)
    build_synthetic_store(tmp_path / "store", tiny)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_one_append_at_a_time(built: Path) -> None:
    before = _files(built)
    with file_lock(built, "an append"), refused(SourceError, built):
        append_synthetic_snippets(built, 1)
    assert _files(built) == before


@pytest.mark.parametrize(("snippets", "scenes"), [(0, 0), (-1, 0), (1, -2)])
def test_empty_appends_are_refused(built: Path, snippets: int, scenes: int) -> None:
    with refused(ConfigError, "new_scenes", snippets, scenes):
        append_synthetic_snippets(built, snippets, scenes)


def test_a_scene_that_is_named_twice_is_refused_before_any_work(built: Path) -> None:
    before = _files(built)
    twice = ["synthetic-0-00000", "synthetic-0-00001", "synthetic-0-00000"]
    with refused(ConfigError, "synthetic-0-00000"):
        append_synthetic_snippets(built, 1, scene_ids=twice, workers=1)
    assert _files(built) == before


def test_an_append_that_would_not_open_afterwards_is_not_committed(built: Path, tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    shutil.copytree(built, grown)
    before = VinOfflineStore.open(grown)

    def damage(event: ProgressEvent, /) -> None:
        """Break the new shard after it was written and before it is committed."""
        if event.done:
            (grown / layout.shard_dir("shard-000002")).rename(grown / "elsewhere")

    with refused(SourceDamaged, grown, "shards/shard-000002"):
        append_synthetic_snippets(grown, 1, progress=damage, scene_ids=["synthetic-0-00000"], workers=1)
    after = VinOfflineStore.open(grown)
    assert after.rows() == before.rows() and after.source_manifest_hash == before.source_manifest_hash
    append_synthetic_snippets(grown, 1, scene_ids=["synthetic-0-00000"], workers=1)
    assert len(VinOfflineStore.open(grown)) == len(before) + 1


def test_appending_to_something_else_is_refused(built: Path, tmp_path: Path) -> None:
    with refused(SourceError, tmp_path / "nowhere"):
        append_synthetic_snippets(tmp_path / "nowhere", 1)
    with refused(SourceError, tmp_path, "manifest.json"):
        append_synthetic_snippets(tmp_path, 1)
    with refused(SourceError, "kitchen"):
        append_synthetic_snippets(built, 1, scene_ids=["kitchen"])
    recorded = tmp_path / "recorded"
    shutil.copytree(built, recorded)
    manifest = json.loads((recorded / layout.MANIFEST_FILE).read_bytes())
    manifest["provenance"]["writer"] = "somebody else"
    (recorded / layout.MANIFEST_FILE).write_text(json.dumps(manifest))
    with refused(SourceError, recorded):
        append_synthetic_snippets(recorded, 1)


def test_a_mesh_that_is_not_ours_stops_an_append(built: Path, tmp_path: Path) -> None:
    grown = tmp_path / "grown"
    shutil.copytree(built, grown)
    shutil.copy(
        grown / layout.MESHES_DIR / mesh_file_name("synthetic-0-00001"),
        grown / layout.MESHES_DIR / mesh_file_name("synthetic-0-00000"),
    )
    with refused(SourceError, mesh_file_name("synthetic-0-00000")):
        append_synthetic_snippets(grown, 1)
    assert len(VinOfflineStore.open(grown)) == 4


def test_evidence_is_written_on_request(tmp_path: Path) -> None:
    config = SMALL.model_copy(update={"scenes": 1, "snippets_per_scene": 1, "evidence": True})
    build_synthetic_store(tmp_path / "store", config)
    (row,) = _rows(tmp_path / "store").values()
    assert row[layout.EVIDENCE_POINTS].shape == (1, layout.EVIDENCE_SIDE**3, 3)
    assert row[layout.EVIDENCE_COUNTS].sum() > 10_000
    assert _manifest(tmp_path / "store").materialized_blocks.backbone


@pytest.fixture
def furniture(tmp_path: Path) -> Path:
    """A huge drum (Y-up OBJ), a tiny chair (PLY) and a dense ball (GLB)."""
    folder = tmp_path / "furniture"
    folder.mkdir()
    drum = trimesh.creation.box((60.0, 90.0, 60.0))
    drum.export(folder / "drum_01.obj")
    trimesh.creation.box((0.004, 0.004, 0.009)).export(folder / "office_chair-7.ply")
    trimesh.creation.icosphere(subdivisions=5, radius=0.4).export(folder / "ball.glb")
    return folder


def test_own_furniture_is_scaled_set_down_and_placed_apart(furniture: Path) -> None:
    own = load_furniture(furniture, max_faces=2_000)
    assert own.class_names[2] == "chair"
    assert {own.class_names[100], own.class_names[101]} == {"ball", "drum"}
    scene = build_scene(SMALL, 0, own)
    used = {item.piece.class_name: item.piece for item in scene.placed}
    assert used.keys() == {"drum", "chair", "ball"}
    for piece in used.values():
        assert 0.25 <= (piece.high - piece.low).max() <= 2.4
        assert piece.low[2] == pytest.approx(0.0, abs=1e-6)
    assert used["drum"].height_m == pytest.approx((used["drum"].high - used["drum"].low).max())
    assert used["ball"].face_count(0.1) <= 2_000
    footprints = [item.footprint for item in scene.placed]
    assert not any(a.overlaps(b) for i, a in enumerate(footprints) for b in footprints[:i])


def test_own_furniture_must_be_the_same_for_an_append(furniture: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    config = SMALL.model_copy(update={"scenes": 1, "snippets_per_scene": 1, "furniture_dir": furniture})
    build_synthetic_store(store, config)
    with refused(SourceError, store):
        append_synthetic_snippets(store, 1)
    append_synthetic_snippets(store, 1, furniture_dir=furniture)
    assert len(VinOfflineStore.open(store)) == 2


def test_a_furniture_directory_without_meshes_is_refused(tmp_path: Path) -> None:
    config = SyntheticConfig(furniture_dir=tmp_path)
    with refused(MeshError, tmp_path, ".obj"):
        build_synthetic_store(tmp_path / "store", config)
    with refused(MeshError, tmp_path / "nowhere"):
        load_furniture(tmp_path / "nowhere", 1_000)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("chair_02.obj", "chair"), ("OfficeChair.ply", "chair"), ("old table 3.glb", "table"), ("17.ply", "object")],
)
def test_classes_come_from_file_names(name: str, expected: str) -> None:
    assert class_of(Path(name)) == expected
