"""`rollout-assets config`: look at a campaign file."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_assets.commands.terminal import AsJson, green, print_json, print_table, say, show
from rollout_assets.config import DEMO_CAMPAIGN, load_campaign, shipped_campaigns

app = typer.Typer(help="Show, hash and validate campaign files.", no_args_is_help=True)

Campaign = Annotated[
    str, typer.Argument(help="A campaign TOML file, or the name of a shipped one.", metavar="CAMPAIGN")
]


@app.command("show")
def show_campaign(campaign: Campaign = DEMO_CAMPAIGN) -> None:
    """Print a campaign with every default written out, as JSON."""
    print_json(load_campaign(campaign))


@app.command("hash")
def show_hashes(campaign: Campaign = DEMO_CAMPAIGN, as_json: AsJson = False) -> None:
    """Print the digests that decide whether stored data is current."""
    title, columns = f"config hashes of {campaign}", ("section", "sha256")
    show(load_campaign(campaign).hashes(), as_json, lambda hashes: print_table(title, columns, list(hashes.items())))


@app.command()
def validate(campaign: Campaign = DEMO_CAMPAIGN) -> None:
    """Check a campaign file and name every problem in it."""
    config = load_campaign(campaign)
    views = config.candidates.num_candidates
    say(green("ok"), f": campaign {config.name}, {len(config.recipes)} recipes, {views} views a step")


@app.command("list")
def list_campaigns(as_json: AsJson = False) -> None:
    """List the campaigns that ship with the package."""
    show(shipped_campaigns(), as_json, lambda names: say("\n".join(names)))
