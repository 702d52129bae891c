"""`rollout-assets campaign`: plan, run, watch and promote a campaign without Dagster."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollout_assets.campaigns.forecast import forecast_campaign
from rollout_assets.campaigns.plan import open_source, write_rollout_shard_manifest_from_config
from rollout_assets.campaigns.promotion import PromotionResult, promote_rollout_campaign
from rollout_assets.campaigns.run import CampaignRunResult, run_campaign
from rollout_assets.campaigns.status import RolloutShardCampaignStatus, summarize_rollout_shard_campaign
from rollout_assets.campaigns.versions import prune_promoted_versions, rollback_promotion
from rollout_assets.commands import terminal
from rollout_assets.commands.terminal import (
    AsJson,
    CampaignOption,
    coloured,
    exit_unless,
    green,
    line,
    print_json,
    progress_bars,
    red,
    say,
    show,
    warn,
    yellow,
)
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, load_campaign
from rollout_assets.errors import SourceError
from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation

app = typer.Typer(help="Plan, run, watch and promote the shards of a campaign.", no_args_is_help=True)

_COLOURS = {"succeeded": "green", "running": "cyan", "failed": "red", "incomplete": "yellow", "missing": "dim"}


@app.command()
def plan(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    anew: Annotated[
        bool, typer.Option("--anew", help="Start a new plan, for a source that was rebuilt; the old one is kept.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Divide source rows into shards and say what they will take. Planned shards never change, new rows are added."""
    config = load_campaign(campaign)
    source = open_source(config)
    planned = write_rollout_shard_manifest_from_config(config, store=source, anew=anew)
    forecast = forecast_campaign(config, planned, source)
    if as_json:
        print_json({"path": planned.path, "new": planned.new, "replaced": planned.replaced, "forecast": forecast})
        return
    if planned.replaced is not None:
        say(yellow("the plan was replaced"), f"; the old one is at {planned.replaced}")
    splits = ", ".join(f"{count} {split}" for split, count in forecast.rows_per_split.items())
    say(
        green(planned.path),
        f": {forecast.shards} shards ({planned.new} new), "
        f"{forecast.rows} source rows ({splits}), about {forecast.targets_expected} targets, "
        f"{forecast.views_per_step} views a step",
    )
    left = f"{forecast.finished_shards} shards finished, {forecast.rows_left} source rows left"
    if forecast.hours_left is None:
        say(f"{left}; hours and gigabytes are known after the first shard")
    else:
        say(
            f"{left}: about {_hours(forecast.hours_left)} of one process and {forecast.gigabytes_left:.2f} GB; "
            f"all shards {forecast.gigabytes_total:.2f} GB, and as much again when promoted"
        )


@app.command()
def run(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    workers: Annotated[int, typer.Option(help="Processes that build shards side by side.", min=1, max=256)] = 1,
    shard: Annotated[list[str] | None, typer.Option(help="Only these shards, as in the plan.")] = None,
    as_json: AsJson = False,
) -> None:
    """Build every shard that is not finished and current; exit code 2 if one is left. It may be stopped at any time."""
    config = load_campaign(campaign)
    try:
        with progress_bars() as progress:
            result = run_campaign(
                config, shard_ids=shard or (), workers=workers, invocation=_invocation(campaign), progress=progress
            )
    except KeyboardInterrupt:
        say(yellow("interrupted"), "; finished shards stay, and 'rollout-assets campaign run' goes on from there")
        raise typer.Exit(130) from None
    show(result, as_json, _show_run)
    exit_unless(result.ok)


