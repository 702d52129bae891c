"""A campaign through Dagster in a terminal: starting it, and showing its runs and checks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.commands.terminal import green, print_table, progress_bars, red, say, show_skipped, yellow
from rollout_assets.errors import counted

if TYPE_CHECKING:
    from rollout_assets.defs.headless import HeadlessResult

Workers = Annotated[
    int | None,
    typer.Option("--workers", help="Processes that build shards; default: one per core.", min=1, max=256),
]

LEVELS = {"ERROR": red("error"), "WARN": yellow("warning")}
"""Level of a check -> how one that did not pass is announced."""


def require_dagster() -> None:
    """Import Dagster, which takes a second; a missing package is reported before any work."""
    import_module("rollout_assets.defs.headless")


def run_headless(campaign: str, workers: int | None) -> HeadlessResult:
    """Run a campaign through Dagster, with a progress bar for its shards."""
    from rollout_assets.defs.headless import materialize_campaign

    with progress_bars() as progress:
        return materialize_campaign(campaign, workers=workers or os.cpu_count() or 1, progress=progress)


def show_headless(result: HeadlessResult, expected: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print every run with its checks, then every failure and warning.

    ``expected``: checks whose warnings need no action here, with the reason; each gets one line with its count.
    """
    print_table(
        f"{result.campaign}: runs in Dagster",
        ("run", "ok", "checks", "errors", "warnings", "seconds"),
        [
            (run.name, run.ok, len(run.checks), *(len(run.failed_checks(level)) for level in LEVELS), run.seconds)
            for run in result.runs
        ],
    )
    for run in result.runs:
        if not run.ok:
            say(red("failed"), f" {run.name}: {run.error}")
        for level, word in LEVELS.items():
            for check in run.failed_checks(level):
                if level == "ERROR" or check.check not in expected:
                    say(word, f" {run.name} {check.asset}.{check.check}: {check.evidence}")
    warned = Counter(check.check for run in result.runs for check in run.failed_checks("WARN"))
    for name in sorted(warned.keys() & expected.keys()):
        say(f"expected: {counted(warned[name], 'warning')} of {name}: {expected[name]}")
    kept = sum(check.kept for run in result.runs for check in run.checks)
    if kept:
        say(f"kept: {counted(kept, 'check')} of shards whose every byte was read and is what it was when examined")
    show_skipped(result.skipped)
    verdict = green("passed") if result.ok else red("not passed")
    say(f"{result.campaign}: ", verdict, f"; {result.seconds:.1f} s; 'rollout-assets ui' shows every run")
