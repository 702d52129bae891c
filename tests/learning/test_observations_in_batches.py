"""Batches with observations: those of the direct function to the bit, with every promise that batches have."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rollout_assets.config import CampaignConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.errors import StoreError
from rollout_assets.learning import ObservationSource, ObservedStates, QHBatch, QHDataset, QHIterableDataset, QHLoader
from rollout_assets.learning import observation_rows as rows_module
from rollout_assets.observations.observation import Arrays, Observations
from rollout_assets.progress import ProgressEvent
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.documents import PROMOTION_ATTRIBUTE
from rollout_assets.sources.vin_store import VinOfflineStore
from tests.inspection.conftest import campaign_of, write_campaign
from tests.learning.conftest import RECIPES
from tests.support.refusals import refused

CONFIG = ObservationConfig(points=64, depth_px=12, history=2)
Key = tuple[int, int]


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of a few steps, so that small stores have several."""
    monkeypatch.setattr(rows_module, "UNIT_STEPS", 8)


@pytest.fixture(scope="module")
def narrow_store(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the source's other split, with fewer candidates a state."""
    mixture = [{"position": "forward_local", "count": 20}]
    campaign: CampaignConfig = campaign_of(small_store, recipes=RECIPES[:1], candidates={"mixture": mixture})
    rows = [row.sample_index for row in VinOfflineStore.open(small_store).rows("val")]
    return write_campaign(campaign, tmp_path_factory.mktemp("narrow") / "rollouts.zarr", rows)


@pytest.fixture
def shown(small_store: Path, tmp_path: Path) -> ObservationSource:
    return ObservationSource(small_store, CONFIG, next_observations=True, cache_dir=tmp_path / "cache")


def direct(store: Path, source: Path, steps: np.ndarray, width: int) -> Observations[Arrays]:
    return ObservedStates(RolloutZarrStoreReader(store), VinOfflineStore.open(source), CONFIG).observations(
        steps, width
    )


def same(shown: Observations[Tensor] | None, expected: Observations[Arrays]) -> bool:
    assert shown is not None
    pairs = zip(shown.mapped(lambda tensor: tensor.numpy()).arrays().values(), expected.arrays().values(), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def require_direct(batch: QHBatch, stores: list[Path], source: Path) -> None:
    """Hold a batch's observations against the function that makes them, state by state."""
    width = batch.valid_action_mask.shape[1]
    for index, store in enumerate(stores):
        own = batch.store_index == index
        if not own.any():
            continue
        steps, following = batch.state_step_row_id[own].numpy(), batch.td_next_step_row_id[own].numpy()
        assert batch.observations is not None and batch.next_observations is not None
        following = np.where(following < 0, steps, following)
        for part, rows in ((batch.observations, steps), (batch.next_observations, following)):
            own_part = Observations(**{name: tensor[own] for name, tensor in part.arrays().items()})
            assert same(own_part, direct(store, source, rows, width))


def keys(batch: QHBatch) -> list[Key]:
    return list(zip(batch.store_index.tolist(), batch.state_step_row_id.tolist(), strict=True))


def tensors(batch: QHBatch) -> dict[str, Tensor]:
    """Every tensor of a batch, by name."""
    found: dict[str, Tensor] = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, Tensor):
            found[field.name] = value
        elif value is not None:
            found |= {f"{field.name}.{name}": tensor for name, tensor in vars(value).items()}
    return found


def equal(left: QHBatch, right: QHBatch) -> bool:
    ours, theirs = tensors(left), tensors(right)
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name].nan_to_num(), theirs[name].nan_to_num()) for name in ours
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_batches_hold_the_observations_of_their_states(
    observed_store: Path, narrow_store: Path, small_store: Path, shown: ObservationSource, workers: int, kept: bool
) -> None:
    stores = [observed_store, narrow_store]
    wanted = shown if kept else ObservationSource(small_store, CONFIG, next_observations=True, cache_dir=None)
    plain = QHIterableDataset(stores, 16, seed=1)
    loader = QHLoader(QHIterableDataset(stores, 16, seed=1, observations=wanted), num_workers=workers)
    for labels, batch in zip(plain, loader, strict=True):
        assert keys(labels) == keys(batch), "observations do not change the order"
        require_direct(batch, stores, small_store)


def test_random_access_gives_the_same(observed_store: Path, small_store: Path, shown: ObservationSource) -> None:
    dataset = QHDataset(observed_store, observations=shown)
    require_direct(dataset.batch([3, 0, len(dataset) - 1, 3]), [observed_store], small_store)
    require_direct(dataset[-1], [observed_store], small_store)
    loaded = DataLoader(dataset, batch_size=5, num_workers=1, collate_fn=QHDataset.collate)
    require_direct(next(iter(loaded)), [observed_store], small_store)


@pytest.mark.parametrize(("before", "after"), [((0, 1), (2, 2)), ((2, 2), (0, 1))])
def test_resuming_with_other_workers_and_ranks(
    observed_store: Path, shown: ObservationSource, before: tuple[int, int], after: tuple[int, int]
) -> None:
    def loader(workers: int, rank: int, ranks: int) -> QHLoader:
        dataset = QHIterableDataset(observed_store, 4, seed=3, rank=rank, world_size=ranks, observations=shown)
        return QHLoader(dataset, num_workers=workers)

    whole = {key: batch for batch in loader(0, 0, 1) for key in keys(batch)}
    taken: list[Key] = []
    position = None
    for rank in range(before[1]):
        running = loader(before[0], rank, before[1])
        taken += keys(next(iter(running)))
        running._delivered = 1
        position = running.state_dict()
    rest: list[Key] = []
    for rank in range(after[1]):
        resumed = loader(after[0], rank, after[1])
        assert position is not None
        resumed.load_state_dict(position)
        rest += [key for batch in resumed for key in keys(batch)]
    assert len({*taken, *rest}) == len(taken) + len(rest) > len(whole) - after[1]


