"""``bench store``: how fast a store is written, read, validated and fed to training, beside plain zarr and NumPy.

Figures of one run are comparable with each other and with nothing else: ratios are what counts.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from rollout_assets.benchmarks import store_workloads as workloads
from rollout_assets.benchmarks.learning import loader_rates
from rollout_assets.benchmarks.measure import Steps, exponent, least, timed
from rollout_assets.benchmarks.results import Figure
from rollout_assets.files import remove_path
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATE_DIAGNOSTICS, CANDIDATES, Q_H, array_paths
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.testing.fake_records import SyntheticRecords
from rollout_assets.workers import run_in_new_process

SMALL_ROWS = 6_000


@dataclass(frozen=True)
class StoreBenchmark:
    """What one run measured; rates in rows (candidates), states or steps a second, times in seconds."""

    rows: int
    files: Annotated[int, Figure("files", "{:,}", "< 1,500 per million rows")]
    megabytes: Annotated[float, Figure("size", "{:,.0f} MB")]
    write_rows_s: Annotated[float, Figure("write", "{:,.0f} rows/s", ">= 400,000")]
    plain_zarr_write_rows_s: Annotated[float, Figure("  plain zarr-python, same arrays", "{:,.0f} rows/s")]
    read_rows_s: Annotated[float, Figure("read all arrays", "{:,.0f} rows/s")]
    plain_zarr_read_rows_s: Annotated[float, Figure("  plain zarr-python, same store", "{:,.0f} rows/s")]
    validate_of_plain_read: Annotated[float, Figure("validate, of plain reading speed", "{:.0%}", ">= 60%")]
    deep_validate_of_plain_read: Annotated[float, Figure("validate deep, of plain reading speed", "{:.0%}", ">= 35%")]
    q_h_read_of_np_load: Annotated[float, Figure("q_h read, of np.load speed", "{:.0%}", ">= 50%")]
    audit_table_s: Annotated[float, Figure("audit table through polars", "{:.2f} s", "seconds")]
    growth_exponent: Annotated[float, Figure(f"time over rows from {SMALL_ROWS:,}, exponent", "{:.2f}", "<= 1.05")]
    small_write_rows_s: Annotated[float, Figure(f"write {SMALL_ROWS:,} rows", "{:,.0f} rows/s")]
    peak_memory_small_mb: Annotated[float, Figure("peak memory of writing, small", "{:,.0f} MB")]
    peak_memory_mb: Annotated[float, Figure("peak memory of writing, large", "{:,.0f} MB", "+ 300 MB at most")]
    depth_steps_s: Annotated[float, Figure("write with 240 x 240 depth", "{:,.0f} steps/s", ">= 150")]
    loader_samples_s: Annotated[dict[str, float], Figure("training samples, {}", "{:,.0f} states/s")]

    def __str__(self) -> str:
        return f"rollout store, {self.rows:,} candidate rows"


def benchmark_store(
    rows: int = 1_000_000, *, depth_steps: int = 600, folder: Path | None = None, progress: ProgressSink = SILENT
) -> StoreBenchmark:
    """Measure a store of about ``rows`` candidate rows; ``folder`` gets temporary files and is left empty."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-store-") as name:
        return _measure(Path(name), max(rows, SMALL_ROWS), depth_steps, Steps(progress, "bench store", 8))


