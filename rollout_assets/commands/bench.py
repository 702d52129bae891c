"""`rollout-assets bench`: figures of this machine, measured in one run."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from rollout_assets.commands.opened_store import refuse_missing_source, refuse_missing_store
from rollout_assets.commands.terminal import AsJson, CampaignOption, out, print_json, progress_bars
from rollout_assets.config import DEMO_CAMPAIGN, CampaignConfig, load_campaign
from rollout_assets.errors import ConfigError

app = typer.Typer(help="Measure speed and exactness on this machine.", no_args_is_help=True)


@app.command()
def oracle(
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes, done in well under a minute.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of the measured scenes.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The oracle's kernels against brute force: speed, growth and exactness."""
    from rollout_assets.benchmarks.oracle_results import FULL, QUICK

    _run("oracle.run_oracle_benchmark", as_json, sizes=QUICK if quick else FULL, device=device, seed=seed)


@app.command()
def kernels(
    tree_faces: Annotated[int, typer.Option(help="Faces of the tree that is built and read.", min=1_000)] = 5_000_000,
    as_json: AsJson = False,
) -> None:
    """Rays, a large tree and a second process on the CPU, in one table."""
    _run("kernels.benchmark_kernels", as_json, tree_faces=tree_faces)


@app.command()
def rollouts(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    rows: Annotated[int | None, typer.Option(help="Only the first rows; default: all.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Seconds per target of a campaign's source, and where they go."""
    _run("rollouts.benchmark_rollouts", as_json, config=_with_source(campaign), rows=rows)


@app.command()
def labels(
    homes: Annotated[int, typer.Option(help="Homes to build, one walk in each.", min=1)] = 2,
    as_json: AsJson = False,
) -> None:
    """Gains of the same views at 30k, 100k and 300k faces, and the cost of the old and the new label definitions."""
    _run("labels.benchmark_labels", as_json, homes=homes)


@app.command()
def store(
    rows: Annotated[int, typer.Option(help="Candidate rows of the measured store.", min=6_000)] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Writing, validating, reading and training from a rollout store, beside plain zarr and NumPy."""
    _run("store.benchmark_store", as_json, rows=rows)


@app.command()
def learning(
    rollouts: Annotated[
        Path | None, typer.Option("--store", help="A rollout store with selected depth; default: one is made up.")
    ] = None,
    source: Annotated[Path | None, typer.Option(help="The source store that it was made from.")] = None,
    states: Annotated[int, typer.Option(help="States of a made-up store.", min=200)] = 3_000,
    as_json: AsJson = False,
) -> None:
    """Training batches with observations: first epoch, later epochs and workers, beside plain NumPy."""
    if (rollouts is None) != (source is None):
        raise typer.BadParameter("--store and --source belong together; give both or neither")
    if rollouts is not None and source is not None:
        refuse_missing_store(rollouts)
        refuse_missing_source(source)
    _run("observations.benchmark_learning", as_json, store=rollouts, source=source, states=states)


@app.command()
def promotion(
    shards: Annotated[int, typer.Option(help="Shards to promote before one more is added.", min=4)] = 50,
    workers: Annotated[int, typer.Option(help="Worker processes to compare with one.", min=1)] = 2,
    tiny_shards: Annotated[int, typer.Option(help="Tiny shards to promote and check, then one more.", min=1)] = 320,
    as_json: AsJson = False,
) -> None:
    """What promoting shards costs, what one more costs, and what several workers bring."""
    _run("promotion.benchmark_promotion", as_json, shards=shards, workers=workers, tiny_shards=tiny_shards)


@app.command()
def campaign(
    shards: Annotated[int, typer.Option(help="Shards to plan.", min=10)] = 100_000,
    rows_per_shard: Annotated[int, typer.Option(help="Source rows in each.", min=1)] = 1,
    built: Annotated[int | None, typer.Option(help="Shards that are finished at the end; default: all.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Planning, status and sensors of a campaign of very many shards, each in a process of its own."""
    options = {"shards": shards, "rows_per_shard": rows_per_shard, "built": built}
    _run("instance.many_shards.benchmark_many_shards", as_json, **options)


@app.command()
def dagster(
    shards: Annotated[int, typer.Option(help="Tiny shards to run both ways.", min=1)] = 40,
    demo: Annotated[bool, typer.Option("--demo", help="The whole demo campaign instead of tiny shards.")] = False,
    backfill: Annotated[
        bool, typer.Option("--backfill", help="The shards headless, and by a backfill through a daemon.")
    ] = False,
    partitions: Annotated[
        int | None, typer.Option(help="Instead: a quiet tick and the UI's queries with so many shards.", min=2)
    ] = None,
    postgres: Annotated[
        bool, typer.Option("--postgres", help="With --backfill or --partitions: the instance keeps its records there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What Dagster adds to a shard: checks, validation, metadata and records of the run included."""
    if demo + backfill + (partitions is not None) > 1:
        raise typer.BadParameter("--demo, --backfill and --partitions measure different things; give one of them")
    if postgres and not backfill and partitions is None:
        raise typer.BadParameter("--postgres needs --backfill or --partitions")
    if partitions is not None:
        _run("instance.partitions.measure_partitions", as_json, partitions=partitions, postgres=postgres)
        return
    if backfill:
        _run("instance.backfill.measure_backfill", as_json, shards=shards, postgres=postgres)
        return
    if not demo:
        _run("instance.dagster.measure_dagster_overhead", as_json, shards=shards)
        return
    from rollout_assets.commands.demo import build_source

    config = load_campaign(DEMO_CAMPAIGN)
    with progress_bars() as progress:
        build_source(config, progress)
    _run("instance.dagster.measure_demo_overhead", as_json, source=config.source.store_dir)


@app.command()
def cluster(
    shards: Annotated[int, typer.Option(help="Shards a turn, an even number.", min=2)] = 8,
    template: Annotated[Path, typer.Option(help="The instance to measure with.", metavar="FILE")] = Path(
        "infra/cluster/ray/dagster.yaml"
    ),
    as_json: AsJson = False,
) -> None:
    """Shards a minute through Dagster on one and on two slots of Ray on this machine, and what the engine takes."""
    if not template.is_file():
        raise ConfigError(f"{template}: not the template infra/cluster/ray/dagster.yaml of a checkout")
    _run("cluster.benchmark_cluster", as_json, template=template, shards=shards)


@app.command()
def inspect(
    rows: Annotated[int, typer.Option(help="Candidate rows of the inspected store.", min=10_000)] = 1_000_000,
    depth: Annotated[bool, typer.Option("--depth", help="With the 240 x 240 depth image of every step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every inspection table, the suspicious rows and the report, over a large store."""
    _run("inspection.benchmark_inspection", as_json, rows=rows, depth=depth)


@app.command()
def aggregation(
    shards: Annotated[int, typer.Option(help="Result files to aggregate.", min=1)] = 200,
    lines: Annotated[int, typer.Option(help="Results in each.", min=20)] = 500,
    as_json: AsJson = False,
) -> None:
    """Metrics over many result files, merged into one: seconds and memory."""
    _run("aggregation.benchmark_aggregation", as_json, shards=shards, lines_per_shard=lines)


@app.command()
def collection(
    campaign: Annotated[
        str | None, typer.Option("--campaign", "-c", help="A campaign; default: a tiny one.", metavar="FILE|NAME")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rollouts a turn and side.", min=8)] = 200,
    as_json: AsJson = False,
) -> None:
    """Rollouts of a server beside the same rollouts in this process, eight in flight."""
    if campaign is not None:
        load_campaign(campaign)
    _run("collection.benchmark_collection", as_json, campaign=campaign, rows=rows)


@app.command()
def policies(
    store: Annotated[Path, typer.Option(help="The store that the trees are trained on.", metavar="STORE")],
    source: Annotated[list[Path], typer.Option(help="The source of the stores; may be given again.", metavar="SOURCE")],
    held_out: Annotated[
        Path | None,
        typer.Option(help="The store to judge on; default: some scenes of STORE are held out.", metavar="STORE"),
    ] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(help="A checkpoint to judge too; may be given again.", metavar="FILE")
    ] = None,
    homes: Annotated[int | None, typer.Option(help="Train the trees on so many scenes only.", min=1)] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where observations are kept; default: in the data home.", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Policies on the same stored states: at random, simple ones, boosted trees on 22 features, and checkpoints."""
    for place in (store, *(() if held_out is None else (held_out,))):
        refuse_missing_store(place)
    for place in source:
        refuse_missing_source(place)
    places = {
        "store": store,
        "sources": source,
        "held_out": held_out,
        "checkpoints": policy or (),
        "cache_dir": cache_dir,
    }
    _run("policies.benchmark_policies", as_json, **places, homes=homes)


@app.command()
def environment(
    campaign: CampaignOption = DEMO_CAMPAIGN,
    rows: Annotated[int | None, typer.Option(help="Only the first rows; default: all.", min=1)] = None,
    members: Annotated[int, typer.Option(help="Members of the vector environment.", min=1)] = 16,
    as_json: AsJson = False,
) -> None:
    """Views a second of the Gymnasium vector environment beside the engine's, over the same roots."""
    _run("environment.benchmark_environment", as_json, config=_with_source(campaign), rows=rows, members=members)


def _with_source(campaign: str) -> CampaignConfig:
    """The campaign, if its source is there."""
    config = load_campaign(campaign)
    refuse_missing_source(config.source.store_dir)
    return config


def _run(benchmark: str, as_json: bool, **options: Any) -> None:
    """Run a benchmark, given as module and function, and print what it measured.

    Its module is loaded only now, because each needs other heavy packages: torch, Dagster or a server.
    """
    from rollout_assets.benchmarks.results import render, to_json

    module, _, function = benchmark.rpartition(".")
    measure = getattr(import_module(f"rollout_assets.benchmarks.{module}"), function)
    with progress_bars() as progress:
        result = measure(**options, progress=progress)
    if as_json:
        print_json(to_json(result))
    else:
        out.print(render(result))