def test_a_batch_moves_as_a_whole(observed_store: Path, shown: ObservationSource) -> None:
    batch = next(iter(QHIterableDataset(observed_store, 4, observations=shown)))
    assert batch.observations is not None
    assert all(tensor.device.type == "meta" for tensor in tensors(batch.to("meta")).values())
    assert {name.partition(".")[0] for name in tensors(batch)} >= {"observations", "next_observations", "td_reward"}


def test_a_batch_crosses_to_another_process_as_one_tensor(observed_store: Path, shown: ObservationSource) -> None:
    batch = next(iter(QHIterableDataset(observed_store, 4, history=2, observations=shown)))
    _, (buffer, places) = batch.__reduce__()
    assert buffer.ndim == 1 and len(places) == len(tensors(batch)) > 50
    again = pickle.loads(pickle.dumps(batch))
    assert equal(batch, again)
    assert {tensor.untyped_storage().data_ptr() for tensor in tensors(again).values()} == {
        again.td_reward.untyped_storage().data_ptr()
    }


@pytest.mark.slow
def test_workers_that_are_spawned_see_the_same(observed_store: Path, shown: ObservationSource) -> None:
    dataset = QHIterableDataset(observed_store, 16, observations=shown)
    alone = list(dataset)
    spawned = list(QHLoader(dataset, num_workers=1, multiprocessing_context="spawn"))
    assert all(equal(*pair) for pair in zip(alone, spawned, strict=True))


def test_observations_are_made_once(
    observed_store: Path, shown: ObservationSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    observations = ObservedStates.observations
    monkeypatch.setattr(ObservedStates, "observations", lambda *a, **k: made.append(a[1]) or observations(*a, **k))
    dataset = QHIterableDataset(observed_store, 16, observations=shown)
    first = list(dataset)
    steps = RolloutZarrStoreReader(observed_store).num_rows("steps")
    assert 2 < len(made) <= -(-steps // 8)
    again = list(QHIterableDataset(observed_store, 16, observations=shown))
    random = QHDataset(observed_store, observations=shown).batch(range(10))
    assert len(made) <= -(-steps // 8) and len(random) == 10
    assert all(equal(*pair) for pair in zip(first, again, strict=True))


def test_they_can_be_made_ahead_with_progress(
    observed_store: Path, shown: ObservationSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[ProgressEvent] = []
    dataset = QHIterableDataset(observed_store, 16, observations=shown)
    dataset.prepare_observations(events.append)
    assert events[-1].done == events[-1].total == len(events) > 2
    monkeypatch.setattr(ObservedStates, "observations", None)
    assert len(list(dataset)) == len(dataset)
    with refused(StoreError, "observations"):
        QHDataset(observed_store).prepare_observations()


def test_every_store_finds_its_source(
    observed_store: Path, store_copy: Path, small_store: Path, tmp_path: Path
) -> None:
    manifest = store_copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace("2000-01-01", "2000-01-02"))
    both = ObservationSource([store_copy, small_store], CONFIG, cache_dir=tmp_path / "cache")
    assert next(iter(QHIterableDataset(observed_store, 4, observations=both))).observations is not None
    other = ObservationSource(store_copy, CONFIG, cache_dir=None)
    with refused(StoreError, observed_store, store_copy, "manifest"):
        QHIterableDataset(observed_store, 4, observations=other)
    twice = ObservationSource([store_copy, store_copy], CONFIG, cache_dir=None)
    with refused(StoreError, "2 sources", observed_store):
        QHDataset(observed_store, observations=twice)
    with refused(StoreError, "observations", "source"):
        QHDataset(observed_store, observations=ObservationSource([], CONFIG, cache_dir=None))


def test_nothing_is_kept_inside_store_or_source(observed_store: Path, small_store: Path) -> None:
    for inside in (observed_store, observed_store / "cache", small_store / "x" / "y"):
        with refused(StoreError, "cache_dir", inside):
            QHDataset(observed_store, observations=ObservationSource(small_store, CONFIG, cache_dir=inside))


def test_the_default_place_is_below_the_data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert ObservationSource("source").cache_dir == tmp_path / "observations"


def test_a_promoted_root_is_refused_with_its_splits(tmp_path: Path, shown: ObservationSource) -> None:
    shard = '[{"content_sha256": "0"}]'
    record = f'{{"{PROMOTION_ATTRIBUTE}": {{"splits": {{"train": {shard}, "val": {shard}}}}}}}'
    (tmp_path / "zarr.json").write_text(f'{{"zarr_format": 3, "node_type": "group", "attributes": {record}}}')
    for observations in (None, shown):
        for dataset in (lambda store, **o: QHDataset(store, **o), lambda store, **o: QHIterableDataset(store, 4, **o)):
            with refused(StoreError, "(train, val)", tmp_path / "train"):
                dataset(tmp_path, observations=observations)
