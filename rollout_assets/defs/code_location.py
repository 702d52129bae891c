"""Which campaigns this machine knows, and their definitions put together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import dagster as dg

from rollout_assets.config import data_home, shipped_campaigns
from rollout_assets.defs.assets import campaign_assets
from rollout_assets.defs.automation import campaign_automation
from rollout_assets.defs.campaign import CampaignKeys
from rollout_assets.defs.jobs import campaign_jobs
from rollout_assets.defs.shard_checks import shard_checks
from rollout_assets.defs.store_checks import store_checks
from rollout_assets.errors import ConfigError

CAMPAIGNS_VARIABLE = "ROLLOUT_ASSETS_CAMPAIGNS"
"""Environment variable with further campaign files, separated like ``PATH``; ``rollout-assets ui`` sets it."""


def known_campaigns() -> tuple[str, ...]:
    """Shipped campaigns, every TOML file in ``<home>/campaigns``, and what the environment names."""
    folder = sorted(str(path) for path in (data_home() / "campaigns").glob("*.toml"))
    named = [part for part in os.environ.get(CAMPAIGNS_VARIABLE, "").split(os.pathsep) if part]
    return tuple(dict.fromkeys((*shipped_campaigns(), *folder, *named)))


def build_definitions(campaigns: Iterable[str | Path]) -> dg.Definitions:
    """The definitions of some campaigns; two of one name are refused, for they would share partitions and files."""
    places: dict[str, CampaignKeys] = {}
    for campaign in campaigns:
        place = CampaignKeys.of(campaign)
        known = places.setdefault(place.name, place)
        if known.campaign != place.campaign:
            raise ConfigError(f"{known.campaign} and {place.campaign} are both campaign {place.name}; rename one")
    return _definitions(list(places.values()))


def _definitions(places: Sequence[CampaignKeys]) -> dg.Definitions:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks: tried and held by our tests
        warnings.simplefilter("ignore", dg.BetaWarning)
        jobs = {place.name: campaign_jobs(place) for place in places}
        automation = [campaign_automation(place, jobs[place.name]) for place in places]
        return dg.Definitions(
            assets=[asset for place in places for asset in campaign_assets(place)],
            asset_checks=[check for place in places for check in (*shard_checks(place), *store_checks(place))],
            jobs=[job for place in places for job in jobs[place.name].all()],
            sensors=[sensor for parts in automation for sensor in parts.sensors],
            schedules=[parts.schedule for parts in automation],
            resources={place.resource_key: place.resource for place in places},
            executor=dg.in_process_executor,
        )
