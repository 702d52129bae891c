"""What a check says while the thing that it checks does not exist yet: a warning with what to do, not a failed run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import dagster as dg

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.working_copy import refresh_plan, refresh_versions
from rollout_assets.campaigns.versions import current_name
from rollout_assets.defs.checks.verdict import verdict
from rollout_assets.defs.step import CampaignStep
from rollout_assets.evaluation.result import RESULT_FILE

Needed = Literal["plan", "promoted store", "evaluation"]
"""What a group of checks cannot do without."""


def not_yet(step: CampaignStep, needed: Needed) -> str | None:
    """Why there is nothing to check, and what to do about it; None if there is something."""
    return _REASONS[needed](CampaignLayout.of(step.config))


def unchecked(checks: Iterable[str], reason: str) -> Iterator[dg.AssetCheckResult]:
    """The verdict of checks that had nothing to look at."""
    return (verdict(check, False, {"not_checked": reason}, warns=True, description=reason) for check in checks)


def _no_plan(layout: CampaignLayout) -> str | None:
    refresh_plan(layout)
    return None if layout.plan.exists() else "No rollout shard is planned yet: materialize rollout_shard_plan first."


def _nothing_promoted(layout: CampaignLayout) -> str | None:
    refresh_versions(layout)
    if current_name(layout) is not None:
        return None
    return "Nothing is promoted yet: materialize rollouts_zarr when all shards are validated."


def _nothing_evaluated(layout: CampaignLayout) -> str | None:
    if (layout.evaluation / RESULT_FILE).is_file():
        return None
    return "No policy is evaluated yet: materialize trained_policy and policy_evaluation first."


_REASONS: Mapping[Needed, Callable[[CampaignLayout], str | None]] = {
    "plan": _no_plan,
    "promoted store": _nothing_promoted,
    "evaluation": _nothing_evaluated,
}
