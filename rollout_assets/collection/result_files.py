"""Result files: which files hold results, lines appended in one write each, and lines read back with their place."""

from __future__ import annotations

import glob
import json
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rollout_assets.config import canonical_json
from rollout_assets.errors import ResultsRefused
from rollout_assets.files import naming, sync_path
from rollout_assets.metrics.columns import RolloutId, rollout_id
from rollout_assets.parsing import refuse_long_pattern

AppendLine = Callable[[Mapping[str, Any]], None]

DERIVED_SUFFIXES = (
    "_materialized_inputs.jsonl",
    "_prepared_inputs.jsonl",
    "_prepared_inputs.json",
    "_failures.jsonl",
    "_aggregate_metrics.json",
    "_run.json",
)
"""Ends of the names of files that a collection writes beside its results."""


def _expand_input_glob(input_glob: str, output: Path | None = None) -> list[str]:
    """Files of comma-separated patterns, ``**`` included: sorted, each once, without derived files and ``output``."""
    matches = {Path(path) for pattern in _patterns(input_glob) for path in glob.glob(pattern, recursive=True)}  # noqa: PTH207
    left_out = None if output is None else output.resolve()
    return sorted(str(path) for path in matches if _holds_results(path) and path.resolve() != left_out)


def is_named(input_glob: str, path: Path) -> bool:
    """Whether one of comma-separated patterns is this very file, and not only matches it."""
    return any(Path(pattern).resolve() == path.resolve() for pattern in _patterns(input_glob))


def _patterns(input_glob: str) -> list[str]:
    patterns = [pattern.strip() for pattern in input_glob.split(",") if pattern.strip()]
    for pattern in patterns:
        refuse_long_pattern(pattern)
    return patterns


def collected_files(folder: Path) -> list[Path]:
    """The result files in a folder, by name."""
    return [path for path in sorted(folder.glob("*.jsonl")) if _holds_results(path)]


def _holds_results(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and not path.name.endswith(DERIVED_SUFFIXES)


@contextmanager
def line_log(path: Path) -> Iterator[AppendLine]:
    """A function that adds one JSON line, keys sorted, to a file; when this ends, every line has reached the disk.

    A line is with the system when the function returns: a kill cannot take it.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(line: Mapping[str, Any]) -> None:
        data = memoryview(canonical_json(line) + b"\n")
        with naming(path):
            while data:
                data = data[os.write(handle, data) :]

    try:
        yield append
    finally:
        os.close(handle)
        sync_path(path)


def drop_torn_line(path: Path) -> None:
    """Cut what follows the last newline, which a killed writer left."""
    if path.stat().st_size:
        with path.open("r+b") as stream:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
            stream.truncate(end)


def read_lines(path: Path, *, torn_end: bool = False) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Line number, bytes and object of every line; one that is no JSON object is ``ResultsRefused`` with its place.

    With ``torn_end`` a last line without a newline is passed over.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if torn_end and not line.endswith(b"\n"):
                return
            try:
                content = _DECODER.decode(line.decode())
            except (ValueError, RecursionError) as error:
                torn = " (torn: it has no end)" if not line.endswith(b"\n") else ""
                raise ResultsRefused(f"{path}:{number}: not a JSON line{torn}: {error}; remove or correct it") from None
            if not isinstance(content, dict):
                raise ResultsRefused(f"{path}:{number}: a line must be a JSON object, got {type(content).__name__}")
            yield number, line, content


def read_results(path: Path) -> Iterator[tuple[int, bytes, RolloutId, dict[str, Any]]]:
    """``read_lines`` with the key of each line; a line without one is ``ResultsRefused`` with its place."""
    for number, line, result in read_lines(path):
        try:
            yield number, line, rollout_id(result), result
        except ResultsRefused as error:
            raise ResultsRefused(f"{path}:{number}: not a rollout result: {error}") from None


def named(key: RolloutId) -> str:
    """A key in words."""
    agent, task, rollout = key
    return f"agent {agent!r} task {task} rollout {rollout}"


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
