"""`rollout-assets ui` and `rollout-assets ci`: the Dagster UI with the right home, and a campaign with all checks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rollout_assets.commands.demo import build_source, kernels_beside
from rollout_assets.commands.headless import Workers, require_dagster, run_headless, show_headless
from rollout_assets.commands.terminal import AsJson, CampaignOption, exit_unless, progress_bars, say, show
from rollout_assets.config import DEMO_CAMPAIGN, data_home, load_campaign

LOOPBACK = "127.0.0.1"
"""The UI has no login, so it must not be reachable from other machines."""


def ui(
    campaign: Annotated[
        list[str] | None,
        typer.Option("--campaign", "-c", help="Campaign files to show besides the shipped ones.", metavar="FILE"),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the UI on this machine.")] = 3000,
) -> None:
    """Start the Dagster UI and its daemon on this machine only, and open http://127.0.0.1:3000 yourself."""
    for name in campaign or ():
        load_campaign(name)
    from rollout_assets.defs.code_location import CAMPAIGNS_VARIABLE
    from rollout_assets.defs.home import prepare_home
    from rollout_assets.defs.keys import CampaignKeys

    home = prepare_home(data_home())
    named = [CampaignKeys.of(name).campaign for name in campaign or ()]
    environment = os.environ | {"DAGSTER_HOME": str(home), CAMPAIGNS_VARIABLE: os.pathsep.join(named)}
    say(f"http://{LOOPBACK}:{port} in a moment; runs and data are in {home}")
    arguments = ["-m", "dagster", "dev", "-m", "rollout_assets.definitions", "-h", LOOPBACK, "-p", str(port)]
    os.execve(sys.executable, [sys.executable, *arguments], environment)


def ci(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    workers: Workers = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the runs and checks as JUnit XML.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan, build, check and promote a campaign through Dagster; exit code 2 if an error-level check fails."""
    config = load_campaign(campaign)
    if campaign == DEMO_CAMPAIGN:
        with kernels_beside(config):
            require_dagster()
            with progress_bars() as progress:
                build_source(config, progress)
    result = run_headless(campaign, workers)
    if junit is not None:
        from rollout_assets.defs.junit import write_junit

        write_junit(result, junit)
    show(result, as_json, show_headless)
    exit_unless(result.ok)
