"""`rollout-assets report`: one page about a store, or one rollout of it in 3-D."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.commands.opened_store import (
    Campaign,
    Rollout,
    Split,
    Store,
    campaign_of,
    open_store,
    refuse_missing_store,
)
from rollout_assets.commands.terminal import progress_bars, say, warn
from rollout_assets.config import CampaignConfig, load_campaign
from rollout_assets.errors import RolloutAssetsError
from rollout_assets.files import naming
from rollout_assets.progress import ProgressSink

if TYPE_CHECKING:
    from rollout_assets.inspection.stored_opinion import SecondOpinion
    from rollout_assets.rollouts.zarr_store import RolloutZarrStoreReader


def report(
    store: Store,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.", metavar="FILE.html")],
    split: Split = None,
    rollout: Rollout = None,
    campaign: Campaign = None,
) -> None:
    """Write one self-contained page about a store; with --rollout, that rollout in 3-D.

    The 3-D page shows the scene's mesh and points when the campaign's source is there, and goes without them if not.
    With --campaign the page about the store also shows what is measured on the campaign's source: a second opinion on
    `quality.second_opinions_per_split` labels, and weightings of faces compared. Its `[quality]` says what is good.
    Rows that look wrong link to their rollouts in 3-D, in the folder FILE_rollouts beside the page.
    """
    refuse_missing_store(store)
    config = None if campaign is None else load_campaign(campaign)
    from rollout_assets.reports.page import refuse_other_endings
    from rollout_assets.reports.rollout_picture import plot_stored_rollout
    from rollout_assets.reports.store_report import write_store_report

    refuse_other_endings(output)
    reader = open_store(store, split)
    if rollout is None:
        with progress_bars() as progress, naming(output):
            opinion = None if config is None else _opinion(reader, config, progress)
            write_store_report(reader, output, campaign=config, opinion=opinion, progress=progress)
    else:
        with naming(output):
            plot_stored_rollout(reader, rollout, campaign_of(reader, campaign), output)
    say(f"wrote {output}")


def _opinion(reader: RolloutZarrStoreReader, config: CampaignConfig, progress: ProgressSink) -> SecondOpinion | None:
    """A second opinion, or a note on stderr why there is none; the page is written either way."""
    from rollout_assets.reports.quality import measured_opinion

    try:
        return measured_opinion(reader, config, progress)
    except RolloutAssetsError as error:
        warn(f"no second opinion: {error}")
        return None
