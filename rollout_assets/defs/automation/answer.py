"""The answer of one look: the runs that it asks for, or why it asks for none."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import dagster as dg


@dataclass(frozen=True)
class Answer:
    """What a look asks for. ``reason`` says why not more, ``good_until_s`` when time alone may change the answer."""

    requests: tuple[dg.RunRequest, ...] = ()
    reason: str = ""
    good_until_s: float = inf
    events: tuple[dg.AssetMaterialization | dg.AssetObservation, ...] = ()
    new_partitions: tuple[dg.AddDynamicPartitionsRequest, ...] = ()

    def and_also(self, other: Answer) -> Answer:
        """Both answers together."""
        return Answer(
            (*self.requests, *other.requests),
            "; ".join(filter(None, (self.reason, other.reason))),
            min(self.good_until_s, other.good_until_s),
            (*self.events, *other.events),
            (*self.new_partitions, *other.new_partitions),
        )

    def result(self, cursor: str | None = None) -> dg.SensorResult:
        """The answer as a sensor gives it. Dagster takes no reason beside runs."""
        return dg.SensorResult(
            run_requests=self.requests or None,
            skip_reason=None if self.requests else self.reason,
            cursor=cursor,
            dynamic_partitions_requests=self.new_partitions or None,
            asset_events=self.events,
        )
