"""One thing found wrong: which check, which array, which rows, what was expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Finding:
    """A problem with one array or file; equal problems of many rows are one finding with a count."""

    check: str
    where: str
    problem: str
    row: int | None = None
    count: int = 1
    value: str = ""

    def __str__(self) -> str:
        at = "" if self.row is None else f" row {self.row}"
        got = f", got {self.value}" if self.value else ""
        more = f" ({self.count} rows)" if self.count > 1 else ""
        return f"{self.where}{at}: {self.problem}{got}{more}"


Findings = Iterator[Finding]


def problem(where: str, text: str, value: Any = None) -> Finding:
    """A finding about a whole array, attribute or file; the runner fills in the check."""
    return Finding("", where, text, value="" if value is None else _shown(value))


def bad_rows(
    where: str, wrong: NDArray[np.bool_], expectation: str, values: NDArray[Any] | None = None, first_row: int = 0
) -> Findings:
    """One finding for all rows where ``wrong`` is true: the first of them, its value, and how many."""
    if not wrong.any():
        return
    rows = wrong.reshape(len(wrong), -1).any(axis=1) if wrong.ndim > 1 else wrong
    row = int(np.argmax(rows))
    value = "" if values is None else _shown(values[row])
    yield Finding("", where, expectation, first_row + row, int(rows.sum()), value)


def differs(stored: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    """Where two arrays are not equal; NaN equals NaN."""
    return (stored != expected) & ~(np.isnan(stored) & np.isnan(expected))


def merge_findings(findings: list[Finding]) -> tuple[Finding, ...]:
    """Group findings that say the same of the same array, adding up their rows; order of first appearance."""
    merged: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.check, finding.where, finding.problem)
        first = merged.get(key)
        if first is None:
            merged[key] = finding
        elif finding.row is not None:
            merged[key] = replace(first, count=first.count + finding.count)
    return tuple(merged.values())


def one_of_each_first(findings: Sequence[Finding]) -> list[Finding]:
    """The first finding of every check, then the second of each, and so on, so that no check drowns another."""
    rounds: Counter[str] = Counter()
    keyed = []
    for finding in findings:
        keyed.append((rounds[finding.check], finding))
        rounds[finding.check] += 1
    return [finding for _, finding in sorted(keyed, key=itemgetter(0))]


def _shown(value: Any) -> str:
    text = str(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value)
    return text if len(text) <= 120 else f"{text[:117]}..."
