"""Result lines as columns: what aggregation keeps of each, a few numbers, however long the line was."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollout_assets.errors import ResultsRefused

AGENT, TASK, ROLLOUT = "agent_ref", "_task_index", "_rollout_index"

IDENTIFIERS = frozenset({"source_row", "target_rank", "seed"})
"""Numbers that name something; a mean of them means nothing."""

NO_TAKEABLE_VIEW: Final = "no_takeable_view"
"""``end_reason`` of a root at which no view could be taken: it has no reward."""

LARGEST = 1e150
"""Largest number of a result; squares and sums of such numbers are finite."""

_LARGEST_INDEX = 1 << 53
"""What every program that reads JSON takes for a whole number."""

_MEASURES = frozenset({bool, int, float})

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
    """All results of one agent, in the order they came: task, rollout, and every numeric field.

    ``refused`` and ``no_view`` mark results without a reward: of a target without a label, or of a root without a view
    that can be taken.
    """

    tasks: array[int] = field(default_factory=lambda: array("q"))
    rollouts: array[int] = field(default_factory=lambda: array("q"))
    refused: array[int] = field(default_factory=lambda: array("b"))
    no_view: array[int] = field(default_factory=lambda: array("b"))
    numbers: defaultdict[str, array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    flags: defaultdict[str, array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))

    def add(self, key: RolloutId, result: Mapping[str, Any]) -> None:
        """Take one result's key and its numbers; what it does not have is NaN."""
        place = len(self.tasks)
        for name, value in result.items():
            kind = type(value)
            if kind not in _MEASURES or name in IDENTIFIERS or name.startswith("_"):
                continue
            if kind is not bool and not abs(value) <= LARGEST:
                raise ResultsRefused(f"{name} must be null or a number from -{LARGEST:g} to {LARGEST:g}, got {value}")
            column = (self.flags if kind is bool else self.numbers)[name]
            if len(column) < place:
                _pad(column, place)
            column.append(value)
        self.tasks.append(key[1])
        self.rollouts.append(key[2])
        self.refused.append(result.get("status") == "refused")
        self.no_view.append(result.get("end_reason") == NO_TAKEABLE_VIEW)

    def column(self, columns: Mapping[str, array[float]], name: str) -> NDArray[np.float64]:
        """(results,) float64, NaN where a result had no such number."""
        _pad(columns[name], len(self.tasks))
        return np.array(columns[name], np.float64)


def _pad(column: array[float], length: int) -> None:
    column.extend([math.nan] * (length - len(column)))


def _index(result: Mapping[str, Any], name: str) -> int:
    value = result.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_INDEX:
        raise ResultsRefused(f"{name} must be a whole number from 0 to 2**53, got {value!r}")
    return value
