"""The resource that tells a run which campaign it belongs to."""

import dagster as dg

from rollout_assets.config import CampaignConfig, load_campaign


class CampaignResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A campaign by the path of its TOML file, or by the name of one that ships with the package."""

    campaign: str

    def load(self) -> CampaignConfig:
        """The campaign as its file says now; a device or path edited there is used by the next run."""
        return load_campaign(self.campaign)
