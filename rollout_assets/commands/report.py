"""`rollout-assets report`: one page about a store, or one rollout of it in 3-D."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rollout_assets.commands.opened_store import Campaign, Rollout, Store, campaign_of, open_store
from rollout_assets.commands.terminal import progress_bars, say
from rollout_assets.config import load_campaign
from rollout_assets.files import naming
from rollout_assets.reports.rollout_picture import plot_stored_rollout
from rollout_assets.reports.store_report import write_store_report


def report(
    store: Store,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.", metavar="FILE.html")],
    rollout: Rollout = None,
    campaign: Campaign = None,
) -> None:
    """Write one self-contained page about a store; with --rollout, that rollout in 3-D.

    The 3-D page shows the scene's mesh and points when the campaign's source is there, and goes without them if not.
    With --campaign the page about the store also compares weightings of faces, measured on the campaign's source.
    """
    reader = open_store(store)
    if rollout is None:
        with progress_bars() as progress, naming(output):
            config = None if campaign is None else load_campaign(campaign)
            write_store_report(reader, output, campaign=config, progress=progress)
    else:
        with naming(output):
            plot_stored_rollout(reader, rollout, campaign_of(reader, campaign), output)
    say(f"wrote {output}")
