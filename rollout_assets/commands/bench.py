"""`rollout-assets bench`: figures of this machine, measured in one run."""

from __future__ import annotations

from typing import Annotated

import typer

from rollout_assets.commands.demo import build_source
from rollout_assets.commands.terminal import AsJson, CampaignOption, out, print_json, progress_bars
from rollout_assets.config import DEMO_CAMPAIGN, load_campaign

app = typer.Typer(help="Measure speed and exactness on this machine.", no_args_is_help=True)


@app.command()
def oracle(
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes, done in well under a minute.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the measured scenes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The oracle's kernels against brute force: speed, growth and exactness."""
    from rollout_assets.benchmarks.oracle import run_oracle_benchmark
    from rollout_assets.benchmarks.oracle_report import render_benchmark
    from rollout_assets.benchmarks.oracle_results import FULL, QUICK

    with progress_bars() as progress:
        result = run_oracle_benchmark(QUICK if quick else FULL, device=device, seed=seed, progress=progress)
    if as_json:
        print_json(result)
    else:
        out.print(render_benchmark(result))


@app.command()
def rollouts(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    rows: Annotated[int | None, typer.Option(help="Only the first rows; default: all.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Seconds per target of a campaign's source, and where they go."""
    from rollout_assets.benchmarks.rollouts import run_rollout_benchmark, show_rollout_benchmark

    with progress_bars() as progress:
        result = run_rollout_benchmark(load_campaign(campaign), rows, progress)
    if as_json:
        print_json(result)
    else:
        show_rollout_benchmark(result, out)


@app.command()
def store(
    rows: Annotated[int, typer.Option(help="Candidate rows of the measured store.", min=6_000)] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Writing, validating, reading and training from a rollout store, beside plain zarr and NumPy."""
    from rollout_assets.benchmarks.learning import loader_rates
    from rollout_assets.benchmarks.store import benchmark_store, render

    with progress_bars() as progress:
        result = benchmark_store(rows, loader=loader_rates, progress=progress)
    if as_json:
        print_json(result)
    else:
        render(result, out)


@app.command()
def promotion(
    shards: Annotated[int, typer.Option(help="Shards to promote before one more is added.", min=4)] = 50,
    as_json: AsJson = False,
) -> None:
    """What promoting shards costs, and what one more costs."""
    from rollout_assets.benchmarks.promotion import benchmark_promotion, render_promotion_benchmark

    with progress_bars() as progress:
        result = benchmark_promotion(shards, progress=progress)
    if as_json:
        print_json(result)
    else:
        out.print(render_promotion_benchmark(result))


@app.command()
def dagster(
    shards: Annotated[int, typer.Option(help="Tiny shards to run both ways.", min=1)] = 40,
    demo: Annotated[bool, typer.Option("--demo", help="The whole demo campaign instead of tiny shards.")] = False,
    as_json: AsJson = False,
) -> None:
    """What Dagster adds to a shard: checks, validation, metadata and records of the run included."""
    from rollout_assets.benchmarks.dagster import measure_dagster_overhead, measure_demo_overhead

    if demo:
        config = load_campaign(DEMO_CAMPAIGN)
        with progress_bars() as progress:
            build_source(config, progress)
        result = measure_demo_overhead(config.source.store_dir)
    else:
        result = measure_dagster_overhead(shards)
    if as_json:
        print_json(result)
        return
    out.print(
        f"{result.shards} shards: {result.plain_s:.2f} s each without Dagster, {result.dagster_s:.2f} s with it; "
        f"adds {result.added_s:.2f} s ({result.added_cpu_s:.2f} s of CPU) a shard, {100 * result.share:.0f} %",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def inspect(
    rows: Annotated[int, typer.Option(help="Candidate rows of the inspected store.", min=10_000)] = 1_000_000,
    depth: Annotated[bool, typer.Option("--depth", help="With the 240 x 240 depth image of every step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every inspection table, the suspicious rows and the report, over a large store."""
    from rollout_assets.benchmarks.inspection import benchmark_inspection, render

    with progress_bars() as progress:
        result = benchmark_inspection(rows, depth=depth, progress=progress)
    if as_json:
        print_json(result)
    else:
        render(result, out)


@app.command()
def aggregation(
    shards: Annotated[int, typer.Option(help="Result files to aggregate.", min=1)] = 200,
    lines: Annotated[int, typer.Option(help="Results in each.", min=20)] = 500,
    as_json: AsJson = False,
) -> None:
    """Metrics over many result files, merged into one: seconds and memory."""
    from rollout_assets.benchmarks.aggregation import benchmark_aggregation

    with progress_bars() as progress:
        result = benchmark_aggregation(shards, lines, progress)
    if as_json:
        print_json(result)
        return
    out.print(
        f"{result.shards} files, {result.lines:,} results, {result.megabytes:.0f} MB: {result.seconds:.1f} s, "
        f"{result.lines_per_second:,.0f} results/s; memory grew by {result.grown_mb:.0f} MB",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def collection(
    campaign: Annotated[
        str | None, typer.Option("--campaign", "-c", help="A campaign; default: a tiny one.", metavar="FILE|NAME")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rollouts a turn and side.", min=8)] = 200,
    as_json: AsJson = False,
) -> None:
    """Rollouts of a server beside the same rollouts in this process, eight in flight."""
    from rollout_assets.benchmarks.collection import benchmark_collection

    with progress_bars() as progress:
        result = benchmark_collection(campaign, rows, progress=progress)
    if as_json:
        print_json(result)
        return
    out.print(
        f"campaign {result.campaign}, {result.in_flight} in flight: {result.in_process_per_s:.1f} rollouts/s in this "
        f"process, {result.remote_per_s:.1f} on a server; [bold]{result.ratio:.0%}[/] of it",
        highlight=False,
        soft_wrap=True,
    )
