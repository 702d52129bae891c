"""Training refuses a store that is not what its manifest says was written, and says which array it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from torch.utils.data import DataLoader

from rollout_assets.errors import StateMissing, StoreDamaged, StoreError
from rollout_assets.learning import QHDataset, QHIterableDataset, QHLoader
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader, write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.schema import Q_H
from tests.rollouts.zarr_store.store_under_test import CONFIG, RECORDS
from tests.support.refusals import refused

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified") / "store"
    write_rollout_zarr_store(folder, RECORDS, CONFIG)
    return folder


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))


def change_documents(store: Path, paths: list[str], change: Callable[[dict[str, Any]], None]) -> None:
    """Change the documents of some arrays, and the root's copy of them."""
    root = json.loads((store / "zarr.json").read_bytes())
    for path in paths:
        change(root["consolidated_metadata"]["metadata"][path])
        own = json.loads((store / path / "zarr.json").read_bytes())
        change(own)
        (store / path / "zarr.json").write_text(json.dumps(own))
    (store / "zarr.json").write_text(json.dumps(root))


def change_attribute(store: Path, name: str, value: Any) -> None:
    root = json.loads((store / "zarr.json").read_bytes())
    root["attributes"][name] = value
    (store / "zarr.json").write_text(json.dumps(root))


def edit_value(store: Path, path: str = "q_h/td_reward") -> None:
    array = zarr.open_group(store, mode="r+", use_consolidated=False)[path]
    array[3] = array[3] + 1


def swap(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def swap_files(store: Path) -> None:
    swap(store / "q_h/one_step_target_root_gain/c/0", store / "q_h/one_step_target_root_gain/c/1")


def exchange_columns(store: Path) -> None:
    swap(store / "q_h/td_reward/c", store / "q_h/td_reward_target_rri/c")


def shorter_arrays(store: Path) -> None:
    states = RolloutZarrStoreReader(store).attributes["q_h_state_count"]
    change_documents(
        store, [Q_H.path(name) for name in Q_H.names], lambda array: array["shape"].__setitem__(0, states - 1)
    )


def fewer_rows(store: Path) -> None:
    states = RolloutZarrStoreReader(store).attributes["q_h_state_count"]
    shorter_arrays(store)
    change_attribute(store, "q_h_state_count", states - 1)


def reward_as_int32(store: Path) -> None:
    change_documents(store, ["q_h/td_reward"], lambda array: array.update(data_type="int32", fill_value=0))


def edit_manifest(store: Path) -> None:
    manifest = store / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"argv"', b'"arGv"'))


CHANGES: dict[str, tuple[Change, str, tuple[str, ...]]] = {
    "value edited through zarr": (edit_value, "q_h/td_reward", ("stored_crc32c",)),
    "files swapped": (swap_files, "q_h/one_step_target_root_gain", ("stored_crc32c",)),
    "columns exchanged": (exchange_columns, "q_h/td_reward", ("stored_crc32c",)),
    "fewer rows": (fewer_rows, "zarr.json", ("q_h_state_count",)),
    "shorter arrays": (shorter_arrays, "q_h/state_step_row_id", ("int64", "shape")),
    "another dtype": (reward_as_int32, "q_h/td_reward", ("float32", "int32")),
    "manifest edited": (edit_manifest, "manifest.json", ("manifest_sha256",)),
    "attribute edited": (
        lambda store: change_attribute(store, "q_h_chunk_states", 7),
        "zarr.json",
        ("q_h_chunk_states",),
    ),
    "chunk cut off": (lambda store: shutil.rmtree(store / "q_h/q_train_mask/c/1"), "q_h/q_train_mask", ("c/1/0",)),
}


@pytest.mark.parametrize(("change", "where", "names"), CHANGES.values(), ids=CHANGES)
def test_a_changed_store_is_refused_when_the_dataset_is_made(
    store: Path, change: Change, where: str, names: tuple[str, ...]
) -> None:
    change(store)
    for make in (lambda: QHDataset(store), lambda: QHIterableDataset(store, 4)):
        with refused(StoreDamaged, *names, where=f"{store}/{where}"):
            make()


@pytest.mark.parametrize("change", [edit_value, exchange_columns, fewer_rows, reward_as_int32])
def test_nothing_is_verified_on_request(store: Path, change: Change) -> None:
    change(store)
    dataset = QHDataset(store, verify="none")
    assert len(dataset.batch(range(len(dataset))))


@pytest.mark.parametrize(
    ("name", "value", "names"),
    [
        ("schema_id", "weather", ("'weather'", "'aria_nbv.rollout_zarr_q_invalidity'")),
        ("schema_version", "0.9", ("'0.9'", "'1.0-target-rollout-core'")),
    ],
)
def test_the_schema_is_always_checked(store: Path, name: str, value: str, names: tuple[str, ...]) -> None:
    change_attribute(store, name, value)
    for verify in ("manifest", "none"):
        with refused(StoreError, *names):
            QHDataset(store, verify=verify)


def test_depth_is_verified_where_it_is_read(store: Path) -> None:
    edit_value(store, "selected_depth/depth_m")
    assert len(QHDataset(store))
    with refused(StoreDamaged, where=f"{store}/selected_depth/depth_m"):
        QHDataset(store, history=1)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_store_that_changes_later_is_refused_as_what_it_is(store: Path, workers: int) -> None:
    stream = QHLoader(QHIterableDataset(store, 4), num_workers=workers)
    mapped = DataLoader(QHDataset(store), batch_size=4, collate_fn=QHDataset.collate, num_workers=workers)
    edit_value(store)
    with refused(StoreDamaged, "c/0", "chunk 0", where=f"{store}/q_h/td_reward"):
        list(stream)
    with refused(StoreDamaged, f"{store}/q_h/td_reward", "chunk 0"):
        list(mapped)


@pytest.mark.ci
def test_indices_beyond_the_states_are_refused(store: Path) -> None:
    dataset = QHDataset(store)
    last = len(dataset) - 1
    assert dataset[-1].state_step_row_id.tolist() == dataset[last].state_step_row_id.tolist()
    for index in (-1, last + 1):
        with refused(StateMissing, f"state {index}", f"0 to {last}"):
            dataset.batch([0, index])
    for index in (-last - 2, last + 1):
        with refused(StateMissing, f"state {index}", f"0 to {last}"):
            dataset[index]
    for indices in ([], [0.5], [[0]], [True]):
        with refused(StoreError, "batch"):
            dataset.batch(indices)


@pytest.mark.ci
def test_impossible_positions_and_settings_are_refused(store: Path) -> None:
    dataset = QHIterableDataset(store, 4)
    state = dataset.state_dict()
    for change, names in (
        ({"consumed": state["total"] + 1}, ("consumed", state["total"], state["total"] + 1)),
        ({"consumed": -4}, ("consumed", -4)),
        ({"consumed": 1.5}, ("consumed", 1.5)),
        ({"consumed": None}, ("consumed", None)),
        ({"epoch": -1}, ("epoch", -1)),
        ({"epoch": True}, ("epoch", True)),
    ):
        with refused(StoreError, *names):
            dataset.load_state_dict({**state, **change})
    assert dataset.state_dict() == state, "a refused position changes nothing"
    dataset.load_state_dict({**state, "consumed": state["total"]})
    assert list(dataset) == []
    with refused(StoreError, "epoch", -3):
        dataset.set_epoch(-3)
    with refused(StoreError, "tail", "drop, repeat", "'nope'"):
        QHIterableDataset(store, 4, tail="nope")
    with refused(StoreError, "verify", "manifest, none", "'all'"):
        QHDataset(store, verify="all")
