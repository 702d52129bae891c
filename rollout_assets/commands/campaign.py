"""`rollout-assets campaign`: plan, run, watch and promote a campaign without Dagster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from rollout_assets.campaigns.layout import CampaignLayout
from rollout_assets.commands import terminal
from rollout_assets.commands.housekeeping.catalog import tell_catalog
from rollout_assets.commands.housekeeping.clean import clean
from rollout_assets.commands.housekeeping.shard_status import NO_RECORD, show_status, watch_status, without_records
from rollout_assets.commands.opened_store import refuse_missing_source
from rollout_assets.commands.settings import CampaignSettings, read_settings
from rollout_assets.commands.terminal import (
    AsJson,
    CampaignOption,
    exit_unless,
    green,
    print_json,
    progress_bars,
    red,
    say,
    show,
    show_skipped,
    warn,
    yellow,
)
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, load_campaign
from rollout_assets.errors import CampaignError, ConfigError, SourceError, counted

if TYPE_CHECKING:
    from rollout_assets.campaigns.array import ArrayShare
    from rollout_assets.campaigns.plan import ShardPlan
    from rollout_assets.campaigns.promotion import PromotionResult
    from rollout_assets.campaigns.run import CampaignRunResult

app = typer.Typer(help="Plan, run, watch and promote the rollout shards of a campaign.", no_args_is_help=True)

SHOWN_TARGETS = 3
"""Explicit targets that a message lists; the result in JSON has all of them."""

AllowFewer = Annotated[
    bool, typer.Option("--allow-fewer", help="Accept missing inputs, and fewer records or rows than there are.")
]

SHOWN_SCENES = 3
"""Scenes that a message lists; the result in JSON has all of them."""


@app.command()
def plan(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    anew: Annotated[
        bool, typer.Option("--anew", help="Start a new plan, for a source that was rebuilt; the old one is kept.")
    ] = False,
    settings: CampaignSettings = None,
    as_json: AsJson = False,
) -> None:
    """Divide source rows into shards and say what they will take. Planned shards never change, new rows are added."""
    config = load_campaign(campaign, read_settings(settings))
    refuse_missing_source(config.source.store_dir)
    from rollout_assets.campaigns.forecast import forecast_campaign
    from rollout_assets.campaigns.guards.leakage import BY_SCENE, leaking_scenes
    from rollout_assets.campaigns.plan import open_source, write_rollout_shard_manifest_from_config
    from rollout_assets.sources.scene_splits import scene_splits

    source = open_source(config)
    planned = write_rollout_shard_manifest_from_config(config, store=source, anew=anew)
    forecast = forecast_campaign(config, planned, source)
    leaks, elsewhere = leaking_scenes(planned.entries), scene_splits(config.split).listed_elsewhere(source.rows())
    if as_json:
        print_json(
            {
                "path": planned.path,
                "new": planned.new,
                "replaced": planned.replaced,
                "forecast": forecast,
                "targets_without_row": planned.targets_without_row,
                "scenes_without_mesh": planned.scenes_without_mesh,
                "scenes_that_had_mesh": planned.scenes_that_had_mesh,
                "leaking_scenes": leaks,
                "listed_scenes_without_row": elsewhere,
            }
        )
        return
    _say_absent(planned.targets_without_row, "in no row of the source")
    _say_without_mesh(planned)
    if planned.replaced is not None:
        say(yellow("the plan was replaced"), f"; the old one is at {planned.replaced}")
    splits = ", ".join(f"{count} {split}" for split, count in forecast.rows_per_split.items())
    say(
        green(planned.path),
        f": {forecast.shards} shards ({planned.new} new), "
        f"{forecast.rows} source rows ({splits}), about {forecast.targets_expected} targets, "
        f"{forecast.views_per_step} views a step",
    )
    if leaks:
        several = yellow(f"{counted(len(leaks), 'scene')} in several splits")
        say(several, f", which promotion will refuse: {_first_scenes(leaks)}; {BY_SCENE}")
    if elsewhere:
        say(yellow(f"{counted(len(elsewhere), 'scene')} of [split] not in the source"), f": {_first_scenes(elsewhere)}")
    left = f"{forecast.finished_shards} shards finished, {forecast.rows_left} source rows left"
    if forecast.hours_left is None:
        say(f"{left}; hours and gigabytes are known after the first shard")
    else:
        say(
            f"{left}: about {_hours(forecast.hours_left)} of one process and {forecast.gigabytes_left:.2f} GB; "
            f"all shards {forecast.gigabytes_total:.2f} GB, and as much again when promoted"
        )


def _say_without_mesh(planned: ShardPlan) -> None:
    """Name the scenes without a mesh: rows that give no labels, or an input that is missing."""
    scenes, lost = planned.scenes_without_mesh, planned.scenes_that_had_mesh
    if scenes:
        rows = counted(planned.rows_without_mesh, "source row")
        say(yellow(f"{rows} without a mesh"), f", in {counted(len(scenes), 'scene')}: {_first_scenes(scenes)}")
    if lost:
        say(
            yellow(f"{counted(len(lost), 'scene')} had a mesh when planned, which is missing"),
            f": {_first_scenes(lost)}; 'campaign run' refuses their shards unless --allow-fewer says so",
        )


def _first_scenes(scenes: Sequence[str]) -> str:
    return ", ".join(scenes[:SHOWN_SCENES]) + (" …" if scenes[SHOWN_SCENES:] else "")


@app.command()
def run(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    workers: Annotated[int, typer.Option(help="Processes that build shards side by side.", min=1, max=256)] = 1,
    shard: Annotated[list[str] | None, typer.Option(help="Only these shards, as in the plan.")] = None,
    array: Annotated[
        str | None,
        typer.Option(
            help="Only the share of task I of N, I from 0 on; in a Slurm array it is known, and 0/1 means all shards.",
            metavar="I/N",
        ),
    ] = None,
    then_promote: Annotated[
        bool, typer.Option("--promote", help="Then promote, if no shard is left; --json prints a second document.")
    ] = False,
    allow_fewer: AllowFewer = False,
    settings: CampaignSettings = None,
    as_json: AsJson = False,
) -> None:
    """Build every shard that is not finished and current; exit code 2 if one is left. It may be stopped at any time.

    A shard whose mesh is missing, although it was there when the shard was planned or built, is not touched, and a
    finished shard is not replaced by one with fewer records, unless --allow-fewer says so.
    """
    config = load_campaign(campaign, read_settings(settings))
    refuse_missing_source(config.source.store_dir)
    share = _share(array, shard, then_promote)
    from rollout_assets.campaigns.run import run_campaign
    from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation

    try:
        with progress_bars() as progress:
            result = run_campaign(
                config,
                shard_ids=shard or (),
                share=share,
                workers=workers,
                allow_fewer=allow_fewer,
                invocation=RolloutStoreInvocation.of_campaign(campaign, "cli"),
                progress=progress,
            )
    except KeyboardInterrupt:
        say(yellow("interrupted"), "; finished shards stay, and 'rollout-assets campaign run' goes on from there")
        raise typer.Exit(130) from None
    show(result, as_json, _show_run)
    exit_unless(result.ok)
    if then_promote:
        promote(campaign, allow_fewer=allow_fewer, settings=settings, as_json=as_json)


def _share(array: str | None, shards: Sequence[str] | None, then_promote: bool) -> ArrayShare | None:
    """Which task of an array this is, by the option or else by Slurm; None if all shards are meant, or named ones."""
    if array is not None and shards:
        raise ConfigError("--array and --shard both choose shards; give one of them")
    from rollout_assets.campaigns.array import TASK_ID, ArrayShare

    share = ArrayShare.parse(array) if array is not None else None if shards else ArrayShare.of_slurm(os.environ)
    if share is None or share.count == 1:
        return None
    if then_promote:
        raise ConfigError(
            f"--promote needs the shards of all {share.count} tasks; promote in a job that waits for the array"
        )
    if array is None:
        warn(f"task {share} of a Slurm array, by {TASK_ID}: only its share of the shards; --array 0/1 builds all")
    return share


@app.command()
def status(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte of every finished shard and promoted version.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until every shard is finished.")] = False,
    settings: CampaignSettings = None,
    as_json: AsJson = False,
) -> None:
    """Show every planned shard, its state, the reason, and how to go on; exit code 2 if one is not finished.

    Promoted versions are compared with what was published; one that is damaged is named, and gives exit code 2 too.
    """
    config = load_campaign(campaign, read_settings(settings))
    if watch and not as_json:
        watch_status(config)
        return
    _refuse_unplanned(config)
    from rollout_assets.campaigns.plan import open_source
    from rollout_assets.campaigns.status import summarize_rollout_shard_campaign

    try:
        source = open_source(config)
    except SourceError as error:
        source = None
        warn(yellow("warning:"), f" not compared with the source: {error}")
    summary = summarize_rollout_shard_campaign(config, source=source, deep=deep)
    show(summary, as_json, show_status)
    exit_unless(summary.complete and not summary.barren and not summary.damaged_versions)


@app.command()
def promote(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    partial: Annotated[bool, typer.Option("--partial", help="Leave unfinished shards out.")] = False,
    anew: Annotated[bool, typer.Option("--anew", help="From all shards, not from the last version.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that merge shards side by side; default: as the campaign says.", min=1, max=256),
    ] = None,
    allow_fewer: AllowFewer = False,
    settings: CampaignSettings = None,
    as_json: AsJson = False,
) -> None:
    """Make one store per split from all finished shards and let readers have it, in one step.

    What is damaged of an earlier version is built again from the shards. After a rollback readers are moved only when
    `campaign unpin` was called. A split with fewer rows than readers have is refused unless --allow-fewer says so.
    """
    config = load_campaign(campaign, read_settings(settings))
    _refuse_unplanned(config)
    from rollout_assets.campaigns.promotion import promote_rollout_campaign
    from rollout_assets.rollouts.zarr_store.manifest import RolloutStoreInvocation

    with progress_bars() as progress:
        result = promote_rollout_campaign(
            config,
            partial=partial,
            incremental=not anew,
            allow_fewer=allow_fewer,
            workers=workers,
            invocation=RolloutStoreInvocation.of_campaign(campaign, "cli"),
            progress=progress,
        )
    tell_catalog(campaign)
    if as_json:
        print_json(vars(result) | {"version": result.version.name})
    else:
        _show_promotion(result)


def _refuse_unplanned(config: CampaignConfig) -> None:
    """Refuse a campaign whose folder does not exist, before its shards' packages are imported."""
    layout = CampaignLayout.of(config)
    if layout.url is None and not layout.root.exists():
        raise CampaignError(f"{layout.plan}: no plan yet; 'rollout-assets campaign plan' makes one")


