"""`rollout-assets ui` and `rollout-assets ci`: the Dagster UI with the right home, and a campaign with all checks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.commands.demo import build_source
from rollout_assets.commands.terminal import AsJson, CampaignOption, out, print_json, print_table, progress_bars
from rollout_assets.config import DEMO_CAMPAIGN, data_home, load_campaign

if TYPE_CHECKING:
    from rollout_assets.defs.headless import HeadlessResult

NOT_PASSED = 2
"""Exit code when a run or an error-level check failed."""

LOOPBACK = "127.0.0.1"
"""The UI has no login, so nobody else may reach it."""


def ui(
    campaign: Annotated[
        list[str] | None,
        typer.Option("--campaign", "-c", help="Campaign files to show besides the shipped ones.", metavar="FILE"),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the UI on this machine.")] = 3000,
) -> None:
    """Start the Dagster UI and its daemon on this machine only, and open http://127.0.0.1:3000 yourself."""
    from rollout_assets.defs.code_location import CAMPAIGNS_VARIABLE

    home = data_home()
    home.mkdir(parents=True, exist_ok=True)
    paths = [str(Path(name).resolve()) for name in campaign or () if load_campaign(name)]
    environment = os.environ | {"DAGSTER_HOME": str(home), CAMPAIGNS_VARIABLE: os.pathsep.join(paths)}
    out.print(f"http://{LOOPBACK}:{port} in a moment; runs and data are in {home}", highlight=False, soft_wrap=True)
    arguments = ["-m", "dagster", "dev", "-m", "rollout_assets.definitions", "-h", LOOPBACK, "-p", str(port)]
    os.execve(sys.executable, [sys.executable, *arguments], environment)


def ci(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    workers: Annotated[int | None, typer.Option(help="Processes that build shards; default: one per core.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the runs and checks as JUnit XML.")] = None,
    as_json: AsJson = False,
) -> None:
    """Plan, build, check and promote a campaign through Dagster; exit code 2 if an error-level check fails."""
    from rollout_assets.commands.junit import write_junit

    config = load_campaign(campaign)
    if campaign == DEMO_CAMPAIGN:
        with progress_bars() as progress:
            build_source(config, progress)
    result = run_headless(campaign, workers)
    if junit is not None:
        write_junit(result, junit)
    if as_json:
        print_json(result)
    else:
        show_headless(result)
    if not result.ok:
        raise typer.Exit(NOT_PASSED)


def run_headless(campaign: str, workers: int | None) -> HeadlessResult:
    """A campaign through Dagster, with a bar for its shards."""
    from rollout_assets.defs.headless import materialize_campaign

    with progress_bars() as progress:
        return materialize_campaign(campaign, workers=workers or os.cpu_count() or 1, progress=progress)


def show_headless(result: HeadlessResult) -> None:
    """Print every run with its checks, then what failed and what to look at."""
    print_table(
        f"{result.campaign}: runs in Dagster",
        ("run", "ok", "checks", "errors", "warnings", "seconds"),
        [
            (
                run.name,
                run.ok,
                len(run.checks),
                len(run.failed_checks("ERROR")),
                len(run.failed_checks("WARN")),
                run.seconds,
            )
            for run in result.runs
        ],
    )
    for run in result.runs:
        if not run.ok:
            _say(f"[red]failed[/] {run.name}: {run.error}")
        for level, word in (("ERROR", "[red]error[/]"), ("WARN", "[yellow]warning[/]")):
            for check in run.failed_checks(level):
                _say(f"{word} {run.name} {check.asset}.{check.check}: {check.evidence}")
    verdict = "[green]passed[/]" if result.ok else "[red]not passed[/]"
    _say(f"{result.campaign}: {verdict}; {result.seconds:.1f} s; 'rollout-assets ui' shows all of it")


def _say(text: str) -> None:
    out.print(text, highlight=False, soft_wrap=True)
