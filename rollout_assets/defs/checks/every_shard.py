"""Checks of all shards in one run, for a run that names none: the button *Execute all* of the UI starts such runs.

Each check gets one result: how many of the finished shards pass it, and what is wrong with the others. It is an
evaluation and not an ``AssetCheckResult``, because Dagster looks for the one materialization that a result is about,
and here there are many. What is recorded of each partition stays what its own run found: Dagster takes results of a
partition only from a run of that partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import dagster as dg

from rollout_assets.campaigns.columns.survey import CampaignSurvey
from rollout_assets.campaigns.plan_entry import shard_id_of
from rollout_assets.defs.checks.verdict import verdict
from rollout_assets.defs.metadata import SHOWN_ROWS, Metadata, evidence, table
from rollout_assets.defs.step import CampaignStep

CheckOutcome = dg.AssetCheckResult | dg.AssetCheckEvaluation
"""What the checks of shards yield: results for the shard of a run, evaluations where a run names none."""

ShardChecks = Callable[[CampaignStep], Iterable[CheckOutcome]]
"""Evaluates the checks of the shard that a step is about."""


@dataclass
class _Tally:
    """What became of one check over many shards; only as many failures are kept as are shown."""

    shards: int = 0
    failed: int = 0
    errors: int = 0
    shown: list[Metadata] = field(default_factory=list)

    def add(self, shard_id: str, result: dg.AssetCheckResult) -> None:
        self.shards += 1
        if result.passed:
            return
        self.failed += 1
        self.errors += result.severity == dg.AssetCheckSeverity.ERROR
        if len(self.shown) < SHOWN_ROWS:
            self.shown.append({"shard": shard_id, "why": result.description or _first_evidence(result)})


def every_shard(
    step: CampaignStep, asset: str, checks: Iterable[str], evaluate: ShardChecks
) -> Iterator[dg.AssetCheckEvaluation]:
    """Check every shard that is built, and yield one result for each check."""
    survey = CampaignSurvey.of(step.config)
    built = [number for number, place in enumerate(survey.finished.place.tolist()) if place >= 0]
    tallies: defaultdict[str, _Tally] = defaultdict(_Tally)
    for shard_id in map(shard_id_of, built):
        for result in evaluate(replace(step, partition=shard_id)):
            assert isinstance(result, dg.AssetCheckResult)  # the step names a shard
            tallies[str(result.check_name)].add(shard_id, result)
    for check in checks:
        yield _evaluation(step.keys.key(asset), _verdict(check, tallies[check], len(survey.planned)))


def _verdict(check: str, tally: _Tally, planned: int) -> dg.AssetCheckResult:
    counts = {"shards_planned": planned, "shards_checked": tally.shards, "shards_failed": tally.failed}
    if tally.shards:
        description = f"{tally.shards - tally.failed} of {tally.shards} shards pass"
    else:
        description = "No shard is built yet: materialize rollout_shards first."
    passed = bool(tally.shards) and not tally.failed
    metadata = {**counts, **evidence(table(tally.shown))}
    return verdict(check, passed, metadata, warns=not tally.errors, description=description)


def _evaluation(key: dg.AssetKey, result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """A result as the instance keeps it."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=str(result.check_name),
        passed=result.passed,
        metadata=result.metadata,
        severity=result.severity,
        description=result.description,
    )


def _first_evidence(result: dg.AssetCheckResult) -> str:
    shown = (result.metadata or {}).get("evidence")
    if not isinstance(shown, dg.TableMetadataValue) or not shown.records:
        return ""
    return ", ".join(f"{name} {value}" for name, value in shown.records[0].data.items() if value != "")
