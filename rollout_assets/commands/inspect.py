"""`rollout-assets inspect`: see what is in a store, what was lost, and what looks wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer
from pydantic import ValidationError

from rollout_assets import rollouts
from rollout_assets.commands.explained import show_explanation, show_replays
from rollout_assets.commands.frames import AsCsv, show_frame
from rollout_assets.commands.opened_store import (
    Campaign,
    Rollout,
    Split,
    Store,
    open_store,
    refuse_missing_store,
    required_campaign,
)
from rollout_assets.commands.settings import read_setting
from rollout_assets.commands.terminal import (
    AsJson,
    exit_unless,
    green,
    print_json,
    print_table,
    progress_bars,
    red,
    say,
    show,
)
from rollout_assets.config import RolloutSuspiciousQueryConfig, SuspiciousKind, load_campaign
from rollout_assets.config.problems import problems_text
from rollout_assets.errors import ConfigError, StoreError, counted
from rollout_assets.parsing import expand_path, refuse_long_pattern

app = typer.Typer(
    help="See what is in a rollout store, what was lost on the way, and what looks wrong.", no_args_is_help=True
)

Limit = Annotated[int | None, typer.Option("--limit", "-n", help="At most this many rows.", min=0)]
Tolerance = Annotated[
    float,
    typer.Option(help="How far numbers may differ, for stores made on other devices; relative above 1.", min=0.0),
]
Step = Annotated[int | None, typer.Option("--step", help="Only this step row.", min=0)]


@app.command()
def inventory(
    places: Annotated[list[Path], typer.Argument(help="Stores, or directories to look for stores in.", metavar="PATH")],
    pattern: Annotated[str, typer.Option(help="Which directories are stores.")] = "**/*.zarr",
    validate: Annotated[bool, typer.Option("--validate/--no-validate", help="Also check every store.")] = True,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Every store below some directories: schema, validity, counts, lineage, size."""
    paths = [path for place in places for path in _stores_at(place, pattern)]
    with progress_bars() as progress:
        frame = rollouts.rollout_store_inventory_rows(paths, validate=validate, progress=progress)
    shown = (
        "path",
        "status",
        "valid",
        "problem",
        "split",
        "rollouts",
        "candidates",
        "q_train_fraction",
        "policies",
        "bytes",
        "files",
    )
    show_frame(f"{frame.height} stores", frame, shown, as_json, as_csv)


