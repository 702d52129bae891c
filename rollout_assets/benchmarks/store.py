"""``bench store``: how fast a store is written, read, validated and fed to training, beside plain zarr and NumPy.

Figures of one run are comparable with each other and with nothing else: ratios are what counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from rich.console import Console
from rich.table import Table as RichTable
from zarr.codecs import Crc32cCodec, ZstdCodec

from rollout_assets.config import SelectedDepthRetentionConfig
from rollout_assets.files import remove_path
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink
from rollout_assets.rollouts.trace import RolloutLineage, RolloutZarrRecord, rollout_id_prefix
from rollout_assets.rollouts.zarr_store.attributes import RolloutZarrStoreConfig
from rollout_assets.rollouts.zarr_store.publishing import write_rollout_zarr_store
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.schema import CANDIDATE_DIAGNOSTICS, CANDIDATES, Q_H, array_paths
from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store
from rollout_assets.testing.fake_records import SyntheticRecords

LoaderRates = Callable[[Path], dict[str, float]]
"""Measures states a second on a store, by name of the way of reading."""

DEFAULT_ROWS = 1_000_000
SMALL_ROWS = 6_000
DEFAULT_DEPTH_STEPS = 600

_CHAINS, _HORIZON, _SHELL = 4, 2, 60
_ROWS_PER_RECORD = _CHAINS * _HORIZON * _SHELL
_TEMPLATES = 48


@dataclass(frozen=True)
class StoreBenchmark:
    """What one run measured; rates in rows (candidates), states or steps a second, times in seconds."""

    rows: int
    files: int
    megabytes: float
    write_rows_s: float
    plain_zarr_write_rows_s: float
    read_rows_s: float
    plain_zarr_read_rows_s: float
    validate_of_plain_read: float
    deep_validate_of_plain_read: float
    q_h_read_of_np_load: float
    audit_table_s: float
    growth_exponent: float
    small_write_rows_s: float
    peak_memory_small_mb: float
    peak_memory_mb: float
    depth_steps_s: float
    loader_samples_s: dict[str, float]

    def to_jsonable(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def benchmark_store(
    rows: int = DEFAULT_ROWS,
    *,
    depth_steps: int = DEFAULT_DEPTH_STEPS,
    folder: Path | None = None,
    loader: LoaderRates | None = None,
    progress: ProgressSink = SILENT,
) -> StoreBenchmark:
    """Measure a store of about ``rows`` candidate rows; ``folder`` gets temporary files and is left empty.

    ``loader`` measures training on the written store; this room knows no torch.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="bench-store-") as name:
        return _Bench(Path(name), rows, depth_steps, loader or (lambda _: {}), progress).run()


def render(result: StoreBenchmark, console: Console) -> None:
    """The figures as a table, with what they are held against."""
    table = RichTable(title=f"rollout store, {result.rows:,} candidate rows, {result.files:,} files")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("wanted", justify="right")
    for what, measured, wanted in _lines(result):
        table.add_row(what, measured, wanted)
    console.print(table)


def _lines(result: StoreBenchmark) -> Iterator[tuple[str, str, str]]:
    yield "write", f"{result.write_rows_s:,.0f} rows/s", ">= 400,000"
    yield "  plain zarr-python, same arrays", f"{result.plain_zarr_write_rows_s:,.0f} rows/s", ""
    yield "read all arrays", f"{result.read_rows_s:,.0f} rows/s", ""
    yield "  plain zarr-python, same store", f"{result.plain_zarr_read_rows_s:,.0f} rows/s", ""
    yield "validate, of plain reading speed", f"{result.validate_of_plain_read:.0%}", ">= 60%"
    yield "validate deep, of plain reading speed", f"{result.deep_validate_of_plain_read:.0%}", ">= 35%"
    yield "q_h read, of np.load speed", f"{result.q_h_read_of_np_load:.0%}", ">= 50%"
    yield "audit table through polars", f"{result.audit_table_s:.2f} s", "seconds"
    yield f"time over rows from {SMALL_ROWS:,}, exponent", f"{result.growth_exponent:.2f}", "<= 1.05"
    yield "peak memory of writing, small", f"{result.peak_memory_small_mb:,.0f} MB", ""
    yield "peak memory of writing, large", f"{result.peak_memory_mb:,.0f} MB", "+ 300 MB at most"
    yield "files", f"{result.files:,}", "< 1,500 per million rows"
    yield "write with 240 x 240 depth", f"{result.depth_steps_s:,.0f} steps/s", ">= 150"
    for name, rate in result.loader_samples_s.items():
        yield f"training samples, {name}", f"{rate:,.0f} states/s", ""


