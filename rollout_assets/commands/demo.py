"""`rollout-assets demo`: the whole thing on a small synthetic source."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.campaigns.check_names import READINESS, SUSPICIOUS_ROWS, VALID_FANOUT
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.commands.headless import Workers, require_dagster, run_headless, show_headless
from rollout_assets.commands.source import show_store
from rollout_assets.commands.terminal import (
    AsJson,
    CampaignOption,
    exit_unless,
    green,
    print_json,
    print_table,
    progress_bars,
    say,
)
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError, counted
from rollout_assets.oracle.kernels import compile_kernels
from rollout_assets.progress import ProgressSink
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.workers import beside

if TYPE_CHECKING:
    from rollout_assets.campaigns.funnel import FunnelStage

DEMO_SCENES = 8
DEMO_SNIPPETS = 2

NORMAL_WARNINGS = {
    SUSPICIOUS_ROWS: "some views of furniture in a corner are refused all at once, or are worth the same",
    VALID_FANOUT: "a few steps stand so close to a wall that hardly a view is left",
    READINESS: "16 source rows give fewer states and targets than a policy needs",
}
"""Checks that warn in the demo, and why that is nothing to act on there."""

PROGRAM = "rollout-assets"
NEXT_WIDTH = 90
"""Columns of a command among the last lines."""


def demo(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    workers: Workers = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Remove the demo's source, shards and stores, and start over.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go all the way through Dagster: synthetic homes, shards with their checks, one promoted store per split.

    Existing results are checked and kept: run it again after an interruption and it continues, and with nothing new it
    ends in seconds.
    """
    began = time.monotonic()
    config = load_campaign(campaign)
    if fresh:
        remove_demo(campaign, config)
    with kernels_beside(config):
        require_dagster()
        with progress_bars() as progress:
            made = build_source(config, progress)
    from rollout_assets.campaigns.funnel import campaign_funnel
    from rollout_assets.campaigns.plan import open_source
    from rollout_assets.campaigns.versions import current_version

    if not as_json:
        if not made:
            say(f"using the source that is already at {config.source.store_dir}")
        show_store(open_source(config))
    result = run_headless(campaign, workers)
    if not as_json or not result.ok:
        show_headless(result, NORMAL_WARNINGS if campaign == DEMO_CAMPAIGN else {})
    exit_unless(result.ok)
    version = current_version(config)
    funnel = campaign_funnel(config)
    seconds = time.monotonic() - began
    layout = CampaignLayout.of(config)
    reports = [layout.reports / f"{child.name}.html" for child in version.children]
    if as_json:
        facts = {"store_dir": layout.promoted, "version": version.name, "valid": result.ok, "reports": reports}
        print_json(facts | {"runs": result.runs, "funnel": funnel, "seconds": seconds})
        return
    show_funnel(funnel)
    counts = {stage.name: stage.count for stage in funnel}
    say(green("done"), f" in {seconds:.0f} s")
    say(f"  source   {config.source.store_dir}  {counted(counts['rows'], 'row')}")
    held = f"{counts['rollouts']:,} rollouts, {counts['candidates']:,} views, deeply valid"
    say(f"  store    {layout.promoted} -> {version.name}  {held}")
    for report in reports:
        say(f"  report   {report}")
    say("next")
    for command, purpose in _next_steps(layout, campaign):
        say(f"  {command:<{NEXT_WIDTH}}  {purpose}")


def _next_steps(layout: CampaignLayout, campaign: str) -> Iterator[tuple[str, str]]:
    """Commands to try after the demo, as they can be typed in this shell, and what each shows."""
    program = PROGRAM if shutil.which(PROGRAM) else os.path.relpath(sys.argv[0])
    store = shlex.quote(os.path.relpath(layout.promoted / "train"))
    chosen = "" if campaign == DEMO_CAMPAIGN else f" -c {shlex.quote(campaign)}"
    yield f"{program} ui{chosen}", "every asset, run and check in the browser"
    yield f"{program} inspect tree {store}", "what each recipe selected at each step"
    yield f"{program} train -c {shlex.quote(campaign)} -o policy", "train a policy on the store"


def remove_demo(campaign: str, config: CampaignConfig) -> None:
    """Remove the source and the output of the shipped demo; any other campaign is refused."""
    if campaign != DEMO_CAMPAIGN:
        raise ConfigError(
            f"--fresh removes data, so it only takes the shipped campaign {DEMO_CAMPAIGN}, got {campaign}"
        )
    for folder in (config.source.store_dir, config.shards.output_dir):
        if isinstance(folder, Path) and folder.is_dir():
            shutil.rmtree(folder)


def show_funnel(funnel: Sequence[FunnelStage]) -> None:
    """Print the funnel: each stage, what it loses, and why."""
    rows = []
    for stage in funnel:
        largest_first = sorted(stage.lost.items(), key=lambda item: (-item[1], item[0]))
        reasons = ", ".join(f"{reason.lower()} {count:,}" for reason, count in largest_first)
        rows.append((stage.name, stage.count, sum(stage.lost.values()) or None, reasons))
    print_table("from source rows to trainable views", ("stage", "count", "lost", "because"), rows)


def kernels_beside(config: CampaignConfig) -> AbstractContextManager[None]:
    """Compile the oracle's kernels meanwhile, in a process beside this one, if the source has yet to be built."""
    folder = config.source.store_dir
    if isinstance(folder, Path) and not (folder / "manifest.json").exists():
        return beside(compile_kernels, config.oracle.device)
    return nullcontext()


def build_source(config: CampaignConfig, progress: ProgressSink) -> bool:
    """Build the demo's source unless there is one; whether it was built."""
    folder = config.source.store_dir
    if not isinstance(folder, Path):
        raise ConfigError(f"{folder}: the demo builds its source in a folder; a URL is for a campaign of your own")
    if (folder / "manifest.json").exists():
        return False
    from rollout_assets.synthetic.store import build_synthetic_store

    synthetic = SyntheticConfig(scenes=DEMO_SCENES, snippets_per_scene=DEMO_SNIPPETS, seed=config.seed)
    build_synthetic_store(folder, synthetic, progress)
    return True
