"""`rollout-assets inspect`: see what is in a store, what was lost, and what looks wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollout_assets.commands.frames import AsCsv, note, show_frame, show_records
from rollout_assets.commands.opened_store import Campaign, Rollout, Store, open_store, required_campaign
from rollout_assets.commands.terminal import AsJson, out, print_json, print_table, progress_bars
from rollout_assets.errors import ConfigError

if TYPE_CHECKING:
    from rollout_assets.inspection.explain import Explanation
    from rollout_assets.inspection.replay import Replay

app = typer.Typer(
    help="See what is in a rollout store, what was lost on the way, and what looks wrong.", no_args_is_help=True
)

WRONG = 2
"""Exit code when a store does not hold what it should: differences, errors, not ready."""

Limit = Annotated[int | None, typer.Option("--limit", "-n", help="At most this many rows.", min=0)]
Step = Annotated[int | None, typer.Option("--step", help="Only this step row.", min=0)]


@app.command()
def inventory(
    places: Annotated[
        list[Path], typer.Argument(help="Stores, or directories to look for stores in.", metavar="PATH…")
    ],
    pattern: Annotated[str, typer.Option(help="Which directories are stores.")] = "**/*.zarr",
    validate: Annotated[bool, typer.Option("--validate/--no-validate", help="Also check every store.")] = True,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Every store below some directories: schema, validity, counts, lineage, size."""
    from rollout_assets.inspection.inventory import GROUP_FILE
    from rollout_assets.rollouts import discover_rollout_store_paths, rollout_store_inventory_rows

    paths = [
        path
        for place in places
        for path in ([place] if (place / GROUP_FILE).is_file() else discover_rollout_store_paths(place, pattern))
    ]
    with progress_bars() as progress:
        frame = rollout_store_inventory_rows(paths, validate=validate, progress=progress)
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
    show_frame(f"{len(paths)} stores", frame, shown, as_json, as_csv)


