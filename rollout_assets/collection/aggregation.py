"""Metrics over many result files, and one file of all their lines. Needs no server.

Files are read one line at a time and a few numbers of each line are kept. What was expected is taken from the
materialized inputs beside each file; where one has none, what is missing cannot be known and is null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

from rollout_assets.collection.configs import RolloutAggregationConfig
from rollout_assets.collection.failures import read_failures
from rollout_assets.collection.inputs import read_requests, request_key
from rollout_assets.collection.result_files import _expand_input_glob, is_named, named, read_results
from rollout_assets.errors import CollectionError, ResultsRefused
from rollout_assets.files import file_lock, publishing
from rollout_assets.metrics.columns import RolloutId
from rollout_assets.metrics.results import MetricOptions, ResultTable, publish_metrics
from rollout_assets.progress import SILENT, ProgressEvent, ProgressSink

_MOST_LINES = 1 << 40
"""More lines than a file has: file and line of a result are kept as one number."""


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

        A key that comes twice is ``ResultsRefused`` with both places; so is a malformed line, with its place. What was
        collected is never overwritten, neither lines nor metrics.
        """
        with file_lock(config.lock_fpath, str(config.output_jsonl_fpath)):
            return self._aggregate(config, result_paths(config))

    def _aggregate(self, config: RolloutAggregationConfig, paths: list[str]) -> AggregationReport:
        began = perf_counter()
        output = config.output_jsonl_fpath
        union = _Union([Path(path) for path in paths])
        with publishing(output) if config.merge_shards else nullcontext() as scratch:
            with nullcontext() if scratch is None else scratch.open("wb") as merged:
                union.read(self._progress, merged)
            metrics = union.metrics(config.metrics)
        publish_metrics(config.aggregate_metrics_fpath, metrics)
        return AggregationReport(
            files=tuple(paths),
            lines=len(union.places),
            metrics=metrics,
            metrics_path=config.aggregate_metrics_fpath,
            merged=output if config.merge_shards else None,
            seconds=perf_counter() - began,
        )


def result_paths(config: RolloutAggregationConfig) -> list[str]:
    """The files to aggregate; ``CollectionError`` if there is none, or if what was collected would be overwritten.

    An output that a pattern only matches is an earlier merge and left out. Without merging, an output that is named
    itself is measured where it lies.
    """
    output, named_itself = config.output_jsonl_fpath, is_named(config.input_glob, config.output_jsonl_fpath)
    if named_itself and config.merge_shards:
        raise CollectionError(
            f"{output}: is input and output at once, and merging would replace it; choose another output, "
            f"or only measure it (--no-merge)"
        )
    paths = _expand_input_glob(config.input_glob, None if named_itself else output)
    if not paths:
        but = f" but the output {output}, which is not merged into itself" if output.exists() else ""
        raise CollectionError(f"{config.input_glob}: matches no result file{but}; derived files do not count")
    if config.run_fpath.exists() and not (named_itself and len(paths) == 1):
        raise CollectionError(
            f"{output}: belongs to a collection, whose results or metrics this would replace; choose another output"
        )
    return paths


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
        self.places: dict[RolloutId, int] = {}
        self._failed: set[RolloutId] = set()
        self._expected: Counter[tuple[str, int]] | None = Counter()

    def read(self, progress: ProgressSink, merged: BinaryIO | None = None) -> None:
        """Read every file once, and copy its lines to ``merged``."""
        for index, path in enumerate(self._paths):
            for number, line, key, result in read_results(path):
                self._take(index * _MOST_LINES + number, key, result)
                if merged is not None:
                    merged.write(line if line.endswith(b"\n") else line + b"\n")
            self._note_side_files(path)
            progress(ProgressEvent("aggregating", index + 1, len(self._paths), unit="files"))

    def metrics(self, options: MetricOptions | None) -> list[dict[str, Any]]:
        """Metrics of all lines read; a request that failed in one file and succeeded in another is done."""
        failed = Counter((agent, task) for agent, task, rollout in self._failed - self.places.keys())
        return self._table.metrics(options, expected=self._expected, failed=failed)

    def _place(self, place: int) -> str:
        file, number = divmod(place, _MOST_LINES)
        return f"{self._paths[file]}:{number}"

    def _take(self, place: int, key: RolloutId, result: dict[str, Any]) -> None:
        first = self.places.setdefault(key, place)
        if first != place:
            also = f"{named(key)} is also at {self._place(first)}; leave one of the two out"
            raise ResultsRefused(f"{self._place(place)}: {also}")
        try:
            self._table.add(result, key)
        except ResultsRefused as error:
            raise ResultsRefused(f"{self._place(place)}: {error}") from None

    def _note_side_files(self, path: Path) -> None:
        inputs = path.with_name(f"{path.stem}_materialized_inputs.jsonl")
        if not inputs.exists():
            self._expected = None
        elif self._expected is not None:
            self._expected.update(request_key(request)[:2] for request in read_requests(inputs))
        self._failed |= read_failures(path.with_name(f"{path.stem}_failures.jsonl")).keys()
