"""The campaigns that this machine has, and their definitions put together."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import dagster as dg

from rollout_assets.config import data_home, shipped_campaigns
from rollout_assets.defs.assets import campaign_assets
from rollout_assets.defs.checks import campaign_checks
from rollout_assets.defs.clock import campaign_clocks
from rollout_assets.defs.jobs import campaign_jobs
from rollout_assets.defs.keys import CampaignKeys
from rollout_assets.defs.resources import CAMPAIGN_FILES
from rollout_assets.defs.schedules import campaign_schedules
from rollout_assets.defs.sensors import campaign_sensors
from rollout_assets.defs.shards.chain import shard_step
from rollout_assets.defs.upkeep.jobs import upkeep_jobs
from rollout_assets.errors import ConfigError, RolloutAssetsError
from rollout_assets.locations.url import Location, resolved

BROKEN = "broken_campaigns"
"""Asset group of campaigns whose files cannot be used."""

CAMPAIGNS_VARIABLE = "ROLLOUT_ASSETS_CAMPAIGNS"
"""Environment variable with further campaign files, separated like ``PATH``; ``rollout-assets ui`` sets it."""


def warn_without_home() -> None:
    """Say that an instance without a home is a temporary one, which plain ``dagster dev`` starts without much ado."""
    if not os.environ.get("DAGSTER_HOME"):
        warnings.warn(
            "DAGSTER_HOME is not set: this instance is temporary and knows no earlier run. 'rollout-assets ui' starts "
            f"the UI with the right home; or set DAGSTER_HOME={data_home()} and start it again",
            stacklevel=2,
        )


def known_campaigns() -> tuple[str, ...]:
    """Shipped campaigns, every TOML file in ``<home>/campaigns``, and the files that the environment names."""
    folder = sorted(str(path) for path in (data_home() / "campaigns").glob("*.toml"))
    named = [part for part in os.environ.get(CAMPAIGNS_VARIABLE, "").split(os.pathsep) if part]
    return tuple(dict.fromkeys((*shipped_campaigns(), *folder, *named)))


def build_definitions(campaigns: Iterable[str | Path]) -> dg.Definitions:
    """The definitions of some campaigns; one that cannot be used is a ``ConfigError``, as are two that share files."""
    accepted = AcceptedCampaigns()
    for campaign in campaigns:
        accepted.add(campaign)
    return _definitions(accepted.keys, [])


def build_all_definitions(campaigns: Iterable[str | Path]) -> dg.Definitions:
    """The definitions of all campaigns that can be used. Each of the others is one asset that says what is wrong."""
    accepted, broken = AcceptedCampaigns(), []
    for campaign in campaigns:
        try:
            accepted.add(campaign)
        except RolloutAssetsError as error:
            warnings.warn(f"a campaign was left out: {error}", stacklevel=2)
            broken.append(_broken_campaign(str(campaign), str(error)))
    return _definitions(accepted.keys, broken)


class AcceptedCampaigns:
    """Campaigns that can live side by side: two of one name or one output folder are refused."""

    def __init__(self) -> None:
        self._by_name: dict[str, CampaignKeys] = {}
        self._by_folder: dict[Location, CampaignKeys] = {}

    @property
    def keys(self) -> list[CampaignKeys]:
        """Those that were accepted, in order."""
        return list(self._by_name.values())

    def add(self, campaign: str | Path) -> None:
        """Accept one more; a ``ConfigError`` says why it cannot be, and leaves the others as they are."""
        keys = CampaignKeys.of(campaign)
        first = self._by_name.get(keys.name, keys)
        if first.campaign != keys.campaign:
            raise ConfigError(f"{first.campaign} and {keys.campaign} are both campaign {keys.name}; rename one")
        folder = resolved(keys.config.shards.output_dir)
        first = self._by_folder.get(folder, keys)
        if first.campaign != keys.campaign:
            both = f"{first.campaign} and {keys.campaign} both write into {folder}"
            raise ConfigError(f"{both}; give one of them another shards.output_dir")
        self._by_name[keys.name] = self._by_folder[folder] = keys


def _broken_campaign(campaign: str, problem: str) -> dg.AssetSpec:
    """A campaign's place in the catalog while its file cannot be used."""
    stem = "".join(letter if letter.isalnum() else "_" for letter in Path(campaign).stem)
    digest = hashlib.sha256(campaign.encode()).hexdigest()[:6]
    return dg.AssetSpec(
        dg.AssetKey([BROKEN, f"{stem}_{digest}"]),
        group_name=BROKEN,
        description=f"This campaign cannot be used as it is. Fix its file, then reload the code location.\n\n{problem}",
        metadata={"campaign": dg.MetadataValue.path(campaign)},
    )


def _definitions(campaigns: Sequence[CampaignKeys], broken: Sequence[dg.AssetSpec]) -> dg.Definitions:
    jobs = {keys.name: campaign_jobs(keys) for keys in campaigns}
    return dg.Definitions(
        assets=[
            *broken,
            *(asset for keys in campaigns for asset in campaign_assets(keys)),
            *(shard_step(keys) for keys in campaigns),
        ],
        asset_checks=[check for keys in campaigns for check in campaign_checks(keys)],
        jobs=[job for keys in campaigns for job in (*jobs[keys.name].values(), *upkeep_jobs(keys))],
        sensors=[sensor for keys in campaigns for sensor in campaign_sensors(keys, jobs[keys.name])],
        schedules=[
            schedule
            for keys in campaigns
            for schedule in (*campaign_schedules(keys, jobs[keys.name]), *campaign_clocks(keys))
        ],
        resources={"campaigns": CAMPAIGN_FILES},
        executor=dg.in_process_executor,
    )
