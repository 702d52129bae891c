"""The resource by which every step reads its campaign."""

import dagster as dg

from rollout_assets.config import CampaignConfig, load_campaign


class CampaignFiles(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The files of all campaigns. A step asks for its own, so that one resource serves every campaign."""

    def load(self, campaign: str) -> CampaignConfig:
        """A campaign as its file says now; a device or path edited there is used by the next run.

        ``campaign`` is the path of its TOML file, or the name of one that ships with the package.
        """
        return load_campaign(campaign)


CAMPAIGN_FILES = CampaignFiles()
"""The one object, because Dagster joins definitions only if what they share is the same."""
