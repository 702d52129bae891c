"""Metrics of collected results, per agent and per task; needs no server and no order of lines.

Results are sorted by key before anything is added up, so the same results give the same metrics to the bit however they
were collected. A refused result has no reward and counts as refused, never as zero; so does a root at which no view
could be taken, as ``no_view``. Every figure says how many values it stands on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rollout_assets.config import ConfigSection, Count, Finite, Natural, Number, canonical_json
from rollout_assets.errors import ResultsRefused
from rollout_assets.files import publishing
from rollout_assets.metrics.columns import AgentColumns, RolloutId, rollout_id
from rollout_assets.metrics.estimators import best_of_first, bootstrap_intervals, success_within
from rollout_assets.metrics.summaries import Floats, Ints, Summaries, group_sizes, summarize
from rollout_assets.randomness import rng_for

REWARD = "reward"
KINDS = ("mean", "max", "min", "median", "std")


class MetricOptions(ConfigSection):
    """Settings of aggregation."""

    success_threshold: Finite = 0.1
    """A reward of at least this is a success; 0.1 is a tenth of the error at the root."""
    bootstrap_samples: Count = 1_000
    confidence: Annotated[Number, Field(gt=0, lt=1)] = 0.95
    seed: Natural = 0


TaskCounts = Mapping[tuple[str, int], int]
"""(agent, task) -> a number of rollouts."""


class ResultTable:
    """Results taken one by one; keeps a few numbers of each."""

    def __init__(self) -> None:
        self._agents: dict[str, AgentColumns] = {}

    def add(self, result: Mapping[str, Any], key: RolloutId | None = None) -> None:
        """Take one result line. ``key`` saves looking it up again."""
        key = key or rollout_id(result)
        self._agents.setdefault(key[0], AgentColumns()).add(key, result)

    def add_all(self, results: Iterable[Mapping[str, Any]]) -> None:
        """Take results in turn; one that cannot be taken is ``ResultsRefused`` with its number."""
        for number, result in enumerate(results):
            try:
                self.add(result)
            except ResultsRefused as error:
                raise ResultsRefused(f"result {number}: {error}") from None

    @property
    def columns(self) -> int:
        """Agents and their numeric fields: what the time of ``metrics`` grows with, beside the number of results."""
        return sum(1 + len(agent.numbers) + len(agent.flags) for agent in self._agents.values())

    def metrics(
        self,
        options: MetricOptions | None = None,
        *,
        expected: TaskCounts | None = None,
        failed: TaskCounts | None = None,
    ) -> list[dict[str, Any]]:
        """One entry per agent in name order, agents that were expected and gave nothing included."""
        options = options or MetricOptions()
        names = {*self._agents, *(agent for agent, _ in expected or ()), *(agent for agent, _ in failed or ())}
        return [
            _AgentTable(name, self._agents.get(name, AgentColumns())).entry(options, expected, failed or {})
            for name in sorted(names)
        ]


def aggregate_results(
    results: Iterable[Mapping[str, Any]],
    options: MetricOptions | None = None,
    *,
    expected: TaskCounts | None = None,
    failed: TaskCounts | None = None,
) -> list[dict[str, Any]]:
    """Metrics of result lines, one entry per agent in name order.

    ``agent_metrics`` holds ``<field>/{mean,max,min,median,std,count}`` over all rollouts and ``<flag>/rate``;
    ``key_metrics`` the mean over tasks of their mean reward, ``best@k`` and ``success@k``, each with the number of
    tasks that have k rollouts and a task-level bootstrap interval; ``group_level_metrics`` the same fields per task.
    ``expected`` and ``failed`` count rollouts by agent and task; where nothing is expected, ``missing`` is null.
    A key that comes twice is ``ResultsRefused``.
    """
    table = ResultTable()
    table.add_all(results)
    return table.metrics(options, expected=expected, failed=failed)


def metrics_json(entries: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Parts of a JSON array in which an agent and each of its tasks have a line; keys are sorted within them."""
    before = b"[\n"
    for entry in entries:
        groups = entry["group_level_metrics"]
        agent = canonical_json({name: value for name, value in entry.items() if name != "group_level_metrics"})
        yield before + agent[:-1] + b',"group_level_metrics":['
        yield from ((b"\n" if at == 0 else b",\n") + canonical_json(group) for at, group in enumerate(groups))
        yield b"\n]}"
        before = b",\n"
    yield b"\n]\n" if before != b"[\n" else b"[]\n"


