"""The training that a campaign asks for: on its promoted store, and on those of the rounds before it.

Each training has a folder named by what decides its weights, so that an edited one disturbs no other, one that was
killed goes on, and one that is finished is found again. A link names the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.objects.publishing import publish_policy
from rollout_assets.campaigns.objects.working_copy import refresh_versions
from rollout_assets.config import CampaignConfig, canonical_hash
from rollout_assets.config.training import TrainingConfig
from rollout_assets.errors import ConfigError
from rollout_assets.files import switch_link
from rollout_assets.inspection.provenance import recorded_campaign
from rollout_assets.learning.pinned import open_stores
from rollout_assets.learning.training.data import training_store
from rollout_assets.learning.training.run import TrainingResult, read_metrics, train_policy
from rollout_assets.locations.url import Location, ObjectUrl
from rollout_assets.progress import SILENT, ProgressSink
from rollout_assets.rollouts.zarr_store.pointer import resolve_url
from rollout_assets.rollouts.zarr_store.reader import RolloutZarrStoreReader

CURVES_NAME = "curves.html"

FOLDER_DIGITS = 16
"""Hexadecimal digits of a training's folder."""


@dataclass(frozen=True)
class CampaignTraining:
    """A finished training of a campaign; ``curves`` is None where the packages that draw pages are not installed."""

    config: TrainingConfig
    result: TrainingResult
    curves: Path | None


def train_campaign_policy(campaign: CampaignConfig, progress: ProgressSink = SILENT) -> CampaignTraining:
    """Train the policy of a campaign, go on with a training that was stopped, or find the finished one again."""
    config = campaign_training(campaign)
    result = train_policy(config, config.output_dir, resume=True, progress=progress)
    layout = CampaignLayout.of(campaign)
    curves = write_curves(config, result)
    publish_policy(layout, config.output_dir)
    switch_link(layout.policy, str(config.output_dir.relative_to(layout.root)))
    return CampaignTraining(config, result, curves)


def campaign_training(campaign: CampaignConfig) -> TrainingConfig:
    """The training of a campaign as it is run: its own store as it is promoted now, and a folder by its content."""
    if campaign.training is None:
        raise ConfigError(f"campaign {campaign.name} has no section [training], so there is nothing to train")
    layout = CampaignLayout.of(campaign)
    config = TrainingConfig.model_validate(campaign.training.model_dump())
    config = with_campaigns(config, {campaign.name: campaign})
    stores = tuple(
        _version_of(store) for store in config.stores
    )  # a promotion meanwhile must not exchange what is read
    config = config.model_copy(update={"stores": stores})
    return config.model_copy(update={"output_dir": layout.policies / _content(config)[:FOLDER_DIGITS]})


def with_campaigns(config: TrainingConfig, campaigns: Mapping[str, CampaignConfig]) -> TrainingConfig:
    """The training with the stores and sources of some campaigns too, and with the sources that its stores record.

    ``campaigns``: what messages call a campaign -> the campaign.
    """
    promoted = {name: CampaignLayout.of(campaign).store_location for name, campaign in campaigns.items()}
    for name, campaign in campaigns.items():
        layout = CampaignLayout.of(campaign)
        refresh_versions(layout)
        if not layout.promoted.exists():
            raise ConfigError(f"{promoted[name]}: not there yet; 'rollout-assets campaign promote -c {name}' makes it")
    stores = (*config.stores, *promoted.values())
    if not stores:
        raise ConfigError("nothing to train on; give a training's file with stores, or a campaign with -c")
    sources = [*config.sources, *(campaign.source.store_dir for campaign in campaigns.values())]
    if not config.sources:
        sources += _recorded_sources((*config.stores, *config.validation.stores))
    return config.model_copy(update={"stores": stores, "sources": tuple(dict.fromkeys(sources))})


def _version_of(store: Location) -> Location:
    """The version that a store is now."""
    return resolve_url(store) if isinstance(store, ObjectUrl) else store.resolve()


def _recorded_sources(stores: Iterable[Location]) -> list[Location]:
    """The sources that stores say they were made from."""
    campaigns = [recorded_campaign(RolloutZarrStoreReader(training_store(store))) for store in stores]
    return [campaign.source.store_dir for campaign in campaigns if campaign is not None]


def _content(config: TrainingConfig) -> str:
    """Digest of everything that decides the weights: the settings, and what the stores hold."""
    stores = [training_store(store) for store in (*config.stores, *config.validation.stores)]
    manifests = [reader.attributes.get("manifest_sha256") for reader in open_stores(stores)]
    return canonical_hash({"config": config.config_hash, "stores": manifests})


def write_curves(config: TrainingConfig, result: TrainingResult) -> Path | None:
    """The page beside the checkpoint, where the packages that draw it are installed."""
    if find_spec("plotly") is None:
        return None
    from rollout_assets.reports.training_page import write_training_page  # needs an extra that training does not

    facts: dict[str, Any] = {
        "checkpoint": result.checkpoint_sha256,
        "training config": config.config_hash,
        "head": config.head,
        "stopped by": result.stopped_by,
        "minutes": result.seconds / 60,
        "stores": ", ".join(map(str, config.stores)),
    }
    return write_training_page(result.folder / CURVES_NAME, "Training", facts, read_metrics(result.folder))
