"""``bench learning``: states a second with observations, beside plain NumPy over the same arrays, by number of workers.

The first epoch makes observations ("cold"); later ones read them ("warm"). The plain twin has everything as whole
columns in ``.npy`` files already, maps them, and stacks rows in an order of its own: it checks nothing.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from rollout_assets.benchmarks.learning import BATCH_SIZE, loader_rates
from rollout_assets.benchmarks.measure import Steps
from rollout_assets.benchmarks.results import Figure
from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.config.observation import ObservationConfig
from rollout_assets.files import remove_path
from rollout_assets.learning.batch import to_batch
from rollout_assets.learning.iterable import QHIterableDataset, QHLoader
from rollout_assets.learning.observation_source import ObservationSource
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store
from rollout_assets.sources.vin_store import VinOfflineStore
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.store import build_synthetic_store
from rollout_assets.testing.fake_records import SyntheticRecords
from rollout_assets.testing.observable_records import ObservableRecords

WORKERS = (0, 1, 2)
TURNS = 3
_HORIZON = 3
_STATES_PER_ROW = 50
"""Trainable states of one source row: three targets, of which one has no label, three recipes, four chains."""
_LABELS = "labels"


@dataclass(frozen=True)
class LearningBenchmark:
    """What one run measured, in states a second; in later epochs workers are timed from their first batch on."""

    states: int
    width: int
    points: int
    row_bytes: Annotated[int, Figure("bytes of one state's observation", "{:,}")]
    cold_states_s: Annotated[dict[str, float], Figure("first epoch, {}", "{:,.0f} states/s")]
    warm_states_s: Annotated[dict[str, float], Figure("later epochs, {}", "{:,.0f} states/s", ">= 2,000")]
    new_process_states_s: Annotated[float, Figure("first epoch of a later run, 0 workers", "{:,.0f} states/s")]
    plain_states_s: Annotated[float, Figure("plain NumPy, the same arrays", "{:,.0f} states/s")]
    labels_states_s: Annotated[dict[str, float], Figure("without observations, {}", "{:,.0f} states/s")]

    @property
    def of_plain(self) -> Annotated[float, Figure("later epochs, 0 workers, of plain NumPy", "{:.0%}", ">= 60%")]:
        """Share of the plain twin's rate."""
        return self.warm_states_s["0 workers"] / self.plain_states_s

    def __str__(self) -> str:
        return f"training with observations: {self.states:,} states, {self.width} candidates, {self.points:,} points"


def benchmark_learning(
    store: Path | None = None,
    source: Path | None = None,
    *,
    states: int = 3_000,
    config: ObservationConfig | None = None,
    folder: Path | None = None,
    progress: ProgressSink = SILENT,
) -> LearningBenchmark:
    """Measure a store and its source, or a made-up pair of about ``states`` states; ``folder`` gets temporary files."""
    step = Steps(progress, "bench learning", 4 + 2 * len(WORKERS))
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-learning-") as name:
        scratch = Path(name)
        if store is None or source is None:
            step("make a store")
            store, source = _made(scratch, states)
        return _measure(store, source, config or ObservationConfig(), scratch, step)


def _measure(store: Path, source: Path, config: ObservationConfig, scratch: Path, step: Steps) -> LearningBenchmark:
    cold, cache = {}, scratch / "cache"
    for workers in reversed(WORKERS):
        step(f"cold, {workers} workers")
        if cache.exists():
            remove_path(cache)
        cold[f"{workers} workers"] = _epoch(_loader(store, source, config, cache, workers))
    step("plain NumPy")
    columns = scratch / "columns"
    count, row_bytes, width = _write_columns(_loader(store, source, config, cache), columns)
    new_process = _epoch(_loader(store, source, config, cache))
    loaders = {workers: _loader(store, source, config, cache, workers) for workers in WORKERS}
    rates: dict[str, list[float]] = {"plain": []}
    for _ in range(TURNS):  # turn by turn, so that whatever else the machine does meets all of them
        rates["plain"].append(_plain_epoch(columns, count))
        for workers, loader in loaders.items():
            rates.setdefault(f"{workers} workers", []).append(_epoch(loader, started=workers > 0))
    best = {name: max(turns) for name, turns in rates.items()}
    step("without observations")
    labels = loader_rates(store)
    step()
    return LearningBenchmark(
        states=count,
        width=width,
        points=config.points,
        row_bytes=row_bytes,
        cold_states_s=dict(reversed(cold.items())),
        plain_states_s=best.pop("plain"),
        warm_states_s=best,
        new_process_states_s=new_process,
        labels_states_s=labels,
    )


def _loader(store: Path, source: Path, config: ObservationConfig, cache: Path, workers: int = 0) -> QHLoader:
    shown = ObservationSource(source, config, cache_dir=cache)
    return QHLoader(QHIterableDataset(store, BATCH_SIZE, observations=shown), num_workers=workers)


def _epoch(loader: QHLoader, started: bool = False) -> float:
    """States a second of the rest of an epoch; with ``started`` from the first batch on, which waits for processes."""
    batches = iter(loader)
    if started:
        next(batches)
    began = time.perf_counter()
    count = sum(len(batch) for batch in batches)
    return count / (time.perf_counter() - began)


def _write_columns(loader: QHLoader, folder: Path) -> tuple[int, int, int]:
    """One epoch as whole columns in files; returns states, bytes of an observation, and candidates."""
    batches = list(loader)
    folder.mkdir()
    (folder / _LABELS).mkdir()
    row_bytes = 0
    for name in batches[0].observations.arrays() if batches[0].observations is not None else ():
        column = np.concatenate([getattr(batch.observations, name).numpy() for batch in batches])
        row_bytes += column[0].nbytes
        np.save(folder / f"{name}.npy", column)
    for name, value in vars(batches[0]).items():
        if value is not None and not name.endswith(("observations", "history")):
            np.save(folder / _LABELS / f"{name}.npy", np.concatenate([getattr(batch, name) for batch in batches]))
    return sum(len(batch) for batch in batches), row_bytes, batches[0].valid_action_mask.shape[1]


def _plain_epoch(folder: Path, count: int) -> float:
    began = time.perf_counter()
    observed = [np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))]
    labels = {path.stem: np.load(path, mmap_mode="r") for path in sorted((folder / _LABELS).glob("*.npy"))}
    order = np.random.default_rng(0).permutation(count)
    for start in range(0, count, BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        to_batch({name: values[rows] for name, values in labels.items()})
        _ = [values[rows] for values in observed]
    return count / (time.perf_counter() - began)


def _made(folder: Path, states: int) -> tuple[Path, Path]:
    """A source of small homes, and fake rollouts of 60 candidates with whole depth images in them."""
    rows = max(-(-states // _STATES_PER_ROW), 2)
    options = SyntheticConfig(scenes=2, snippets_per_scene=-(-rows // 2), faces=30_000)
    build_synthetic_store(folder / "source", options)
    records = SyntheticRecords(sources=rows, chains=4, horizon=_HORIZON, depth_hw=(240, 240))
    depth = SelectedDepthRetentionConfig(width_px=240, height_px=240)
    observable = ObservableRecords(VinOfflineStore.open(folder / "source"), records)
    write_rollout_zarr_store(folder / "store", observable, RolloutZarrStoreConfig(selected_depth=depth))
    return folder / "store", folder / "source"
