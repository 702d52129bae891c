"""The store a command is about, and the campaign that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader

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
    """The store at a place; anything else there is one clear line."""
    from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader
    from rollout_assets.rollouts.zarr_store.schema import ROLLOUT_ZARR_SCHEMA_ID

    reader = RolloutZarrStoreReader(store)
    if reader.attributes.get("schema_id") != ROLLOUT_ZARR_SCHEMA_ID:
        below = "; give one of the stores below it" if not reader.attributes else ""
        raise StoreError(f"{store}: is not a rollout store: schema id is {reader.attributes.get('schema_id')!r}{below}")
    return reader


def required_campaign(reader: RolloutZarrStoreReader, campaign: str | None) -> CampaignConfig:
    """The same, where there must be one."""
    found = campaign_of(reader, campaign)
    assert found is not None
    return found


def campaign_of(
    reader: RolloutZarrStoreReader, campaign: str | None, *, required: bool = True
) -> CampaignConfig | None:
    """The named campaign, or the one that the manifest records; having neither is an error if it is ``required``."""
    from rollout_assets.inspection.provenance import recorded_campaign

    if campaign is not None:
        return load_campaign(campaign)
    recorded = recorded_campaign(reader)
    if recorded is None and required:
        raise ConfigError(f"{reader.location}: its manifest records no campaign; name it with --campaign")
    return recorded
