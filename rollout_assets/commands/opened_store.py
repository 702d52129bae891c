"""The store a command is about, and the campaign that made it."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError, StoreError
from rollout_assets.inspection.provenance import recorded_campaign
from rollout_assets.rollouts.zarr_store import ROLLOUT_ZARR_SCHEMA_ID, RolloutZarrStoreReader

Store = Annotated[str, typer.Argument(help="The store's directory, or an fsspec URL.", metavar="STORE")]
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


def open_store(store: str) -> RolloutZarrStoreReader:
    """The rollout store at a place; anything else there is refused with one clear line."""
    reader = RolloutZarrStoreReader(store)
    schema_id = reader.attributes.get("schema_id")
    if schema_id != ROLLOUT_ZARR_SCHEMA_ID:
        hint = "" if reader.attributes else "; give one of the stores below it"
        raise StoreError(f"{store}: is not a rollout store: schema id is {schema_id!r}{hint}")
    return reader


def campaign_of(reader: RolloutZarrStoreReader, campaign: str | None) -> CampaignConfig | None:
    """The named campaign, or the one that the store's manifest records, or None."""
    return recorded_campaign(reader) if campaign is None else load_campaign(campaign)


def required_campaign(reader: RolloutZarrStoreReader, campaign: str | None) -> CampaignConfig:
    """The named or recorded campaign; having neither is an error."""
    config = campaign_of(reader, campaign)
    if config is None:
        raise ConfigError(f"{reader.location}: its manifest records no campaign; name it with --campaign")
    return config
