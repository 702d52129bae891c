"""The campaigns that this machine has, and their definitions put together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import dagster as dg

from rollout_assets.config import data_home, shipped_campaigns
from rollout_assets.defs.assets import campaign_assets
from rollout_assets.defs.checks import campaign_checks
from rollout_assets.defs.jobs import campaign_jobs
from rollout_assets.defs.keys import CampaignKeys
from rollout_assets.defs.resources import CampaignResource
from rollout_assets.defs.schedules import campaign_schedules
from rollout_assets.defs.sensors import campaign_sensors
from rollout_assets.errors import ConfigError

CAMPAIGNS_VARIABLE = "ROLLOUT_ASSETS_CAMPAIGNS"
"""Environment variable with further campaign files, separated like ``PATH``; ``rollout-assets ui`` sets it."""


def known_campaigns() -> tuple[str, ...]:
    """Shipped campaigns, every TOML file in ``<home>/campaigns``, and the files that the environment names."""
    folder = sorted(str(path) for path in (data_home() / "campaigns").glob("*.toml"))
    named = [part for part in os.environ.get(CAMPAIGNS_VARIABLE, "").split(os.pathsep) if part]
    return tuple(dict.fromkeys((*shipped_campaigns(), *folder, *named)))


def build_definitions(campaigns: Iterable[str | Path]) -> dg.Definitions:
    """The definitions of some campaigns; two of one name or one output folder are refused: they would share files."""
    by_name: dict[str, CampaignKeys] = {}
    by_folder: dict[Path, CampaignKeys] = {}
    for campaign in campaigns:
        keys = CampaignKeys.of(campaign)
        first = by_name.setdefault(keys.name, keys)
        if first.campaign != keys.campaign:
            raise ConfigError(f"{first.campaign} and {keys.campaign} are both campaign {keys.name}; rename one")
        folder = keys.config.shards.output_dir.resolve()
        first = by_folder.setdefault(folder, keys)
        if first.campaign != keys.campaign:
            both = f"{first.campaign} and {keys.campaign} both write into {folder}"
            raise ConfigError(f"{both}; give one of them another shards.output_dir")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # partitioned checks; our tests hold what we need of them
        warnings.simplefilter("ignore", dg.BetaWarning)
        return _definitions(list(by_name.values()))


def _definitions(campaigns: Sequence[CampaignKeys]) -> dg.Definitions:
    jobs = {keys.name: campaign_jobs(keys) for keys in campaigns}
    return dg.Definitions(
        assets=[asset for keys in campaigns for asset in campaign_assets(keys)],
        asset_checks=[check for keys in campaigns for check in campaign_checks(keys)],
        jobs=[job for keys in campaigns for job in jobs[keys.name].values()],
        sensors=[sensor for keys in campaigns for sensor in campaign_sensors(keys, jobs[keys.name])],
        schedules=[schedule for keys in campaigns for schedule in campaign_schedules(keys, jobs[keys.name])],
        resources={keys.resource_key: CampaignResource(campaign=keys.campaign) for keys in campaigns},
        executor=dg.in_process_executor,
    )
