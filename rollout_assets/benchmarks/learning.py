"""States a second through the training datasets, beside a plain NumPy loop over the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rollout_assets.learning.batch import to_batch
from rollout_assets.learning.dataset import QHDataset
from rollout_assets.learning.iterable import QHIterableDataset, QHLoader
from rollout_assets.learning.states import Verify
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import Q_H

BATCH_SIZE = 256


def loader_rates(store: Path) -> dict[str, float]:
    """Rates by way of reading, opening included; worker processes are timed from their first batch on."""
    rates = {"plain NumPy": _rate(lambda: _numpy_loop(store))}
    for workers in (0, 1, 2):
        rates[f"{workers} workers"] = _loader_rate(store, workers)
    rates["0 workers, nothing verified"] = _loader_rate(store, 0, "none")
    rates["map-style, random"] = _rate(lambda: _map_loop(store))
    return rates


def _loader_rate(store: Path, workers: int, verify: Verify = "manifest") -> float:
    begin = time.perf_counter()
    batches = iter(QHLoader(QHIterableDataset(store, BATCH_SIZE, verify=verify), num_workers=workers))
    count = 0
    if workers:
        next(batches)
        begin = time.perf_counter()
    for batch in batches:
        count += len(batch)
    return count / (time.perf_counter() - begin)


def _numpy_loop(store: Path) -> int:
    reader = RolloutZarrStoreReader(store)
    view = {name: reader.array(Q_H.path(name)) for name in Q_H.names}
    rows = np.flatnonzero(view["q_train_mask"].any(axis=1))
    order = np.random.default_rng(0).permutation(rows)
    store_index = np.zeros(BATCH_SIZE, np.int64)
    for start in range(0, len(order), BATCH_SIZE):
        at = order[start : start + BATCH_SIZE]
        to_batch({"store_index": store_index[: len(at)], **{name: values[at] for name, values in view.items()}})
    return len(order)


def _map_loop(store: Path) -> int:
    dataset = QHDataset(store)
    order = np.random.default_rng(0).permutation(len(dataset))
    for start in range(0, len(order), BATCH_SIZE):
        dataset.batch(order[start : start + BATCH_SIZE])
    return len(order)


def _rate(work: Callable[[], int]) -> float:
    begin = time.perf_counter()
    return work() / (time.perf_counter() - begin)
