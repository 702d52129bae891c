"""Result lines as columns: what aggregation keeps of each, a few numbers, however long the line was."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import ResultsRefused

AGENT, TASK, ROLLOUT = "agent_ref", "_task_index", "_rollout_index"

IDENTIFIERS = frozenset({"source_row", "target_rank", "seed"})
"""Numbers that name something; a mean of them means nothing."""

RolloutId = tuple[str, int, int]
"""Agent, task and rollout: what no two lines may share."""


def rollout_id(result: Mapping[str, Any]) -> RolloutId:
    """The key of a result line or of an input row; one without is ``ResultsRefused`` with the missing field."""
    agent = result.get(AGENT)
    name = agent.get("name") if isinstance(agent, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ResultsRefused(f"{AGENT}.name must be the name of an agent, got {agent!r}")
    return name, _index(result, TASK), _index(result, ROLLOUT)


@dataclass(eq=False)
class AgentColumns:
    """All results of one agent, in the order they came: task, rollout, whether refused, and every numeric field."""

    tasks: array[int] = field(default_factory=lambda: array("q"))
    rollouts: array[int] = field(default_factory=lambda: array("q"))
    refused: array[int] = field(default_factory=lambda: array("b"))
    numbers: dict[str, array[float]] = field(default_factory=dict)
    flags: dict[str, array[float]] = field(default_factory=dict)

    def add(self, key: RolloutId, result: Mapping[str, Any]) -> None:
        """Take one result's key and its numbers; what it does not have is NaN."""
        for name, value in _measures(result):
            columns = self.flags if isinstance(value, bool) else self.numbers
            _padded(columns.setdefault(name, array("d")), len(self.tasks)).append(float(value))
        self.tasks.append(key[1])
        self.rollouts.append(key[2])
        self.refused.append(result.get("status") == "refused")

    def column(self, columns: Mapping[str, array[float]], name: str) -> NDArray[np.float64]:
        """(results,) float64, NaN where a result had no such number."""
        return np.array(_padded(columns[name], len(self.tasks)), np.float64)


def _measures(result: Mapping[str, Any]) -> Iterator[tuple[str, bool | int | float]]:
    for name, value in result.items():
        if isinstance(value, bool | int | float) and name not in IDENTIFIERS and not name.startswith("_"):
            if not math.isfinite(value):
                raise ResultsRefused(f"{name} must be finite or null, got {value}")
            yield name, value


def _padded(column: array[float], length: int) -> array[float]:
    column.extend([math.nan] * (length - len(column)))
    return column


def _index(result: Mapping[str, Any], name: str) -> int:
    value = result.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ResultsRefused(f"{name} must be a whole number >= 0, got {value!r}")
    return value
