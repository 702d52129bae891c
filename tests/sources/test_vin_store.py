import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

from rollout_assets.errors import SourceDamaged, SourceError, SourceRowMissing
from rollout_assets.geometry.boxes import is_padding
from rollout_assets.geometry.poses import RIG_FROM_LUF, compose, inverse, rotation, transform, translation
from rollout_assets.sources import layout
from rollout_assets.sources.audit import audit_store
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.store import append_synthetic_snippets
from tests.support.refusals import refused


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_index(store: Path, change: Callable[[list[dict]], object]) -> None:
    path = store / layout.INDEX_FILE
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_array(store: Path, block: str, change: Callable[[np.ndarray], object]) -> None:
    array = zarr.open_array(store / layout.shard_dir("shard-000000") / layout.zarr_path(block), mode="r+")
    values = array[:]
    change(values)
    array[:] = values


def edit_array_json(store: Path, block: str, change: Callable[[dict], object]) -> None:
    edit_json(store / layout.shard_dir("shard-000000") / layout.zarr_path(block) / "zarr.json", change)


def edit_manifest(change: Callable[[dict], object]) -> Callable[[Path], None]:
    return lambda store: edit_json(store / layout.MANIFEST_FILE, change)


def truncate_chunk(store: Path) -> None:
    folder = store / layout.shard_dir("shard-000000") / layout.zarr_path(layout.POINTS_WORLD)
    chunk = max((p for p in folder.rglob("*") if p.is_file() and p.name != "zarr.json"), key=lambda p: p.stat().st_size)
    chunk.write_bytes(chunk.read_bytes()[: chunk.stat().st_size // 2])


def remove(name: str) -> Callable[[Path], None]:
    def act(store: Path) -> None:
        path = store / name
        if path.is_dir():
            path.rename(path.with_name("elsewhere"))
        else:
            path.unlink()

    return act


def put(index: tuple, value: object) -> Callable[[np.ndarray], None]:
    def act(values: np.ndarray) -> None:
        values[index] = value

    return act


def shard_file(name: str) -> str:
    return f"{layout.shard_dir('shard-000000')}/{name}"


def block_file(block: str) -> str:
    return shard_file(layout.zarr_path(block))


NAMES_PAYLOAD, NAMES_OFFSETS = layout.record_paths(layout.GT_NAMES)

DAMAGE: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "missing shard": (remove(layout.shard_dir("shard-000001")), ("shard-000001: ", layout.shard_dir("shard-000001"))),
    "truncated array": (truncate_chunk, ("shard-000000: vin.points_world row ",)),
    "duplicate key": (
        lambda store: edit_index(store, lambda rows: rows[1].update(sample_key=rows[0]["sample_key"])),
        ("sample_key", "2 times"),
    ),
    "index row out of range": (
        lambda store: edit_index(store, lambda rows: rows[1].update(row=99)),
        ("sample_index.jsonl:2: ", "row 99", "shard-000000", "2 rows"),
    ),
    "two rows in one place": (
        lambda store: edit_index(store, lambda rows: rows[1].update(row=0)),
        ("sample_index.jsonl:2: ", "shard-000000 row 0"),
    ),
    "sample index not dense": (
        lambda store: edit_index(store, lambda rows: rows[1].update(sample_index=7)),
        ("sample_index.jsonl:2: ", "sample_index", "7", "1"),
    ),
    "index line that is no JSON": (
        lambda store: (store / layout.INDEX_FILE).write_text("{oops\n"),
        ("sample_index.jsonl:1: ", "JSON"),
    ),
    "index line without a scene": (
        lambda store: edit_index(store, lambda rows: rows[0].pop("scene_id")),
        ("sample_index.jsonl:1: scene_id: ",),
    ),
    "negative index row": (
        lambda store: edit_index(store, lambda rows: rows[0].update(row=-1)),
        ("sample_index.jsonl:1: row: ", "-1"),
    ),
    "row of an unknown shard between others": (
        lambda store: edit_index(store, lambda rows: rows[0].update(shard_id="shard-000009")),
        ("sample_index.jsonl:1: ", "manifest"),
    ),
    "missing index": (remove(layout.INDEX_FILE), ("sample_index.jsonl: ",)),
    "wrong dtype": (
        lambda store: edit_array_json(store, layout.T_WORLD_RIG, lambda meta: meta.update(data_type="float64")),
        ("shard-000000: vin.t_world_rig: ", "float64", "float32 (2, T, 12)"),
    ),
    "box block with wrong width": (
        lambda store: edit_array_json(store, layout.GT_OBBS, lambda meta: meta.update(shape=[*meta["shape"][:-1], 33])),
        ("gt.obbs: ", ", 128, 33)", "float32 (2, S, G, 34)"),
    ),
    "array shorter than its shard": (
        lambda store: edit_array_json(store, layout.LENGTHS, lambda meta: meta.update(shape=[1, 1])),
        ("vin.lengths: ", "(1, 1)", "int64 (2, 1)"),
    ),
    "trajectory and times of different lengths": (
        lambda store: edit_array_json(store, layout.TIME_NS, lambda meta: meta.update(shape=[2, 3])),
        ("vin.trajectory.time_ns: ", "T is 3", "vin.t_world_rig"),
    ),
    "array metadata that is no JSON": (
        lambda store: (store / block_file(layout.LENGTHS) / "zarr.json").write_text("]"),
        ("vin.lengths: zarr.json: ", "JSON"),
    ),
    "missing array": (
        remove(block_file(layout.REFERENCE_POSE)),
        ("oracle.reference_pose_world_rig: ",),
    ),
    "unknown version": (
        edit_manifest(lambda m: m.update(version=6)),
        ("version 6", "7 to 11"),
    ),
    "unreadable manifest": (
        lambda store: (store / layout.MANIFEST_FILE).write_text('{"version": 7,'),
        ("manifest.json: ", "JSON"),
    ),
    "manifest without shards": (
        edit_manifest(lambda m: m.pop("shards")),
        ("manifest.json: shards: ",),
    ),
    "wrong counts": (
        edit_manifest(lambda m: m["stats"].update(num_train=9)),
        ("stats.num_train", "9", "2"),
    ),
    "shard listed twice": (
        edit_manifest(lambda m: m["shards"].append(m["shards"][0])),
        ("shard-000000", "2 times"),
    ),
    "required block not listed": (
        edit_manifest(lambda m: m["shards"][0]["blocks"].pop(layout.LENGTHS)),
        ("shard-000000: ", "vin.lengths", "version 7"),
    ),
    "manifest and array disagree": (
        edit_manifest(lambda m: m["shards"][0]["blocks"][layout.LENGTHS].update(shape=[5, 1])),
        ("vin.lengths: ", "(5, 1)", "(2, 1)"),
    ),
    "block of another kind": (
        edit_manifest(
            lambda m: m["shards"][0]["blocks"][layout.LENGTHS].update(kind="msgpack_indexed_records", paths=["a", "b"])
        ),
        ("vin.lengths: ", "msgpack_indexed_records", "zarr_array"),
    ),
    "path out of the store": (
        edit_manifest(lambda m: m["shards"][0].update(relative_dir="../elsewhere")),
        ("relative_dir", "'../elsewhere'"),
    ),
    "split file disagreeing": (
        lambda store: np.save(store / layout.split_file("val"), np.array([0, 1])),
        ("splits/val.npy: ", "entry 0", "2"),
    ),
    "split file of the wrong kind": (
        lambda store: np.save(store / layout.split_file("all"), np.zeros((2, 2))),
        ("splits/all.npy: ", "int64", "float64"),
    ),
    "missing split file": (remove(layout.split_file("train")), ("splits/train.npy: ",)),
    "pickled split file": (
        lambda store: (store / layout.split_file("all")).write_bytes(pickle.dumps([0, 1])),
        ("splits/all.npy: ",),
    ),
    "missing records": (remove(shard_file(NAMES_PAYLOAD)), ("gt.obb_sem_id_to_name: ", "msgpack")),
    "truncated records": (
        lambda store: (store / shard_file(NAMES_PAYLOAD)).write_bytes(b"\x81"),
        ("gt.obb_sem_id_to_name: ", "1 byte"),
    ),
    "offsets of the wrong length": (
        lambda store: np.save(store / shard_file(NAMES_OFFSETS), np.zeros(2, np.int64)),
        ("gt.obb_sem_id_to_name: ", "int64 (3,)", "int64 (2,)"),
    ),
    "garbage records": (
        lambda store: (store / shard_file(NAMES_PAYLOAD)).write_bytes(
            b"\xc1" * (store / shard_file(NAMES_PAYLOAD)).stat().st_size
        ),
        ("gt.obb_sem_id_to_name row 0",),
    ),
    "negative length": (
        lambda store: edit_array(store, layout.LENGTHS, put((1, 0), -4)),
        ("vin.lengths row 1", "-4", "2000"),
    ),
    "length beyond the points": (
        lambda store: edit_array(store, layout.LENGTHS, put((0, 0), 10**6)),
        ("vin.lengths row 0", "1000000"),
    ),
    "NaN pose": (
        lambda store: edit_array(store, layout.T_WORLD_RIG, put((0, 3, 2), np.nan)),
        ("vin.t_world_rig row 0", "pose 3"),
    ),
    "pose that is no rotation": (
        lambda store: edit_array(store, layout.REFERENCE_POSE, put((1, 0), 5.0)),
        ("oracle.reference_pose_world_rig row 1", "pose 0"),
    ),
    "NaN point in the prefix": (
        lambda store: edit_array(store, layout.POINTS_WORLD, put((0, 5, 1), np.nan)),
        ("vin.points_world row 0", "point 5"),
    ),
    "all points zero": (
        lambda store: edit_array(store, layout.POINTS_WORLD, put((0,), 0.0)),
        ("vin.points_world row 0", "zero"),
    ),
    "zero focal length": (
        lambda store: edit_array(store, layout.FOCAL_LENGTH, put((0,), 0.0)),
        ("oracle.p3d.focal_length row 0", "fx_px", "0.0"),
    ),
    "NaN image size": (
        lambda store: edit_array(store, layout.IMAGE_SIZE, put((0,), np.nan)),
        ("oracle.p3d.image_size row 0", "finite"),
    ),
    "time running backwards": (
        lambda store: edit_array(store, layout.TIME_NS, put((0, 3), 0)),
        ("vin.trajectory.time_ns row 0", "time"),
    ),
    "probability above one": (
        lambda store: edit_array(store, layout.GT_OBBS, put((0, slice(None), 0, 32), 3.0)),
        ("gt.obbs row 0", "box 0", "3.0"),
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_check_names_every_kind_of_damage(store_copy, kind):
    damage, names = DAMAGE[kind]
    damage(store_copy)
    audit = audit_store(store_copy)
    assert not audit.ok
    assert any(all(name in problem for name in names) for problem in audit.broken), audit.broken


def test_check_of_an_undamaged_store_only_misses_the_backbone(small_store):
    audit = audit_store(small_store)
    assert audit.ok and audit.num_rows == 4 and audit.unknown == ()
    (unusual,) = audit.unusual
    assert "backbone" in unusual


def test_check_reports_all_problems_not_only_the_first(store_copy):
    for kind in ("NaN pose", "wrong counts", "missing split file", "duplicate key"):
        DAMAGE[kind][0](store_copy)
    assert len(audit_store(store_copy).broken) >= 4


def test_opening_refuses_a_damaged_store_with_all_problems(store_copy):
    DAMAGE["wrong counts"][0](store_copy)
    DAMAGE["missing split file"][0](store_copy)
    with refused(SourceDamaged, store_copy, "stats.num_train", "splits/train.npy") as caught:
        VinOfflineStore.open(store_copy)
    assert len(caught.value.problems) == 2


def test_a_place_without_a_manifest_is_no_store(tmp_path):
    with refused(SourceError, tmp_path, "manifest.json"):
        VinOfflineStore.open(tmp_path)


def test_missing_mesh_is_a_property_of_the_sample_and_a_warning(store_copy):
    shutil.rmtree(store_copy / "meshes")
    store = VinOfflineStore.open(store_copy)
    assert store.sample(store.row(0)).truth.mesh_path is None
    audit = audit_store(store_copy)
    assert audit.ok and sum("has no mesh" in finding for finding in audit.unusual) == 2


def test_missing_optional_blocks_are_none(store_copy):
    def drop(manifest):
        for shard in manifest["shards"]:
            for block in (layout.DETECTED_OBBS, layout.DETECTED_NAMES, layout.TIME_NS, layout.GRAVITY_IN_WORLD):
                shard["blocks"].pop(block)

    edit_json(store_copy / layout.MANIFEST_FILE, drop)
    actor = VinOfflineStore.open(store_copy).sample(VinOfflineStore.open(store_copy).row(0)).actor
    assert (
        actor.detected is None and actor.time_ns is None and actor.gravity_in_world is None and actor.evidence is None
    )


def test_rows_are_in_index_order_and_found_by_index_or_key(small_store):
    store = VinOfflineStore.open(small_store)
    assert [row.sample_index for row in store.rows()] == [0, 1, 2, 3]
    assert {row.split for row in store.rows("train")} == {"train"}
    assert len(store.rows("train")) + len(store.rows("val")) == len(store) == 4
    assert store.row(store.row(2).sample_key) == store.row(2)
    for wrong in (4, -1, "nobody"):
        with refused(SourceRowMissing, small_store, wrong):
            store.row(wrong)
    with refused(SourceRowMissing, "split", "all, train, val", "'test'"):
        store.rows("test")


def test_sample_equals_its_arrays_in_world_and_camera_frames(small_store):
    store = VinOfflineStore.open(small_store)
    row = store.row(3)
    sample = store.sample(row)
    group = zarr.open_group(small_store / layout.shard_dir(row.shard_id), mode="r")
    raw_rig = group["vin/t_world_rig"][row.row]
    assert np.array_equal(sample.actor.trajectory_world_camera, compose(raw_rig, RIG_FROM_LUF))
    assert np.allclose(sample.actor.reference_pose_world_camera, sample.actor.trajectory_world_camera[-1], atol=1e-6)
    up = rotation(sample.actor.trajectory_world_camera)[:, 2, 1]
    assert (up > 0.5).all()  # the camera's up points up in the world
    length = int(group["vin/lengths"][row.row, 0])
    assert len(sample.actor.points_world) == length
    assert np.array_equal(sample.actor.points_world, group["vin/points_world"][row.row, :length, :3])
    packed = group["gt/obbs"][row.row][-1]
    first = sample.truth.gt_boxes
    assert len(first) == int((~is_padding(packed)).sum())
    corner_snippet = transform(packed[0, 18:30], packed[0, [[0, 2, 4]]])
    corner_world = transform(raw_rig[0], corner_snippet)[0]
    assert np.abs(first.boxes.corners_world()[0] - corner_world).max(axis=1).min() < 1e-4
    assert first.class_names[0] and not first.class_names[0].startswith("class_")
    assert sample.truth.mesh_path == small_store / "meshes" / f"scene_ply_{row.scene_id}.ply"


def test_boxes_come_from_the_last_time_slice_that_has_any(store_copy):
    edit_array(store_copy, layout.GT_OBBS, put((0, slice(-3, None)), -1.0))
    edit_array(store_copy, layout.GT_OBBS, put((0, -3, 5), np.nan))
    store = VinOfflineStore.open(store_copy)
    untouched = zarr.open_array(store_copy / block_file(layout.GT_OBBS), mode="r")[0, -4]
    boxes = store.sample(store.row(0)).truth.gt_boxes
    assert np.array_equal(boxes.packed, untouched[~is_padding(untouched)])


def test_a_row_without_any_box_has_an_empty_set(store_copy):
    edit_array(store_copy, layout.GT_OBBS, put((0,), -1.0))
    store = VinOfflineStore.open(store_copy)
    assert len(store.sample(store.row(0)).truth.gt_boxes) == 0


def test_large_blocks_are_chunked_by_row(small_store):
    assert zarr.open_array(small_store / block_file(layout.GT_OBBS), mode="r").chunks[0] == 1


def test_hashes_follow_content_and_rows(small_store, store_copy):
    one, same = VinOfflineStore.open(small_store), VinOfflineStore.open(store_copy)
    assert one.source_manifest_hash == same.source_manifest_hash and len(one.source_manifest_hash) == 16
    assert one.split_manifest_hash("train") == same.split_manifest_hash("train")
    assert len({one.split_manifest_hash(split) for split in layout.SPLIT_FILES}) == 3


def test_refresh_sees_appended_rows_and_keeps_the_old_ones(store_copy):
    store = VinOfflineStore.open(store_copy)
    before, hash_before = store.rows(), store.source_manifest_hash
    assert store.refresh() == ()
    append_synthetic_snippets(store_copy, snippets=1, workers=1)
    new = store.refresh()
    assert len(new) == 2 and store.rows()[:4] == before and len(store) == 6
    assert store.source_manifest_hash != hash_before
    assert len(store.sample(new[0]).actor.points_world) > 0
    assert audit_store(store_copy).ok


def test_refresh_refuses_rows_that_changed(store_copy):
    store = VinOfflineStore.open(store_copy)
    edit_index(store_copy, lambda rows: rows[0].update(sample_key="renamed"))
    with refused(SourceError, store_copy):
        store.refresh()


def test_an_append_under_way_is_not_seen(store_copy):
    with (store_copy / layout.INDEX_FILE).open("a") as index:
        row = json.loads((store_copy / layout.INDEX_FILE).read_text().splitlines()[0])
        index.write(json.dumps(row | {"sample_index": 4, "sample_key": "new", "shard_id": "shard-000077"}) + "\n")
    np.save(store_copy / layout.split_file("all"), np.arange(5))
    store = VinOfflineStore.open(store_copy)
    assert len(store) == 4 and audit_store(store_copy).ok


def test_walks_are_at_head_height_and_boxes_in_the_scene(small_store):
    store = VinOfflineStore.open(small_store)
    for row in store.rows():
        sample = store.sample(row)
        heights = translation(sample.actor.trajectory_world_camera)[:, 2]
        assert ((heights > 1.2) & (heights < 1.9)).all()
        centers = sample.truth.gt_boxes.boxes.centers_world
        local = transform(inverse(sample.actor.reference_pose_world_camera), centers)
        assert np.abs(local).max() < 40


def test_the_actors_half_needs_neither_mesh_nor_true_boxes(store_copy):
    shutil.rmtree(store_copy / "meshes")
    store = VinOfflineStore.open(store_copy)
    row = store.row(0)
    whole = store.sample(row).actor
    edit_array(store_copy, layout.GT_OBBS, put((...,), np.nan))
    actor = VinOfflineStore.open(store_copy).actor(row)
    assert actor.points_world.tobytes() == whole.points_world.tobytes()
    assert actor.reference_pose_world_camera.tobytes() == whole.reference_pose_world_camera.tobytes()
    assert actor.camera == whole.camera


def test_a_store_knows_the_manifests_it_had_before_appends(store_copy):
    before = VinOfflineStore.open(store_copy).source_manifest_hash
    append_synthetic_snippets(store_copy, snippets=1)
    store = VinOfflineStore.open(store_copy)
    assert store.source_manifest_hash != before
    assert store.had_manifest(before) and store.had_manifest(store.source_manifest_hash)
    assert not store.had_manifest("0" * 16)


def test_a_store_goes_to_another_process_with_its_rows(store_copy):
    store = VinOfflineStore.open(store_copy)
    append_synthetic_snippets(store_copy, snippets=1)
    again = pickle.loads(pickle.dumps(store))
    assert again.rows() == store.rows()
    assert again.actor(again.row(0)).points_world.tobytes() == store.actor(store.row(0)).points_world.tobytes()