@app.command()
def status(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of every finished shard.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until every shard is finished.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every planned shard, its state, the reason, and how to go on; exit code 2 if one is not finished."""
    config = load_campaign(campaign)
    if watch and not as_json:
        _watch(config)
        return
    try:
        source = open_source(config)
    except SourceError as error:
        source = None
        warn(yellow("warning:"), f" not compared with the source: {error}")
    summary = summarize_rollout_shard_campaign(config, source=source, deep=deep)
    show(summary, as_json, _show_status)
    exit_unless(summary.complete)


@app.command()
def promote(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    partial: Annotated[bool, typer.Option("--partial", help="Leave unfinished shards out.")] = False,
    anew: Annotated[bool, typer.Option("--anew", help="From all shards, not from the last version.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make one store per split from all finished shards and let readers have it, in one step."""
    config = load_campaign(campaign)
    with progress_bars() as progress:
        result = promote_rollout_campaign(
            config, partial=partial, incremental=not anew, invocation=_invocation(campaign), progress=progress
        )
    if as_json:
        print_json(vars(result) | {"version": result.version.name})
    else:
        _show_promotion(result)


@app.command()
def rollback(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    to: Annotated[str | None, typer.Option(help="This version; default: the one before the current.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let readers have an earlier promoted version again. Nothing is removed."""
    version = rollback_promotion(load_campaign(campaign), to)
    if as_json:
        print_json({"version": version.name, "path": version.path})
    else:
        say(green(version.name), f" is current again: {version.path}")


@app.command()
def prune(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    keep: Annotated[int, typer.Option(help="Newest versions to keep; the current one always stays.")] = 2,
    set_aside: Annotated[
        bool, typer.Option("--set-aside", help="Also remove what was set aside while shards were built.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old promoted versions."""
    pruned = prune_promoted_versions(load_campaign(campaign), keep, set_aside=set_aside)
    if as_json:
        print_json(pruned)
        return
    removed = ", ".join((*pruned.versions, *pruned.set_aside)) or "nothing"
    say(f"removed {removed}; versions left: {', '.join(pruned.kept) or 'none'}")


def _show_run(result: CampaignRunResult) -> None:
    """Print what became of the shards of a run: what was set aside, what failed, and the sum."""
    for shard in result.shards:
        for moved in shard.set_aside:
            say(yellow("set aside"), f" {moved.name}: {moved.reason}; now at {moved.path}")
        if shard.reason:
            say(red(shard.outcome), f" {shard.shard_id}: {shard.reason}")
    counts = {name: len(result.of(name)) for name in ("built", "already_finished", "busy", "failed")}
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    records = sum(shard.records for shard in result.shards)
    say(f"{len(result.shards)} of {result.planned} shards: {words}; {records} records; {result.seconds:.1f} s")


def _show_promotion(result: PromotionResult) -> None:
    """Print a promotion: its children and where they are."""
    for shard in result.left_out:
        say(yellow("left out"), f" {shard}")
    if not result.splits:
        say(green(result.store_dir), f" already holds these shards as {result.version.name}")
        return
    say(green(result.store_dir), f" is now {result.version.name}")
    terminal.print_table(
        f"promoted as {result.version.name}",
        ("split", "made", "shards", "new", "seconds"),
        [(child.split, child.how, child.shards, child.new_shards, child.seconds) for child in result.splits],
    )


def _watch(config: CampaignConfig, every_s: float = 1.0) -> None:
    try:
        with Live(console=terminal.out, refresh_per_second=4) as live:
            while True:
                summary = summarize_rollout_shard_campaign(config)
                live.update(Group(_status_table(summary), _status_line(summary)))
                if summary.complete:
                    return
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def _show_status(summary: RolloutShardCampaignStatus) -> None:
    terminal.out.print(_status_table(summary))
    say(_status_line(summary))


def _status_table(summary: RolloutShardCampaignStatus) -> Table:
    rows = [
        (
            shard.shard_id,
            shard.split,
            shard.rows,
            coloured(_COLOURS[shard.state], shard.state),
            shard.records,
            None if shard.store_bytes is None else shard.store_bytes / 1e6,
            shard.seconds,
            shard.reason,
            shard.hint,
        )
        for shard in summary.shards
    ]
    columns = ("shard", "split", "rows", "state", "records", "MB", "seconds", "reason", "to go on")
    return terminal.make_table(f"{summary.campaign}: {summary.output_dir}", columns, rows)


def _status_line(summary: RolloutShardCampaignStatus) -> Text:
    counts = ", ".join(f"{count} {state}" for state, count in summary.counts().items() if count)
    lines = [line(f"{len(summary.shards)} shards: {counts}")]
    if summary.unplanned_rows:
        new = summary.unplanned_rows
        unplanned = yellow(f"{len(new)} source row(s) are in no shard yet")
        lines.append(line(unplanned, f", from {new[0]} on: campaign plan"))
    if summary.behind and summary.complete:
        lines.append(line(yellow("not all is promoted"), f": {summary.behind}: campaign promote"))
    return Text("\n").join(lines)


def _invocation(campaign: str) -> RolloutStoreInvocation:
    path = Path(campaign)
    argv = ["rollout-assets", *sys.argv[1:]]
    return RolloutStoreInvocation.from_cli(argv, path) if path.is_file() else RolloutStoreInvocation("cli", tuple(argv))


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
