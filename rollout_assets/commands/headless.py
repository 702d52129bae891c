"""A campaign through Dagster in a terminal: starting it, and showing its runs and checks."""

from __future__ import annotations

import os

from rollout_assets.commands.terminal import out, print_table, progress_bars
from rollout_assets.defs.headless import HeadlessResult, materialize_campaign


def run_headless(campaign: str, workers: int | None) -> HeadlessResult:
    """Run a campaign through Dagster, with a progress bar for its shards."""
    with progress_bars() as progress:
        return materialize_campaign(campaign, workers=workers or os.cpu_count() or 1, progress=progress)


def show_headless(result: HeadlessResult) -> None:
    """Print every run with its checks, then every failure and warning."""
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
    _say(f"{result.campaign}: {verdict}; {result.seconds:.1f} s; 'rollout-assets ui' shows every run")


def _say(text: str) -> None:
    out.print(text, highlight=False, soft_wrap=True)
