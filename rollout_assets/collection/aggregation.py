"""Metrics over many result files, and one file of all their lines. Needs no server.

Files are read one line at a time and a few numbers of each line are kept. What was expected is taken from the
materialized inputs beside each file; where one has none, what is missing cannot be known and is null.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

from rollout_assets.collection.configs import RolloutAggregationConfig
from rollout_assets.collection.failures import read_failures
from rollout_assets.collection.inputs import read_requests
from rollout_assets.collection.result_files import _expand_input_glob, named, read_results
from rollout_assets.errors import CollectionError, ResultsRefused
from rollout_assets.files import publish_path, scratch_path
from rollout_assets.metrics.columns import RolloutId
from rollout_assets.metrics.results import MetricOptions, ResultTable, publish_metrics
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink


@dataclass(frozen=True)
class AggregationReport:
    """What was aggregated: files, lines, metrics per agent, where they lie, and the merged file if one was made."""

    files: tuple[str, ...]
    lines: int
    metrics: list[dict[str, Any]]
    metrics_path: Path
    merged: Path | None
    seconds: float


def aggregate_rollouts(config: RolloutAggregationConfig, progress: ProgressSink = SILENT) -> AggregationReport:
    """Aggregate and, if asked, merge."""
    return RolloutAggregationHelper(progress).run_from_config(config)


class RolloutAggregationHelper:
    """Aggregates result files."""

    def __init__(self, progress: ProgressSink = SILENT) -> None:
        self._progress = progress

    def run_from_config(self, config: RolloutAggregationConfig) -> AggregationReport:
        """Metrics of every line that the glob matches; both outputs appear whole or not at all.

        A key that comes twice is ``ResultsRefused`` with both places; so is a malformed line, with its place.
        """
        began = perf_counter()
        output = config.output_jsonl_fpath
        paths = _expand_input_glob(config.input_glob, output)
        if not paths:
            raise CollectionError(f"{config.input_glob}: matches no result file; derived files do not count")
        output.parent.mkdir(parents=True, exist_ok=True)
        scratch = scratch_path(output)
        union = _Union([Path(path) for path in paths])
        try:
            with scratch.open("wb") if config.merge_shards else nullcontext() as merged:
                union.read(self._progress, merged)
            metrics = union.metrics(config.metrics)
            if config.merge_shards:
                publish_path(scratch, output)
        finally:
            scratch.unlink(missing_ok=True)
        publish_metrics(config.aggregate_metrics_fpath, metrics)
        return AggregationReport(
            files=tuple(paths),
            lines=union.lines,
            metrics=metrics,
            metrics_path=config.aggregate_metrics_fpath,
            merged=output if config.merge_shards else None,
            seconds=perf_counter() - began,
        )


def aggregate_file(path: Path, options: MetricOptions | None = None) -> list[dict[str, Any]]:
    """Metrics of one result file, with what the files beside it say was expected and failed."""
    union = _Union([path])
    union.read(SILENT)
    return union.metrics(options)


class _Union:
    """All lines of some files: their numbers, and where each key was."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._table = ResultTable()
        self._places: dict[RolloutId, int] = {}
        self._files, self._numbers = array("l"), array("l")
        self._failed: set[RolloutId] = set()
        self._expected: Counter[tuple[str, int]] | None = Counter()

    @property
    def lines(self) -> int:
        """Lines read."""
        return len(self._numbers)

    def read(self, progress: ProgressSink, merged: BinaryIO | None = None) -> None:
        """Read every file once, and copy its lines to ``merged``."""
        for index, path in enumerate(self._paths):
            for number, line, key, result in read_results(path):
                self._note(index, number, key)
                self._add(path, number, key, result)
                if merged is not None:
                    merged.write(line if line.endswith(b"\n") else line + b"\n")
            self._note_side_files(path)
            progress(ProgressEvent("aggregating", index + 1, len(self._paths), unit="files"))

    def metrics(self, options: MetricOptions | None) -> list[dict[str, Any]]:
        """Metrics of all lines read; a request that failed in one file and succeeded in another is done."""
        failed = Counter((agent, task) for agent, task, rollout in self._failed - self._places.keys())
        return self._table.metrics(options, expected=self._expected, failed=failed)

    def _note(self, file: int, number: int, key: RolloutId) -> None:
        place = self._places.setdefault(key, len(self._numbers))
        if place != len(self._numbers):
            first = f"{self._paths[self._files[place]]}:{self._numbers[place]}"
            raise ResultsRefused(
                f"{self._paths[file]}:{number}: {named(key)} is also at {first}; leave one of the two out"
            )
        self._files.append(file)
        self._numbers.append(number)

    def _add(self, path: Path, number: int, key: RolloutId, result: dict[str, Any]) -> None:
        try:
            self._table.add(result, key)
        except ResultsRefused as error:
            raise ResultsRefused(f"{path}:{number}: {error}") from None

    def _note_side_files(self, path: Path) -> None:
        inputs = path.with_name(f"{path.stem}_materialized_inputs.jsonl")
        if not inputs.exists():
            self._expected = None
        elif self._expected is not None:
            self._expected.update(key[:2] for key in _keys_of(inputs))
        self._failed |= read_failures(path.with_name(f"{path.stem}_failures.jsonl")).keys()


def _keys_of(inputs: Path) -> Iterator[RolloutId]:
    return (numbered.key for numbered in read_requests(inputs))
