"""How much of what was asked for is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

COMPLETE, INCOMPLETE, INTERRUPTED = 0, 3, 130
"""Exit codes of a collection."""


@dataclass(frozen=True)
class Coverage:
    """Requests by what became of them: ``expected`` is the sum of done, failed and missing."""

    expected: int
    done: int
    failed: int

    @property
    def missing(self) -> int:
        """Requests that were not tried, or not to the end."""
        return self.expected - self.done - self.failed

    @property
    def complete(self) -> bool:
        """Whether every request has a result."""
        return self.done == self.expected

    def to_jsonable(self) -> dict[str, int | bool]:
        """Plain JSON values."""
        return {**vars(self), "missing": self.missing, "complete": self.complete}

    def line(self) -> str:
        """One line for people."""
        share = self.done / self.expected if self.expected else 1.0
        return (
            f"{self.expected:,} expected, {self.done:,} done ({share:.1%}), "
            f"{self.failed:,} failed, {self.missing:,} missing"
        )


@dataclass(frozen=True)
class CollectionReport:
    """What a collection did. ``cached`` results were there before; ``store`` is set when one was published.

    ``gave_up`` says that so many requests failed one after the other that the rest was not tried.
    """

    output: Path
    coverage: Coverage
    cached: int
    interrupted: bool
    gave_up: bool
    seconds: float
    failures: Path | None
    metrics: Path | None
    store: Path | None

    @property
    def rollouts_per_second(self) -> float:
        """Results of this run per second of it."""
        return (self.coverage.done - self.cached) / self.seconds if self.seconds else 0.0

    @property
    def exit_code(self) -> int:
        """0 when every request has a result, 130 when stopped before, 3 when requests failed."""
        if self.coverage.complete:
            return COMPLETE
        return INTERRUPTED if self.interrupted else INCOMPLETE