@app.command()
def rollback(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    to: Annotated[str | None, typer.Option(help="This version; default: the one before the current.")] = None,
    apply: Annotated[
        bool, typer.Option("--yes", help="Do it; without this option it only says what it would do.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say which earlier version readers would get, and with --yes let them have it until `campaign unpin`.

    Nothing is removed.
    """
    config = load_campaign(campaign)
    from rollout_assets.campaigns.versions import current_name, rollback_promotion, rollback_target

    target = rollback_target(config, to)
    before = current_name(CampaignLayout.of(config))
    if apply:
        target = rollback_promotion(config, target.name)
        tell_catalog(campaign)
    if as_json:
        print_json({"version": target.name, "path": target.path, "before": before, "applied": apply})
    elif apply:
        say(green(target.name), f" is current again: {target.path}")
        say("readers stay there, whatever is promoted, until 'rollout-assets campaign unpin'")
    else:
        would = f"readers would get {target.name} instead of {before}, until 'rollout-assets campaign unpin'; "
        say(would, yellow("nothing was changed"), ": --yes does it")


@app.command()
def unpin(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    apply: Annotated[bool, typer.Option("--yes", help="Lift it; without this option it is only shown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the pin of a rollback, and lift it with --yes: the next promotion lets readers have the newest version."""
    config = load_campaign(campaign)
    from rollout_assets.campaigns.versions import present_pin, unpin_promotion

    pin = unpin_promotion(config) if apply else present_pin(config)
    if apply:
        tell_catalog(campaign)
    if as_json:
        print_json({"pinned": None if pin is None else pin.version, "applied": apply})
    elif pin is None:
        say("nothing is pinned: every promotion moves readers on")
    elif apply:
        say(f"the pin is lifted: {pin.holds}; the next 'rollout-assets campaign promote' moves them on")
    else:
        say(f"{pin.holds}; the next promotion would move them on; ", yellow("nothing was changed"), ": --yes lifts it")


app.command()(clean)


def _show_run(result: CampaignRunResult) -> None:
    """Print what became of the shards of a run: what was set aside, what failed, and the sum."""
    from rollout_assets.campaigns.run import DONE, Outcome

    for shard in result.shards:
        if shard.fewer:
            say(yellow("fewer records"), f" {shard.fewer}")
        for moved in shard.set_aside:
            say(yellow("set aside"), f" {moved.name}: {moved.reason}; now at {moved.path}")
        for fault in shard.retried:
            say(yellow("tried again"), f" {shard.shard_id}, after: {fault}")
        if shard.reason:
            say(red(shard.outcome), f" {shard.shard_id}: {shard.reason}")
    show_skipped(result.skipped)
    _say_absent(result.targets_without_row, "in no row of the source")
    _say_absent([name for shard in result.shards for name in shard.targets_absent], "not among the boxes of their rows")
    counts = {name: len(result.of(name)) for name in get_args(Outcome)}
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    words = words or "none for this task"
    say(f"{len(result.shards)} of {result.planned} shards: {words}; {result.records} records; {result.seconds:.1f} s")
    without = [shard.shard_id for shard in result.shards if shard.outcome in DONE and not shard.records]
    if result.barren:
        say(red(NO_RECORD))
    elif without:
        say(without_records(without, len(without)))


def _show_promotion(result: PromotionResult) -> None:
    """Print a promotion: its children and where they are."""
    for shard in result.left_out:
        say(yellow("left out"), f" {shard}")
    for lost in result.fewer:
        say(yellow("fewer rows"), f" {lost}")
    for version in result.damaged:
        say(red("damaged"), f" {version}; it was not used")
    if not result.splits:
        holds = "is now again" if result.moved else "already holds these shards as"
        say(green(result.store_dir), f" {holds} {result.version.name}")
        return
    say(green(result.store_dir), f" is now {result.version.name}")
    terminal.print_table(
        f"promoted as {result.version.name}",
        ("split", "made", "shards", "new", "seconds"),
        [(child.split, child.how, child.shards, child.new_shards, child.seconds) for child in result.splits],
    )


def _say_absent(target_ids: Sequence[str], where: str) -> None:
    """Name the explicit targets that give nothing, because they are not there."""
    if target_ids:
        more = f" and {len(target_ids) - SHOWN_TARGETS} more" if len(target_ids) > SHOWN_TARGETS else ""
        listed = ", ".join(target_ids[:SHOWN_TARGETS])
        say(yellow(f"{counted(len(target_ids), 'explicit target')} {where}"), f": {listed}{more}")


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{hours * 60:.1f} min"
