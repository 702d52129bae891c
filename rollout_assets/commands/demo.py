"""`rollout-assets demo`: the whole thing on a small synthetic source."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rollout_assets.commands.campaign import show_promotion, show_run
from rollout_assets.commands.source import show_store
from rollout_assets.commands.terminal import AsJson, CampaignOption, out, print_json, print_table, progress_bars
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, load_campaign
from rollout_assets.progress import ProgressSink

if TYPE_CHECKING:
    from rollout_assets.rollouts.funnel import FunnelStage
    from rollout_assets.rollouts.promoted_versions import PromotedVersion

DEMO_SCENES = 8
DEMO_SNIPPETS = 2


def demo(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    workers: Annotated[int | None, typer.Option(help="Processes that build shards; default: one per core.")] = None,
    as_json: AsJson = False,
) -> None:
    """Go all the way: synthetic homes, shards of rollouts, one promoted store per split, and the funnel between them.

    What is there already is kept and checked; run it again after an interruption and it goes on.
    """
    from rollout_assets.rollouts.campaign_run import run_campaign
    from rollout_assets.rollouts.funnel import campaign_funnel
    from rollout_assets.rollouts.promotion import promote_rollout_campaign
    from rollout_assets.sources.vin_store import VinOfflineStore

    began = time.monotonic()
    config = load_campaign(campaign)
    with progress_bars() as progress:
        made = build_source(config, progress)
    if not as_json:
        if not made:
            out.print(f"using the source that is already at {config.source.store_dir}", highlight=False, soft_wrap=True)
        show_store(VinOfflineStore.open(config.source.store_dir, config.source.mesh_dirs))
    with progress_bars() as progress:
        result = run_campaign(config, workers=workers or os.cpu_count() or 1, progress=progress)
    if not as_json or not result.ok:
        show_run(result)
    if not result.ok:
        raise typer.Exit(2)
    with progress_bars() as progress:
        promotion = promote_rollout_campaign(config, progress=progress)
        valid = _validate(promotion.version)
    funnel = campaign_funnel(config)
    seconds = time.monotonic() - began
    if as_json:
        facts = {"store_dir": promotion.store_dir, "version": promotion.version.name, "valid": valid}
        print_json(facts | {"shards": result.shards, "funnel": funnel, "seconds": seconds})
    else:
        show_promotion(promotion)
        show_funnel(funnel)
        verdict = "[green]deeply valid[/]" if valid else "[red]not valid[/]"
        out.print(f"{promotion.store_dir}: {verdict}; {seconds:.0f} s in all", highlight=False, soft_wrap=True)
    if not valid:
        raise typer.Exit(2)


def show_funnel(funnel: Sequence[FunnelStage]) -> None:
    """Print the funnel: each stage, what it loses, and why."""
    rows = [
        (
            stage.name,
            stage.count,
            sum(stage.lost.values()) or None,
            ", ".join(f"{reason.lower()} {count:,}" for reason, count in sorted(stage.lost.items(), key=_largest)),
        )
        for stage in funnel
    ]
    print_table("from source rows to trainable views", ("stage", "count", "lost", "because"), rows)


def _largest(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def build_source(config: CampaignConfig, progress: ProgressSink) -> bool:
    """Build the demo's source unless there is one; whether it was built."""
    from rollout_assets.sources.synthetic.config import SyntheticConfig
    from rollout_assets.sources.synthetic.store import build_synthetic_store

    if (config.source.store_dir / "manifest.json").exists():
        return False
    synthetic = SyntheticConfig(scenes=DEMO_SCENES, snippets_per_scene=DEMO_SNIPPETS, seed=config.seed)
    build_synthetic_store(config.source.store_dir, synthetic, progress)
    return True


def _validate(version: PromotedVersion) -> bool:
    from rollout_assets.rollouts.zarr_store.validation import validate_rollout_zarr_store

    valid = True
    for child in version.children:
        found = validate_rollout_zarr_store(child, deep=True)
        for line in found.errors:
            out.print(f"[red]problem[/]: {child.name}: {line}", highlight=False, soft_wrap=True)
        valid = valid and found.ok
    return valid
