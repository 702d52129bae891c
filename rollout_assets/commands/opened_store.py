"""The store a command is about, and the campaign that made it."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError
from rollout_assets.inspection.provenance import recorded_campaign
from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
from rollout_assets.rollouts.zarr_store.open_store import split_location

Store = Annotated[
    str, typer.Argument(help="The store's directory, or a URL such as s3://bucket/rollouts.zarr.", metavar="STORE")
]
Split = Annotated[
    str | None, typer.Option("--split", help="The split to look at, where STORE is a promoted store.", metavar="SPLIT")
]
Rollout = Annotated[int | None, typer.Option("--rollout", help="Only this rollout row.", min=0)]
Campaign = Annotated[
    str | None,
    typer.Option(
        "--campaign",
        "-c",
        help="The campaign that made the store; default: the one its manifest records.",
        metavar="FILE|NAME",
    ),
]


def open_store(store: str, split: str | None = None) -> RolloutZarrStoreReader:
    """The rollout store at a place, or of a split of the promoted store there; anything else is refused."""
    return RolloutZarrStoreReader(split_location(store, split))


def campaign_of(reader: RolloutZarrStoreReader, campaign: str | None) -> CampaignConfig | None:
    """The named campaign, or the one that the store's manifest records, or None."""
    return recorded_campaign(reader) if campaign is None else load_campaign(campaign)


def required_campaign(reader: RolloutZarrStoreReader, campaign: str | None) -> CampaignConfig:
    """The named or recorded campaign; having neither is an error."""
    config = campaign_of(reader, campaign)
    if config is None:
        raise ConfigError(f"{reader.location}: its manifest records no campaign; name it with --campaign")
    return config
