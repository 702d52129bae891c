"""Whose output folder is it? The first campaign that plans into a folder claims it; every other one is refused.

Two campaigns in one folder would take each other's shards for damaged ones and set them aside for ever. A campaign is
known by its name: an edited campaign is the same one, and goes on in its folder.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationError

from rollout_assets.campaigns.layout import CampaignLayout, StoredModel
from rollout_assets.campaigns.objects.publishing import publish_claim
from rollout_assets.campaigns.objects.working_copy import refresh_plan
from rollout_assets.config import CampaignConfig
from rollout_assets.errors import CampaignError
from rollout_assets.files import now_utc, publish_json


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
        claim = OutputClaim(campaign=config.name, since_utc=now_utc())
        publish_json(layout.claim, claim.model_dump(mode="json"))
        if not publish_claim(layout, layout.claim.read_bytes()):
            refresh_plan(layout)
            refuse_other_campaign(config)


def refuse_other_campaign(config: CampaignConfig) -> None:
    """Raise ``CampaignError`` if a campaign's output folder belongs to another campaign; an unclaimed one is free."""
    path = CampaignLayout.of(config).claim
    try:
        claim = OutputClaim.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return
    except ValidationError:
        raise CampaignError(
            f"{path}: does not say whose folder this is; if it is that of campaign {config.name!r}, remove the file"
        ) from None
    if claim.campaign != config.name:
        raise CampaignError(
            f"{path.parent}: belongs to campaign {claim.campaign!r} since {claim.since_utc}, and this is campaign "
            f"{config.name!r}: give it another shards.output_dir (or, if {claim.campaign!r} was only renamed, remove "
            f"{path.name} there)"
        )
