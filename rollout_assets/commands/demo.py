"""`rollout-assets demo`: the whole thing on a small synthetic source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rollout_assets.campaigns.check_names import READINESS, SUSPICIOUS_ROWS, VALID_FANOUT
from rollout_assets.campaigns.funnel import FunnelStage, campaign_funnel
from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.campaigns.plan import open_source
from rollout_assets.campaigns.versions import current_version
from rollout_assets.commands.headless import Workers, run_headless, show_headless
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
from rollout_assets.defs.headless import HeadlessResult
from rollout_assets.errors import ConfigError
from rollout_assets.progress import ProgressSink
from rollout_assets.synthetic.config import SyntheticConfig
from rollout_assets.synthetic.store import build_synthetic_store

DEMO_SCENES = 8
DEMO_SNIPPETS = 2

NORMAL_WARNINGS = {
    SUSPICIOUS_ROWS: "some views of furniture in a corner are refused all at once, or are worth the same",
    VALID_FANOUT: "a few steps stand so close to a wall that hardly a view is left",
    READINESS: "16 source rows give fewer states and targets than a policy needs",
}
"""Checks that warn in the demo, and why that is nothing to act on there."""


def demo(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Go all the way through Dagster: synthetic homes, shards with their checks, one promoted store per split.

    What is there already is kept and checked; run it again after an interruption and it goes on.
    """
    began = time.monotonic()
    config = load_campaign(campaign)
    with progress_bars() as progress:
        made = build_source(config, progress)
    if not as_json:
        if not made:
            say(f"using the source that is already at {config.source.store_dir}")
        show_store(open_source(config))
    result = run_headless(campaign, workers)
    if not as_json or not result.ok:
        show_headless(result)
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
    if campaign == DEMO_CAMPAIGN:
        _explain_warnings(result)
    for report in reports:
        say(f"report: {report}")
    say(f"{layout.promoted} -> {version.name}: ", green("deeply valid"), f"; {seconds:.0f} s in all")


def _explain_warnings(result: HeadlessResult) -> None:
    """Say which of the warnings above are normal in the demo, and why."""
    warned = {check.check for run in result.runs for check in run.failed_checks("WARN")}
    for check in sorted(warned & NORMAL_WARNINGS.keys()):
        say(f"the warning {check} is normal in the demo: {NORMAL_WARNINGS[check]}")


def show_funnel(funnel: Sequence[FunnelStage]) -> None:
    """Print the funnel: each stage, what it loses, and why."""
    rows = []
    for stage in funnel:
        largest_first = sorted(stage.lost.items(), key=lambda item: (-item[1], item[0]))
        reasons = ", ".join(f"{reason.lower()} {count:,}" for reason, count in largest_first)
        rows.append((stage.name, stage.count, sum(stage.lost.values()) or None, reasons))
    print_table("from source rows to trainable views", ("stage", "count", "lost", "because"), rows)


def build_source(config: CampaignConfig, progress: ProgressSink) -> bool:
    """Build the demo's source unless there is one; whether it was built."""
    folder = config.source.store_dir
    if not isinstance(folder, Path):
        raise ConfigError(f"{folder}: the demo builds its source in a folder; a URL is for a campaign of your own")
    if (folder / "manifest.json").exists():
        return False
    synthetic = SyntheticConfig(scenes=DEMO_SCENES, snippets_per_scene=DEMO_SNIPPETS, seed=config.seed)
    build_synthetic_store(folder, synthetic, progress)
    return True
