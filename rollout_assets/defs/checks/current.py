"""The check that also runs by the clock: whether anything on the way from the source to the promoted store is stale."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from rollout_assets.campaigns.check_names import UP_TO_DATE
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.pin import read_pin
from rollout_assets.campaigns.staleness import stale_parts
from rollout_assets.campaigns.versions import current_name
from rollout_assets.defs.checks.verdict import verdict
from rollout_assets.defs.metadata import evidence, page, table
from rollout_assets.defs.step import CampaignStep


def up_to_date(step: CampaignStep) -> Iterator[dg.AssetCheckResult]:
    """Compare source, plan, campaign, shards and promoted store as they are now."""
    stale = stale_parts(step.config, step.source)
    layout = CampaignLayout.of(step.config)
    pin = read_pin(layout)
    shown = [{"what": part.what, "why": part.why, "to go on": part.remedy} for part in stale]
    metadata = {
        "stale": len(stale),
        "version": current_name(layout) or "",
        "pin": "" if pin is None else str(pin),
        **evidence(table(shown)),
    }
    more = f", and {len(stale) - 1} more" if len(stale) > 1 else ""
    description = f"{stale[0].what}: {stale[0].why}{more}" if stale else None
    yield verdict(UP_TO_DATE, not stale, page(metadata), warns=True, description=description)