@app.command()
def waterfall(store: Store, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """From the full shell to what was selected: how many views are left after each stage."""
    from rollout_assets.rollouts import validity_waterfall_rows

    show_frame("validity waterfall", validity_waterfall_rows(open_store(store)), None, as_json, as_csv)


@app.command()
def groups(
    store: Store,
    by: Annotated[
        str, typer.Option(help="position, strategy, reason, policy, recipe, scene, target_class, …")
    ] = "position",
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Validity and gains of candidates by one category."""
    from rollout_assets.rollouts import candidate_group_summary_rows

    frame = candidate_group_summary_rows(open_store(store), by)  # type: ignore[arg-type]  # refused with the known ones
    shown = [by, "count", "actor_valid", "q_train", "selected"]
    shown += [f"root_gain_{part}" for part in ("mean", "std", "min", "median", "max")]
    show_frame(f"candidates by {by}", frame, shown, as_json, as_csv)


@app.command()
def targets(store: Store, limit: Limit = None, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """Every target: what the actor saw of it, which ground truth it matched, how many rollouts it got."""
    from rollout_assets.rollouts import target_audit_rows

    frame = target_audit_rows(open_store(store))
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
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Candidate rows with what the rules measured, the labels and the policy's view of them."""
    from rollout_assets.rollouts import candidate_audit_rows

    frame = candidate_audit_rows(open_store(store), rollout, step, limit)
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
    store: Store, rollout: Rollout = None, limit: Limit = None, as_json: AsJson = False, as_csv: AsCsv = False
) -> None:
    """Every decision: what was on offer, what was taken, what it gained."""
    import polars as pl

    from rollout_assets.inspection.context import require_row
    from rollout_assets.rollouts import rollout_step_objective_rows

    reader = open_store(store)
    frame = rollout_step_objective_rows(reader)
    if rollout is not None:
        require_row(reader, "rollouts", rollout)
        frame = frame.filter(pl.col("rollout_row_id") == rollout)
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
def tree(store: Store, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """What each recipe selected at each step, by position family."""
    from rollout_assets.rollouts import rollout_tree_summary_rows

    frame = rollout_tree_summary_rows(open_store(store))
    shown = [name for name in frame.columns if name not in ("policy", "strategy", "sources")]
    show_frame("rollout trees", frame, shown, as_json, as_csv)


@app.command()
def depth(
    store: Store,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many images.", min=1)] = 128,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Depth images of selected views: valid and far pixels, least, median and greatest depth."""
    from rollout_assets.rollouts import selected_depth_summary_rows

    show_frame("selected depth", selected_depth_summary_rows(open_store(store), limit), None, as_json, as_csv)


@app.command()
def suspicious(
    store: Store,
    kind: Annotated[str | None, typer.Option(help="Only this kind of finding.")] = None,
    limit: Limit = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Rows that look wrong, and why; exit code 2 when one of them is an error."""
    import polars as pl

    from rollout_assets.inspection.suspicious import KINDS
    from rollout_assets.rollouts import suspicious_rollout_rows

    if kind is not None and kind not in KINDS:
        raise ConfigError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    frame = suspicious_rollout_rows(open_store(store))
    found = frame if kind is None else frame.filter(pl.col("kind") == kind)
    if not as_json and not as_csv:
        counts = found.group_by("kind", "severity", maintain_order=True).agg(pl.len().alias("rows"))
        show_frame("suspicious rows by kind", counts, None, False, False)
    show_frame("suspicious rows", found, None, as_json, as_csv, limit)
    if (found["severity"] == "error").any():
        raise typer.Exit(WRONG)


@app.command()
def ready(store: Store, as_json: AsJson = False) -> None:
    """Is it worth training on? Exit code 2 when not."""
    from rollout_assets.rollouts import training_readiness

    found = training_readiness(open_store(store))
    if as_json:
        print_json({"verdict": found.verdict, "measures": found.measures, "by_policy": found.by_policy.to_dicts()})
    else:
        rows = [(m.name, f"{m.value:.4g}", m.wanted, m.status, m.meaning) for m in found.measures]
        print_table(f"{store}: {found.verdict}", ("measure", "value", "wanted", "status", "meaning"), rows)
        show_frame("support by recipe", found.by_policy, None, False, False)
    if found.verdict == "not ready":
        raise typer.Exit(WRONG)


@app.command()
def explain(
    store: Store,
    candidate: Annotated[int, typer.Argument(help="A candidate row.", metavar="CANDIDATE", min=0)],
    as_json: AsJson = False,
) -> None:
    """Everything about one candidate: rules with measured values and limits, errors, source, mesh, config, commit."""
    from rollout_assets.rollouts import explain as explain_candidate

    found = explain_candidate(open_store(store), candidate)
    if as_json:
        print_json(found)
    else:
        _show_explanation(found)


@app.command()
def replay(
    store: Store,
    rollout: Annotated[
        int | None, typer.Argument(help="A rollout row; default: every source row.", metavar="[ROLLOUT]")
    ] = None,
    campaign: Campaign = None,
    sources: Annotated[int | None, typer.Option("--sources", help="Only the first source rows.", min=1)] = None,
    tolerance: Annotated[float, typer.Option(help="For stores made on another device.", min=0.0)] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Recompute from lineage and seed, and compare every stored value; exit code 2 when one differs."""
    from rollout_assets.rollouts import replay as replay_rollout
    from rollout_assets.rollouts import replay_sources

    reader = open_store(store)
    config = required_campaign(reader, campaign)
    if rollout is not None:
        done = [replay_rollout(reader, rollout, config, tolerance=tolerance)]
    else:
        count = reader.num_rows("sources")
        rows = range(count if sources is None else min(sources, count))
        with progress_bars() as progress:
            done = list(replay_sources(reader, config, rows, tolerance=tolerance, progress=progress))
    _show_replays(done, as_json)


@app.command("second-opinion")
def second_opinion(
    store: Store,
    fraction: Annotated[float, typer.Option(help="Share of labelled candidates to score again.")] = 0.001,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many candidates.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="The same seed draws the same candidates.")] = 0,
    campaign: Campaign = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Score random candidates again with the naive oracle; exit code 2 when it disagrees. Seconds a candidate."""
    from rollout_assets.rollouts import second_opinion as ask_again

    reader = open_store(store)
    with progress_bars() as progress:
        found = ask_again(reader, fraction, seed, required_campaign(reader, campaign), limit=limit, progress=progress)
    if as_json or as_csv:
        show_frame("", found.labels, None, as_json, as_csv)
    else:
        show_frame("second opinion", found.labels.drop("rollout_id"), None, False, False)
        verdict = "[green]agrees[/]" if found.agrees else f"[red]disagrees on {found.findings.height} label(s)[/]"
        note(f"{verdict}: {found.candidates:,} of {found.labelled:,} labelled candidates scored again")
    if not found.agrees:
        raise typer.Exit(WRONG)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(help="A store.", metavar="A")],
    b: Annotated[str, typer.Argument(help="Another store.", metavar="B")],
    tolerance: Annotated[float, typer.Option(help="How far numbers may be apart, relative beyond 1.", min=0.0)] = 0.0,
    depth: Annotated[bool, typer.Option("--depth/--no-depth", help="Also compare depth images.")] = True,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Compare two stores row by row: rows, masks, labels, lineage, depth; exit code 2 when they differ."""
    from rollout_assets.rollouts import diff_stores

    found = diff_stores(open_store(a), open_store(b), tolerance=tolerance, depth=depth)
    if as_json:
        print_json({"a": a, "b": b, "rows_compared": found.rows_compared, "differences": found.differences.to_dicts()})
    elif as_csv or not found.equal:
        show_frame(f"a = {a}, b = {b}", found.differences, None, False, as_csv)
    if not as_json and not as_csv:
        compared = ", ".join(f"{count:,} {table}" for table, count in found.rows_compared.items())
        note(f"{'[green]equal[/]' if found.equal else '[red]different[/]'}: compared {compared}")
    if not found.equal:
        raise typer.Exit(WRONG)


def _show_explanation(found: Explanation) -> None:
    for line in found.story:
        note(line)
    rules = [(r.rule, r.measured, r.limit or "not recorded", r.passed, r.reason) for r in found.rules]
    print_table("rules", ("rule", "measured", "limit", "passed", "reason"), rows=rules)
    show_records("oracle", vars(found.errors))
    show_records("source", found.source)
    target = ("target_id", "target_class_name", "gt_match_status", "gt_match_iou", "matched_gt_target_id", "reason")
    show_records("target", {name: found.target[name] for name in target})
    show_records("hashes", found.hashes)
    confirmed = {
        True: "hashes agree with the row's lineage",
        False: "NOT what the row's lineage says",
        None: "not recorded",
    }
    sections: dict[str, Any] = {key: value for part in found.config.values() for key, value in part.items()}
    show_records(f"config ({confirmed[found.config_confirmed]})", sections)
    show_records("made by", found.made_by)


def _show_replays(done: Sequence[Replay], as_json: bool) -> None:
    wrong = [found for found in done if not found.identical]
    if as_json:
        print_json(
            [
                {"subject": f.subject, "rows_compared": f.diff.rows_compared, "differences": f.differences.to_dicts()}
                for f in done
            ]
        )
    else:
        for found in wrong:
            show_frame(f"{found.subject}: stored is a, recomputed is b", found.differences, None, False, False)
        rows = sum(found.diff.rows_compared["candidates"] for found in done)
        rollouts = sum(found.diff.rows_compared["rollouts"] for found in done)
        verdict = f"[red]{len(wrong)} of {len(done)} differ[/]" if wrong else "[green]identical[/]"
        out.print(f"{verdict}: {rollouts:,} rollouts, {rows:,} candidates recomputed", highlight=False, soft_wrap=True)
    if wrong:
        raise typer.Exit(WRONG)
