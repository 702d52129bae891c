"""Training gets every trainable state exactly once per epoch, in one order, for any number of workers and ranks."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.errors import StateMissing, StoreError
from rollout_assets.learning import QHBatch, QHDataset, QHIterableDataset, QHLoader
from rollout_assets.learning.order import BatchPlan
from rollout_assets.rollouts.zarr_store import (
    RolloutZarrStoreConfig,
    RolloutZarrStoreReader,
    write_rollout_zarr_store,
)
from rollout_assets.rollouts.zarr_store.schema import Q_H
from rollout_assets.testing.fake_records import SyntheticRecords
from tests.support.refusals import refused

Key = tuple[int, int]
HEIGHT, WIDTH = 6, 8


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two stores of different width, with states that cannot be trained on."""
    folder = tmp_path_factory.mktemp("training")
    records = SyntheticRecords(sources=4, targets=3, horizon=3, shell=(3, 9), depth_hw=(HEIGHT, WIDTH), seed=2)
    config = RolloutZarrStoreConfig(
        chunk_states=16,
        selected_depth=SelectedDepthRetentionConfig(width_px=WIDTH, height_px=HEIGHT, chunk_steps=16),
    )
    write_rollout_zarr_store(folder / "a", records, config)
    write_rollout_zarr_store(folder / "b", replace(records, first_sample=4, sources=3, shell=(3, 14)), config)
    return [folder / "a", folder / "b"]


def trainable(stores: list[Path]) -> set[Key]:
    found = set()
    for index, store in enumerate(stores):
        view = RolloutZarrStoreReader(store).q_h_view()
        mask = view["q_train_mask"].any(axis=1)
        assert 0 < mask.sum() < len(mask)
        found |= {(index, int(row)) for row in view["state_step_row_id"][mask]}
    return found


def keys(batch: QHBatch) -> list[Key]:
    return list(zip(batch.store_index.tolist(), batch.state_step_row_id.tolist(), strict=True))


def delivered(loader: QHLoader) -> list[Key]:
    return [key for batch in loader for key in keys(batch)]


def loader(stores: list[Path], workers: int = 0, batch_size: int = 7, **options: object) -> QHLoader:
    return QHLoader(QHIterableDataset(stores, batch_size, seed=3, window_units=3, **options), num_workers=workers)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_trainable_state_once_in_the_same_order(stores: list[Path], workers: int) -> None:
    alone = delivered(loader(stores))
    assert len(alone) == len(set(alone))
    assert set(alone) == trainable(stores)
    assert alone != sorted(alone)
    assert delivered(loader(stores, workers)) == alone


