"""`rollout-assets config`: look at a campaign file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from rollout_assets.commands.terminal import AsJson, green, print_json, print_table, say, show
from rollout_assets.config import (
    DEMO_CAMPAIGN,
    CampaignConfig,
    commented_toml,
    load_campaign,
    shipped_campaigns,
    toml_text,
)
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ConfigError
from rollout_assets.files import publish_bytes

app = typer.Typer(help="Show, hash, validate and begin campaign files.", no_args_is_help=True)

Campaign = Annotated[
    str, typer.Argument(help="A campaign TOML file, or the name of a shipped one.", metavar="CAMPAIGN")
]


@app.command("show")
def show_campaign(
    campaign: Campaign = DEMO_CAMPAIGN,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print TOML, which reads back to the same campaign.")] = False,
) -> None:
    """Print a campaign as it is run, every default written out and every path resolved, as JSON or TOML."""
    config = load_campaign(campaign)
    if as_toml:
        typer.echo(toml_text(config), nl=False)
    else:
        print_json(config)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the new campaign.", metavar="NAME")],
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; default: NAME.toml.", metavar="FILE.toml")
    ] = None,
) -> None:
    """Write a campaign file to start from: every setting with its default and what it means."""
    try:
        config = CampaignConfig(name=name)
    except ValidationError as error:
        raise ConfigError(problems_text(error, CampaignConfig)) from None
    path = output or Path(f"{name}.toml")
    if path.exists():
        raise ConfigError(f"{path}: already there; choose another name, or remove it first")
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_bytes(path, commented_toml(config).encode())
    say(green(path), ": written; 'rollout-assets config validate' checks it after you have edited it")


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
