"""`rollout-assets campaign clean`: what of a campaign nobody needs any more, and how to get rid of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_assets.commands.settings import CampaignSettings, read_settings
from rollout_assets.commands.terminal import AsJson, CampaignOption, green, print_json, print_table, say, yellow
from rollout_assets.config import DEMO_CAMPAIGN, data_home, load_campaign
from rollout_assets.errors import counted

if TYPE_CHECKING:
    from rollout_assets.campaigns.cleaning.removable import Removable

SHOWN_PER_KIND = 20
"""Things of one kind that are listed; the result in JSON has all of them."""


def clean(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    apply: Annotated[
        bool, typer.Option("--yes", "--apply", help="Remove it; without this option it is only listed.")
    ] = False,
    home: Annotated[
        Path | None, typer.Option(help="The home of Dagster's instance; default: the data home.", metavar="DIR")
    ] = None,
    settings: CampaignSettings = None,
    as_json: AsJson = False,
) -> None:
    """List what nobody needs any more, with its size and the reason, and remove it with --yes.

    Old promoted versions, what builds set aside, leftovers of dead attempts, replaced plans, notes about failures,
    old trainings, unused observations, and old runs of Dagster. The campaign's section [retention] says how much of
    each stays. Whatever a version, a pin, a link or a plan still refers to stays in any case.
    """
    config = load_campaign(campaign, read_settings(settings))
    from rollout_assets.campaigns.cleaning.clean import clean_campaign

    cleaning = clean_campaign(config, apply=apply)
    runs = _old_runs(campaign, home or data_home(), apply)
    found = (*cleaning.found, *runs)
    removed = (*cleaning.removed, *runs) if apply else ()
    if as_json:
        print_json({"found": found, "removed": [item.name for item in removed], "kept_back": cleaning.kept_back})
        return
    _show(found)
    for reason in cleaning.kept_back:
        say(yellow("kept back"), f" {reason}")
    total = f"{counted(len(found), 'thing')}, {sum(item.bytes for item in found) / 1e6:,.1f} MB"
    if apply:
        say(green("removed"), f" {len(removed)} of {total}")
    elif found:
        say(f"{total} may go; ", yellow("nothing was removed"), ": --yes removes it")
    else:
        say("nothing to clean")


def _old_runs(campaign: str, home: Path, apply: bool) -> Sequence[Removable]:
    """Old runs of the campaign in a home of Dagster, if there is one; they are removed if ``apply``."""
    if not (home / "dagster.yaml").is_file() or find_spec("dagster") is None:
        return ()
    # Not at the top: Dagster takes a second to import, and most commands about campaigns do without it.
    old_runs: Any = import_module("rollout_assets.defs.upkeep.old_runs")
    return old_runs.clean_runs(campaign, home, apply=apply)


def _show(found: Sequence[Removable]) -> None:
    for kind, items in groupby(found, key=lambda item: item.kind):
        listed = list(items)
        rows = [(item.name, item.bytes / 1e6, item.why) for item in listed[:SHOWN_PER_KIND]]
        more = f", the first {SHOWN_PER_KIND}" if len(listed) > SHOWN_PER_KIND else ""
        print_table(f"{kind}: {len(listed)}{more}", ("name", "MB", "why it may go"), rows)