class _Bench:
    def __init__(self, folder: Path, rows: int, depth_steps: int, loader: LoaderRates, progress: ProgressSink) -> None:
        self.folder = folder
        self.rows = max(rows, SMALL_ROWS)
        self.depth_steps = depth_steps
        self._loader = loader
        self._progress = progress
        self._done = 0

    def run(self) -> StoreBenchmark:
        self._report("warm up")
        store = self.folder / "rollouts.zarr"
        self._write(self.folder / "warm", SMALL_ROWS)
        small = min(self._write(self.folder / f"small-{turn}", SMALL_ROWS) for turn in range(3))
        self._report("write")
        seconds = min(self._write(store, self.rows), self._write(self.folder / "again", self.rows))
        remove_path(self.folder / "again")
        reader = RolloutZarrStoreReader(store)
        count = reader.num_rows("candidates")
        self._report("plain zarr")
        plain_write = self._plain_write(reader)
        plain_read = _best(lambda: _read_plainly(store))
        own_read = _best(lambda: [reader.array(path) for path in array_paths()])
        self._report("validate")
        shallow = _best(lambda: validate_rollout_zarr_store(store).raise_if_wrong())
        deep = _best(lambda: validate_rollout_zarr_store(store, deep=True).raise_if_wrong())
        self._report("training view")
        view_ratio = self._view_ratio(reader)
        audit = _best(lambda: reader.table("candidates", decode=True), turns=2)
        self._report("memory")
        memory_small, memory = self._peak_memory(SMALL_ROWS), self._peak_memory(self.rows)
        self._report("depth")
        depth = self._depth_rate()
        self._report("loader")
        loader = self._loader(store)
        sizes = reader.files.sizes()
        small_rows = _ROWS_PER_RECORD * -(-SMALL_ROWS // _ROWS_PER_RECORD)
        return StoreBenchmark(
            rows=count,
            files=len(sizes),
            megabytes=sum(sizes.values()) / 1e6,
            write_rows_s=count / seconds,
            plain_zarr_write_rows_s=count / plain_write,
            read_rows_s=count / own_read,
            plain_zarr_read_rows_s=count / plain_read,
            validate_of_plain_read=plain_read / shallow,
            deep_validate_of_plain_read=plain_read / deep,
            q_h_read_of_np_load=view_ratio,
            audit_table_s=audit,
            growth_exponent=float(np.log(seconds / small) / np.log(count / small_rows)) if count > small_rows else 1.0,
            small_write_rows_s=small_rows / small,
            peak_memory_small_mb=memory_small,
            peak_memory_mb=memory,
            depth_steps_s=depth,
            loader_samples_s=loader,
        )

    def _report(self, note: str) -> None:
        self._done += 1
        self._progress(ProgressEvent("bench store", self._done, 8, note, "parts"))

    def _write(self, path: Path, rows: int) -> float:
        records = bench_records(rows)
        begin = time.perf_counter()
        write_rollout_zarr_store(path, records, _WITHOUT_DEPTH)
        return time.perf_counter() - begin

    def _plain_write(self, reader: RolloutZarrStoreReader) -> float:
        columns = {
            table.path(name): reader.array(table.path(name))
            for table in (CANDIDATES, CANDIDATE_DIAGNOSTICS)
            for name in table.names
        }
        begin = time.perf_counter()
        root = zarr.create_group(self.folder / "plain.zarr")
        for path, values in columns.items():
            chunk = (min(_WITHOUT_DEPTH.chunk_rows, len(values)), *values.shape[1:])
            array = root.create_array(
                path,
                shape=values.shape,
                dtype=values.dtype,
                chunks=chunk,
                compressors=(ZstdCodec(level=1), Crc32cCodec()),
                config={"write_empty_chunks": True},
            )
            array[...] = values
        return time.perf_counter() - begin

    def _view_ratio(self, reader: RolloutZarrStoreReader) -> float:
        view = reader.q_h_view()
        for name, values in view.items():
            np.save(self.folder / f"{name}.npy", values)
        loaded = _best(lambda: [np.load(self.folder / f"{name}.npy") for name in Q_H.names], turns=7)
        return loaded / _best(reader.q_h_view, turns=7)

    def _peak_memory(self, rows: int) -> float:
        program = f"from rollout_assets.benchmarks.store import report_peak; report_peak({rows})"
        package_root = str(Path(__file__).resolve().parents[3])
        paths = os.pathsep.join([package_root, *sys.path])
        done = subprocess.run(
            (sys.executable, "-c", program, str(self.folder / f"peak-{rows}")),
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        return float(done.stdout)

    def _depth_rate(self) -> float:
        steps_per_record = _CHAINS * _HORIZON
        campaign = SyntheticRecords(
            sources=1, targets=1, recipes=("a", "b"), chains=_CHAINS, depth_hw=(240, 240), dead_ends=False
        )
        template = list(campaign)
        count = max(self.depth_steps // steps_per_record, 1)
        config = RolloutZarrStoreConfig()
        records = [_renamed(template[index % len(template)], index) for index in range(count)]
        begin = time.perf_counter()
        write_rollout_zarr_store(self.folder / "depth.zarr", records, config)
        return count * steps_per_record / (time.perf_counter() - begin)


_WITHOUT_DEPTH = RolloutZarrStoreConfig(selected_depth=SelectedDepthRetentionConfig(enabled=False))


def bench_records(rows: int, depth_hw: tuple[int, int] | None = None) -> list[RolloutZarrRecord]:
    """About ``rows`` candidate rows: 4 chains, 2 steps, 60 candidates a record; arrays repeat, identities do not."""
    campaign = SyntheticRecords(
        sources=_TEMPLATES // 6,
        targets=2,
        chains=_CHAINS,
        horizon=_HORIZON,
        shell=(_SHELL, _SHELL),
        depth_hw=depth_hw,
        dead_ends=False,
    )
    templates = list(campaign)
    count = -(-rows // _ROWS_PER_RECORD)
    return [_renamed(templates[index % len(templates)], index) for index in range(count)]


def report_peak(rows: int) -> None:
    """Write a store at ``argv[1]`` from records made one by one, and print this process's peak memory in MB."""
    path = Path(sys.argv[1])
    campaign = SyntheticRecords(sources=1, targets=1, recipes=("a",), chains=_CHAINS, dead_ends=False)
    template = next(iter(campaign))
    records = (_renamed(template, index) for index in range(-(-rows // _ROWS_PER_RECORD)))
    write_rollout_zarr_store(path, records, _WITHOUT_DEPTH)
    remove_path(path)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak_kb = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    sys.stdout.write(str(int(peak_kb) / 1024))


@cache
def _lineage(source: int, target: int) -> RolloutLineage:
    return SyntheticRecords().lineage(source, target)


def _renamed(record: RolloutZarrRecord, index: int) -> RolloutZarrRecord:
    """The same chains under another identity: 3 targets a source, 4 recipes a target, like the default campaign."""
    source, target, recipe = index // 12, index // 4 % 3, index % 4
    return replace(
        record,
        lineage=_lineage(source, target),
        rollout_id_prefix=rollout_id_prefix(source, target, f"bench{recipe}"),
    )


def _read_plainly(store: Path) -> None:
    root = zarr.open_group(store, mode="r")
    for path in array_paths():
        array = root[path]
        assert isinstance(array, zarr.Array)
        array[...]


def _best(work: Callable[[], Any], turns: int = 3) -> float:
    """The shortest of some turns: what the machine can do when nothing else disturbs it."""
    times = []
    for _ in range(turns):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)