def test_epochs_differ_and_repeat(stores: list[Path]) -> None:
    first = loader(stores)
    epochs = [delivered(first) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3, "every pair of epochs differs"
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    again = loader(stores)
    again.dataset.set_epoch(2)
    assert delivered(again) == epochs[2]
    plain = QHLoader(QHIterableDataset(stores, 7, shuffle=False))
    assert delivered(plain) == sorted(trainable(stores))


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.ci
def test_safe_under_fork_and_spawn(stores: list[Path], context: str) -> None:
    dataset = QHIterableDataset(stores, 7, seed=3, window_units=3)
    used = delivered(QHLoader(dataset))
    dataset.set_epoch(0)
    assert delivered(QHLoader(dataset, num_workers=2, multiprocessing_context=context)) == used


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("tail", ["drop", "repeat"])
def test_ranks_get_equal_batches(stores: list[Path], world_size: int, tail: str) -> None:
    ranks = [
        [keys(batch) for batch in loader(stores, rank=rank, world_size=world_size, tail=tail)]
        for rank in range(world_size)
    ]
    shapes = {tuple(len(batch) for batch in batches) for batches in ranks}
    assert len(shapes) == 1
    assert len(ranks[0]) == len(loader(stores, rank=0, world_size=world_size, tail=tail))
    everything = [key for batches in ranks for batch in batches for key in batch]
    wanted = trainable(stores)
    if tail == "repeat":
        assert set(everything) == wanted
        assert len(everything) - len(wanted) < world_size
    else:
        assert len(everything) == len(set(everything))
        assert set(everything) <= wanted
        assert len(wanted) - len(everything) < world_size


@pytest.mark.parametrize(("before", "after"), [((0, 1), (2, 1)), ((1, 1), (0, 2)), ((0, 2), (0, 1)), ((2, 3), (1, 2))])
def test_resuming_with_other_workers_and_ranks(
    stores: list[Path], before: tuple[int, int], after: tuple[int, int]
) -> None:
    whole = delivered(loader(stores))
    taken: list[Key] = []
    states = []
    for rank in range(before[1]):
        running = loader(stores, before[0], rank=rank, world_size=before[1])
        for index, batch in enumerate(running):
            taken += keys(batch)
            if index == 1:
                states.append(running.state_dict())
                break
    assert all(state == states[0] for state in states)
    assert states[0]["consumed"] == len(taken) == 2 * 7 * before[1]
    rest: list[Key] = []
    for rank in range(after[1]):
        resumed = loader(stores, after[0], rank=rank, world_size=after[1])
        resumed.load_state_dict(pickle.loads(pickle.dumps(states[0])))
        rest += delivered(resumed)
    assert set(taken) == set(whole[: len(taken)])
    assert not set(taken) & set(rest)
    assert len(whole) - len(taken) - len(rest) < after[1]


def test_resuming_other_data_is_refused(stores: list[Path]) -> None:
    state = loader(stores).state_dict()
    with refused(StoreError, "total"):
        loader(stores[:1]).load_state_dict(state)
    with refused(StoreError, "seed", 3, 4):
        QHIterableDataset(stores, 7, seed=4, window_units=3).load_state_dict(state)


def test_batches_are_rows_of_the_view(stores: list[Path]) -> None:
    views = [RolloutZarrStoreReader(store).q_h_view() for store in stores]
    width = max(view["candidate_row_id"].shape[1] for view in views)
    for batch in loader(stores):
        for at, (store, step) in enumerate(keys(batch)):
            row = np.searchsorted(views[store]["state_step_row_id"], step)
            for name in Q_H.names:
                value = getattr(batch, name)[at].numpy()
                expected = views[store][name][row]
                if value.ndim:
                    assert value.shape == (width,)
                    pad = Q_H[name].pad
                    np.testing.assert_array_equal(value[len(expected) :], np.full(width - len(expected), pad))
                    value = value[: len(expected)]
                np.testing.assert_array_equal(value, expected)


def test_map_style_agrees_and_works_in_a_loader(stores: list[Path]) -> None:
    dataset = QHDataset(stores, cached_units=2)
    assert len(dataset) == len(trainable(stores))
    assert [keys(dataset[index])[0] for index in range(len(dataset))] == sorted(trainable(stores))
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    batch = dataset.batch(order)
    assert keys(batch) == [keys(dataset[index])[0] for index in order]
    with refused(StateMissing, f"state {len(dataset)}"):
        dataset[len(dataset)]
    for workers in (0, 2):
        plain = DataLoader(dataset, batch_size=10, shuffle=True, collate_fn=QHDataset.collate, num_workers=workers)
        found = [key for part in plain for key in keys(part)]
        assert sorted(found) == sorted(trainable(stores))


def test_depth_history_is_what_was_selected_before(stores: list[Path]) -> None:
    reader = RolloutZarrStoreReader(stores[0])
    depth, valid = reader.array("selected_depth/depth_m"), reader.array("selected_depth/valid_mask")
    step_index = reader.array("steps/step_index")
    mapped = QHDataset(stores[0], history=2)
    streamed = {}
    for batch in QHLoader(QHIterableDataset(stores[0], 5, history=2, window_units=2)):
        history = batch.depth_history
        assert history is not None
        assert history.depth_m.shape == (len(batch), 2, HEIGHT, WIDTH)
        for at, (_, row) in enumerate(keys(batch)):
            streamed[row] = (history.depth_m[at], history.valid_mask[at], history.present[at])
    for index in range(len(mapped)):
        batch = mapped[index]
        row = int(batch.state_step_row_id[0])
        history = batch.depth_history
        assert history is not None
        for back in range(2):
            there = step_index[row] > back
            assert bool(history.present[0, back]) == there
            expected = depth[row - 1 - back] if there else np.zeros((HEIGHT, WIDTH))
            np.testing.assert_array_equal(history.depth_m[0, back].numpy(), expected)
            mask = valid[row - 1 - back] if there else np.zeros((HEIGHT, WIDTH), bool)
            np.testing.assert_array_equal(history.valid_mask[0, back].numpy(), mask)
        for own, other in zip((history.depth_m, history.valid_mask, history.present), streamed[row], strict=True):
            assert torch.equal(own[0], other)


def test_bad_settings_are_refused(stores: list[Path], tmp_path: Path) -> None:
    for options, names in (
        ({"batch_size": 0}, ("batch_size", 0)),
        ({"rank": 2, "world_size": 2}, ("rank", 2)),
        ({"window_units": 0}, ("window_units", 0)),
        ({"history": -1}, ("history", -1)),
    ):
        with refused(StoreError, *names):
            QHIterableDataset(stores, **{"batch_size": 4, **options})
    with refused(StoreError, "store"):
        QHDataset([])
    with refused(StoreError, tmp_path / "nowhere"):
        QHDataset(tmp_path / "nowhere")
    with refused(StoreError, "persistent_workers"):
        QHLoader(QHIterableDataset(stores, 4), num_workers=1, persistent_workers=True)


@given(
    total=st.integers(0, 200),
    batch_size=st.integers(1, 20),
    world_size=st.integers(1, 7),
    tail=st.sampled_from(["drop", "repeat"]),
    data=st.data(),
)
def test_the_plan_deals_out_every_place(
    total: int, batch_size: int, world_size: int, tail: str, data: st.DataObject
) -> None:
    consumed = data.draw(st.integers(0, total))
    plan = BatchPlan(total, consumed, batch_size, world_size, tail)
    places: list[int] = []
    for step in range(plan.steps):
        sizes = set()
        for rank in range(world_size):
            own = [place for start, stop in plan.places(step, rank) for place in range(start, stop)]
            sizes.add(len(own))
            places += own
        assert len(sizes) == 1
        assert 1 <= sizes.pop() <= batch_size
    fresh = [place for place in places if place >= consumed]
    if tail == "drop":
        assert fresh == places
        assert len(set(places)) == len(places)
        assert total - consumed - len(places) < world_size
    elif total - consumed:
        assert set(fresh) == set(range(consumed, total))
        assert len(places) - (total - consumed) < world_size
