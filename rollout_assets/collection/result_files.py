"""Result files: which files hold results, lines appended in one write each, and lines read back with their place."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from rollout_assets.config import canonical_json
from rollout_assets.errors import ResultsRefused
from rollout_assets.files import sync_path
from rollout_assets.metrics.columns import RolloutId, rollout_id

_TAIL_BLOCK = 1 << 16

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
    patterns = [pattern.strip() for pattern in input_glob.split(",") if pattern.strip()]
    found = {str(Path(path)) for pattern in patterns for path in glob.glob(pattern, recursive=True)}  # noqa: PTH207
    unwanted = None if output is None else output.resolve()
    return sorted(path for path in found if _holds_results(Path(path)) and Path(path).resolve() != unwanted)


def collected_files(folder: Path) -> list[Path]:
    """The result files in a folder, by name."""
    return [path for path in sorted(folder.glob("*.jsonl")) if _holds_results(path)]


def _holds_results(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and not path.name.endswith(DERIVED_SUFFIXES)


class LineLog:
    """An append-only file of JSON lines. A line is with the system when ``append`` returns: a kill cannot take it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line, keys sorted."""
        data = memoryview(canonical_json(line) + b"\n")
        while data:
            data = data[os.write(self._handle, data) :]

    def close(self) -> None:
        """Return when every line has reached the disk."""
        os.close(self._handle)
        sync_path(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def drop_torn_line(path: Path) -> int:
    """Cut what follows the last newline, which a killed writer left; returns how many bytes that were."""
    with path.open("r+b") as stream:
        end = size = stream.seek(0, os.SEEK_END)
        while end > 0:
            start = max(end - _TAIL_BLOCK, 0)
            stream.seek(start)
            at = stream.read(end - start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        stream.truncate(end)
        return size - end


def read_lines(path: Path, *, torn_end: bool = False) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Line number, bytes and object of every line; one that is no JSON object is ``ResultsRefused`` with its place.

    With ``torn_end`` a last line without a newline is passed over.
    """
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if torn_end and not line.endswith(b"\n"):
                return
            try:
                found = _DECODER.decode(line.decode())
            except ValueError as error:
                torn = " (torn: it has no end)" if not line.endswith(b"\n") else ""
                raise ResultsRefused(f"{path}:{number}: not a JSON line{torn}: {error}; remove or mend it") from None
            if not isinstance(found, dict):
                raise ResultsRefused(f"{path}:{number}: a line must be a JSON object, got {type(found).__name__}")
            yield number, line, found


def read_results(path: Path) -> Iterator[tuple[int, bytes, RolloutId, dict[str, Any]]]:
    """The same with the key of each line; a line without one is ``ResultsRefused`` with its place."""
    for number, line, result in read_lines(path):
        try:
            yield number, line, rollout_id(result), result
        except ResultsRefused as error:
            raise ResultsRefused(f"{path}:{number}: not a rollout result: {error}") from None


def done_keys(path: Path) -> dict[RolloutId, int]:
    """Key -> line of every result in a file; a key that comes twice is ``ResultsRefused`` with both lines."""
    done: dict[RolloutId, int] = {}
    for number, _, key, _ in read_results(path):
        first = done.setdefault(key, number)
        if first != number:
            raise ResultsRefused(f"{path}:{number}: {named(key)} is already on line {first}; remove one of them")
    return done


def named(key: RolloutId) -> str:
    """A key in words."""
    agent, task, rollout = key
    return f"agent {agent!r} task {task} rollout {rollout}"


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
