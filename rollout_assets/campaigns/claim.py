"""Whose output folder is it? The first campaign that plans into a folder claims it; every other one is refused.

Two campaigns in one folder would take each other's shards for damaged ones and set them aside for ever, and readers of
one would get the data of the other. A campaign is known by its name: an edited campaign is the same one, and goes on in
its folder. Where the claim was lost, the promoted store says whose it is.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ValidationError

from rollout_assets.campaigns.layout import CampaignLayout, StoredModel
from rollout_assets.campaigns.objects.publishing import publish_claim
from rollout_assets.campaigns.objects.working_copy import refresh_plan
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import CampaignError
from rollout_assets.files import make_folder, now_utc, publish_json
from rollout_assets.parsing import parse_json, read_regular
from rollout_assets.rollouts.zarr_store.documents import PROMOTION_ATTRIBUTE, ZARR_JSON


class OutputClaim(StoredModel):
    """``campaign.json``: the campaign that writes into the folder."""

    claim_version: Literal["rollout-output-claim-v1"] = "rollout-output-claim-v1"
    campaign: str
    since_utc: str


def claim_output_dir(config: CampaignConfig) -> None:
    """Claim a campaign's output folder, or refuse one that is another's; call it with the plan's lock held."""
    layout = CampaignLayout.of(config)
    refuse_other_campaign(config)
    if not layout.claim.exists():
        make_folder(layout.root)
        claim = OutputClaim(campaign=config.name, since_utc=now_utc())
        publish_json(layout.claim, claim.model_dump(mode="json"))
        if not publish_claim(layout, layout.claim.read_bytes()):
            refresh_plan(layout)
            refuse_other_campaign(config)


def refuse_other_campaign(config: CampaignConfig) -> None:
    """Raise ``CampaignError`` if a campaign's output folder belongs to another campaign.

    One without a claim belongs to the campaign whose promoted store readers get from it; without that, it is free.
    """
    layout = CampaignLayout.of(config)
    path = layout.claim
    try:
        claim = OutputClaim.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        _refuse_promoted_by_other(config, layout)
        return
    except ValidationError:
        where, what = (path, "file") if layout.url is None else (layout.url / path.name, "object")
        raise CampaignError(
            f"{where}: does not say whose folder this is; if it is that of campaign {config.name!r}, remove the "
            f"{what}, then 'rollout-assets campaign plan' writes it again"
        ) from None
    if claim.campaign != config.name:
        raise CampaignError(
            f"{path.parent}: belongs to campaign {claim.campaign!r} since {claim.since_utc}, and this is campaign "
            f"{config.name!r}: give it another shards.output_dir (or, if {claim.campaign!r} was only renamed, write "
            f"its new name into {path.name} there)"
        )


def _refuse_promoted_by_other(config: CampaignConfig, layout: CampaignLayout) -> None:
    owner = _promoted_by(layout)
    if owner not in (None, config.name):
        raise CampaignError(
            f"{layout.place}: readers get the store of campaign {owner!r} from there, and this is campaign "
            f"{config.name!r}: give it another shards.output_dir ({layout.claim.name}, which says whose folder it is, "
            f"is lost; 'rollout-assets campaign plan' of {owner!r} writes it again)"
        )


def _promoted_by(layout: CampaignLayout) -> str | None:
    """The campaign that the promoted store names; None if there is none, or it does not say."""
    try:
        document: Any = parse_json(read_regular(layout.promoted / ZARR_JSON))
        return str(document["attributes"][PROMOTION_ATTRIBUTE]["campaign"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
