"""The code location that ``workspace.yaml`` and ``[tool.dg]`` name: all campaigns that this machine has."""

from __future__ import annotations

import dagster as dg

from rollout_assets.defs.code_location import build_all_definitions, known_campaigns, warn_without_home


@dg.definitions
def defs() -> dg.Definitions:
    """Called by Dagster when it loads the location, so that nothing is read while this module is imported."""
    warn_without_home()
    return build_all_definitions(known_campaigns())
