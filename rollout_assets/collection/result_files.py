"""Which files of a folder hold results, and which were derived from them."""

from __future__ import annotations

import glob
from pathlib import Path

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
