"""A campaign as a component, for projects that describe all of their definitions in ``defs.yaml`` files.

type: rollout_assets.defs.component.Campaign
attributes:
  campaign: campaign.toml
"""

from pathlib import Path

import dagster as dg

from rollout_assets.defs.code_location import build_definitions


class Campaign(dg.Component, dg.Model, dg.Resolvable):
    """All assets, checks, jobs, sensors and schedules of one campaign of rollouts.

    ``campaign`` is the path of its TOML file, from the folder of ``defs.yaml``, or the name of a shipped campaign.
    """

    campaign: str

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the campaign; a file that cannot be used is a ``ConfigError``, which names it."""
        beside = Path(context.path) / self.campaign
        return build_definitions([beside if beside.is_file() else self.campaign])