def publish_metrics(path: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Write ``<stem>_aggregate_metrics.json``, whole or not at all."""
    with publishing(path) as scratch, scratch.open("wb") as stream:
        stream.writelines(metrics_json(entries))


class _AgentTable:
    """One agent's results in the order of their keys."""

    def __init__(self, name: str, columns: AgentColumns) -> None:
        self.name = name
        tasks, rollouts = np.array(columns.tasks, np.int64), np.array(columns.rollouts, np.int64)
        order = np.lexsort((rollouts, tasks))
        self.tasks, rollouts = tasks[order], rollouts[order]
        self._refuse_duplicates(rollouts)
        self.refused = np.array(columns.refused, np.bool_)[order]
        self.no_view = np.array(columns.no_view, np.bool_)[order]
        self.numbers = {field: columns.column(columns.numbers, field)[order] for field in sorted(columns.numbers)}
        self.flags = {field: columns.column(columns.flags, field)[order] for field in sorted(columns.flags)}

    def entry(self, options: MetricOptions, expected: TaskCounts | None, failed: TaskCounts) -> dict[str, Any]:
        own_expected = None if expected is None else self._own(expected)
        own_failed = self._own(failed)
        per_task = self._per_task(own_expected, own_failed)
        return {
            "agent_ref": {"name": self.name},
            "counts": {
                "tasks": len(per_task),
                **self._counts(slice(None), None if own_expected is None else own_expected.total(), own_failed.total()),
            },
            "agent_metrics": self._overall(),
            "key_metrics": self._key_metrics(options),
            "group_level_metrics": per_task,
        }

    def _overall(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for field, column in self.numbers.items():
            summaries = summarize(column[~np.isnan(column)])
            metrics |= {f"{field}/{kind}": values[0] for kind, values in _plain(summaries).items()}
        for field, column in self.flags.items():
            metrics[f"{field}/rate"] = float(summarize(column[~np.isnan(column)]).mean[0])
        return metrics

    def _key_metrics(self, options: MetricOptions) -> dict[str, Any]:
        rewards, starts, _ = self._grouped(self.numbers.get(REWARD, np.empty(0)))
        if not len(starts):
            return {}
        per_task = {f"{REWARD}/mean": summarize(rewards, starts).mean}
        for k in _powers_of_two(int(group_sizes(len(rewards), starts).max())):
            per_task[f"best@{k}"] = best_of_first(rewards, starts, k)
            per_task[f"success@{k}"] = success_within(rewards, starts, k, options.success_threshold)
        intervals: dict[str, tuple[float, float] | None] = {}
        for tasks in {len(values) for values in per_task.values()}:
            columns = {name: values for name, values in per_task.items() if len(values) == tasks}
            rng = rng_for(options.seed, self.name, tasks, "bootstrap")
            intervals |= bootstrap_intervals(columns, options.bootstrap_samples, options.confidence, rng)
        return {
            name: {
                "value": float(summarize(values).mean[0]),
                "tasks": len(values),
                "interval": intervals[name] and list(intervals[name] or ()),
            }
            for name, values in per_task.items()
        }

    def _per_task(self, expected: Counter[int] | None, failed: Counter[int]) -> list[dict[str, Any]]:
        tasks = sorted({*np.unique(self.tasks).tolist(), *(expected or ()), *failed})
        first, end = np.searchsorted(self.tasks, tasks).tolist(), np.searchsorted(self.tasks, tasks, "right").tolist()
        columns = self._task_columns(np.array(tasks, np.int64))
        measured = zip(*columns.values(), strict=True) if columns else ((),) * len(tasks)
        return [
            {
                "_task_index": task,
                **self._counts(slice(*place), None if expected is None else expected[task], failed[task]),
                "metrics": dict(zip(columns, values, strict=True)),
            }
            for task, place, values in zip(tasks, zip(first, end, strict=True), measured, strict=True)
        ]

    def _task_columns(self, tasks: Ints) -> dict[str, list[Any]]:
        """Metric -> one value per task; null, with a count of 0, where a task has no value."""
        columns: dict[str, list[Any]] = {}
        for fields, kinds in ((self.numbers, (*KINDS, "count")), (self.flags, ("mean",))):
            for field, column in fields.items():
                values, starts, grouped_tasks = self._grouped(column)
                plain = _plain(summarize(values, starts))
                at = np.searchsorted(tasks, grouped_tasks).tolist()
                for kind in kinds:
                    full: list[Any] = [0 if kind == "count" else None] * len(tasks)
                    for place, value in zip(at, plain[kind], strict=True):
                        full[place] = value
                    columns[f"{field}/{'rate' if fields is self.flags else kind}"] = full
        return columns

    def _grouped(self, column: Floats) -> tuple[Floats, Ints, Ints]:
        """The values present, the first position of each task that has any, and those tasks."""
        present = ~np.isnan(column)
        tasks, starts = np.unique(self.tasks[present], return_index=True) if len(column) else (self.tasks[:0],) * 2
        return column[present], starts.astype(np.int64), tasks

    def _counts(self, places: slice, expected: int | None, failed: int) -> dict[str, int | None]:
        done = len(self.tasks[places])
        return {
            "expected": expected,
            "done": done,
            "refused": int(self.refused[places].sum()),
            "no_view": int(self.no_view[places].sum()),
            "failed": failed,
            "missing": None if expected is None else expected - done - failed,
        }

    def _own(self, counts: TaskCounts) -> Counter[int]:
        return Counter({task: count for (agent, task), count in counts.items() if agent == self.name})

    def _refuse_duplicates(self, rollouts: Ints) -> None:
        twice = np.flatnonzero((np.diff(self.tasks) == 0) & (np.diff(rollouts) == 0))
        if len(twice):
            at = twice[0]
            raise ResultsRefused(
                f"agent {self.name}: task {self.tasks[at]} rollout {rollouts[at]} comes more than once; "
                f"a rollout counts once, so leave one of them out"
            )


def _plain(summaries: Summaries) -> dict[str, list[Any]]:
    """Kind -> plain values per group; a figure that does not exist is null."""
    figures: dict[str, list[Any]] = {
        kind: [None if value != value else value for value in getattr(summaries, kind).tolist()] for kind in KINDS
    }
    return figures | {"count": summaries.count.tolist()}


def _powers_of_two(largest: int) -> list[int]:
    """1, 2, 4, … up to ``largest``, and ``largest`` itself."""
    return sorted({*(1 << power for power in range(largest.bit_length())), largest})