def _measure(folder: Path, rows: int, depth_steps: int, step: Steps) -> StoreBenchmark:
    step("warm up")
    _write_s(folder / "warm", SMALL_ROWS)
    small_s = min(_write_s(folder / f"small-{turn}", SMALL_ROWS) for turn in range(3))
    step("write")
    store = folder / "rollouts.zarr"
    write_s = min(_write_s(folder / "again", rows), _write_s(store, rows))
    remove_path(folder / "again")
    reader = RolloutZarrStoreReader(store)
    count, small_count = reader.num_rows("candidates"), workloads.records_of(SMALL_ROWS) * workloads.ROWS_PER_RECORD
    sizes = reader.files.sizes()
    step("plain zarr")
    plain_write_s = timed(partial(_write_plainly, folder / "plain.zarr", _columns(reader))).wall
    plain_read_s = least(lambda: _read_plainly(store)).wall
    own_read_s = least(lambda: [reader.array(path) for path in array_paths()]).wall
    step("validate")
    shallow_s = least(lambda: validate_rollout_zarr_store(store).raise_if_wrong()).wall
    deep_s = least(lambda: validate_rollout_zarr_store(store, deep=True).raise_if_wrong()).wall
    step("training view")
    q_h_read_of_np_load = _view_ratio(reader, folder)
    audit_table_s = least(lambda: reader.table("candidates", decode=True), turns=2).wall
    step("memory")
    peaks_mb = [
        run_in_new_process(workloads.peak_of_writing, folder / f"peak-{size}", size) for size in (SMALL_ROWS, rows)
    ]
    step("depth")
    depth_steps_s = _depth_rate(folder / "depth.zarr", depth_steps)
    step("loader")
    loader_samples_s = loader_rates(store)
    step()
    return StoreBenchmark(
        rows=count,
        files=len(sizes),
        megabytes=sum(sizes.values()) / 1e6,
        write_rows_s=count / write_s,
        plain_zarr_write_rows_s=count / plain_write_s,
        read_rows_s=count / own_read_s,
        plain_zarr_read_rows_s=count / plain_read_s,
        validate_of_plain_read=plain_read_s / shallow_s,
        deep_validate_of_plain_read=plain_read_s / deep_s,
        q_h_read_of_np_load=q_h_read_of_np_load,
        audit_table_s=audit_table_s,
        growth_exponent=exponent((small_count, count), (small_s, write_s)),
        small_write_rows_s=small_count / small_s,
        peak_memory_small_mb=peaks_mb[0],
        peak_memory_mb=peaks_mb[1],
        depth_steps_s=depth_steps_s,
        loader_samples_s=loader_samples_s,
    )


def _write_s(path: Path, rows: int) -> float:
    records = workloads.bench_records(rows)
    return timed(lambda: write_rollout_zarr_store(path, records, workloads.WITHOUT_DEPTH)).wall


def _columns(reader: RolloutZarrStoreReader) -> dict[str, np.ndarray]:
    tables = (CANDIDATES, CANDIDATE_DIAGNOSTICS)
    return {path: reader.array(path) for table in tables for path in map(table.path, table.names)}


def _write_plainly(path: Path, columns: dict[str, np.ndarray]) -> None:
    """The columns through zarr-python, with the chunks and codecs of the store."""
    root = zarr.create_group(path)
    for name, values in columns.items():
        array = root.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=(min(workloads.WITHOUT_DEPTH.chunk_rows, len(values)), *values.shape[1:]),
            compressors=(ZstdCodec(level=1), Crc32cCodec()),
            config={"write_empty_chunks": True},
        )
        array[...] = values


def _read_plainly(store: Path) -> None:
    root = zarr.open_group(store, mode="r")
    for path in array_paths():
        array = root[path]
        assert isinstance(array, zarr.Array)
        array[...]


def _view_ratio(reader: RolloutZarrStoreReader, folder: Path) -> float:
    for name, values in reader.q_h_view().items():
        np.save(folder / f"{name}.npy", values)
    load_s = least(lambda: [np.load(folder / f"{name}.npy") for name in Q_H.names], turns=7).wall
    return load_s / least(reader.q_h_view, turns=7).wall


def _depth_rate(path: Path, depth_steps: int) -> float:
    campaign = SyntheticRecords(
        sources=1, targets=1, recipes=("a", "b"), chains=workloads.CHAINS, depth_hw=(240, 240), dead_ends=False
    )
    templates = list(campaign)
    count = max(depth_steps // (workloads.CHAINS * workloads.HORIZON), 1)
    records = [workloads.renamed(templates[index % len(templates)], index) for index in range(count)]
    seconds = timed(lambda: write_rollout_zarr_store(path, records, RolloutZarrStoreConfig())).wall
    return count * workloads.CHAINS * workloads.HORIZON / seconds
