"""Metrics over many result files, and one file of all their lines. Needs no server.

Files are read one line at a time and a few numbers of each line are kept. What was expected is taken from the
materialized inputs beside each file; where one has none, what is missing cannot be known and is null.

Tasks are what their numbers say, unless lines of two files have the same key and are of different roots: then the
files number their tasks each for itself, and all are read again with tasks told apart by their roots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO

from rollout_assets.collection.configs import RolloutAggregationConfig
from rollout_assets.collection.failures import read_failures
from rollout_assets.collection.inputs import read_requests, request_key
from rollout_assets.collection.result_files import _expand_input_glob, is_named, named, read_lines, read_results
from rollout_assets.config import canonical_json
from rollout_assets.errors import CollectionError, ResultsRefused
from rollout_assets.files import file_lock, publishing
from rollout_assets.metrics.columns import TASK, RolloutId
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
        with publishing(output) if config.merge_shards else nullcontext() as scratch:
            with nullcontext() if scratch is None else scratch.open("wb") as merged:
                union = _read_union([Path(path) for path in paths], self._progress, merged)
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
    return _read_union([path], SILENT).metrics(options)


Root = tuple[str, str]
"""Sample key and target id."""


def _read_union(paths: Sequence[Path], progress: ProgressSink, merged: BinaryIO | None = None) -> _Union:
    """All lines of some files, copied to ``merged``; read a second time if equal numbers are of different tasks."""
    union = _Union(paths)
    try:
        union.read(progress, merged)
    except _NumberedApart:
        if merged is not None:
            merged.seek(0)
            merged.truncate()
        union = _Union(paths, _TasksByRoot())
        union.read(progress, merged)
    return union


class _NumberedApart(Exception):
    """Two lines of different files have the same key and are of different roots."""


class _TasksByRoot:
    """Numbers tasks by their roots: those of a file follow those of the files before, in the file's own order."""

    def __init__(self) -> None:
        self._of_root: dict[Root, int] = {}
        self._of_file: dict[int, int] = {}
        self._first = self._next = 0

    def begin_file(self) -> None:
        """The tasks that follow are numbered by another file."""
        self._of_file, self._first = {}, self._next

    def number(self, task: int, root: Root | None = None) -> int:
        """The number of a task of the current file; without a root, what results of the task in the file gave."""
        given = self._first + task
        number = self._of_file.get(task, given) if root is None else self._of_root.setdefault(root, given)
        self._next = max(self._next, number + 1)
        self._of_file.setdefault(task, number)
        return number


class _Union:
    """All lines of some files: their numbers, and where each key was."""

    def __init__(self, paths: Sequence[Path], tasks: _TasksByRoot | None = None) -> None:
        self._paths, self._tasks = paths, tasks
        self._table = ResultTable()
        self.places: dict[RolloutId, int] = {}
        self._failed: set[RolloutId] = set()
        self._expected: Counter[tuple[str, int]] | None = Counter()

    def read(self, progress: ProgressSink, merged: BinaryIO | None = None) -> None:
        """Read every file once, and copy its lines to ``merged``."""
        for index, path in enumerate(self._paths):
            if self._tasks is not None:
                self._tasks.begin_file()
            for number, line, named_key, result in read_results(path):
                key = self._key(named_key, _root_of(result))
                self._take(index * _MOST_LINES + number, key, result)
                if merged is not None:
                    merged.write(_line_of(line, result, named_key, key))
            self._note_side_files(path)
            progress(ProgressEvent("aggregating", index + 1, len(self._paths), unit="files"))

    def metrics(self, options: MetricOptions | None) -> list[dict[str, Any]]:
        """Metrics of all lines read; a request that failed in one file and succeeded in another is done."""
        failed = Counter((agent, task) for agent, task, rollout in self._failed - self.places.keys())
        return self._table.metrics(options, expected=self._expected, failed=failed)

    def _place(self, place: int) -> str:
        file, number = divmod(place, _MOST_LINES)
        return f"{self._paths[file]}:{number}"

    def _key(self, key: RolloutId, root: Root | None = None) -> RolloutId:
        agent, task, rollout = key
        return key if self._tasks is None else (agent, self._tasks.number(task, root), rollout)

    def _take(self, place: int, key: RolloutId, result: dict[str, Any]) -> None:
        first = self.places.setdefault(key, place)
        if first != place:
            if self._tasks is None and self._is_of_another_file_and_root(first, place, result):
                raise _NumberedApart
            also = f"{named(key)} is also at {self._place(first)}; leave one of the two out"
            raise ResultsRefused(f"{self._place(place)}: {also}")
        try:
            self._table.add(result, key)
        except ResultsRefused as error:
            raise ResultsRefused(f"{self._place(place)}: {error}") from None

    def _is_of_another_file_and_root(self, first: int, place: int, result: dict[str, Any]) -> bool:
        """Whether a result with the key of an earlier line lies in another file and is of another root."""
        file, number = divmod(first, _MOST_LINES)
        if file == place // _MOST_LINES:
            return False
        earlier = next(line for at, _, line in read_lines(self._paths[file]) if at == number)
        roots = {_root_of(earlier), _root_of(result)}
        return len(roots) == 2 and None not in roots

    def _note_side_files(self, path: Path) -> None:
        inputs = path.with_name(f"{path.stem}_materialized_inputs.jsonl")
        if not inputs.exists():
            self._expected = None
        elif self._expected is not None:
            requests = map(request_key, read_requests(inputs))
            self._expected.update(self._key(key)[:2] for key in requests)
        failures = read_failures(path.with_name(f"{path.stem}_failures.jsonl"))
        self._failed.update(self._key(key) for key in failures)


def _root_of(result: Mapping[str, Any]) -> Root | None:
    """The root that a result is of; None if its line does not say."""
    sample, target = result.get("sample_key"), result.get("target_id")
    return (sample, target) if isinstance(sample, str) and isinstance(target, str) else None


def _line_of(line: bytes, result: Mapping[str, Any], was: RolloutId, key: RolloutId) -> bytes:
    """A line as it goes into the merged file: as it is, unless its task has another number there."""
    if was != key:
        return canonical_json({**result, TASK: key[1]}) + b"\n"
    return line if line.endswith(b"\n") else line + b"\n"
