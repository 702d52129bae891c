"""`rollout-assets cluster`: whether a cluster is ready for a campaign."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rollout_assets.commands.terminal import AsJson, CampaignOption, green, print_table, red, say, show
from rollout_assets.config import DEMO_CAMPAIGN, load_campaign
from rollout_assets.errors import counted

if TYPE_CHECKING:
    from rollout_assets.cluster.check import ClusterCheck
    from rollout_assets.cluster.node import NodeReport

app = typer.Typer(help="See whether a cluster is ready for a campaign.", no_args_is_help=True)

SOMETHING_IS_WRONG = 1
"""Exit code of a check with problems."""

SHOWN = 28
"""Characters of a cell; what is wrong is told in full below the table."""


@app.callback()
def about() -> None:
    """See whether a cluster is ready for a campaign."""


@app.command()
def check(campaign: CampaignOption = DEMO_CAMPAIGN, as_json: AsJson = False) -> None:
    """Ask every node what must hold before a backfill; exit code 1 if something is wrong.

    Every node must have the same package version, campaign and source, reach and write the output, find its device and
    the command `dagster`, reach the database, and agree with its clock. Nodes are those of the Ray cluster that the
    instance in `DAGSTER_HOME` launches runs on; without one, this machine is asked alone.
    """
    load_campaign(campaign)
    from rollout_assets.cluster.check import check_cluster

    home = os.environ.get("DAGSTER_HOME")
    result = check_cluster(campaign, Path(home) if home else None)
    show(result, as_json, _show)
    if not result.ok:
        raise typer.Exit(SOMETHING_IS_WRONG)


def _show(result: ClusterCheck) -> None:
    from rollout_assets.cluster.check import THINGS

    rows = [(report.node, *(_cell(report, thing) for thing in THINGS)) for report in result.reports]
    print_table(f"{result.campaign}: runs go to {_where(result)}", ("node", *THINGS), rows)
    for problem in result.problems:
        say(red("problem"), f" {problem}")
    asked = counted(len(result.reports), "machine")
    if result.ok:
        say(green("ready"), f": {asked} asked")
    else:
        say(red("not ready"), f": {counted(len(result.problems), 'problem')} on {asked}")


def _cell(report: NodeReport, thing: str) -> object:
    answer = report.answers.get(thing)
    if answer is None:
        return None
    text = answer.value if len(answer.value) <= SHOWN else f"{answer.value[: SHOWN - 1]}…"
    return red(text or "no") if answer.problem else text


def _where(result: ClusterCheck) -> str:
    if result.launcher == "here":
        return "this machine"
    if result.launcher == "kubernetes":
        return "pods of Kubernetes, of which none is asked"
    return f"Ray, {result.slots} at a time, with room for {result.places}"
