"""Dagster's catalog, told by a command that changes which version readers get; nobody has to wait for a sensor."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rollout_assets.commands.terminal import warn, yellow
from rollout_assets.config import data_home


def tell_catalog(campaign: str) -> None:
    """Let the catalog of the data home know which version readers get, if there is one and it says otherwise.

    The command has done its work by then. A catalog that cannot be reached gives a warning, and nothing else.
    """
    home = data_home()
    if not (home / "dagster.yaml").is_file() or find_spec("dagster") is None:
        return
    try:
        # Not at the top: Dagster takes a second to import, and most commands about campaigns do without it.
        catalog: Any = import_module("rollout_assets.defs.catalog")
        catalog.tell_catalog(campaign, home)
    except Exception as error:
        warn(yellow("warning:"), f" Dagster's catalog in {home} was not told: {error}; the promotion sensor tells it")