@app.command()
def waterfall(store: Store, split: Split = None, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """From the full shell to what was selected: how many views are left after each stage."""
    reader = open_store(store, split)
    show_frame("validity waterfall", rollouts.validity_waterfall_rows(reader), None, as_json, as_csv)


@app.command()
def groups(
    store: Store,
    by: Annotated[
        str, typer.Option(help="position, strategy, mixture, reason, policy, recipe, scene, target, target_class, …")
    ] = "position",
    split: Split = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Validity and gains of candidates by one category."""
    reader = open_store(store, split)
    frame = rollouts.candidate_group_summary_rows(reader, by)  # type: ignore[arg-type]  # checked there
    shown = [by, "count", "actor_valid", "q_train", "selected"]
    shown += [f"root_gain_{part}" for part in ("mean", "std", "min", "median", "max")]
    show_frame(f"candidates by {by}", frame, shown, as_json, as_csv)


@app.command()
def targets(
    store: Store, split: Split = None, limit: Limit = None, as_json: AsJson = False, as_csv: AsCsv = False
) -> None:
    """Every target: what the actor saw of it, which ground truth it matched, how many rollouts it got."""
    reader = open_store(store, split)
    frame = rollouts.target_audit_rows(reader)
    shown = (
        "target_row_id",
        "sample_key",
        "target_class_name",
        "target_selection_rank",
        "target_selection_score",
        "target_semidense_support_count",
        "gt_match_status",
        "gt_match_iou",
        "reason",
        "num_rollouts",
    )
    show_frame("targets", frame, shown, as_json, as_csv, limit)


@app.command()
def candidates(
    store: Store,
    rollout: Rollout = None,
    step: Step = None,
    limit: Limit = None,
    split: Split = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Candidate rows: what the rules measured, the labels, and how likely the policy was to select each."""
    reader = open_store(store, split)
    frame = rollouts.candidate_audit_rows(reader, rollout, step, limit)
    shown = (
        "candidate_row_id",
        "rollout_row_id",
        "step_index",
        "shell_index",
        "position",
        "reason",
        "selected_mask",
        "q_train_mask",
        "target_root_gain",
        "selection_probabilities",
        "mesh_distance_m",
        "motion_step_length_m",
        "target_distance_m",
    )
    show_frame("candidates", frame, shown, as_json, as_csv)


@app.command()
def steps(
    store: Store,
    split: Split = None,
    rollout: Rollout = None,
    step: Step = None,
    limit: Limit = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Every step: which views were offered, which one was selected, what it gained."""
    reader = open_store(store, split)
    frame = rollouts.rollout_step_objective_rows(reader, rollout, step)
    shown = (
        "step_row_id",
        "rollout_row_id",
        "recipe",
        "step_index",
        "num_valid_candidates",
        "invalid_fraction",
        "fanout",
        "entropy",
        "selected_position",
        "marginal_target_root_gain",
        "best_root_gain",
        "mean_root_gain",
        "cumulative_target_root_gain",
    )
    show_frame("steps", frame, shown, as_json, as_csv, limit)


@app.command()
def tree(store: Store, split: Split = None, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """What each recipe selected at each step, by position family."""
    reader = open_store(store, split)
    frame = rollouts.rollout_tree_summary_rows(reader)
    from rollout_assets.inspection.objectives import RECIPE_PARAMETERS

    hidden = ("policy", "strategy", "mixture", "sources", "rri_mean", *RECIPE_PARAMETERS)
    shown = [name for name in frame.columns if name not in hidden]
    show_frame("rollout trees", frame, shown, as_json, as_csv)


@app.command()
def depth(
    store: Store,
    rollout: Rollout = None,
    step: Step = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many images.", min=1)] = 128,
    split: Split = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Depth images of selected views: size, intrinsics, valid and far pixels, least, mean, median, greatest depth."""
    reader = open_store(store, split)
    frame = rollouts.selected_depth_summary_rows(reader, limit, rollout, step)
    shown = [name for name in frame.columns if name not in ("pixel_count", "valid_pixels")]
    show_frame("selected depth", frame, [n for n in shown if not n.startswith("principal_")], as_json, as_csv)


@app.command()
def suspicious(
    store: Store,
    kind: Annotated[str | None, typer.Option(help="Only this kind of finding.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A threshold of the campaign's [suspicious]; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    errors: Annotated[
        list[str] | None, typer.Option("--error", help="A kind whose findings are errors; repeatable.", metavar="KIND")
    ] = None,
    campaign: Annotated[
        str | None,
        typer.Option(
            "--campaign",
            "-c",
            help="Thresholds and source; default: the thresholds that the store records, and no look at the source.",
            metavar="FILE|NAME",
        ),
    ] = None,
    limit: Limit = None,
    split: Split = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Rows that look wrong, and why; exit code 2 when one of them is an error."""
    for option, name in [("--kind", kind), *(("--error", name) for name in errors or ())]:
        if name is not None and name not in (kinds := get_args(SuspiciousKind)):
            raise ConfigError(f"{option}: there is no kind {name!r}; choose one of {', '.join(kinds)}")
    reader, weights, skipped = open_store(store, split), None, "give --campaign to recompute weights from its source"
    import polars as pl

    if campaign is None:
        from rollout_assets.inspection.suspicious import recorded_thresholds

        thresholds = recorded_thresholds(reader)
    else:
        # The oracle needs packages of the extra "platform"; a look at the store alone does not.
        from rollout_assets.inspection.surface_weights import surface_weights, weights_or_reason

        config = load_campaign(campaign)
        thresholds = config.suspicious
        weights, skipped = weights_or_reason(lambda: surface_weights(reader, config))
    thresholds = _with_settings(thresholds, settings or [], errors or [])
    rows = rollouts.suspicious_rollout_rows(reader, thresholds, weights)
    rows = rows if kind is None else rows.filter(pl.col("kind") == kind)
    if not as_json and not as_csv:
        counts = rows.group_by("kind", "severity", maintain_order=True).agg(pl.len().alias("rows"))
        show_frame("suspicious rows by kind", counts, None, False, False)
        if skipped:
            say(f"weight_concentrated was not looked for: {skipped}")
    show_frame("suspicious rows", rows, None, as_json, as_csv, limit)
    exit_unless((rows["severity"] != "error").all())


@app.command()
def ready(store: Store, split: Split = None, as_json: AsJson = False) -> None:
    """Say whether a store is worth training on; exit code 2 when it is not."""
    reader = open_store(store, split)
    readiness = rollouts.training_readiness(reader)
    if as_json:
        print_json(
            {"verdict": readiness.verdict, "measures": readiness.measures, "by_policy": readiness.by_policy.to_dicts()}
        )
    else:
        rows = [(m.name, f"{m.value:.4g}", m.wanted, m.status, m.meaning) for m in readiness.measures]
        print_table(f"{store}: {readiness.verdict}", ("measure", "value", "wanted", "status", "meaning"), rows)
        show_frame("support by recipe", readiness.by_policy, None, False, False)
    exit_unless(readiness.verdict != "not ready")


@app.command()
def explain(
    store: Store,
    candidate: Annotated[int, typer.Argument(help="A candidate row.", metavar="CANDIDATE", min=0)],
    split: Split = None,
    as_json: AsJson = False,
) -> None:
    """Everything about one candidate: rules with measured values and limits, errors, source, mesh, config, commit."""
    reader = open_store(store, split)
    show(rollouts.explain(reader, candidate), as_json, show_explanation)


@app.command()
def replay(
    store: Store,
    rollout: Annotated[
        int | None, typer.Argument(help="A rollout row; default: every source row.", metavar="ROLLOUT")
    ] = None,
    campaign: Campaign = None,
    sources: Annotated[int | None, typer.Option("--sources", help="Only the first source rows.", min=1)] = None,
    tolerance: Tolerance = 0.0,
    split: Split = None,
    as_json: AsJson = False,
) -> None:
    """Recompute from lineage and seed, and compare every stored value; exit code 2 when one differs."""
    reader = open_store(store, split)
    config = required_campaign(reader, campaign)
    if rollout is not None:
        replays = [rollouts.replay(reader, rollout, config, tolerance=tolerance)]
    else:
        count = reader.num_rows("sources")
        rows = range(count if sources is None else min(sources, count))
        with progress_bars() as progress:
            replays = list(rollouts.replay_sources(reader, config, rows, tolerance=tolerance, progress=progress))
    show_replays(replays, as_json)


@app.command("second-opinion")
def second_opinion(
    store: Store,
    fraction: Annotated[float, typer.Option(help="Share of labelled candidates to score again.")] = 1.0,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", help="At most this many; default: quality.second_opinions_per_split.", min=1),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    budget: Annotated[float | None, typer.Option(help="Begin no further candidate after so many seconds.")] = None,
    campaign: Campaign = None,
    split: Split = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Score random candidates again by other means than the oracle's, a second for each; exit code 2 when they differ.

    Rays are Embree's and distances libigl's where the extra `second-opinion` is installed, else both are brute force.
    `moved` is how far a label moves under noise of `quality.noise_m` on the views' points.
    """
    reader = open_store(store, split)
    config = required_campaign(reader, campaign)
    count = config.quality.second_opinions_per_split if limit is None else limit
    with progress_bars() as progress:
        opinion = rollouts.second_opinion(
            reader, fraction, seed, config, limit=count, budget_s=budget, progress=progress
        )
    if as_json or as_csv:
        show_frame("", opinion.labels, None, as_json, as_csv)
    else:
        show_frame("agreement, and moves under noise", opinion.summary, None, False, False)
        show_frame("rows with the largest gaps", opinion.worst.drop("rollout_id"), None, False, False)
        disagreeing = counted(opinion.findings.height, "label")
        say(green("agrees") if opinion.agrees else red(f"disagrees on {disagreeing}"), f": {opinion.scope}")
    exit_unless(opinion.agrees)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="A store.", metavar="A")],
    b: Annotated[str, typer.Argument(help="Another store.", metavar="B")],
    tolerance: Tolerance = 0.0,
    depth: Annotated[bool, typer.Option("--depth/--no-depth", help="Also compare depth images.")] = True,
    split: Split = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Compare two stores row by row: rows, masks, labels, lineage, depth; exit code 2 when they differ."""
    for store in (a, b):
        refuse_missing_store(store)
    readers = open_store(a, split), open_store(b, split)
    result = rollouts.diff_stores(*readers, tolerance=tolerance, depth=depth)
    if as_json:
        print_json(
            {"a": a, "b": b, "rows_compared": result.rows_compared, "differences": result.differences.to_dicts()}
        )
    elif as_csv or not result.equal:
        show_frame(f"a = {a}, b = {b}", result.differences, None, False, as_csv)
    if not as_json and not as_csv:
        compared = ", ".join(f"{count:,} {table}" for table, count in result.rows_compared.items())
        say(green("equal") if result.equal else red("different"), f": compared {compared}")
    exit_unless(result.equal)


def _stores_at(place: Path, pattern: str) -> list[Path]:
    """The stores at a place; a pattern that is none is refused."""
    refuse_long_pattern(pattern)
    if not (folder := expand_path(place)).is_dir():
        raise StoreError(f"{folder}: no such directory")
    try:
        return rollouts.discover_rollout_store_paths(place, pattern)
    except (ValueError, NotImplementedError) as error:  # what Path.glob raises for a pattern that is none
        raise ConfigError(f"--pattern must be a relative pattern such as **/*.zarr, got {pattern!r}: {error}") from None


def _with_settings(
    thresholds: RolloutSuspiciousQueryConfig, settings: Sequence[str], errors: Sequence[str]
) -> RolloutSuspiciousQueryConfig:
    values = thresholds.model_dump()
    for setting in settings:
        values |= read_setting(setting)
    values["errors"] = (*values["errors"], *errors)
    try:
        return RolloutSuspiciousQueryConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"--set: {problems_text(error, RolloutSuspiciousQueryConfig)}") from None
