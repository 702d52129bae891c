"""`rollout-assets config`: look at a campaign file."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_assets.commands.terminal import AsJson, out, print_json, print_table
from rollout_assets.config import DEMO_CAMPAIGN, load_campaign, shipped_campaigns

app = typer.Typer(help="Show, hash and validate campaign files.", no_args_is_help=True)

Campaign = Annotated[
    str, typer.Argument(help="A campaign TOML file, or the name of a shipped one.", metavar="CAMPAIGN")
]


@app.command()
def show(campaign: Campaign = DEMO_CAMPAIGN) -> None:
    """Print a campaign with every default written out, as JSON."""
    print_json(load_campaign(campaign))


@app.command("hash")
def show_hashes(campaign: Campaign = DEMO_CAMPAIGN, as_json: AsJson = False) -> None:
    """Print the digests that decide whether stored data is current."""
    hashes = load_campaign(campaign).hashes()
    if as_json:
        print_json(hashes)
    else:
        print_table(f"config hashes of {campaign}", ("section", "sha256"), list(hashes.items()))


@app.command()
def validate(campaign: Campaign = DEMO_CAMPAIGN) -> None:
    """Check a campaign file and name every problem in it."""
    config = load_campaign(campaign)
    views = config.candidates.num_candidates
    out.print(
        f"[green]ok[/]: campaign {config.name}, {len(config.recipes)} recipes, {views} views a step", highlight=False
    )


@app.command("list")
def list_campaigns(as_json: AsJson = False) -> None:
    """List the campaigns that ship with the package."""
    names = shipped_campaigns()
    if as_json:
        print_json(names)
    else:
        out.print("\n".join(names), highlight=False)
