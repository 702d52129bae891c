"""The store a command is about, and the campaign that made it.

What is not there is refused here, before zarr and polars are imported, in the words of the function that would open it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError, SourceError, StoreError
from rollout_assets.locations.url import is_url, parse_location
from rollout_assets.parsing import expand_path

if TYPE_CHECKING:
    from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader

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


def refuse_missing_store(store: str | Path) -> None:
    """Refuse a rollout store whose folder does not exist; a URL is checked when it is opened."""
    if not is_url(store) and not (folder := expand_path(store).resolve()).is_dir():
        raise StoreError(f"{folder}: no rollout store there")


def refuse_missing_source(store: str | Path) -> None:
    """Refuse a folder that holds no source store; a URL is checked when it is opened."""
    place = parse_location(store)
    if isinstance(place, Path) and not (place / "manifest.json").is_file():
        raise SourceError(f"{place.resolve()}: not a VIN offline store (no manifest.json); 'source build' makes one")


def open_store(store: str, split: str | None = None) -> RolloutZarrStoreReader:
    """The rollout store at a place, or of a split of the promoted store there; anything else is refused."""
    place = store_place(store, split)
    from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader

    return RolloutZarrStoreReader(place)


def store_place(store: str, split: str | None = None) -> Path | str:
    """The location of a rollout store, or of a split of the promoted store there."""
    refuse_missing_store(store)
    from rollout_assets.rollouts.zarr_store.open_store import split_location

    return split_location(store, split)


def campaign_of(reader: RolloutZarrStoreReader, campaign: str | None) -> CampaignConfig | None:
    """The named campaign, or the one that the store's manifest records, or None."""
    if campaign is not None:
        return load_campaign(campaign)
    from rollout_assets.inspection.provenance import recorded_campaign

    return recorded_campaign(reader)


def required_campaign(reader: RolloutZarrStoreReader, campaign: str | None) -> CampaignConfig:
    """The named or recorded campaign; having neither is an error."""
    config = campaign_of(reader, campaign)
    if config is None:
        raise ConfigError(f"{reader.location}: its manifest records no campaign; name it with --campaign")
    return config
